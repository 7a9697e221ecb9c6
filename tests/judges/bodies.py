#!/usr/bin/env python3
"""Runs the function bodies of ai.halfnote in onnxruntime and compares with our kernels.

    tests/judges/bodies.py PATH/TO/halfnote_ops_test

The test program writes every case of its body tests as an ONNX model (operands inside, outputs
got_i and want_i). A body does f32 math and rounds once, as the kernel does, so a result may be off
by one rounding of its type and by the error of a sum taken in another order. Exit code 0: all
bodies run and agree.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort

# Spacing of the element type at 1; the largest sums of the cases have some hundred terms.
SPACING = {
    onnx.TensorProto.FLOAT: 2.0**-23,
    onnx.TensorProto.FLOAT16: 2.0**-10,
    onnx.TensorProto.BFLOAT16: 2.0**-7,
}
SUMS = 128 * 2.0**-23


def write_cases(program, folder):
    """Has the test program write its cases."""
    environment = dict(os.environ, HALFNOTE_BODY_DIR=str(folder))
    command = [program, "--gtest_filter=*Body.*", "--gtest_brief=1"]
    subprocess.run(command, env=environment, check=True)


def element_type(model, index):
    """The type of result `index` of the call, before the cast that makes it readable."""
    call = next(n for n in model.graph.node if n.domain == "ai.halfnote")
    casts = {n.input[0] for n in model.graph.node if n.op_type == "Cast"}
    if call.output[index] not in casts:
        return onnx.TensorProto.FLOAT
    types = {i.name: i.data_type for i in model.graph.initializer}
    types.update({v.name: v.type.tensor_type.elem_type for v in model.graph.value_info})
    return types[call.output[index]]


def largest_operand(model):
    """The largest finite number among the operands of a call; 0 if none is a float."""
    call = next(n for n in model.graph.node if n.domain == "ai.halfnote")
    largest = 0.0
    for tensor in model.graph.initializer:
        if tensor.name not in call.input or tensor.data_type not in SPACING:
            continue
        numbers = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        largest = max(largest, np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
    return largest


def difference(got, want, spacing, operand):
    """How far `got` is off, in units of what is allowed; above 1 is wrong.

    Errors inside a body are relative to its operands, not to a small result (onnxruntime's Sigmoid,
    a rational approximation, is exact to about 1e-7 of 1 however small its value).
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return float("inf")
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if same.all():
        return 0.0
    finite = np.isfinite(want)
    largest = max(operand, np.abs(want[finite]).max(initial=0.0))
    allowed = spacing * np.maximum(np.abs(got), np.abs(want)) + SUMS * largest
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(got.astype(np.float64) - want.astype(np.float64)) / allowed
    return float(np.max(np.where(same, 0.0, np.where(np.isnan(ratio), np.inf, ratio))))


def judge(path):
    """Runs one case; what is wrong with it, or an empty string."""
    model = onnx.load(path)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnx.checker.check_model(model)
        session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        results = dict(zip(names, session.run(names, {})))
    except Exception as error:  # whatever the judge throws is its verdict
        return f"does not run: {' '.join(str(error).split())[:300]}"
    operand = largest_operand(model)
    for name in names:
        index = re.fullmatch(r"got_(\d+)", name)
        if not index:
            continue
        spacing = SPACING[element_type(model, int(index[1]))]
        off = difference(results[name], results["want_" + index[1]], spacing, operand)
        if off > 1:
            return f"result {index[1]} is off by {off:.3g} times what is allowed"
    return ""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        write_cases(sys.argv[1], folder)
        cases = sorted(pathlib.Path(folder).glob("*.onnx"))
        counts, failures = {}, 0
        for path in cases:
            op = path.stem.split("_", 1)[1]
            counts[op] = counts.get(op, 0) + 1
            problem = judge(path)
            if problem:
                failures += 1
                print(f"{path.stem}: {problem}")
    for op, count in sorted(counts.items()):
        print(f"{op}: {count} cases")
    print(f"{len(cases)} cases of {len(counts)} operators, {failures} failed")
    sys.exit(1 if failures or not cases else 0)


if __name__ == "__main__":
    main()
