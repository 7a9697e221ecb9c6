"""Models that cannot be trained as asked, steps that do not hold together, bad settings."""
import dataclasses

import onnx
from onnx import helper

from case import Case, body, case

T = onnx.TensorProto
MODEL = dict(nodes="h = MatMul (x, w) y = Add (h, b)", inputs="float[4,3] x",
             outputs="float[4,2] y",
             weights="float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}")


def train(name, *flags, **change):
    return body(name, **{**MODEL, **change}, flags=flags)


def losses():
    yield train("loss-of-int-output", "--loss", "mse", nodes="h = MatMul (x, w) "
                "y = Cast <to = 7> (h)", outputs="int64[4,2] y")
    yield train("loss-unknown", "--loss", "mean_squared")
    yield train("loss-output-unknown", "--loss-output", "los")
    yield train("loss-output-not-scalar", "--loss-output", "y")
    yield train("loss-output-is-int", "--loss-output", "n", outputs="float[4,2] y, int64 n",
                nodes="h = MatMul (x, w) y = Add (h, b) n = Size (h)")
    yield train("loss-output-factor-nan", "--loss-output", "l*nan", outputs="float l",
                nodes="h = MatMul (x, w) l = ReduceSum <keepdims = 0> (h)")
    yield train("loss-input-unknown", "--loss", "mse", "--loss-input", "q")
    yield train("cross-entropy-of-rank-1", "--loss", "cross_entropy", outputs="float[4] y",
                nodes="h = MatMul (x, w) y = ReduceSum <keepdims = 0> (h, one)",
                weights="float[3,2] w = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}")
    yield train("model-without-outputs-to-train", "--loss", "mse", outputs="bool[4,2] y",
                nodes="h = MatMul (x, w) y = Greater (h, b)")
    yield train("ok-loss-name-taken", "--loss", "mse", outputs="float[4,2] target",
                nodes="h = MatMul (x, w) target = Add (h, b)")


def parameters():
    yield train("no-parameters", "--loss", "mse", nodes="y = Abs (x)", outputs="float[4,3] y",
                weights="")
    yield train("all-frozen", "--loss", "mse", "--freeze", ".*")
    yield train("trainable-matches-nothing", "--loss", "mse", "--trainable", "encoder.*")
    yield train("freeze-is-no-pattern", "--loss", "mse", "--freeze", "(((")
    yield train("parameters-do-not-reach-the-loss", "--loss-output", "l", outputs="float l",
                nodes="h = MatMul (x, w) l = ReduceSum <keepdims = 0> (x)")
    yield train("named-parameter-does-not-reach-the-loss", "--loss", "mse", "--trainable", "b",
                nodes="y = MatMul (x, w) h = Add (y, b)")
    yield train("trainable-is-int", "--loss", "mse", "--trainable", "k",
                nodes="h = MatMul (x, w) f = Cast <to = 1> (k) y = Add (h, f)",
                weights="float[3,2] w = {1, 2, 3, 4, 5, 6}, int64[2] k = {1, 2}")
    for name, rows in (("over-the-limit", 3), ("of-2-to-80", 2**40)):
        yield train(f"drawn-parameter-{name}", "--loss", "mse", "--max-memory", "20",
                    nodes=f"[draw] r = RandomNormal <shape = [{rows}, {rows}]> () "
                    "y = MatMul (x, r)", inputs=f"float[4,{rows}] x", outputs="float[4,K] y",
                    weights="")
    yield train("tie-of-other-contents", "--loss", "mse", "--tie", "w=v",
                nodes="g = MatMul (x, w) h = MatMul (x, v) y = Add (g, h)",
                weights="float[3,2] w = {1,2,3,4,5,6}, float[3,2] v = {1,2,3,4,5,7}")
    twelve = ", ".join(map(str, range(12)))
    yield train("fake-quantized-by-blocks", "--loss", "mse", outputs="float[4,4] y",
                nodes="q = QuantizeLinear <axis = 0, block_size = 2> (b, s) "
                "[d] d = DequantizeLinear <axis = 0, block_size = 2> (q, s) "
                "h = MatMul (x, w) y = Add (h, d)",
                weights=f"float[3,4] w = {{{twelve}}}, float[4] b = {{1, 2, 3, 4}}, "
                "float[2] s = {1, 2}")
    yield train("no-gradient-on-the-way", "--loss", "mse",
                nodes="h = MatMul (x, w) a = Constant <value_ints = [0, 1]> () "
                "u = Unsqueeze (h, a) f = Constant <value_floats = [0.0, 0.0, 0.0, 1.0, 1.0]> () "
                "z = Constant <value_ints = [0]> () r = Unsqueeze (f, z) "
                "[way] q = MaxRoiPool <pooled_shape = [4, 2]> (u, r) "
                "s = Squeeze (q, a) y = Add (s, b)")


def settings():
    yield train("loss-scale-zero", "--loss", "mse", "--precision", "fp16", "--loss-scale", "0")
    yield train("loss-scale-infinite", "--loss", "mse", "--precision", "fp16", "--loss-scale",
                "inf")
    yield train("loss-scale-nan", "--loss", "mse", "--precision", "fp16", "--loss-scale", "nan")
    yield train("lr-negative", "--loss", "mse", "--lr", "-1")
    yield train("accumulate-zero", "--loss", "mse", "--accumulate", "0")
    yield train("dim-unknown", "--loss", "mse", "--dim", "batch=4")
    yield train("policy-names-no-node", "--loss", "mse", "--precision", "bf16", "--fp32-node",
                "encoder.*")


def step(name, edit=None, update="w2", flags=(), algorithm=None):
    """A model with a training step of its own: w2 = w - v, v2 = v * w, in a training_info."""
    text = algorithm or ("s () => (float[3,2] w2, float[3,2] v2) "
                         "<float[3,2] v = {0,0,0,0,0,0}> { w2 = Sub (w, v) v2 = Mul (v, w) }")

    def change(model):
        info = model.training_info.add()
        info.algorithm.CopyFrom(onnx.parser.parse_graph(text))
        for key, value in (("w", update), ("v", "v2")):
            info.update_binding.add(key=key, value=value)
        if edit is not None:
            edit(info)

    return body(name, **MODEL, edit=change, flags=flags)


def first(values, **fields):
    for key, value in fields.items():
        setattr(values[0], key, value)


def steps():
    yield step("binding-of-an-unknown-state", lambda i: first(i.update_binding, key="moment"))
    yield step("binding-to-an-unknown-value", update="w3")
    yield step("two-updates-of-one-parameter",
               lambda i: i.update_binding.add(key="w", value="v2"))
    yield step("binding-assigns-to-an-input", lambda i: first(i.update_binding, key="x"))
    yield step("binding-assigns-to-a-result", lambda i: first(i.update_binding, key="w2"))
    yield step("update-of-other-shape",
               algorithm="s () => (float[2,3] w2, float[3,2] v2) <float[3,2] v = {0,0,0,0,0,0}> "
               "{ w2 = Transpose (w) v2 = Mul (v, w) }")
    yield step("update-of-other-type",
               algorithm="s () => (double[3,2] w2, float[3,2] v2) <float[3,2] v = {0,0,0,0,0,0}> "
               "{ w2 = Cast <to = 11> (w) v2 = Mul (v, w) }")
    yield step("step-defines-a-name-of-the-graph",
               algorithm="s () => (float[3,2] w2, float[3,2] v2) <float[3,2] v = {0,0,0,0,0,0}, "
               "float[3,2] w = {0,0,0,0,0,0}> { w2 = Sub (w, v) v2 = Mul (v, w) }")
    yield step("step-is-empty", lambda i: i.ClearField("algorithm"))
    yield step("step-state-kinds-too-few", lambda i: i.algorithm.metadata_props.add(
        key="halfnote.state_kinds", value="weight"))
    yield step("step-state-kind-unknown", lambda i: i.algorithm.metadata_props.add(
        key="halfnote.state_kinds", value="weight mood"))
    yield step("initialization-with-inputs", lambda i: i.initialization.CopyFrom(
        onnx.parser.parse_graph("i (float[3,2] a) => (float[3,2] v0) { v0 = Abs (a) }")))
    yield step("initialization-binding-unknown", lambda i: i.initialization_binding.add(
        key="v", value="nothing"))


def preview(name, node, **change):
    """ONNX's own training operators."""
    graph = {**MODEL, "outputs": "float l, float[A,B] w2", "nodes": MODEL["nodes"] +
             " l = ReduceSum <keepdims = 0> (y) " + node, **change}
    text = "g ({inputs}) => ({outputs}) <{weights}> {{ {nodes} }}".format(**graph)
    header = '<ir_version: 10, opset_import: ["" : 23, "ai.onnx.preview.training" : 1]>\n'
    return case(name, header + text, flags=("--loss-output", "l"))


def preview_operators():
    op = "ai.onnx.preview.training."
    yield preview("gradient-of-non-float",
                  "w2 = Neg (w) k = Cast <to = 7> (x) "
                  f'[n] d = {op}Gradient <xs = ["k"], y = "l"> (k)')
    yield preview("gradient-of-unknown-name",
                  f'[n] w2 = {op}Gradient <xs = ["w"], y = "loss"> (w)')
    yield preview("gradient-without-xs", f'[n] w2 = {op}Gradient <y = "l"> (w)')
    yield preview("gradient-inputs-differ-in-number",
                  f'[n] w2 = {op}Gradient <xs = ["w", "b"], y = "l"> (w)')
    yield preview("momentum-without-its-state",
                  f'd = {op}Gradient <xs = ["w"], y = "l"> (w) [n] w2 = {op}Momentum <alpha = 0.9, '
                  f'beta = 1.0, mode = "standard", norm_coefficient = 0.0> (r, t, w, d)',
                  weights=MODEL["weights"] + ", float r = {0.1}, int64 t = {0}")
    yield preview("momentum-mode-unknown",
                  f'd = {op}Gradient <xs = ["w"], y = "l"> (w) [n] w2, v2 = {op}Momentum '
                  '<alpha = 0.9, beta = 1.0, mode = "wild", norm_coefficient = 0.0> '
                  "(r, t, w, d, v)",
                  weights=MODEL["weights"] + ", float r = {0.1}, int64 t = {0}, "
                  "float[3,2] v = {0,0,0,0,0,0}")
    yield preview("adam-state-of-other-shape",
                  f'd = {op}Gradient <xs = ["w"], y = "l"> (w) [n] w2, v2, h2 = {op}Adam '
                  f'(r, t, w, d, v, v)',
                  weights=MODEL["weights"] + ", float r = {0.1}, int64 t = {0}, "
                  "float[2] v = {0,0}")


def legal():
    yield train("ok-mse", "--loss", "mse")
    yield train("ok-unused-parameter", "--loss", "mse",
                nodes="y = MatMul (x, w) h = Add (y, b)")
    yield train("ok-fp16", "--loss", "cross_entropy", "--precision", "fp16")
    yield train("ok-no-batch", "--loss", "mse", inputs="float[0,3] x", outputs="float[0,2] y")
    yield train("ok-two-losses", "--loss-output", "l*0.5", "--loss-output", "m",
                outputs="float l, float m", nodes="h = MatMul (x, w) y = Add (h, b) "
                "l = ReduceSum <keepdims = 0> (h) m = ReduceMean <keepdims = 0> (y)")
    yield step("step-is-for-run")


def cases():
    for family in (losses, parameters, settings, steps, preview_operators, legal):
        yield from family()
