#!/usr/bin/env python3
"""Executes the emitted steps of random training problems in onnxruntime.

    tests/judges/judge_random.py FOLDER/WITH/PROGRAMS [--seed N] [--count N]

`halfnote-random --emit` (tests/random/) compiles each problem in fp32 and in bf16 and writes the
step as one ordinary ONNX model, 16-bit operators as f32 between casts, with its inputs, the loss
and the gradients in f64, and how far each element may be off: kSafety (tests/random/judge.h) times
the most that random noise as large as 16 times the rounding of each value's type moved it in 16
runs. onnxruntime rounds where we round but sums in another order.
"""
import argparse
import json
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort

NUMPY = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "bool": np.bool_}
# Said while it runs: a convolution over an empty picture; one with dilations and auto_pad; a
# normalization of nothing; a transposed convolution to nothing; its own function bodies (whose
# nodes have no name) over an empty dim; a cubic Resize of another rank than 2 or 4.
REFUSALS = ["Invalid input shape", "Dilation not supported", "must be at least 1, got 0",
            "Computed output dimension is <= 0", "running Reshape node. Name:''",
            "'Cubic' mode only support"]
# Said when it loads: attributes of Resize that have no effect in this mode.
UNLOADED = ["NOT_IMPLEMENTED", "Could not find an implementation",
            "when anti-aliasing is set, Resize only supports",
            "exclude_outside can be set to 1 when"]
F64 = 1e-10  # of the largest number, as in judge.cc


def as_array(entry):
    return np.array(entry["data"], NUMPY[entry["dtype"]]).reshape(entry["shape"])


def session_of(path):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def pools_along_dilations(path):
    """With SAME_UPPER or SAME_LOWER its AveragePool gives another size than ONNX states: it leaves
    the dilations out."""
    for node in onnx.load(path).graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        same = attributes.get("auto_pad", b"").startswith(b"SAME")
        if "Pool" in node.op_type and same and any(d != 1 for d in attributes.get("dilations", [])):
            return True
    return False


def judge(path):
    """What differs, one line each; or the reason why onnxruntime does not take the model."""
    if pools_along_dilations(path):
        return [], "a pool with auto_pad and dilations"
    described = json.loads(path.with_suffix(".json").read_text())
    try:
        session = session_of(path)
    except Exception as error:  # onnxruntime's own kinds share no base
        if any(words in str(error) for words in UNLOADED):
            return [], str(error).split("for ")[-1][:60]
        return [f"not loaded: {error}"], None
    inputs = {i.name: as_array(described["inputs"][i.name]) for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    try:
        results = dict(zip(names, session.run(None, inputs)))
    except Exception as error:
        if any(words in str(error) for words in REFUSALS):
            return [], str(error).split("Status Message: ")[-1][:60]
        return [f"not run: {error}"], None
    lines = []
    for name, want in described["results"].items():
        key = described["loss"] if name == "loss" else name
        # What became a constant is passed on under another name.
        got = results[key if key in results else key + ".out"].astype(np.float64).ravel()
        exact = np.array(want["data"], np.float64)
        largest = np.abs(exact).max(initial=0)
        allowed = np.array(want["allowed"], np.float64) + F64 * largest
        off = np.abs(got - exact)
        if got.size != exact.size:
            lines.append(f"{name}: {got.size} elements, not {exact.size}")
        elif not (off <= allowed).all():
            at = int(np.nanargmax(off / np.maximum(allowed, 1e-300)))
            lines.append(f"{name} at {at}: {got[at]!r}, in f64 {exact[at]!r}, "
                         f"allowed {allowed[at]:.2e}")
    return lines, None


def judge_apart(path):
    """judge() in a process of its own: onnxruntime aborts on some models (an LSTM of few rows)."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=lambda: sender.send(judge(path)))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = None
    process.join()
    if result is None:
        if process.exitcode > 0:
            raise RuntimeError(f"{path.stem}: the judge failed")
        return [], f"ended by signal {-process.exitcode}"
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halfnote-random-") as folder:
        subprocess.run([options.programs / "halfnote-random", "--seed", str(options.seed),
                        "--count", str(options.count), "--emit-only", "--emit", folder],
                       check=True, stdout=subprocess.DEVNULL)
        models = sorted(pathlib.Path(folder).glob("*.onnx"))
        failed, refused = 0, []
        for path in models:
            lines, refusal = judge_apart(path)
            failed += bool(lines)
            refused += [refusal] if refusal else []
            for line in lines:
                print(f"{path.stem}: {line}")
    print(f"{len(models)} random steps, {len(models) - failed - len(refused)} agree, "
          f"{len(refused)} not taken by onnxruntime, {failed} differ")
    return 1 if failed or len(models) - len(refused) < options.count else 0


if __name__ == "__main__":
    sys.exit(main())
