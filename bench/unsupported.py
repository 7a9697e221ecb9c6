#!/usr/bin/env python3
"""How long a model that halfnote cannot take keeps its user waiting.

    bench/unsupported.py [--halfnote PROGRAM] [--nodes N]

Makes a graph of N nodes (default: 10,000) of which a third is unknown, a third has no gradient and
stands between weights and output, and a third is fine; another without the unknown ones; and one of
op-set 11. `halfnote compile` must refuse each with exit code 4 and name every op, and with
--json-errors every node. Prints the time of the whole process, the median of 5 runs of either. The
bar: less than 1 s; the exit code is 1 if it is missed.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = pathlib.Path(__file__).resolve().parent.parent
BAR = 1.0
RUNS = 5
KINDS = 7  # different unknown ops


def make_model(count, opset, with_unknown):
    nodes, value = [], "x"
    for i in range(count):
        kind, out = i % 3, f"v{i}"
        if kind == 0 and with_unknown:
            node = helper.make_node(f"Frob{i // 3 % KINDS}", [value], [out], f"frob{i}",
                                    domain="com.acme" if i % 2 else "")
        elif kind == 1:
            node = helper.make_node("MaxRoiPool", [value, "rois"], [out], f"hard{i}",
                                    pooled_shape=[2, 4])
        else:
            node = helper.make_node("Mul", [value, "w"], [out], f"mul{i}")
        nodes.append(node)
        value = out
    graph = helper.make_graph(
        nodes, "unsupported", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 4]),
         helper.make_tensor_value_info("rois", TensorProto.FLOAT, [1, 5])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 1, 2, 4])],
        [numpy_helper.from_array(np.ones((2, 4), np.float32), "w")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def timed(command):
    """The median time of the command, and its last run."""
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times), done


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halfnote", default=ROOT / "build/release/bin/halfnote")
    parser.add_argument("--nodes", type=int, default=10_000)
    arguments = parser.parse_args()
    missed = False
    cases = [("unknown and without gradient", 23, True), ("without gradient", 23, False),
             ("of op-set 11", 11, True)]
    print(f"{arguments.nodes} nodes                    seconds  exit  ops named      as JSON  "
          "nodes named")
    for name, opset, with_unknown in cases:
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "m.onnx"
            model.write_bytes(make_model(arguments.nodes, opset, with_unknown).SerializeToString())
            out = model.parent / "a"
            command = [arguments.halfnote, "compile", model, "--loss", "mse", "-o", out]
            seconds, done = timed(command)
            seconds_json, listed = timed([*command, "--json-errors"])
        wanted = ["MaxRoiPool"] + [f"Frob{k}" for k in range(KINDS) if with_unknown]
        named = sum(f"{op} (op-set {opset}" in done.stderr for op in wanted)
        refused = json.loads(listed.stderr)["refused"]
        nodes = {node for row in refused for node in row["nodes"]}
        # No gradient flows to the first MaxRoiPool if what stands before it is unknown.
        wanted_nodes = sum(i % 3 == 1 or (i % 3 == 0 and with_unknown)
                           for i in range(arguments.nodes)) - with_unknown
        missed |= max(seconds, seconds_json) >= BAR or done.returncode != 4
        missed |= named != len(wanted) or len(nodes) != wanted_nodes
        print(f"{name:<33} {seconds:7.2f}  {done.returncode:>4}  {named} of {len(wanted):<9} "
              f"{seconds_json:7.2f}  {len(nodes)} of {wanted_nodes}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
