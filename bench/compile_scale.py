#!/usr/bin/env python3
"""How compile time and memory grow with the number of nodes.

    bench/compile_scale.py [--halfnote PROGRAM] [--shape NAME,…|all] [--nodes N,N,…] [--source]
                           [--precision P,P,…] [--repeat N]

Makes models of small weights (scale_shapes.py says what shapes there are; `blocks` is the one that
is measured without --shape) and compiles them for training with AdamW. --nodes counts those of the
artifact, all its graphs together; with --source those of the model that is given. Prints the
medians of the repeats (seconds by the clock, of CPU time), the memory of the program at its peak,
and the slope between neighbours: 1.0 is linear, 2.0 quadratic. The last line of a shape says what
100,000 nodes of its largest artifact take (memory above that of a model of ten nodes).
Bars: 100,000 nodes in less than 2 s and 300 MB.
"""
import argparse
import math
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIT = 100_000  # nodes that the bars speak of


def of_shapes(name, *arguments):
    """Calls a function of scale_shapes. Only the worker imports it: what a process takes when it
    starts another one counts in the other's peak."""
    import scale_shapes
    return getattr(scale_shapes, name)(*arguments)


def run(command):
    """(seconds by the clock, CPU seconds, peak resident bytes)"""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if status != 0:
        sys.exit(f"compile_scale: {' '.join(map(str, command))}: status {status}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


class Bench:
    def __init__(self, options, worker, folder, shape, precision):
        self.options, self.worker, self.shape = options, worker, shape
        self.model = pathlib.Path(folder) / "model.onnx"
        self.artifact = self.model.with_suffix(".hn.onnx")
        self.command = [options.halfnote, "compile", self.model, "-o", self.artifact, "--loss",
                        "mse", "-q", "--optimizer", "adamw", "--precision", precision]

    def measure(self, source, repeat):
        """(nodes of the model, of the artifact, seconds, CPU seconds, bytes)"""
        made = self.worker.apply(of_shapes, ("make", self.shape, self.model, source))
        measured = tuple(map(statistics.median, zip(*(run(self.command) for _ in range(repeat)))))
        return (made, self.worker.apply(of_shapes, ("count_nodes", self.artifact)), *measured)

    def run_all(self):
        small, large = self.measure(10, 1), self.measure(1000, 1)
        growth = (large[1] - small[1]) / (large[0] - small[0])  # nodes of the artifact for one
        last = None
        for count in map(int, self.options.nodes.split(",")):
            source = count if self.options.source else round(count / growth)
            made, nodes, seconds, cpu, peak = self.measure(source, self.options.repeat)
            slope = math.log(cpu / last[1]) / math.log(nodes / last[0]) if last else math.nan
            last = nodes, cpu
            print(f"{made:9}{nodes:9}{seconds:9.2f}{cpu:9.2f}{peak / 1e6:9.0f}"
                  f"{1e6 * cpu / nodes:9.1f}{1e6 * cpu / made:9.1f}{slope:9.2f}", flush=True)
        share = UNIT / nodes
        print(f"100,000 nodes of the artifact: {cpu * share:.2f} s, "
              f"{(peak - small[4]) * share / 1e6:.0f} MB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halfnote", default=ROOT / "build/release/bin/halfnote")
    parser.add_argument("--shape", default="blocks", help="names, or all")
    parser.add_argument("--nodes", default="10000,30000,100000", help="of the artifact")
    parser.add_argument("--source", action="store_true", help="--nodes counts those of the model")
    parser.add_argument("--precision", default="bf16", help="fp32, bf16, fp16")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    titles = "source", "nodes", "seconds", "CPU s", "peak MB", "us/node", "us/src", "slope"
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as worker, tempfile.TemporaryDirectory() as folder:
        known = worker.apply(of_shapes, ("described",))
        shapes = list(known) if options.shape == "all" else options.shape.split(",")
        for shape in shapes:
            if shape not in known:
                sys.exit(f"compile_scale: unknown shape {shape}: one of {', '.join(known)}")
            for precision in options.precision.split(","):
                print(f"{shape}, {precision}: {known[shape]}")
                print(*(f"{title:>9}" for title in titles), sep="")
                Bench(options, worker, folder, shape, precision).run_all()


if __name__ == "__main__":
    main()
