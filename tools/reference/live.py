#!/usr/bin/env python3
"""Compares with the PyTorch that is installed here; tests/test_torch_live.sh calls it.

    live.py BUILD SCRATCH [PART...]     BUILD: where 01_single_gpu/train is; SCRATCH: an empty folder

evaluation    a resnet18 trained by 01, and one trained by PyTorch, evaluated by two ranks of 07 and by
              torchvision: the same prediction for every test image, and the same counts
convnet, resnet18, resnet50
              one step from each of 5 states along a real run, complete tensors, with tests/test_step.c
folder        one step of a resnet18 on JPEG files, which torchvision's ImageFolder and transforms read too
adamw         20 steps of a lenet
programs      docs/pytorch/*.py, as their first lines say: each trains two epochs and counts the whole test set
amp           the steps in bf16 and f16, against autocast, with tests/test_step_amp.c
gpt           a step of two GPTs, with tests/test_gpt_step.c; and a checkpoint of ours evaluated by PyTorch, and
              one of PyTorch's by ours
"""
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from unittest import mock

import PIL
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torchvision import datasets, transforms

import gpt
import reference as ref

failures = 0


def check(holds, what):
    global failures
    failures += not holds
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)


class Place:
    """The programs, the scratch folder and the images: real ones, CIFAR-10's if they are there."""

    def __init__(self, build, scratch):
        self.build = build
        self.train = os.path.join(build, "01_single_gpu", "train")
        self.test_step = os.path.join(build, "..", "tests", "test_step")
        self.test_step_amp = os.path.join(build, "..", "tests", "test_step_amp")
        self.test_gpt_step = os.path.join(build, "..", "tests", "test_gpt_step")
        self.scratch = scratch
        self.name, self.folder = "fashion-mnist", ref.FASHION
        cifar = os.environ.get("DDP_CIFAR10")
        if cifar:
            self.name, self.folder = "cifar10", self.unpack(cifar)
        elif not os.path.isdir(ref.FASHION):
            print("skipped: no real images: set DDP_CIFAR10, or install dataset-fashion-mnist")
            sys.exit(77)
        self.set = f"{self.name}:{self.folder}"
        print(f"images: {self.set}", flush=True)

    def unpack(self, path):
        """The folder with CIFAR-10's .bin files: path, a folder in it, or an unpacked archive."""
        if not os.path.isdir(path):
            with tarfile.open(path) as archive:
                archive.extractall(self.file("cifar10"), filter="data")
            path = self.file("cifar10")
        inner = os.path.join(path, "cifar-10-batches-bin")
        return inner if os.path.isdir(inner) else path

    def load(self, train, side=32):
        """Bytes and labels, padded to side where the data set's images are smaller."""
        load = ref.load_cifar10 if self.name == "cifar10" else ref.load_fashion
        images, labels = load(self.folder, train)
        return ref.pad_images(images, side), torch.from_numpy(labels.astype(np.int64))

    def file(self, name):
        return os.path.join(self.scratch, name)

    def run(self, program, *args):
        """Runs a command -> whether it succeeded. Shows its output if it failed, or if it is a test."""
        done = subprocess.run([program, *map(str, args)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0 or program in (self.test_step, self.test_step_amp):
            print(done.stdout[-8000:], end="", flush=True)
        return done.returncode == 0


# --- steps ---------------------------------------------------------------------------------------

# Image size, images in a compared step, and the steps of the run after which states are taken. An untrained
# resnet50 is so badly conditioned that PyTorch's own float32 runs do not agree in three digits. So
# resnet50's first state comes after 20 steps.
STEPS = {
    "convnet": (28, 16, (0, 5, 20, 50, 100)),
    "resnet18": (32, 8, (0, 5, 10, 20, 40)),
    "resnet50": (64, 4, (20, 30, 40, 60, 80)),
}
TRAIN_ROWS, CANDIDATES = 32, 24


def batch_of(place, images, labels, side, ids):
    x = ref.normalise(images[ids], place.name)
    if x.shape[-1] < side:
        x = F.interpolate(x, size=side, mode="bilinear", align_corners=False)
    return x, labels[ids]


def calmest(model, momentum, batches):
    """-> kinks, number, batch, steps: the first batch that is calm, or the one with the fewest
    kinks."""
    best = None
    for i, batch in enumerate(batches):
        kinks = ref.find_kinks(model, batch[0])
        if kinks == 0:
            steps = ref.all_steps(model, momentum, *batch)
            if ref.is_calm(steps):
                return 0, i, batch, steps
        if best is None or kinks < best[0]:
            best = kinks, i, batch
    return *best, ref.all_steps(model, momentum, *best[2])


def states_along(place, arch, data, side, states):
    """Trains, and yields (step, model, momentum, order of the epoch) before each of these steps."""
    torch.manual_seed(1)
    model = ref.make_model(arch, channels=data[0].shape[1], side=data[0].shape[-1])
    order = ref.epoch_order(len(data[0]), 1, 0).numpy()

    def batch(step):
        return batch_of(place, *data, side, order[step * TRAIN_ROWS:(step + 1) * TRAIN_ROWS])

    for step, momentum in ref.states_along(model, batch, states):
        yield step, model, momentum, order


def steps_along(place, arch):
    """For each of a network's states -> (step, model, momentum), kinks, batch, all_steps."""
    side, rows, states = STEPS[arch]
    data = place.load(train=True, side=min(side, 32))
    for step, model, momentum, order in states_along(place, arch, data, side, states):
        kinks, _, batch, steps = calmest(model, momentum, (
            batch_of(place, *data, side, order[len(order) - (i + 1) * rows:][:rows])
            for i in range(CANDIDATES)))
        yield (step, model, momentum), kinks, batch, steps


def save_files(place, arch, state, batch, steps, limit=None):
    """-> the paths of a step and of its state."""
    step, model, momentum = state
    name = f"{arch}-{step}"
    state, path = place.file(f"{name}.state.safetensors"), place.file(f"{name}.step.safetensors")
    ref.save_state(state, arch, model, momentum, 1, step, TRAIN_ROWS, place.name)
    ref.save_step(path, model, steps, batch, {
        "arch": arch, "classes": 10, "global_step": step, "state": os.path.basename(state)}, limit)
    return path, state


def compare_steps(place, arch):
    if arch == "resnet50" and place.name != "cifar10":
        print("SKIPPED: resnet50: on images with black margins too many values are so near to ReLU's "
              "kink that PyTorch does not agree with PyTorch; set DDP_CIFAR10", flush=True)
        return
    for state, kinks, batch, steps in steps_along(place, arch):
        paths = save_files(place, arch, state, batch, steps)
        same = place.run(place.test_step, paths[0])
        check(same, f"{arch}: one step from the state after {state[0]} ({kinks} values near a kink)")
        for path in paths:
            os.remove(path)


def compare_autocast(place):
    for arch in ("convnet", "resnet18"):
        found, paths = {}, [place.file("amp.safetensors")]
        for state, _, batch, steps in steps_along(place, arch):
            paths += save_files(place, arch, state, batch, steps, limit=64)
            found |= ref.autocast_far(f"{arch}-{state[0]}", *state[1:], *batch)
        ref.save_amp(paths[0], found)
        check(place.run(place.test_step_amp, paths[0], arch, *STEPS[arch][2]),
              f"{arch}: steps in short types are as near to float64 as autocast's")
        for path in paths:
            os.remove(path)


def compare_adamw(place, lr=1e-3, rows=32, count=20):
    start, after, metrics = place.file("start.st"), place.file("after.st"), place.file("adamw.jsonl")
    images, labels = place.load(train=True)
    torch.manual_seed(1)
    model = ref.make_model("lenet", channels=images.shape[1])
    save_file(model.state_dict(), start)
    done = place.run(place.train, "--arch", "lenet", "--data", place.set, "--init", start, "--no-augment", "--seed", 1,
                     "-b", rows, "--max-steps", count, "-p", 1, "--metrics", metrics, "--save", after,
                     "--optim", "adamw", "--beta1", ref.ADAMW_BETAS[0], "--beta2", ref.ADAMW_BETAS[1],
                     "--wd", ref.ADAMW_WEIGHT_DECAY, "--lr", lr)
    optimizer, order = ref.make_adamw(model, lr), ref.epoch_order(len(images), 1, 0).numpy()
    losses = [ref.train_step(model, optimizer, *batch_of(place, images, labels, 32, ids))
              for ids in order[:count * rows].reshape(count, rows)]
    ours = np.array([e["loss"] for e in events_of(metrics, "step")])
    check(done and np.abs(ours - losses).max() <= 1e-3, f"adamw: {count} losses")
    old, new = load_file(start), load_file(after)
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        for key, theirs, zero in ((name, p.detach(), old[name]), ("ddp.exp_avg." + name, state["exp_avg"], 0),
                                  ("ddp.exp_avg_sq." + name, state["exp_avg_sq"], 0)):
            off = ((new[key] - theirs).norm() / (theirs - zero).norm()).item()
            check(off <= 1e-2, f"adamw: {key}: off by {off:.1e} of its change")


# --- a language model --------------------------------------------------------------------------------


def compare_text(place, text, sizes, path, what):
    """Evaluates a file of weights with 07 and with PyTorch, on the last tenth of the text."""
    metrics = place.file("gpt.jsonl")
    check(place.run(os.path.join(place.build, "07_dist_eval", "train"), *sizes_of(sizes), "--data", f"text:{text}",
                    "-e", "--init", path, "--amp", "off", "--metrics", metrics), f"{what}: evaluated")
    with open(text, "rb") as file:
        whole = np.frombuffer(file.read(), np.uint8)
    tokens = torch.from_numpy(np.unique(whole, return_inverse=True)[1][len(whole) * 9 // 10:])
    count = (len(tokens) - 1) // sizes["block"] * sizes["block"]
    model = gpt.GPT(**sizes)
    model.load_state_dict({name: value for name, value in load_file(path).items() if not name.startswith("ddp.")})
    with torch.no_grad():
        logits = model(tokens[:count].view(-1, sizes["block"])).flatten(0, 1)
    wanted, right = tokens[1:count + 1], (logits.argmax(1) == tokens[1:count + 1]).float().mean().item()
    loss, ours = F.cross_entropy(logits, wanted).item(), events_of(metrics, "eval")[0]
    check(ours["n"] == count and abs(ours["test_loss"] - loss) <= 1e-5 and abs(ours["top1"] / 100 - right) <= 2 / count,
          f"{what}: loss {ours['test_loss']}, PyTorch's {loss:.9g}; {ours['top1']}%, PyTorch's {100 * right:.6g}%")
    os.remove(metrics)


def sizes_of(sizes):
    return ("-a", "gpt", *(word for name in ("layers", "heads", "width", "block") for word in (f"--{name}", sizes[name])))


def compare_gpt(place):
    for seed, rows, sizes in ((3, 8, {"layers": 3, "heads": 4, "width": 64, "block": 32, "classes": 65}),
                              (4, 3, {"layers": 1, "heads": 3, "width": 36, "block": 7, "classes": 256})):
        path = place.file("gpt.step.safetensors")
        gpt.save_step(path, gpt.make_model(seed, **sizes), *gpt.make_batch(seed, rows, sizes["block"], sizes["classes"]))
        check(place.run(place.test_gpt_step, path), f"gpt: one step of {sizes}")
        os.remove(path)
    text, net = place.file("text"), place.file("gpt.safetensors")
    with open(text, "w", encoding="ascii") as file:
        file.write("\n".join(str(n * n) for n in range(5000)))
    sizes = {"layers": 2, "heads": 2, "width": 32, "block": 24, "classes": 11}
    check(place.run(place.train, *sizes_of(sizes), "--data", f"text:{text}", "-b", 16, "--lr", 0.05, "--max-steps", 50,
                    "--save", net), "gpt: train and save")
    compare_text(place, text, sizes, net, "our gpt")
    save_file(gpt.make_model(5, **sizes).state_dict(), net)
    compare_text(place, text, sizes, net, "PyTorch's gpt")


# --- pictures --------------------------------------------------------------------------------------

SIDE, PICTURE_ROWS = 64, 8
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def picture_batches(tree, boxes, order):
    """Batches as torchvision makes them, but with our random numbers for RandomResizedCrop and the flip."""
    dataset = datasets.ImageFolder(tree)
    crop = transforms.RandomResizedCrop(SIDE)
    finish = transforms.Compose([transforms.ToTensor(), transforms.Normalize(*IMAGENET)])
    for ids in order.split(PICTURE_ROWS):
        images, labels = [], []
        for i in ids.tolist():
            x, y, width, height, flip = boxes[i].tolist()
            with mock.patch.object(crop, "get_params", return_value=(y, x, height, width)):
                image = crop(dataset[i][0])
            images.append(finish(transforms.functional.hflip(image) if flip else image))
            labels.append(dataset[i][1])
        yield torch.stack(images), torch.tensor(labels)


def compare_pixels(place, tree, options, seed, what):
    """-> batches of the training pictures: our pixels, torchvision's labels."""
    made = place.file("pictures.safetensors")
    place.run(f"{place.build}/../tests/tool_images", "--out", made, *options)
    made = load_file(made)
    order = ref.epoch_order(len(made["labels"]), seed, 0)
    batches = list(picture_batches(f"{tree}/train", made["boxes"], order))
    ours = ref.normalise_by(torch.stack([made["images"][i] for i in order.tolist()]).numpy(), IMAGENET)
    theirs = torch.cat([images for images, _ in batches])
    levels = (theirs - ours).abs() * 255 * torch.tensor(IMAGENET[1]).view(3, 1, 1)
    check(levels.mean() <= 2 and levels.max() < 16.5, f"{len(theirs)} {what}, cropped, resized, mirrored and normalised: "
          f"with Pillow {PIL.__version__}, values are {levels.mean():.4f} levels off on average, at most {levels.max():.0f}")
    return list(zip(ours.split(PICTURE_ROWS), (labels for _, labels in batches)))


def odd_pictures(place):
    """A tree of grey, CMYK, progressive, interlaced... files, all named .png whatever their format."""
    tree, corpus = place.file("odd"), os.path.join(os.environ["SRC"], "tests", "fuzz", "corpus", "picture")
    for folder in ("train/a", "train/b", "val/a", "val/b"):
        os.makedirs(f"{tree}/{folder}")
        for name in os.listdir(corpus):
            if name not in ("png_rgb", "png_grey16"):       # tools/reference/pictures.py
                shutil.copy(f"{corpus}/{name}", f"{tree}/{folder}/{name}.png")
    return tree


def wrong_tensors(model, steps, path):
    """The tensors that a saved step changed differently from PyTorch, by the rules of tests/test_step.c."""
    (_, f32), (_, f64), far = steps
    old, new, wrong = model.state_dict(), load_file(path), []
    for key in (key for key in f32 if not key.startswith("grad.")):
        name = key.split(".", 1)[1]
        ours = (new[name].double() - old[name].double()).numpy()
        close = np.abs(ours - f32[key]).max() <= 1e-3 * np.abs(f32[key]).max()
        if not close and not np.abs(ours - f64[key]).max() <= 2 * far[key]:
            wrong.append(key)
    return wrong


def compare_folder(place, seed=4):
    tree, odd = place.file("pictures"), odd_pictures(place)
    before, after = place.file("before.safetensors"), place.file("after.safetensors")
    options = "--image-size", SIDE, "--seed", seed, "--data"
    compare_pixels(place, odd, (*options, odd), seed, "odd pictures")
    options += (tree,)
    place.run(f"{place.build}/as_folder", "--data", place.set, "--train-samples", 400,
              "--test-samples", 50, "--as-folder", tree, "--scale", 96, "--format", "jpeg")
    batches = compare_pixels(place, tree, options, seed, "pictures")

    torch.manual_seed(1)
    model = ref.make_model("resnet18")
    optimizer = ref.make_optimizer(model)
    for batch in batches[:CANDIDATES]:
        ref.train_step(model, optimizer, *batch)
    momentum = ref.momentum_of(model, optimizer)
    kinks, number, _, steps = calmest(model, momentum, batches[:CANDIDATES])
    ref.save_state(before, "resnet18", model, momentum, seed, number, PICTURE_ROWS, "folder")
    done = place.run(place.train, *options, "--arch", "resnet18", "-b", PICTURE_ROWS, "--resume", before,
                     "--max-steps", number + 1, "--save", after)
    wrong = wrong_tensors(model, steps, after) if done else ["everything"]
    check(not wrong, f"a resnet18's step on pictures ({kinks} values near a kink) {' '.join(wrong[:5])}")


# --- evaluating ----------------------------------------------------------------------------------

def events_of(path, name):
    with open(path, encoding="utf-8") as file:
        return [e for e in map(json.loads, file) if e["event"] == name]


def compare_judged(what, found, counts, judged):
    """Compares step 07's predictions (rows of index, label, prediction) and counts with PyTorch's."""
    differ = (torch.from_numpy(found[:, 2].astype(np.int64)) != judged["prediction"]).nonzero()
    ties = judged["margin"][differ] <= 1e-4
    check(np.array_equal(found[:, 0], np.arange(len(judged["label"]))) and
          np.array_equal(found[:, 1], judged["label"].numpy()), f"{what}: each image once, in order")
    check(bool(ties.all()), f"{what}: {len(differ)} of {len(found)} predictions differ, "
          f"{int(ties.sum())} of them ties")
    before = judged["before"]
    for c, event in enumerate(counts):
        own = before[judged["label"] == c]
        theirs = len(own), int((own < 1).sum()), int((own < 5).sum())
        ours = event["n"], event["correct1"], event["correct5"]
        check(ours[0] == theirs[0] and all(abs(a - b) <= len(differ) for a, b in zip(ours, theirs)),
              f"{what}: of class {c}: images, right, right among five: {ours}, PyTorch: {theirs}")


def compare_network(place, net, what, data, ranks=2):
    """Evaluates a file of weights with 07 and with torchvision."""
    folder = os.path.join(place.build, "07_dist_eval")
    metrics, seen = place.file("eval.jsonl"), place.file("seen.csv")
    check(place.run(f"{folder}/launch", "-n", ranks, "--", f"{folder}/train", "--arch", "resnet18", "--data",
                    place.set, "-b", 128, "-e", "--init", net, "--amp", "off", "--per-class",
                    "--metrics", metrics, "--predictions", seen), f"{what}: evaluated by {ranks} ranks")
    images, labels = data
    model = ref.make_model("resnet18", channels=images.shape[1]).eval()
    model.load_state_dict({k: v for k, v in load_file(net).items() if not k.startswith("ddp.")})
    judged = ref.judge(model, ref.normalise(images, place.name), labels)
    compare_judged(what, np.loadtxt(seen, delimiter=",", skiprows=1, usecols=(0, 1, 2)), events_of(metrics, "class"), judged)
    ours, theirs = events_of(metrics, "eval")[0], judged["loss"].mean().item()
    check(abs(ours["test_loss"] - theirs) <= 1e-5 * max(1, theirs),
          f"{what}: top1 {ours['top1']}%, loss {ours['test_loss']}, PyTorch's loss {theirs:.9g}")
    for path in (net, metrics, seen):
        os.remove(path)


def compare_evaluation(place):
    tests, net = place.load(train=False), place.file("net.safetensors")
    check(place.run(place.train, "--arch", "resnet18", "--data", place.set, "-b", 128, "--max-steps", 100,
                    "--lr", 0.05, "--save", net), "train and save")
    compare_network(place, net, "our checkpoint", tests)
    data = place.load(train=True)
    torch.manual_seed(2)
    model = ref.make_model("resnet18", channels=data[0].shape[1]).train()
    optimizer = ref.make_optimizer(model)
    for ids in ref.epoch_order(len(data[0]), 1, 0)[:20 * 128].split(128):
        ref.train_step(model, optimizer, *batch_of(place, *data, 32, ids.numpy()))
    save_file(model.state_dict(), net)
    compare_network(place, net, "torchvision's checkpoint", tests)


def run_programs(place):
    folder = os.path.abspath(os.path.join(place.scratch, "programs"))
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/pytorch")
    os.makedirs(f"{folder}/bin")
    with open(f"{folder}/bin/scontrol", "w", encoding="utf-8") as script:
        script.write("#!/bin/sh\necho 127.0.0.1\n")
    os.chmod(f"{folder}/bin/scontrol", 0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"

    def outputs(step, ranks=0, tasks=({},)):
        # ranks: processes that torchrun starts (0: no torchrun). tasks: environment variables of each command.
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        command = [sys.executable, "-W", "ignore", *launch, f"{source}/{step}.py", "96"]
        started = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True,
                                    env=os.environ | {"OMP_NUM_THREADS": "1", "PATH": path} | more) for more in tasks]
        printed = "".join(process.communicate(timeout=300)[0] for process in started)
        check(not any(process.returncode for process in started), f"{step}.py ends well")
        return [line.split(":")[0] for line in printed.splitlines() if line.endswith(" of 19 right")]

    slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]", "SLURM_JOB_ID": str(os.getpid())}
    both = ["epoch 1", "epoch 2"]
    for step, found in {"01": outputs("01"), "02": outputs("02"), "03": outputs("03"), "04": outputs("04", 2),
                        "05": outputs("05", 2), "07": outputs("07", 3),
                        "06": outputs("06", tasks=[slurm | {"SLURM_PROCID": r, "SLURM_LOCALID": r} for r in "01"]),
                        }.items():
        check(found == both, f"{step}.py prints {both}, counting all 19 test images: {found}")
    check(outputs("04", 2) == [], "04.py, started again, resumes after epoch 2: nothing is left to do")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    print(f"torch {torch.__version__}, torchvision {ref.torchvision.__version__}")
    place = Place(*sys.argv[1:3])
    parts = {"evaluation": compare_evaluation, "folder": compare_folder, "adamw": compare_adamw,
             "amp": compare_autocast, "gpt": compare_gpt, "programs": run_programs}
    parts |= {arch: functools.partial(compare_steps, arch=arch) for arch in STEPS}
    for part in sys.argv[3:] or parts:
        parts[part](place)
    print(f"{failures} failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
