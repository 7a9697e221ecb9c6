#!/usr/bin/env python3
"""Runs models in onnxruntime in which only one operand of a contraction knows a dim.

    tests/judges/judge_dims.py FOLDER/WITH/PROGRAMS

The other operand has a symbol there, which must be the same number. What is padded must be padded
on both sides or on none: the mixed inference graph in fp16 and the training step in emulated bf16
and fp16 run in onnxruntime, on the dims that fit, and give the loss of the model itself.

How far it may be off: the model has one contraction and a mean of squares of sums of at most 45
products. Both operands and the result are rounded, by u each (u = 2^-8 for bf16, 2^-11 for fp16),
so a product is off by 3 u, and a square of the sums by twice that, where |sum| counts its terms
without their signs: 6 u of mean((|x|·|w|)²).

Exit code 0: all ran, with that loss.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import parser

UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}
LOSS = "e = Mul(y, y)\n  loss = ReduceMean<keepdims=0>(e)"
MODELS = {  # inputs, shape of the weight, nodes that make y; the arrays of x
    "MatMul, K": ("float[batch,n] x", (5, 6), "y = MatMul(x, w)", (4, 5)),
    "MatMul, K on the left": ("float[n,batch] x", (6, 5), "y = MatMul(w, x)", (5, 4)),
    "Gemm, K transposed": ("float[n,batch] x", (6, 5), "y = Gemm<transA=1, transB=1>(x, w)",
                           (5, 4)),
    "Conv, channels": ("float[batch,c,4,4] x", (6, 5, 3, 3), "y = Conv(x, w)", (2, 5, 4, 4)),
    "Conv, channels of groups": ("float[batch,c,4,4] x", (6, 3, 3, 3), "y = Conv<group=2>(x, w)",
                                 (2, 6, 4, 4)),
    "ConvTranspose, channels": ("float[batch,c,4,4] x", (5, 6, 3, 3), "y = ConvTranspose(x, w)",
                                (2, 5, 4, 4)),
    "K that follows from values": (
        "float[batch,5] x", (5, 6),
        "s = Shape(x)\n  r = Abs(s)\n  z = Expand(x, r)\n  y = MatMul(z, w)", (4, 5)),
}


def make_model(inputs, weight, nodes, generator):
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
g ({inputs}) => (float loss) <float[{",".join(map(str, weight))}] w> {{
  {nodes}
  {LOSS}
}}""")
    array = generator.standard_normal(weight).astype(np.float32)
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    onnx.checker.check_model(model)
    return model


def run(model, feed):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})[0]


def loss_of(model, feed):
    return float(run(model.SerializeToString(), feed))


def bound(model, feed, precision):
    """6 u of the loss without signs."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    weight = onnx.numpy_helper.to_array(plain.graph.initializer[0])
    plain.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.abs(weight), "w"))
    return 6 * UNIT[precision] * loss_of(plain, {"x": np.abs(feed["x"])})


def read_states(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    kinds = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_, "I32": np.int32}
    states = {}
    for name, at in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in at["data_offsets"])
        states[name] = np.frombuffer(data[start:end], kinds[at["dtype"]]).reshape(at["shape"])
    return states


def judge(programs, name, folder):
    """Yields (what, loss, expected, allowed)."""
    inputs, weight, nodes, shape = MODELS[name]
    generator = np.random.default_rng(7)
    model = make_model(inputs, weight, nodes, generator)
    feed = {"x": generator.standard_normal(shape).astype(np.float32)}
    source = folder / "model.onnx"
    onnx.save(model, source)
    expected = loss_of(model, feed)
    forms = [("inference", "fp16", ["--inference"])]
    for precision in UNIT:
        step = ["--emit", "step", "--emulate-16bit", "--loss-output", "loss"]
        step += ["--optimizer", "sgd", "--lr", "0.1"]
        forms.append(("step", precision, step))
    for what, precision, flags in forms:
        made = folder / f"{what}.onnx"
        command = [programs / "halfnote", "compile", source, "-o", made, *flags]
        subprocess.run([*command, "--precision", precision, "--quiet"], check=True)
        states = read_states(folder / "step.states.safetensors") if what == "step" else {}
        loss = float(run(str(made), {**feed, **states}))
        yield f"{what} in {precision}", loss, expected, bound(model, feed, precision)


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    failed = 0
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                for what, loss, expected, allowed in judge(
                        pathlib.Path(sys.argv[1]), name, pathlib.Path(folder)):
                    off = abs(loss - expected)
                    verdict = "pass" if off <= allowed else "FAIL"
                    failed += verdict == "FAIL"
                    print(f"{name:<27} {what:<18} off by {off / allowed:.2f} of its bound  "
                          f"{verdict}")
            except Exception as error:  # onnxruntime has many kinds
                failed += 1
                print(f"{name:<27} FAIL: {str(error)[:300]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
