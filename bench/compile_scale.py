#!/usr/bin/env python3
"""How compile time and memory grow with the number of nodes.

    bench/compile_scale.py [--halfnote PROGRAM] [--nodes N,N,…] [--precision P] [--repeat N]

Makes a model of residual blocks (MatMul, Add, Relu, LayerNormalization, Mul, Sigmoid, Add; weights
of 8 x 8, so that weights weigh nothing) and compiles it for training with AdamW, large
enough for a training artifact of about 10,000, 30,000 and 100,000 nodes (all its graphs together;
the source model has a seventh of that, with 0.57 parameters a node). Prints the fastest of the
repeats (seconds by the clock, of CPU time), the memory of the program at its peak, and the slope
between neighbours: 1.0 is linear, 2.0 quadratic.
Bars: 100,000 nodes in less than 2 s and 300 MB.
"""
import argparse
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 8
BLOCK = 7  # nodes of a block


def make_model(path, nodes):
    random = np.random.default_rng(0)
    blocks = nodes // BLOCK
    made, weights, value = [], [], "x"

    def weight(name, *shape):
        values = random.normal(0, 0.3, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def node(op, inputs, output, **attributes):
        made.append(helper.make_node(op, inputs, [output], name=output + "_node", **attributes))
        return output

    for b in range(blocks):
        p = f"block{b}."
        h = node("MatMul", [value, weight(p + "w", WIDTH, WIDTH)], p + "m")
        h = node("Add", [h, weight(p + "b", WIDTH)], p + "a")
        h = node("Relu", [h], p + "r")
        h = node("LayerNormalization", [h, weight(p + "s", WIDTH), weight(p + "o", WIDTH)], p + "n")
        gate = node("Sigmoid", [h], p + "g")
        h = node("Mul", [h, gate], p + "x")
        value = node("Add", [h, value], p + "out")
    graph = helper.make_graph(
        made, "scale", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["N", WIDTH])], weights)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 23)])
    path.write_bytes(model.SerializeToString())
    return len(made)


def count_nodes(path):
    model = onnx.load(path)
    steps = (info.algorithm for info in model.training_info)
    return len(model.graph.node) + sum(len(graph.node) for graph in steps)


def run(command):
    """(seconds by the clock, CPU seconds, peak resident bytes)"""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    if status != 0:
        sys.exit(f"compile_scale: {' '.join(map(str, command))}: status {status}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halfnote", default=ROOT / "build/release/bin/halfnote")
    parser.add_argument("--nodes", default="1400,4200,14000", help="of the source model")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    titles = "source", "nodes", "seconds", "CPU s", "peak MB", "us/node"
    print(*(f"{title:>8}" for title in titles), " slope")
    last = None
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, options.nodes.split(",")):
            model = pathlib.Path(folder) / "model.onnx"
            source = make_model(model, count)
            artifact = model.with_suffix(".hn.onnx")
            command = [options.halfnote, "compile", model, "-o", artifact, "--loss", "mse", "-q",
                       "--optimizer", "adamw", "--precision", options.precision]
            seconds, cpu, peak = map(min, zip(*(run(command) for _ in range(options.repeat))))
            nodes = count_nodes(artifact)
            slope = math.log(cpu / last[1]) / math.log(nodes / last[0]) if last else math.nan
            last = nodes, cpu
            print(f"{source:8} {nodes:8} {seconds:8.2f} {cpu:8.2f} {peak / 1e6:8.0f} "
                  f"{1e6 * cpu / nodes:8.1f} {slope:6.2f}", flush=True)


if __name__ == "__main__":
    main()
