#!/usr/bin/env python3
"""Training steps of halfnote and PyTorch on one GPU, on the same model and batch, by turns.

    bench/pytorch/gpu.py --model gpt2 --bin FOLDER --out LINES.jsonl [--work FOLDER]
        [--device cuda] [--precisions bf16,fp16] [--against eager,compiled,own-fp32,own-tf32]
        [--blocks 5] [--batch N]

A comparison is a line of JSON in LINES.jsonl: name, status (pass, fail, not run), the milliseconds
of both sides (median of the blocks), their ratio, the peak memory of PyTorch and the memory that we
planned. "eager" is autocast (with a GradScaler in fp16), "compiled" is torch.compile with
max-autotune and CUDA graphs; TF32 is allowed in what stays fp32, optimizers are fused. "own-fp32"
and "own-tf32" are our own steps in fp32, the latter with its products in TF32. The first losses of
both must agree. Ours copies its batch from the host in each step, PyTorch's lies on the device.
A model whose ops have no kernel for CUDA is "not run", with the list.

--device cpu runs the same comparison where there is no GPU, to test this program; its figures mean
nothing.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
CHECKED_STEPS = 3
TOLERANCE = 3e-2  # of the first losses: 16-bit roundings at other places
NO_KERNEL = "no kernel on this device"


def vit(_attention):
    import torchvision
    from models import WithLoss, call
    return WithLoss(torchvision.models.vit_b_16(), call)


def gpu_models(batch):
    """The models of models.py in the sizes of a GPU."""
    from models import MODELS, Model, images, tokens
    sizes = {"cifar_cnn": 128, "resnet50": 256, "bert": 32, "gpt2": 16, "vit": 128}
    n = {name: batch or size for name, size in sizes.items()}
    return {
        "cifar_cnn": replace(MODELS["cifar_cnn"], batch=lambda: images(n["cifar_cnn"], 32, 10)),
        "resnet50": replace(MODELS["resnet50"], batch=lambda: images(n["resnet50"], 224, 1000)),
        "bert": replace(MODELS["bert"], batch=lambda: tokens(n["bert"], 512, 30522)),
        "gpt2": replace(MODELS["gpt2"], batch=lambda: tokens(n["gpt2"], 1024, 50257)),
        "vit": Model(vit, lambda: images(n["vit"], 224, 1000), "adamw", 1e-4),
    }


class Ours:
    """halfnote-steps on the artifact: steps on request."""

    def __init__(self, programs, artifact, batch, device, tf32=False):
        self.process = subprocess.Popen(
            [programs / "halfnote-steps", artifact, batch, str(os.cpu_count()), device,
             *(["tf32"] if tf32 else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read().strip())
        self.about = json.loads(line)

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.process.stderr.read().strip())
        answer = json.loads(line)
        return statistics.median(answer["seconds"]), answer["losses"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Theirs:
    """A step of PyTorch with autocast; timed with one synchronisation a block."""

    def __init__(self, name, model, precision, how, device):
        import torch
        import models
        self.torch, self.device = torch, device
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        models.MODELS[name] = model
        module, (x, labels) = models.make(name, "sdpa")
        module, x, labels = module.to(device), x.to(device), labels.to(device)
        if model.channels_last:
            module = module.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        kind = device.split(":")[0]
        if how == "compiled":
            options = {"mode": "max-autotune"} if kind == "cuda" else {}
            module = torch.compile(module, **options)
        optimizer = self.make_optimizer(model, module.parameters())
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        scaler = torch.amp.GradScaler(kind, enabled=precision == "fp16" and kind == "cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(kind, dtype):
                loss = module(x, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach().clone()
        self.step = step
        if kind == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def make_optimizer(self, model, parameters):
        from models import WEIGHT_DECAY
        torch = self.torch
        if model.optimizer == "momentum":
            return torch.optim.SGD(parameters, lr=model.lr, momentum=0.9, fused=True)
        return torch.optim.AdamW(parameters, lr=model.lr, weight_decay=WEIGHT_DECAY, fused=True)

    def wait(self):
        if self.device.startswith("cuda"):
            self.torch.cuda.synchronize()

    def steps(self, count):
        self.wait()
        begin = time.perf_counter()
        losses = [self.step() for _ in range(count)]
        self.wait()
        return (time.perf_counter() - begin) / count, [loss.item() for loss in losses]

    def peak(self):
        return self.torch.cuda.max_memory_allocated() if self.device.startswith("cuda") else None


def export(name, model, folder):
    """NAME.onnx and NAME.npz, from the seed that PyTorch's side starts from."""
    import export as exporter
    import models
    models.MODELS[name] = model
    exporter.export(name, folder)


def compile_model(name, model, precision, args):
    from models import WEIGHT_DECAY
    optimizer = {"momentum": ["--optimizer", "momentum", "--momentum", "0.9"],
                 "adamw": ["--optimizer", "adamw", "--weight-decay", str(WEIGHT_DECAY)]}
    artifact = args.work / f"{name}.{precision}.hn.onnx"
    done = subprocess.run(
        [args.bin / "halfnote", "compile", args.work / f"{name}.onnx", "-o", artifact,
         "--precision", precision, "--loss-output", "loss", "--lr", str(model.lr),
         *optimizer[model.optimizer]], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return artifact


def by_turns(ours, theirs, args):
    """Whether the first losses agree, seconds of a step in blocks of both sides, the losses."""
    _, our_losses = ours.steps(CHECKED_STEPS)
    _, their_losses = theirs.steps(CHECKED_STEPS)
    mine, other = [], []
    for _ in range(args.blocks):
        mine.append(ours.steps(args.steps)[0])
        other.append(theirs.steps(args.steps)[0])
    agree = all(abs(a - b) <= TOLERANCE * abs(b) for a, b in zip(our_losses, their_losses))
    return agree, mine, other, our_losses, their_losses


def compare_own(ours, wide, args):
    """Mixed precision beside our own fp32."""
    agree, mine, other, our_losses, their_losses = by_turns(ours, wide, args)
    return {"status": "pass" if agree else "fail", "ms": 1e3 * statistics.median(mine),
            "own_ms": 1e3 * statistics.median(other),
            "ratio": statistics.median(b / a for a, b in zip(mine, other)),
            "planned_bytes": ours.about["memory"], "own_planned_bytes": wide.about["memory"],
            "losses": our_losses, "own_losses": their_losses}


def compare(ours, theirs, args):
    """Beside PyTorch: what both sides took."""
    agree, mine, other, our_losses, their_losses = by_turns(ours, theirs, args)
    return {"status": "pass" if agree else "fail", "ms": 1e3 * statistics.median(mine),
            "torch_ms": 1e3 * statistics.median(other),
            "ratio": statistics.median(b / a for a, b in zip(mine, other)),
            "tflops": ours.about["flops"] / statistics.median(mine) / 1e12,
            "planned_bytes": ours.about["memory"], "torch_peak_bytes": theirs.peak(),
            "losses": our_losses, "torch_losses": their_losses,
            "torch": theirs.torch.__version__}


def run(args):
    model = gpu_models(args.batch)[args.model]
    export(args.model, model, args.work)
    for precision in args.precisions.split(","):
        rows, ours = [], None
        batch = args.work / f"{args.model}.npz"
        try:
            artifact = compile_model(args.model, model, precision, args)
            for how in args.against.split(","):
                # Both sides start from the first weights.
                ours = Ours(args.bin, artifact, batch, args.device)
                name = f"{args.model} {precision} {how}"
                if how.startswith("own-"):
                    wide = Ours(args.bin, compile_model(args.model, model, "fp32", args), batch,
                                args.device, how == "own-tf32")
                    rows.append({"name": name, **compare_own(ours, wide, args)})
                    wide.close()
                else:
                    theirs = Theirs(args.model, model, precision, how, args.device)
                    rows.append({"name": name, **compare(ours, theirs, args)})
                    del theirs
                ours.close()
                ours = None
        except RuntimeError as error:
            status = "not run" if NO_KERNEL in str(error) else "fail"
            rows.append({"name": f"{args.model} {precision}", "status": status,
                         "why": str(error)})
        if ours is not None:
            ours.close()
        with open(args.out, "a", encoding="utf-8") as lines:
            for row in rows:
                print(json.dumps(row), file=lines)
                print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", required=True,
                        choices=["cifar_cnn", "resnet50", "bert", "gpt2", "vit"])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("."))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", default="bf16,fp16")
    parser.add_argument("--against", default="eager,compiled,own-fp32,own-tf32")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=0, help="another batch than the bar's")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    run(args)


if __name__ == "__main__":
    main()
