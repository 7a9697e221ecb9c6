#!/usr/bin/env python3
"""Training steps of halfnote and PyTorch by turns, from the same weights, on the same batch.

    bench/pytorch/compare.py [--models cifar_cnn,resnet50,bert,gpt2,mlp,lenet,small_resnet,
        small_mobilenet,small_transformer] [--precisions fp32,bf16]
        [--against eager,compiled,eager+mkl,compiled+mkl]
        [--attention sdpa,eager] [--blocks 5] [--steps 3] [--threads 2] [--bin build/release/bin]
        [--out build/bench/pytorch]

Each side is a process of its own that waits while the other one computes. A block is --steps steps
of ours, then as many of theirs; its ratio is theirs over ours, of the medians. The first three
losses of both must agree. Fusions of PyTorch that a user gets are on: fused optimizers,
channels_last for images, scaled_dot_product_attention. "+mkl" preloads a library that answers the
vendor check by which MKL slows down on AMD processors (gcc builds it in the output folder).

Prints a line for each comparison and writes results.json and results.md. Ends with 1 if losses
disagree. The machine must be idle: two threads that wait for each other on a busy one measure the
scheduler; the load is noted with each row. It wants Python packages of its own:
pip install -r bench/pytorch/requirements.txt
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHECKED_STEPS = 3
# Losses of the first steps: sums in another order, and in bf16 roundings at other places.
TOLERANCE = {"fp32": 2e-4, "bf16": 2e-2}
BUSY = 0.5
VENDOR_CHECK = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


class Side:
    """A process that runs steps on request."""

    def __init__(self, command, environment):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={**os.environ, **environment})
        self.about = self.answer()
        self.first_losses = []
        self.seconds = []

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"compare: ended early: {' '.join(map(str, self.command))}")
        return json.loads(line)

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.answer()

    def warm_up(self):
        self.first_losses = self.steps(CHECKED_STEPS)["losses"]

    def block(self, count):
        seconds = self.steps(count)["seconds"]
        self.seconds += seconds
        return statistics.median(seconds)

    def peak_memory(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def some_of(*known):
    """An argument: names of `known`, separated by commas."""
    def read(text):
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return text
    return read


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    models, precisions = ("cifar_cnn", "resnet50", "bert", "gpt2", "mlp", "lenet", "small_resnet",
                          "small_mobilenet", "small_transformer"), ("fp32", "bf16")
    forms = ("eager", "compiled", "eager+mkl", "compiled+mkl")
    for option, known in (("models", models), ("precisions", precisions), ("against", forms)):
        parser.add_argument(f"--{option}", type=some_of(*known), default=",".join(known),
                            help=f"some of {','.join(known)} (default: all)")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa",
                        help="of PyTorch")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/pytorch")
    return parser.parse_args()


def prepare(name, precision, args):
    """Exports and compiles, unless that is done; gives the artifact and the batch."""
    from models import MODELS, WEIGHT_DECAY  # torch is slow to import
    source, batch = args.out / f"{name}.onnx", args.out / f"{name}.npz"
    if not source.exists() or not batch.exists():
        subprocess.run([sys.executable, HERE / "export.py", name, args.out], check=True)
    model = MODELS[name]
    optimizer = {"momentum": ["--optimizer", "momentum", "--momentum", "0.9"],
                 "adamw": ["--optimizer", "adamw", "--weight-decay", str(WEIGHT_DECAY)]}
    artifact = args.out / f"{name}.{precision}.hn.onnx"
    subprocess.run([args.bin / "halfnote", "compile", source, "-o", artifact, "--precision",
                    precision, "--loss-output", "loss", "--lr", str(model.lr),
                    *optimizer[model.optimizer]], check=True, stdout=subprocess.DEVNULL)
    return artifact, batch


def vendor_stub(folder):
    source, library = folder / "vendor_check.c", folder / "vendor_check.so"
    source.write_text(VENDOR_CHECK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def torch_side(name, precision, how, args, stub):
    compiled, _, mkl = how.partition("+")
    environment = {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
    if mkl:
        environment["LD_PRELOAD"] = str(stub)
    return Side([sys.executable, HERE / "torch_worker.py", name, precision, str(args.threads),
                 compiled, args.attention], environment)


def agree(name, ours, theirs, precision):
    from models import MODELS
    first = TOLERANCE[precision]
    later = max(first, MODELS[name].later_losses)
    bounds = [first] + [later] * (CHECKED_STEPS - 1)
    pairs = zip(ours.first_losses, theirs.first_losses, bounds)
    return all(abs(a - b) <= bound * abs(b) for a, b, bound in pairs)


def compare(name, precision, how, ours, args, stub):
    """By turns; one row of the table."""
    load = os.getloadavg()[0]
    theirs = torch_side(name, precision, how, args, stub)
    theirs.warm_up()
    ours.seconds, ratios = [], []
    for _ in range(args.blocks):
        mine = ours.block(args.steps)
        ratios.append(theirs.block(args.steps) / mine)
    median = statistics.median(ours.seconds)
    peak = ours.about["bf16_peak" if precision == "bf16" else "f32_peak"]
    row = {"model": name, "precision": precision, "against": how,
           "ms": 1e3 * median, "ms_range": [1e3 * min(ours.seconds), 1e3 * max(ours.seconds)],
           "torch_ms": 1e3 * statistics.median(theirs.seconds),
           "ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)],
           "peak_share": ours.about["flops"] / median / peak,
           "planned_bytes": ours.about["memory"], "rss_bytes": ours.peak_memory(),
           "torch_rss_bytes": theirs.peak_memory(), "torch": theirs.about["torch"],
           "losses": ours.first_losses, "torch_losses": theirs.first_losses,
           "agree": agree(name, ours, theirs, precision), "load": load}
    theirs.close()
    return row


HEAD = ("| model | dtype | against | ours ms (range) | PyTorch ms | ratio (range) | matmul peak | "
        "planned / RSS MiB | PyTorch RSS |\n|---|---|---|---|---|---|---|---|---|")


def line(row):
    low, high = row["ms_range"]
    least, most = row["ratio_range"]
    note = "" if row["agree"] else " LOSSES DISAGREE"
    return (f"| {row['model']} | {row['precision']} | {row['against']} | "
            f"{row['ms']:.1f} ({low:.1f} to {high:.1f}) | {row['torch_ms']:.1f} | "
            f"**{row['ratio']:.2f}×** ({least:.2f} to {most:.2f}) | "
            f"{100 * row['peak_share']:.0f} % | {row['planned_bytes'] / 2**20:.0f} / "
            f"{row['rss_bytes'] / 2**20:.0f} | {row['torch_rss_bytes'] / 2**20:.0f}{note} |")


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    stub = vendor_stub(args.out.resolve())
    rows = []
    if os.getloadavg()[0] > BUSY:
        print(f"compare: the load is {os.getloadavg()[0]:.1f}: on a busy machine these figures "
              "mean nothing", file=sys.stderr)
    print(HEAD, flush=True)
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            artifact, batch = prepare(name, precision, args)
            ours = Side([args.bin / "halfnote-steps", artifact, batch, str(args.threads)],
                        {"OMP_NUM_THREADS": str(args.threads)})
            ours.warm_up()
            for how in args.against.split(","):
                rows.append(compare(name, precision, how, ours, args, stub))
                print(line(rows[-1]), flush=True)
            ours.close()
    (args.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    (args.out / "results.md").write_text("\n".join([HEAD, *map(line, rows)]) + "\n")
    return 0 if all(row["agree"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
