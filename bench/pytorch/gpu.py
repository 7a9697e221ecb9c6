#!/usr/bin/env python3
"""Training steps of halfnote and PyTorch on one GPU, on the same model and batch, by turns.

    bench/pytorch/gpu.py --model gpt2 --bin FOLDER --out LINES.jsonl [--work FOLDER]
        [--device cuda] [--precisions bf16,fp16] [--against eager,own-tf32,own-fp32,compiled]
        [--blocks 5] [--steps N] [--batch N] [--libraries FOLDERS] [--wide-conv] [--keep] [--tune]

    bench/pytorch/gpu.py --table LINES.jsonl…

A comparison is a line of JSON in LINES.jsonl, written as soon as it is known: name, status (pass,
fail, not run), the milliseconds of both sides (median of the blocks, and the least and the most of
them), their ratio, the steps of a block, the losses after the last one, the peak memory
of PyTorch and the memory that we planned; and of our step the floor (the least time on a machine of
these rates, kernel by kernel: bench/rates.h), the share of it that is reached, TFLOP/s and GB/s.
The rates of the GPU are those of its data sheet (PEAKS) and the driver's memory clock times bus
width, or measured where either is unknown: `rates` says which.

The kinds of --against follow each other, each in all precisions: what takes long to begin with
(compiled) comes last. --keep takes the exported model that an earlier call left in --work. With
--tune our side measures its kernels and algorithms first, as `halfnote run --tune` does, and keeps
what it measured in --work, which a command that follows one that was ended goes on with (and
PyTorch, with cudnn.benchmark and max-autotune, in any case); the names of such rows end in "tuned".

"eager" is autocast (with a GradScaler in fp16), "compiled" is torch.compile with max-autotune and
CUDA graphs; TF32 is allowed in what stays fp32, optimizers are fused. "own-fp32" and "own-tf32" are
our own steps in fp32, the latter with its products in TF32. The first losses of both must agree.
The batch of both lies on the device, and both are timed by the block: its time over its steps. A
block has as many steps as make it 0.3 s long on the faster side, 10 at least, on both sides the
same number; or --steps of them.

What stands in LINES.jsonl already is not compared again, unless it is "unfinished": the same call
goes on where the last one was cut off.

What goes wrong in a comparison is its line ("fail", "why"), and the next one follows. A model whose
ops have no kernel for CUDA is "not run", with the list. Where cuDNN has no exact plan for a
convolution in fp32, our own plain loops would take minutes a step: "own-fp32" is then "not run",
unless --wide-conv is given.

--device cpu runs the same comparison where there is no GPU, to test this program; its figures mean
nothing.
"""
import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
CHECKED_STEPS = 3
LEAST_STEPS = 10  # of a block
BLOCK_SECONDS = 0.3  # of a block at least: below that it measures how a step begins and ends
TOLERANCE = 3e-2  # of the first losses: 16-bit roundings at other places
NO_KERNEL = "no kernel on this device"
TERMINATED = "exit code -15"  # of our side, where the time of both is over
# Dense 16-bit FLOPs a second of the tensor cores, by what the name of a GPU holds, and bytes a
# second of its memory where the driver does not tell: data sheets.
PEAKS = {"H200": (989e12, 4.8e12), "H100 PCIe": (756e12, 2.0e12), "H100 NVL": (835e12, 3.9e12),
         "H100": (989e12, 3.35e12), "A100": (312e12, 1.56e12)}


def threads():
    """Of this process: a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0))


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
        **{name: replace(MODELS[name], batch=lambda: tokens(n["bert"], 512, 30522))
           for name in ("bert", "bert_dropout")},
        **{name: replace(MODELS[name], batch=lambda: tokens(n["gpt2"], 1024, 50257))
           for name in ("gpt2", "gpt2_dropout")},
        "vit": Model(vit, lambda: images(n["vit"], 224, 1000), "adamw", 1e-4),
    }


def own_environment(args):
    """Ours alone: PyTorch and the compilers that it starts take the machine's libraries."""
    environment = dict(os.environ)
    if args.libraries:
        before = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = args.libraries + (f":{before}" if before else "")
    return environment


class Ours:
    """halfnote-steps on the artifact: steps on request."""

    def __init__(self, args, artifact, batch, tf32=False):
        self.said = args.work / f"{artifact.name}.stderr"
        plan = artifact.with_suffix(".tf32.plan.json" if tf32 else ".plan.json")
        if not args.keep:  # of another build, maybe
            plan.unlink(missing_ok=True)
        with open(self.said, "w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                [args.bin / "halfnote-steps", artifact, batch, str(threads()), args.device,
                 *(["tf32"] if tf32 else []),
                 *([f"tune={plan}"] if args.tune else [])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True,
                env=own_environment(args))
        self.about = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            said = self.said.read_text(errors="replace").strip()
            raise RuntimeError(f"halfnote-steps: exit code {self.process.returncode}: {said}")
        return json.loads(line)

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def start(self):
        """Back to the first weights."""
        self.ask("start")

    def floor(self, rates):
        return self.ask(f"floor {rates['flops'] / 1e9:.6f} {rates['bytes'] / 1e9:.6f}")["floor"]

    def steps(self, count):
        answer = self.ask(count)
        return statistics.median(answer["seconds"]), answer["losses"]

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def sheet_rates(device):
    """Of a known GPU; None for another one."""
    import torch
    if not device.startswith("cuda"):
        return None
    about = torch.cuda.get_device_properties(torch.device(device))
    for name, (flops, moved) in PEAKS.items():
        if name not in about.name:
            continue
        clock = getattr(about, "memory_clock_rate", 0)  # kHz
        width = getattr(about, "memory_bus_width", 0)
        if clock and width:
            return {"flops": flops, "bytes": 2e3 * clock * width / 8,
                    "from": f"data sheet of {about.name}, the driver's memory clock and width"}
        return {"flops": flops, "bytes": moved, "from": f"data sheet of {about.name}"}
    return None


def measured_rates(device):
    """The best of some tries: a large bf16 product, and a copy."""
    import torch
    on_gpu = device.startswith("cuda")
    size = 8192 if on_gpu else 512

    def best(work):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return min(times)
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    b = torch.empty(size * size * 4, device=device)
    c = torch.empty_like(b)
    return {"flops": 2 * size**3 / best(lambda: a @ a),
            "bytes": 2 * b.nbytes / best(lambda: c.copy_(b)), "from": "measured by PyTorch"}


class Theirs:
    """A step of PyTorch with autocast; timed with one synchronisation a block."""

    def __init__(self, name, model, precision, how, device):
        import torch
        import models
        self.torch, self.device = torch, device
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
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
         *optimizer[model.optimizer]], capture_output=True, text=True,
        env=own_environment(args), check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return artifact


def steps_of_a_block(ours, theirs, args):
    """As many as both sides need for BLOCK_SECONDS; the blocks that tell warm both up."""
    if args.steps:
        return args.steps
    count = CHECKED_STEPS
    for _ in range(4):
        shortest = count * min(ours.steps(count)[0], theirs.steps(count)[0])
        if shortest >= BLOCK_SECONDS:
            break
        count = math.ceil(1.1 * count * BLOCK_SECONDS / max(shortest, 1e-6))
    return max(count, LEAST_STEPS)


def by_turns(ours, theirs, args):
    """How the first losses agree, with the last ones of both sides; seconds of a step in blocks of
    both sides; the first losses of both."""
    _, our_losses = ours.steps(CHECKED_STEPS)
    _, their_losses = theirs.steps(CHECKED_STEPS)
    count = steps_of_a_block(ours, theirs, args)
    mine, other = [], []
    for _ in range(args.blocks):
        seconds, our_last = ours.steps(count)
        mine.append(seconds)
        seconds, their_last = theirs.steps(count)
        other.append(seconds)
    about = {**agreement(our_losses, their_losses), "steps": count,
             "last_losses": listed([our_last[-1], their_last[-1]])}
    return about, mine, other, our_losses, their_losses


def milliseconds(name, blocks):
    """The median of the blocks, and their spread."""
    return {name: 1e3 * statistics.median(blocks), f"{name}_min": 1e3 * min(blocks),
            f"{name}_max": 1e3 * max(blocks)}


def agreement(ours, theirs):
    """Status of the first losses, and why if they differ. A loss that is no number is null in JSON,
    NaN from PyTorch."""
    finite = all(loss is not None and math.isfinite(loss) for loss in [*ours, *theirs])
    if not finite:
        return {"status": "fail", "why": "a loss is not finite"}
    if len(ours) != len(theirs):
        return {"status": "fail", "why": f"{len(ours)} losses beside {len(theirs)}"}
    if all(abs(a - b) <= TOLERANCE * abs(b) for a, b in zip(ours, theirs)):
        return {"status": "pass"}
    return {"status": "fail", "why": "the first losses differ"}


def listed(losses):
    """As JSON has them: it knows no NaN."""
    return [loss if loss is not None and math.isfinite(loss) else None for loss in losses]


def about_ours(ours, mine, rates):
    """Of our own step: what it reaches, beside what the machine could."""
    seconds, floor = statistics.median(mine), ours.floor(rates)
    return {**milliseconds("ms", mine), "floor_ms": 1e3 * floor, "floor_share": floor / seconds,
            "tflops": ours.about["flops"] / seconds / 1e12,
            "gbps": ours.about["bytes"] / seconds / 1e9, "planned_bytes": ours.about["memory"],
            "rates": rates}


def compare_own(ours, wide, args, rates):
    """Mixed precision beside our own fp32."""
    agree, mine, other, our_losses, their_losses = by_turns(ours, wide, args)
    return {**agree, **about_ours(ours, mine, rates),
            **milliseconds("own_ms", other),
            "ratio": statistics.median(b / a for a, b in zip(mine, other)),
            "own_planned_bytes": wide.about["memory"],
            "losses": listed(our_losses), "own_losses": listed(their_losses)}


def compare(ours, theirs, args, rates):
    """Beside PyTorch: what both sides took."""
    agree, mine, other, our_losses, their_losses = by_turns(ours, theirs, args)
    return {**agree, **about_ours(ours, mine, rates),
            **milliseconds("torch_ms", other),
            "ratio": statistics.median(b / a for a, b in zip(mine, other)),
            "torch_peak_bytes": theirs.peak(), "losses": listed(our_losses),
            "torch_losses": listed(their_losses), "torch": theirs.torch.__version__}


def free_torch():
    """What a comparison left in PyTorch's allocators and caches: the next one wants the memory."""
    import torch
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def compare_one(how, precision, ours, batch, args, rates):
    """The row of one comparison."""
    model = gpu_models(args.batch)[args.model]
    if not how.startswith("own-"):
        theirs = Theirs(args.model, model, precision, how, args.device)
        return compare(ours, theirs, args, rates)
    artifact = compile_model(args.model, model, "fp32", args)
    wide = Ours(args, artifact, batch, how == "own-tf32")
    try:
        slow = wide.about.get("plain_convolutions", 0)
        if slow and not args.wide_conv:
            return {"status": "not run", "why": f"{slow} convolutions by plain loops (own.conv)"}
        return compare_own(ours, wide, args, rates)
    finally:
        wide.close()


def failure(error):
    """The row of what went wrong, whatever it was."""
    said = str(error).strip() or type(error).__name__
    where = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(where.filename).name}:{where.lineno}"
    status = "not run" if NO_KERNEL in said else "fail"
    if TERMINATED in said:
        status = "unfinished"
    return {"status": status,
            "why": f"{type(error).__name__}: {said[-2000:]} ({where})"}


def write_row(args, name, row):
    line = json.dumps({"name": name, **row})
    with open(args.out, "a", encoding="utf-8") as lines:
        print(line, file=lines, flush=True)
    print(line, flush=True)


def rows_of_before(args):
    """The names of the rows that stand in --out, which loses what is to be done again: comparisons
    that were cut off, what no comparison came after, half a line."""
    if not args.out.exists():
        return set()
    lines, names = [], set()
    before = args.out.read_text(encoding="utf-8", errors="replace")
    for line in before.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["status"] != "unfinished" and row["name"] != args.model:
            lines.append(line + "\n")
            names.add(row["name"])
    if "".join(lines) != before:
        shorter = args.out.with_name(args.out.name + ".new")
        shorter.write_text("".join(lines), encoding="utf-8")
        shorter.replace(args.out)
    return names


class OurSides:
    """Our process of each precision, kept from one comparison to the next, and started anew where
    the last one died or a comparison went wrong."""

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.artifacts, self.processes = {}, {}

    def get(self, precision):
        ours = self.processes.get(precision)
        if ours is not None and ours.process.poll() is None:
            ours.start()  # both sides start from the first weights
            return ours
        self.close(precision)
        if precision not in self.artifacts:
            self.artifacts[precision] = compile_model(
                self.args.model, self.model, precision, self.args)
        batch = self.args.work / f"{self.args.model}.npz"
        ours = self.processes[precision] = Ours(self.args, self.artifacts[precision], batch)
        return ours

    def close(self, precision):
        ours = self.processes.pop(precision, None)
        if ours is not None:
            ours.close()


def run(args):
    """All comparisons of a kind in all precisions, then those of the next kind: what is compared
    with first is known for all before what comes last."""
    known = rows_of_before(args)
    tuned = " tuned" if args.tune else ""
    wanted = [(f"{args.model} {precision} {how}{tuned}", how, precision)
              for how in args.against.split(",") for precision in args.precisions.split(",")]
    wanted = [row for row in wanted if row[0] not in known]
    if not wanted:
        return
    model = gpu_models(args.batch)[args.model]
    try:
        if not args.keep or not (args.work / f"{args.model}.npz").exists():
            export(args.model, model, args.work)
        rates = sheet_rates(args.device) or measured_rates(args.device)
    except Exception as error:  # a row of its own, as everything that goes wrong
        write_row(args, args.model, failure(error))
        return
    free_torch()
    sides = OurSides(args, model)
    batch = args.work / f"{args.model}.npz"
    for name, how, precision in wanted:
        try:
            row = compare_one(how, precision, sides.get(precision), batch, args, rates)
        except Exception as error:
            row = failure(error)
            sides.close(precision)
        write_row(args, name, row)
        free_torch()
    for precision in args.precisions.split(","):
        sides.close(precision)


HEAD = ("| comparison | status | ours ms | theirs ms | ratio | floor ms | of floor | TFLOP/s | "
        "GB/s | planned MiB | PyTorch's peak MiB |\n|---|---|---|---|---|---|---|---|---|---|---|")


def table(files):
    """Of all comparisons in these files."""
    def number(row, key, form="{:.2f}", factor=1):
        return "" if row.get(key) is None else form.format(row[key] * factor)
    lines = [HEAD]
    for file in files:
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            theirs = "torch_ms" if "torch_ms" in row else "own_ms"
            cells = [row["name"], row["status"], number(row, "ms", "{:.3f}"),
                     number(row, theirs, "{:.3f}"), number(row, "ratio"),
                     number(row, "floor_ms", "{:.3f}"), number(row, "floor_share", "{:.0f} %", 100),
                     number(row, "tflops", "{:.1f}"), number(row, "gbps", "{:.0f}"),
                     number(row, "planned_bytes", "{:.0f}", 2**-20),
                     number(row, "torch_peak_bytes", "{:.0f}", 2**-20)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    if len(sys.argv) > 2 and sys.argv[1] == "--table":
        print(table(map(Path, sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        epilog="gpu.py --table LINES.jsonl…: the rows of such files as a table")
    parser.add_argument("--model", required=True,
                        choices=["cifar_cnn", "resnet50", "bert", "gpt2", "vit", "bert_dropout",
                                 "gpt2_dropout"])
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("."))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", default="bf16,fp16")
    parser.add_argument("--against", default="eager,own-tf32,own-fp32,compiled")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0,
                        help="of a block (default: as many as last 0.3 s, 10 at least)")
    parser.add_argument("--batch", type=int, default=0, help="another batch than the bar's")
    parser.add_argument("--libraries", default="",
                        help="folders that only our own programs look for libraries in")
    parser.add_argument("--keep", action="store_true", help="an exported model in --work will do")
    parser.add_argument("--tune", action="store_true", help="our side tunes itself first")
    parser.add_argument("--wide-conv", action="store_true",
                        help="own-fp32 even where convolutions are done by plain loops")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    run(args)


if __name__ == "__main__":
    main()
