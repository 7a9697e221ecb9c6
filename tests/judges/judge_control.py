#!/usr/bin/env python3
"""Executes training steps with control flow in onnxruntime and compares with our runtime.

    tests/judges/judge_control.py FOLDER/WITH/PROGRAMS

Small classifiers whose hidden values go through an If, a Scan, a Loop that becomes a Scan, and one
that is unrolled. Compilation, runs, and bounds are those of judge_step.py; there is no PyTorch loss
here. Roundings in bodies are not counted: the bound for 16 bit is tighter than it had to be.
"""
import pathlib
import sys
import tempfile

import numpy as np
import onnx

import judge_step

WEIGHTS = {"w": (6, 8), "u": (8, 8), "v": (8, 3), "bias": (8,)}
LOOP = """t = Loop <body = l (int64 i, bool c, float[8,8] r) => (c2, r2) {
  c2 = Identity (c)
  m = MatMul (r, u)
  a = Add (m, h)
  r2 = Tanh (a)
}> (%s, , h)"""
CORES = {
    "if": """mean = ReduceMean <keepdims = 0> (h)
c = Greater (mean, zero)
t = If (c) <then_branch = a () => (p) { m = MatMul (h, u) p = Tanh (m) },
            else_branch = b () => (q) { n = Add (h, bias) q = Relu (n) }>""",
    "scan": """last, t = Scan <num_scan_inputs = 1, scan_input_directions = [1],
  body = s (float[8] r, float[8] e) => (r2, o) {
    m = MatMul (r, u)
    a = Add (m, e)
    r2 = Tanh (a)
    o = Mul (r2, bias)
  }> (bias, hh)
""",
    "loop": LOOP % "many",
    "short_loop": LOOP % "few",
}


def text_of(core):
    # A Scan over 8 rows would be unrolled: 1032 rows are not.
    return """<ir_version: 10, opset_import: ["" : 23]>
net (float[8,6] x, int64[8] labels) => (float loss, float[8,3] logits)
<float zero = {0}, int64 many = {1100}, int64 few = {3}, int64[2] times = {129, 1},
 int64[1] from = {0}, int64[1] to = {8}> {
  h = MatMul (x, w)
  hh = Tile (h, times)
  %s
  part = Slice (t, from, to)
  logits = MatMul (part, v)
  loss = SoftmaxCrossEntropyLoss (logits, labels)
}""" % core


def write_case(folder, name):
    """The model as a file with seeded weights, its inputs, and what judge_step wants to know."""
    numbers = np.random.default_rng(5)
    model = onnx.parser.parse_model(text_of(CORES[name]))
    for weight, shape in WEIGHTS.items():
        # Small, so that a thousand trips settle: nothing is blown up by the order of a sum.
        data = numbers.uniform(-0.3, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, weight))
    file, inputs_file = folder / "model.onnx", folder / "inputs.npz"
    onnx.save(model, file)
    inputs = {
        "x": numbers.uniform(-1, 1, (8, 6)).astype(np.float32),
        "labels": numbers.integers(0, 3, (8,)),
    }
    np.savez(inputs_file, **inputs)
    trainable = [w for w in WEIGHTS if w in CORES[name] or w in ("w", "v")]
    adamw = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    optimizers = {"sgd": {"lr": 0.1}, "adamw": adamw}
    return {
        "model": name,
        "file": file,
        "inputs_file": inputs_file,
        "inputs_arrays": inputs,
        "loss_output": "loss",
        "trainable": trainable,
        "optimizers": optimizers,
        "losses": {},
    }


def judge(programs, case, kind, precision, folder):
    artifact, steps = judge_step.compile_case(programs, case, kind, precision, folder)
    step, = steps
    onnx.checker.check_model(str(step), full_check=True)
    theirs, first = judge_step.run_onnxruntime(case, steps, artifact)
    ours = judge_step.run_ours(programs, artifact, case["inputs_file"], folder / "ours",
                               judge_step.steps_of(case))
    case["losses"][kind] = theirs.losses
    depth = None if precision == "fp32" else judge_step.count_roundings(step, precision)
    *differences, worst = judge_step.compare(case, kind, precision, theirs, ours, first, depth)
    missing = set(case["trainable"]) - set(theirs.states[0])
    if missing:
        differences.append(f"not among the states: {', '.join(sorted(missing))}")
    if int(ours.states[-1]["applied_step"]) < 1:
        differences.append("no step was applied: nothing was compared")
    verdict = "pass" if not differences else "FAIL"
    print(f"{case['model']:<10} {kind:<9} {precision}  "
          f"worst {worst[0]:.1e} of its bound ({worst[1]})  {verdict}")
    return differences


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    failed = 0
    for name in CORES:
        for kind in ("sgd", "adamw"):
            for precision in ("fp32", "bf16"):
                with tempfile.TemporaryDirectory() as folder:
                    case = write_case(pathlib.Path(folder), name)
                    differences = judge(pathlib.Path(sys.argv[1]), case, kind, precision,
                                        pathlib.Path(folder))
                failed += bool(differences)
                for line in differences:
                    print("    " + line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
