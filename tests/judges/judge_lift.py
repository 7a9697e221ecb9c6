#!/usr/bin/env python3
"""Judges every rule of the lift: a model in an old op-set, and what halfnote lifts it to.

    tests/judges/judge_lift.py FOLDER/WITH/PROGRAMS

For each rule of passes/canonical/lift_rules.cc and each op-set that it holds for (the newest below
the change, and the oldest that has the form), a small model is built, lifted by `halfnote compile
--stop-after lift-opset`, and both run in onnxruntime on the same numbers. They run the same kernels
but for a Reshape or a constant more, so results may differ by a few roundings of f32 only. Where
onnxruntime lacks the old form, the result is written down here in numpy; where it lacks the new
one, ONNX's reference evaluator runs it.

A second oracle is ONNX's version converter: what it makes of the old model must give the same too,
wherever it converts and the result runs. Where it is wrong itself, the case says so and why.

Exit code 0: every rule has a case and all agree.
"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.reference
import onnx.version_converter
import onnxruntime as ort
from onnx import helper

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "passes/canonical/lift_rules.cc"
BAR = 8 * 2.0**-23  # roundings of f32, relative to the largest number of a result
OPSET = 23
ALWAYS = 1 << 20  # kAlways of passes/canonical/lift_rules.h: rules for every op-set

ort.set_default_logger_severity(4)

# `feeds` by input name, `constants` by initializer name, `attributes` of the one node `op`.
# `want`: results in numpy where onnxruntime cannot run the old form. `refused`: what halfnote says.
# `converter_wrong`: why the version converter's result differs.
Case = collections.namedtuple(
    "Case", "rule op opsets feeds constants attributes outputs want refused converter_wrong"
)


def case(rule, opsets, feeds, attributes=None, constants=None, op=None, outputs=1, want=None,
         refused=None, converter_wrong=None):
    return Case(rule, op or rule[0], opsets, feeds, constants or {}, attributes or {}, outputs,
                want, refused, converter_wrong)


def numbers(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reductions():
    x = np.abs(numbers(2, 3, 4)) + np.float32(0.5)
    last = {"ReduceSum": 13}
    for op in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
        name = "Reduce" + op
        changed = last.get(name, 18)
        for attributes in ({"axes": [1]}, {"axes": [0, -1], "keepdims": 0}, {"keepdims": 0}):
            opsets = (11, changed - 1)
            yield case((name, changed), opsets, {"x": x}, attributes)


def softmaxes():
    x = numbers(2, 3, 4)
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        wrong = "it forgets Hardmax" if op == "Hardmax" else None
        for attributes in ({}, {"axis": 0}, {"axis": 1}, {"axis": 2}):
            yield case((op, 13), (7, 12), {"x": x}, attributes, converter_wrong=wrong)
        yield case((op, 13), (11, 12), {"x": x}, {"axis": -1})


def resizes():
    x = numbers(1, 2, 4, 6)
    grow = np.array([1, 1, 2, 1.5], np.float32)
    shrink = np.array([1, 1, 0.6, 0.5], np.float32)
    mixed = np.array([1, 1, 2, 0.5], np.float32)
    nothing = np.array([], np.float32)
    for mode in ("nearest", "linear"):
        wrong = "it shifts by half a pixel" if mode == "linear" else None
        yield case(("Upsample", 24), (7,), {"x": x}, {"mode": mode, "scales": grow.tolist()},
                   converter_wrong=wrong)
        yield case(("Upsample", 24), (9,), {"x": x}, {"mode": mode}, {"s": grow},
                   converter_wrong=wrong)
        for scales in (grow, shrink):
            yield case(("Resize", 11), (10,), {"x": x}, {"mode": mode}, {"s": scales},
                       converter_wrong="it rounds to the nearest where Resize-10 takes the floor "
                       "or the ceiling, and shifts by half a pixel")
        yield case(("Resize", 13), (11, 12), {"x": x}, {"mode": mode},
                   {"roi": nothing, "s": nothing, "sizes": np.array([1, 2, 7, 3])})
        yield case(("Resize", 13), (11, 12), {"x": x}, {"mode": mode}, {"roi": nothing, "s": grow})
    yield case(("Resize", 11), (10,), {"x": x}, {"mode": "linear"}, {"s": mixed},
               converter_wrong="it shifts by half a pixel")
    yield case(("Resize", 11), (10,), {"x": x}, {}, {"s": mixed}, refused="enlarge one axis")
    yield case(("Resize", 13), (11,), {"x": x},
               {"coordinate_transformation_mode": "tf_half_pixel_for_nn"},
               {"roi": nothing, "s": grow}, refused="tf_half_pixel_for_nn")


def regions():
    x = numbers(1, 2, 8, 8)
    boxes = {"rois": np.array([[0, 0, 5, 6], [1.5, 2, 7, 7.5]], np.float32),
             "batch": np.array([0, 0], np.int64)}
    sizes = {"output_height": 3, "output_width": 2}
    for mode in ("avg", "max"):
        yield case(("RoiAlign", 16), (10, 15), {"x": x, **boxes},
                   {**sizes, "mode": mode, "sampling_ratio": 2, "spatial_scale": 0.5})
    grid = np.clip(numbers(1, 3, 4, 2, seed=2), -0.9, 0.9)
    for mode in ("bilinear", "nearest", "bicubic"):
        for attributes in ({}, {"padding_mode": "border", "align_corners": 1}):
            yield case(("GridSample", 20), (16, 19), {"x": x, "grid": grid},
                       {"mode": mode, **attributes})


def normalizations():
    x = numbers(4, 6, 5)
    vectors = {name: np.abs(numbers(6, seed=i)) + np.float32(0.5)
               for i, name in enumerate(("scale", "bias", "mean", "var"))}
    momentum, epsilon = np.float32(0.75), np.float32(1e-3)
    mean, var = x.mean((0, 2)), x.var((0, 2))
    row = (slice(None), None)
    trained = [
        (x - mean[row]) / np.sqrt(var[row] + epsilon) * vectors["scale"][row] +
        vectors["bias"][row],
        vectors["mean"] * momentum + mean * (1 - momentum),
        vectors["var"] * momentum + var * (1 - momentum),
    ]
    rule = ("BatchNormalization", 14)
    yield case(rule, (7, 9, 13), {"x": x}, {"epsilon": 1e-3}, vectors)
    yield case(rule, (7, 9, 13), {"x": x}, {"epsilon": 1e-3, "momentum": 0.75}, vectors,
               outputs=5, want=trained)
    groups = {"scale": np.array([0.5, 2, -1], np.float32), "bias": np.array([1, 0, 3], np.float32)}
    parts = x.reshape(4, 3, -1)
    centred = parts - parts.mean(2, keepdims=True)
    grouped = centred / np.sqrt(parts.var(2, keepdims=True) + np.float32(1e-5))
    grouped = grouped * groups["scale"][:, None] + groups["bias"][:, None]
    yield case(("GroupNormalization", 21), (18, 20), {"x": x}, {"num_groups": 3}, groups,
               want=[grouped.reshape(x.shape)])


def movements():
    x = numbers(2, 3, 4)
    yield case(("Clip", 11), (7, 10), {"x": x}, {"min": -0.5, "max": 0.25})
    yield case(("Clip", 11), (7, 10), {"x": x}, {"max": 0.25})
    yield case(("Clip", 11), (7, 10), {"x": x})
    for attributes in ({}, {"ratio": 0.25}):
        yield case(("Dropout", 12), (7, 10, 11), {"x": x}, attributes)
    for mode in ("constant", "edge", "reflect"):
        attributes = {"pads": [0, 1, 2, 1, 0, 1], "mode": mode}
        yield case(("Pad", 11), (7, 10), {"x": x}, attributes)
    yield case(("Pad", 11), (7, 10), {"x": x}, {"pads": [0, 0, -1, 0, 2, 1], "value": 1.5})
    yield case(("Slice", 10), (7, 9), {"x": x}, {"starts": [1, -3], "ends": [3, 100]})
    yield case(("Slice", 10), (7, 9), {"x": x}, {"starts": [-2], "ends": [-1], "axes": [2]})
    yield case(("Split", 13), (7, 11, 12), {"x": x}, {"axis": 2, "split": [1, 3]}, outputs=2)
    yield case(("Split", 18), (7, 12, 13, 17), {"x": x}, {"axis": 2}, outputs=2)
    yield case(("Squeeze", 13), (7, 12), {"x": x.reshape(1, 6, 1, 4)}, {"axes": [0, 2]})
    yield case(("Squeeze", 13), (11, 12), {"x": x.reshape(1, 6, 1, 4)}, {"axes": [-2]})
    yield case(("Squeeze", 13), (7, 12), {"x": x.reshape(1, 6, 1, 4)})
    yield case(("Unsqueeze", 13), (7, 12), {"x": x}, {"axes": [0, 3]})
    yield case(("TopK", 10), (7, 9), {"x": x}, {"k": 2, "axis": 1}, outputs=2)
    places = np.array([[[0, 2, 1, 0]], [[1, 1, 0, 2]]], np.int64)
    updates = numbers(2, 1, 4, seed=3)
    # Two updates of one element have no order: all indices along the axis differ.
    yield case(("Scatter", 24), (9, 10), {"x": x, "i": places, "u": updates}, {"axis": 1})
    signal = numbers(2, 8, 4, 1)
    for attributes in ({}, {"axis": 2}, {"onesided": 1}, {"axis": 2, "onesided": 1}):
        yield case(("DFT", 20), (17, 19), {"x": signal}, attributes)
    yield case(("DFT", 20), (17, 19), {"x": numbers(2, 8, 4, 2)}, {"inverse": 1})


def legacy():
    """Op-set 6, which onnxruntime does not run: the results are written down in numpy."""
    x, y, row = np.abs(numbers(2, 3, 4)) + np.float32(0.5), numbers(3, seed=2), numbers(4, seed=3)
    placed = y[:, None]
    arithmetic = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
                  "Pow": np.power, "Greater": np.greater, "Less": np.less}
    for op, rule in arithmetic.items():
        yield case((op, 7), (6,), {"x": x, "y": y}, {"broadcast": 1, "axis": 1},
                   want=[rule(x, placed)])
        yield case((op, 7), (6,), {"x": x, "y": row}, {"broadcast": 1}, want=[rule(x, row)])
        yield case((op, 7), (6,), {"x": x, "y": x[::-1].copy()}, want=[rule(x, x[::-1])])
    bits, mask = numbers(2, 3, 4, seed=4) > 0, y > 0
    for op, rule in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items():
        yield case((op, 7), (6,), {"x": bits, "y": mask}, {"broadcast": 1, "axis": 1},
                   want=[rule(bits, mask[:, None])])
    counts, few = np.arange(24).reshape(2, 3, 4) % 3, np.array([0, 1, 2])
    yield case(("Equal", 7), (6,), {"x": counts, "y": few}, {"broadcast": 1, "axis": 1},
               want=[counts == few[:, None]])
    signed = numbers(2, 3, 4, seed=5)
    yield case(("PRelu", 7), (6,), {"x": signed, "s": y},
               want=[np.where(signed < 0, signed * placed, signed)])
    a, b, c = numbers(2, 3), numbers(3, 4, seed=6), row
    yield case(("Gemm", 7), (6,), {"a": a, "b": b, "c": c}, {"broadcast": 1}, want=[a @ b + c])
    yield case(("Sum", 8), (6, 7), {"x": x, "y": x[::-1].copy()}, want=[x + x[::-1]])
    yield case(("Dropout", 7), (6,), {"x": x}, {"is_test": 1, "ratio": 0.25}, want=[x])
    image = numbers(1, 2, 4, 6)
    pooled = image.reshape(1, 2, 2, 2, 3, 2).mean((3, 5))
    yield case(("AveragePool", 7), (6,), {"x": image}, {"kernel_shape": [2, 2], "strides": [2, 2]},
               want=[pooled])
    # Windows of 2 in steps of 3 begin at -1, 2 and 5: the last one in the padding behind.
    edge = numbers(1, 2, 5, 5)
    for op in ("AveragePool", "LpPool", "MaxPool"):
        yield case((op, 22), (21,), {"x": edge},
                   {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1],
                    "ceil_mode": 1})
    scale, bias, mean, var = (np.abs(numbers(3, seed=i)) + np.float32(0.5) for i in range(4))
    normal = (x - mean[:, None]) / np.sqrt(var[:, None] + np.float32(1e-3))
    yield case(("BatchNormalization", 7), (6,), {"x": x}, {"epsilon": 1e-3, "is_test": 1},
               {"scale": scale, "bias": bias, "mean": mean, "var": var},
               want=[normal * scale[:, None] + bias[:, None]])


def transposed():
    """auto_pad in every op-set, odd and even surplus, kernels narrower than the stride."""
    rule = ("ConvTranspose", ALWAYS)
    x, w = numbers(1, 2, 7, 6), {"w": numbers(2, 3, 3, 2, seed=2)}
    for mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        for attributes in ({}, {"strides": [2, 3]}, {"strides": [2, 2], "output_padding": [1, 0]},
                           {"strides": [2, 3], "output_padding": [1, 2]},
                           {"strides": [4, 3], "dilations": [2, 1], "output_padding": [1, 1]},
                           {"dilations": [1, 2], "kernel_shape": [3, 2]},
                           {"strides": [2, 2], "output_shape": [13, 12]}):
            yield case(rule, (11, 22, 23), {"x": x}, {"auto_pad": mode, **attributes}, w,
                       converter_wrong="the library adds output_padding once more")
    volume = numbers(1, 2, 3, 4, 2)
    yield case(rule, (11, 23), {"x": volume},
               {"auto_pad": "SAME_LOWER", "strides": [2, 1, 2], "output_padding": [1, 0, 1]},
               {"w": numbers(2, 1, 3, 2, 2, seed=3)},
               converter_wrong="the library adds output_padding once more")


def defaults():
    x = numbers(2, 3, 4, 5)
    for attributes in ({}, {"axes": [0, 2, 3]}, {"axes": [1]}):
        yield case(("MeanVarianceNormalization", ALWAYS), (9, 13, 23), {"x": x}, attributes)
    sizes = {"step": np.array(4, np.int64), "window": np.hanning(8).astype(np.float32)}
    for attributes in ({}, {"onesided": 0}, {"onesided": 1}):
        yield case(("STFT", ALWAYS), (17, 22), {"x": numbers(2, 20, 1)}, attributes, sizes)


def scans():
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])],
        "body", [value("s", (2,)), value("e", (2,))], [value("t", (2,)), value("o", (2,))])
    feeds = {"s0": numbers(1, 2), "xs": numbers(1, 3, 2)}
    yield case(("Scan", 9), (8,), feeds, {"body": body, "num_scan_inputs": 1}, outputs=2,
               refused="batch axis and sequence_lens")


def cases():
    for family in (reductions, softmaxes, resizes, regions, normalizations, movements, legacy,
                   transposed, defaults, scans):
        yield from family()


def value(name, shape, kind=onnx.TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def build(c, opset):
    """The model of one node."""
    inputs = list(c.feeds) + list(c.constants)
    if c.op == "Scan":
        inputs.insert(0, "")  # sequence_lens
    results = [f"y{i}" for i in range(c.outputs)]
    node = helper.make_node(c.op, inputs, results, name="node", **c.attributes)
    kinds = {np.dtype(np.float32): onnx.TensorProto.FLOAT,
             np.dtype(np.int64): onnx.TensorProto.INT64,
             np.dtype(np.bool_): onnx.TensorProto.BOOL}
    graph = helper.make_graph(
        [node], "main",
        [value(k, v.shape, kinds[v.dtype]) for k, v in c.feeds.items()],
        [value(r, None) for r in results[: 3 if c.op == "BatchNormalization" else None]],
        [onnx.numpy_helper.from_array(v, k) for k, v in c.constants.items()])
    if c.op in ("And", "Or", "Xor", "Equal", "Greater", "Less"):
        graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    if c.op == "TopK":
        graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return helper.make_model(graph, ir_version=8 if opset < 20 else 10,
                             opset_imports=[helper.make_opsetid("", opset)])


def execute(model, feeds):
    """Results of onnxruntime, or of ONNX's reference evaluator for what it cannot run."""
    try:
        return runtime_results(model, feeds)
    except Exception:  # onnxruntime throws classes of its own for what it lacks
        return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def runtime_results(model, feeds):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def difference(got, want):
    """In units of what is allowed; above 1 is wrong."""
    if len(got) != len(want):
        return float("inf")
    worst = 0.0
    for g, w in zip(got, want):
        if g.shape != w.shape or g.dtype != w.dtype:
            return float("inf")
        if g.dtype.kind != "f":
            worst = max(worst, 0.0 if np.array_equal(g, w) else float("inf"))
            continue
        allowed = BAR * max(1.0, np.abs(w).max(initial=0.0))
        off = np.abs(g.astype(np.float64) - w)
        worst = max(worst, float(np.where(np.isnan(off), np.inf, off).max(initial=0.0)) / allowed)
    return worst


def lift(halfnote, model, folder):
    """(lifted model, None), or (None, what halfnote says)."""
    source, target = folder / "old.onnx", folder / "new.onnx"
    onnx.save(model, source)
    target.unlink(missing_ok=True)
    done = subprocess.run(
        [halfnote, "compile", source, "-o", target, "--inference", "--precision", "fp32",
         "--stop-after", "lift-opset", "--quiet"], capture_output=True, text=True)
    return (onnx.load(target), None) if done.returncode == 0 else (None, done.stderr.strip())


def ask_converter(c, old, want):
    """`agrees`, `wrong: …`, or why it does not convert."""
    try:
        converted = onnx.version_converter.convert_version(old, OPSET)
        got = runtime_results(converted, c.feeds)
    except Exception:  # it throws classes of its own too
        return "cannot"
    off = difference(got, want[: len(got)])
    if off <= 1:
        return "agrees"
    return "known" if c.converter_wrong else f"differs ({off:.3g} of what is allowed)"


def judge(halfnote, c, opset, folder):
    """(verdict of our lift, verdict of the converter)."""
    old = build(c, opset)
    new, refusal = lift(halfnote, old, folder)
    if c.refused:
        told = refusal is not None and c.refused in refusal and '(op-set' in refusal
        return "agrees" if told else f"not refused as it should be: {refusal}", "not asked"
    if new is None:
        return f"refused: {refusal}", "not asked"
    imports = {o.domain: o.version for o in new.opset_import}
    if imports.get("") != OPSET:
        return f"op-sets {imports}", "not asked"
    want = c.want or runtime_results(old, c.feeds)
    off = difference(execute(new, c.feeds), want)
    verdict = "agrees" if off <= 1 else f"differs ({off:.3g} of what is allowed)"
    return verdict, ask_converter(c, old, want)


def rules():
    table = RULES.read_text().split("kLiftRules[] = {")[1].split("};")[0]
    return {(op, ALWAYS if changed == "kAlways" else int(changed))
            for op, changed in re.findall(r'\{"(\w+)", (\d+|kAlways), ', table)}


def main():
    halfnote = pathlib.Path(sys.argv[1]) / "halfnote"
    judged, wrong, converter = set(), 0, collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        for c in cases():
            judged.add(c.rule)
            for opset in c.opsets:
                ours, theirs = judge(halfnote, c, opset, pathlib.Path(name))
                converter[theirs.split(" ")[0]] += 1
                bad = ours != "agrees" or theirs.startswith("differs")
                wrong += bad
                if bad:
                    print(f"{c.op}-{opset} {c.attributes}: {ours}; converter: {theirs}")
    for op, changed in sorted(rules() - judged):
        print(f"the rule of {op}, changed in op-set {changed}, has no case")
    for op, changed in sorted(judged - rules()):
        print(f"a case of {op}, changed in op-set {changed}, belongs to no rule")
    total = sum(converter.values())
    print(f"{len(judged)} rules, {total} models, {wrong} wrong; version converter: "
          f"{converter['agrees']} agree, {converter['known']} known to be wrong, "
          f"{converter['cannot']} not converted")
    return 1 if wrong or rules() != judged else 0


if __name__ == "__main__":
    sys.exit(main())
