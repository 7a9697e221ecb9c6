"""Attributes out of range, of the wrong type or number, or that contradict the inputs."""
import math

import onnx
from onnx import helper

from case import body

IMAGE = "float[1,4,8,8] x"
CONV = f"{IMAGE}, float[4,4,3,3] w"
OUT = "float[A,B,C,D] y"


def conv(name, attributes, inputs=CONV, **more):
    return body(name, f"[n] y = Conv <{attributes}> (x, w)", inputs, OUT, **more)


def pool(name, attributes, op="MaxPool", inputs=IMAGE, outputs=OUT, **more):
    return body(name, f"[n] y = {op} <{attributes}> (x)", inputs, outputs, **more)


def windows():
    yield conv("conv-stride-zero", "strides = [0, 1]")
    yield conv("conv-stride-negative", "strides = [-1, 1]")
    yield conv("ok-conv-stride-past-32-bits", f"strides = [{2**40}, 1]")
    yield conv("conv-dilation-zero", "dilations = [0, 1]")
    yield conv("conv-dilation-negative", "dilations = [1, -2]")
    yield conv("conv-dilation-overflows", f"dilations = [{2**62}, 1]")
    yield conv("conv-group-zero", "group = 0")
    yield conv("conv-group-negative", "group = -2")
    yield conv("conv-group-does-not-divide", "group = 3")
    yield conv("conv-pads-negative", "pads = [-1, 0, 0, 0]")
    yield conv("conv-pads-too-few", "pads = [1, 1]")
    yield conv("conv-pads-huge", f"pads = [{2**62}, 0, {2**62}, 0]")
    yield conv("conv-strides-too-many", "strides = [1, 1, 1]")
    yield conv("conv-kernel-shape-lies", "kernel_shape = [5, 5]")
    yield conv("conv-kernel-of-40-dims", f"kernel_shape = {[1] * 40}")
    yield conv("conv-auto-pad-unknown", 'auto_pad = "SOMEHOW"')
    yield conv("ok-conv-auto-pad-and-pads", 'auto_pad = "SAME_UPPER", pads = [1, 1, 1, 1]')
    yield conv("conv-attribute-unknown", "stride = [1, 1]")
    yield conv("conv-stride-as-float", "strides = [1.0, 1.0]")
    yield pool("maxpool-without-a-window", "strides = [1, 1]")
    yield pool("maxpool-window-zero", "kernel_shape = [0, 2]")
    yield pool("maxpool-window-of-other-rank", "kernel_shape = [2]")
    yield pool("maxpool-stride-zero", "kernel_shape = [2, 2], strides = [0, 0]")
    yield pool("maxpool-window-empty", "kernel_shape = [2, 2]",
               edit=lambda m: m.graph.node[0].attribute[0].CopyFrom(
                   helper.make_attribute("kernel_shape", [], attr_type=7)))
    yield pool("averagepool-pads-over-the-window", "kernel_shape = [2, 2], pads = [5, 5, 5, 5]",
               "AveragePool")
    yield pool("ok-averagepool-ceil-mode-7", "kernel_shape = [2, 2], ceil_mode = 7", "AveragePool")
    yield body("convtranspose-output-padding-negative",
               "[n] y = ConvTranspose <output_padding = [-5, 0]> (x, w)", CONV, OUT)
    yield body("convtranspose-output-shape-too-few",
               "[n] y = ConvTranspose <output_shape = [3]> (x, w)", CONV, OUT)
    for name, sizes in (("convtranspose-output-shape-below-the-input", "7, 8"),
                        ("convtranspose-output-shape-zero", "0, 0")):
        yield body(name, f"[n] y = ConvTranspose <output_shape = [{sizes}]> (x, w)", CONV,
                   "float[A,B,C,D] y")
    yield body("transpose-perm-below-the-rank", "[n] y = Transpose <perm = [0]> (x)",
               "float[2,3] x", "float[A,B] y")
    yield body("cumsum-axis-beyond-the-rank",
               "at = Constant <value_int = 99> () [n] y = CumSum (x, at)", "float[2,3] x",
               "float[A,B] y")
    yield body("scatterelements-indices-of-other-rank",
               "at = Constant <value_ints = [1]> () u = Constant <value_floats = [1.0]> () "
               "[n] y = ScatterElements (x, at, u)", "float[2,3] x", "float[A,B] y")
    transposed = "[n] y = ConvTranspose <{}> (x, w)"
    for name, attributes in (
            ("ok-convtranspose-same-output-padding", "output_padding = [1, 1], strides = [2, 2]"),
            ("convtranspose-auto-pad-and-pads", "pads = [1, 1, 1, 1]"),
            ("convtranspose-same-stride-zero", "strides = [0, 1]"),
            ("convtranspose-same-strides-too-many", "strides = [1, 1, 1]"),
            ("convtranspose-same-dilation-overflows", f"dilations = [{2**62}, {2**62}]"),
            ("convtranspose-same-output-padding-overflows", f"output_padding = [{2**63 - 1}, 0]")):
        yield body(name, transposed.format(f'auto_pad = "SAME_UPPER", {attributes}'), CONV, OUT)
    yield body("ok-mean-variance-axes-left-out", "[n] y = MeanVarianceNormalization (x)", IMAGE,
               OUT)
    yield body("mean-variance-axes-left-out-of-rank-2", "[n] y = MeanVarianceNormalization (x)",
               "float[3,2] x", "float[A,B] y")
    yield pool("lppool-p-zero", "kernel_shape = [2, 2], p = 0", "LpPool")


def axes():
    for name, op, attributes in (
            ("softmax", "Softmax", "axis = 2"), ("log-softmax", "LogSoftmax", "axis = -3"),
            ("concat", "Concat", "axis = 5"), ("flatten", "Flatten", "axis = 3"),
            ("split", "Split", "axis = 2, num_outputs = 1"), ("argmax", "ArgMax", "axis = -3"),
            ("layernorm", "LayerNormalization", "axis = 2"), ("hardmax", "Hardmax", "axis = 9"),
            ("gather", "Gather", "axis = 2")):
        inputs = {"layernorm": "x, x", "gather": "x, i"}.get(name, "x")
        outputs = "int64[A,B] y" if op == "ArgMax" else "float[A,B] y"
        yield body(f"{name}-axis-out-of-range", f"[n] y = {op} <{attributes}> ({inputs})",
                   "float[2,3] x, int64[1] i", outputs)
    yield body("softmax-axis-smallest", f"[n] y = Softmax <axis = {-(2**63)}> (x)")
    yield body("concat-without-an-axis", "[n] y = Concat (x, x)", outputs="float[4,3] y")
    yield body("reduce-axis-out-of-range", "[n] y = ReduceSum (x, a)",
               weights="int64[1] a = {2}", outputs="float[2,1] y")
    yield body("ok-reduce-axis-twice", "[n] y = ReduceMean (x, a)",
               weights="int64[2] a = {1, -1}", outputs="float[2,1] y")
    for name, perm in (("twice", [0, 0]), ("out-of-range", [0, 2]), ("negative", [-1, 0]),
                       ("too-short", [0]), ("too-long", [0, 1, 2])):
        yield body(f"transpose-perm-{name}", f"[n] y = Transpose <perm = {perm}> (x)",
                   outputs="float[A,B] y")


def numbers():
    yield body("batchnorm-epsilon-nan", "[n] y = BatchNormalization <epsilon = 1.0> "
               "(x, s, s, s, s)", "float[2,3,4] x, float[3] s", "float[2,3,4] y",
               edit=lambda m: m.graph.node[0].attribute[0].__setattr__("f", math.nan))
    yield body("layernorm-epsilon-negative", "[n] y = LayerNormalization <epsilon = -1.0> (x, s)",
               "float[2,3] x, float[3] s")
    yield body("ok-leaky-relu-alpha-infinite", "[n] y = LeakyRelu <alpha = 1.0> (x)",
               edit=lambda m: m.graph.node[0].attribute[0].__setattr__("f", math.inf))
    yield body("groupnorm-no-groups", "[n] y = GroupNormalization <num_groups = 0> (x, s, s)",
               "float[2,4,5] x, float[4] s", "float[2,4,5] y")
    yield body("groupnorm-groups-do-not-divide",
               "[n] y = GroupNormalization <num_groups = 3> (x, s, s)",
               "float[2,4,5] x, float[4] s", "float[2,4,5] y")
    yield body("lstm-hidden-size-zero", "[n] y = LSTM <hidden_size = 0> (x, w, r)",
               "float[5,1,3] x, float[1,16,3] w, float[1,16,4] r", "float[5,1,1,4] y")
    yield body("lstm-hidden-size-negative", "[n] y = LSTM <hidden_size = -4> (x, w, r)",
               "float[5,1,3] x, float[1,16,3] w, float[1,16,4] r", "float[5,1,1,4] y")
    yield body("lstm-direction-unknown",
               '[n] y = LSTM <hidden_size = 4, direction = "sideways"> (x, w, r)',
               "float[5,1,3] x, float[1,16,3] w, float[1,16,4] r", "float[5,1,1,4] y")
    yield body("attention-no-heads",
               "[n] y = Attention <q_num_heads = 0, kv_num_heads = 0> (x, x, x)",
               "float[1,4,8] x", "float[1,4,8] y")
    yield body("attention-heads-do-not-divide",
               "[n] y = Attention <q_num_heads = 3, kv_num_heads = 3> (x, x, x)",
               "float[1,4,8] x", "float[1,4,8] y")
    yield body("depth-to-space-block-zero", "[n] y = DepthToSpace <blocksize = 0> (x)", IMAGE, OUT)
    yield body("depth-to-space-does-not-divide", "[n] y = DepthToSpace <blocksize = 3> (x)",
               IMAGE, OUT)
    yield body("space-to-depth-block-negative", "[n] y = SpaceToDepth <blocksize = -2> (x)",
               IMAGE, OUT)
    yield body("split-no-outputs", "[n] y = Split <num_outputs = 0> (x)")
    yield body("split-more-parts-than-there-are",
               "[n] y, z = Split <axis = 0, num_outputs = 70> (x)",
               outputs="float[A,3] y, float[B,3] z")
    for name, axis in (("largest", 2**63 - 1), ("of-33-bits", 2**32 - 1)):
        yield body(f"layernorm-axis-{name}",
                   f"[n] y, m, v = LayerNormalization <axis = {axis}> (x, s)",
                   "float[2,3] x, float[3] s")
    yield body("gathernd-batch-dims-negative", "[n] y = GatherND <batch_dims = -3> (x, i)",
               "float[2,3] x, int64[4,2] i", "float[A] y")
    yield body("lrn-size-zero", "[n] y = LRN <size = 0> (x)", IMAGE, "float[1,4,8,8] y")
    yield body("einsum-equation-empty", '[n] y = Einsum <equation = ""> (x, x)')
    yield body("einsum-equation-broken", '[n] y = Einsum <equation = "i j->->k,,"> (x, x)')
    yield body("einsum-odd-character", '[n] y = Einsum <equation = "ij,jk#->ik"> (x, w)',
               "float[2,3] x, float[3,4] w", "float[2,4] y")
    yield body("einsum-unknown-letter", '[n] y = Einsum <equation = "ij,jk->iz"> (x, w)',
               "float[2,3] x, float[3,4] w", "float[2,4] y")
    yield body("einsum-too-many-terms", '[n] y = Einsum <equation = "ij,jk,kl->il"> (x, x)')
    yield body("resize-mode-unknown", '[n] y = Resize <mode = "magic"> (x, , s)', IMAGE, OUT,
               weights="float[4] s = {1, 1, 2, 2}",
               edit=lambda m: m.graph.node[0].input.__setitem__(slice(0, 3), ["x", "", "s"]))
    yield body("gelu-approximation-unknown", '[n] y = Gelu <approximate = "rough"> (x)')
    yield body("scatter-reduction-unknown",
               '[n] y = ScatterElements <reduction = "average"> (x, i, x)',
               "float[2,3] x, int64[2,3] i")
    yield body("pad-mode-unknown", '[n] y = Pad <mode = "mirror"> (x, p)',
               weights="int64[4] p = {0, 0, 1, 0}", outputs="float[3,3] y")


def of_the_wrong_kind():
    yield body("axis-as-float", "[n] y = Softmax <axis = 1.0> (x)")
    yield body("axis-as-list", "[n] y = Softmax <axis = [1]> (x)")
    yield body("axis-as-text", '[n] y = Softmax <axis = "last"> (x)')
    yield body("axis-as-graph", "[n] y = Softmax <axis = b () => (t) { t = Abs (x) }> (x)")
    yield body("perm-as-number", "[n] y = Transpose <perm = 1> (x)", outputs="float[3,2] y")
    yield body("attribute-of-type-77", "[n] y = Softmax <axis = 1> (x)",
               edit=lambda m: m.graph.node[0].attribute[0].ParseFromString(
                   b"\x0a\x04axis\x18\x01\xa0\x01\x4d"))
    yield body("string-attribute-not-utf8", '[n] y = Conv <auto_pad = "VALID"> (x, w)', CONV, OUT,
               edit=lambda m: m.graph.node[0].attribute[0].__setattr__("s", b"\xff\xfe"))
    yield body("attribute-of-another-operator", "[n] y = Relu <alpha = 0.5> (x)")
    yield body("ok-attribute-newer-than-the-opset",
               "[n] y = ReduceSum <noop_with_empty_axes = 1> (x)", opset=11, outputs="float[2,3] y")
    yield body("constant-tensor-over-the-rank", "c = Constant <value = float[1] {1}> () "
               "y = Add (x, c)", edit=lambda m: m.graph.node[0].attribute[0].t.dims.__setitem__(
                   slice(0, 1), [1] * 9))
    yield body("constant-data-too-short", "[n] c = Constant <value = float[3] {1, 2, 3}> () "
               "y = Add (x, c)", edit=lambda m: m.graph.node[0].attribute[0].t.float_data.pop())


def legal():
    yield conv("ok-conv-group-of-one-channel", "group = 4", f"{IMAGE}, float[4,1,3,3] w")
    yield conv("ok-conv-all-attributes", "auto_pad = \"NOTSET\", dilations = [1, 1], group = 1, "
               "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]")
    yield body("ok-transpose-without-perm", "y = Transpose (x)", outputs="float[3,2] y")
    yield body("ok-softmax-axis-from-the-end", "y = Softmax <axis = -2> (x)")
    yield body("ok-attribute-with-doc", "y = Softmax <axis = 1> (x)",
               edit=lambda m: m.graph.node[0].attribute[0].__setattr__("doc_string", "which"))
    yield body("ok-reduce-no-axes", "y = ReduceSum <keepdims = 0> (x)", outputs="float y")
    yield pool("ok-pool-ceil", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1")


def cases():
    for family in (windows, axes, numbers, of_the_wrong_kind, legal):
        yield from family()
