"""A GPT in PyTorch with the names and the arithmetic of karpathy/minGPT, and one step of it for tests/test_gpt_step.c.

make.py writes tests/reference/gpt.step.safetensors:

    metadata      layers, heads, width, block, classes, rows
    NAME          F32: the weights (multiples of 2^-8 that bf16 holds, so a cast changes none)
    tokens        I32 (rows, block); labels I32 (rows, block), -1: does not count
    grad.NAME     F64: the gradient in float64
    far.NAME      F64 (2): root mean square distances from grad.NAME: of autocast's gradient in bfloat16, in float16
    loss          F64 (3): in float64, and how far bfloat16 and float16 are from it
"""
import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        rows, block, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (p.view(rows, block, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(rows, block, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, heads, width, block, classes):
        super().__init__()
        self.sizes = {"layers": layers, "heads": heads, "width": width, "block": block, "classes": classes}
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(classes, width), "wpe": nn.Embedding(block, width),
            "h": nn.ModuleList(Block(width, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(width)})
        self.lm_head = nn.Linear(width, classes, bias=False)

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"](torch.arange(tokens.shape[1], device=tokens.device))
        for block in t["h"]:
            x = block(x)
        return self.lm_head(t["ln_f"](x))


def loss_of(model, tokens, labels):
    logits = model(tokens).to(model.lm_head.weight.dtype)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=-1)


def step(model, tokens, labels, dtype=None):
    """-> loss, gradients by name: in float64, or with autocast"""
    model = model.double() if dtype is None else model.float()
    model.zero_grad()
    scale = 1024 if dtype == torch.float16 else 1
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = loss_of(model, tokens, labels)
    (loss * scale).backward()
    return loss.item(), {n: p.grad.double() / scale for n, p in model.named_parameters()}


def make_model(seed, **sizes):
    """With weights large enough that every layer matters."""
    torch.manual_seed(seed)
    model = GPT(**sizes)
    for name, p in model.named_parameters():
        scale = 0.5 if p.dim() == 1 else 1.5 / math.sqrt(p.shape[1])
        base = 1 if p.dim() == 1 and name.endswith("weight") else 0
        p.data = (base + scale * (2 * torch.rand(p.shape) - 1)).bfloat16().float()
    return model


def make_batch(seed, rows, block, classes):
    torch.manual_seed(seed)
    tokens = torch.randint(classes, (rows, block), dtype=torch.int32)
    labels = torch.randint(classes, (rows, block), dtype=torch.int32)
    labels[-1, block // 2:] = -1
    return tokens, labels


def save_step(path, model, tokens, labels):
    exact, grads = step(model, tokens, labels)
    out, losses = {}, [exact]
    far = {name: [] for name in grads}
    for dtype in (torch.bfloat16, torch.float16):
        loss, short = step(model, tokens, labels, dtype)
        losses.append(abs(loss - exact))
        for name, g in grads.items():
            far[name].append((short[name] - g).square().mean().sqrt().item())
    for name, value in model.float().state_dict().items():
        out[name] = value.numpy()
        out["grad." + name] = grads[name].numpy()
        out["far." + name] = torch.tensor(far[name], dtype=torch.float64).numpy()
    out |= {"tokens": tokens.numpy(), "labels": labels.numpy(),
            "loss": torch.tensor(losses, dtype=torch.float64).numpy()}
    import reference as ref             # here, because tools/bench_torch.py needs only the network

    ref.write_file(path, out, {k: str(v) for k, v in (model.sizes | {"rows": tokens.shape[0]}).items()})


def make_gpt(folder):
    sizes = {"layers": 2, "heads": 2, "width": 16, "block": 12, "classes": 21}
    save_step(f"{folder}/gpt.step.safetensors", make_model(1, **sizes), *make_batch(2, 5, 12, 21))
