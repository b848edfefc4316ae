# beyond.py - prints the numbers of docs/beyond.md: what a GPU holds and sends in a step, for each way to divide the
# work among N GPUs. Change the first lines for your model.
N, SEQUENCES, TOKENS = 8, 8, 4096               # GPUs; sequences of a step, on all GPUs together; tokens of each
MODELS = {"1B": (20, 2048), "7B": (32, 4096)}   # layers, width
VOCABULARY = 32000


def of_models(formula):                         # of layers, width and parameters
    return [formula(L, d, 12 * L * d**2 + VOCABULARY * d) for L, d in MODELS.values()]


def row(name, state, activations, sent):
    cells = [f"{x / 1e9:.1f}" for numbers in (state, activations, sent) for x in of_models(numbers)]
    print(f"| {name} | {' | '.join(cells)} |")


around = (N - 1) / N                            # the share of an array that a GPU sends to gather or add it in a ring


def all_state(L, d, P): return 16 * P           # bf16: weights 2, gradients 2; f32: weights 4, AdamW's two means 8
def sequence(L, d, P): return 34 * L * d * TOKENS       # activations in bf16, with fused attention
def exchange(L, d, P): return 2 * around * 2 * P        # all-reduce of the gradients: reduce-scatter and all-gather
def keys_values(L, d, P): return 4 * d * TOKENS / N     # of one layer, for a piece of a sequence


columns = [f"{model} {what}" for what in ("state", "activations", "sent") for model in MODELS]
print("| GB per GPU |", " | ".join(columns), "|")
print("|---|" + "---:|" * len(columns))
row("DDP", all_state, sequence, exchange)
row("ZeRO-1", lambda L, d, P: 4 * P + 12 * P / N, sequence, exchange)
row("FSDP", lambda L, d, P: 16 * P / N + 2 * 12 * d**2, sequence, lambda L, d, P: 3 * around * 2 * P)
row("tensor", lambda L, d, P: 16 * P / N, lambda L, d, P: (10 + 24 / N) * L * d * TOKENS,
    lambda L, d, P: 4 * L * 2 * around * 2 * d * TOKENS * SEQUENCES)
row("pipeline", lambda L, d, P: 16 * P / N, sequence, lambda L, d, P: 2 * 2 * d * TOKENS * SEQUENCES)
row("context", all_state, lambda L, d, P: sequence(L, d, P) / N,
    lambda L, d, P: 3 * (N - 1) * L * SEQUENCES * keys_values(L, d, P) + exchange(L, d, P))
print(f"\nEach GPU of the pipeline is idle for {100 * (N - 1) / (SEQUENCES + N - 1):.0f} % of the step.")
