"""Constants and operands that a schema lets pass and an operator does not: indices, axes, lengths,
sizes that point past what they are of; and the odd ones that are legal."""
import onnx

from case import body

ANY = "y"


def without(*names):
    """The operands of the last node; "" is one that is left out."""
    def edit(model):
        model.graph.node[-1].input[:] = names
    return edit


def empty(name, dtype=onnx.TensorProto.INT64):
    """Adds a weight of no elements, which the text cannot say."""
    def edit(model):
        model.graph.initializer.add(name=name, dims=[0], data_type=dtype)
    return edit


def node(name, call, inputs="float[2,3] x", weights="", outputs=ANY, **more):
    return body(name, f"[n] {outputs} = {call}", inputs, outputs, weights=weights, **more)


def indices():
    yield node("gather-index-of-nothing", "Gather (x, i)", "float[0,3] x", "int64 i = {0}")
    yield node("gatherelements-index-before-the-first", "GatherElements (x, i)",
               weights="int64[2,3] i = {0, 1, 0, 0, -3, 0}")
    yield node("gatherelements-indices-wider", "GatherElements (x, i)",
               weights="int64[1,4] i = {0, 0, 0, 0}")
    yield node("gathernd-index-past", "GatherND (x, i)", weights="int64[1,2] i = {0, 3}")
    yield node("gathernd-batch-of-other-size", "GatherND <batch_dims = 1> (x, i)",
               weights="int64[3,1] i = {0, 0, 0}")
    yield node("gathernd-batch-dims-reach-the-rank", "GatherND <batch_dims = 1> (x, i)",
               weights="int64[1] i = {0}")
    yield node("scatterelements-index-past", "ScatterElements (x, i, u)",
               weights="int64[1,2] i = {0, 2}, float[1,2] u = {1, 2}")
    yield node("scatterelements-updates-of-other-shape", "ScatterElements (x, i, u)",
               weights="int64[1,2] i = {0, 1}, float[1,3] u = {1, 2, 3}")
    yield node("scatternd-index-before-the-first", "ScatterND (x, i, u)",
               weights="int64[1,2] i = {-3, 0}, float[1] u = {1}")
    yield node("scatternd-place-of-three", "ScatterND (x, i, u)",
               weights="int64[1,3] i = {0, 0, 0}, float[1] u = {1}")
    yield node("scatternd-scalar-index", "ScatterND (x, i, u)",
               weights="int64 i = {0}, float[3] u = {1, 2, 3}")
    yield node("maxunpool-index-past", "MaxUnpool <kernel_shape = [2], strides = [2]> (x, i)",
               "float[1,1,2] x", "int64[1,1,2] i = {0, 4}")
    yield node("maxunpool-indices-of-other-shape",
               "MaxUnpool <kernel_shape = [2], strides = [2]> (x, i)", "float[1,1,2] x",
               "int64[1,2,1] i = {0, 1}")
    yield node("roialign-batch-index-past", "RoiAlign (x, r, b)", "float[2,1,6,6] x",
               "float[1,4] r = {0, 0, 3, 3}, int64[1] b = {2}")
    yield node("loss-label-past", "SoftmaxCrossEntropyLoss (x, l)",
               weights="int64[2] l = {0, 3}")
    yield node("loss-labels-of-other-rank", "SoftmaxCrossEntropyLoss (x, l)",
               weights="int64[2,1] l = {0, 2}")
    yield node("loss-without-classes", "SoftmaxCrossEntropyLoss (x, l)", "float[3] x",
               "int64[1] l = {0}")
    yield node("nll-label-negative", "NegativeLogLikelihoodLoss (x, l)",
               weights="int64[2] l = {0, -1}")


def axes_and_lists():
    yield node("cumsum-two-axes", "CumSum (x, a)", weights="int64[2] a = {0, 1}")
    yield node("cumsum-of-a-scalar", "CumSum (x, a)", "float x", "int64 a = {0}")
    yield node("reduce-axes-of-rank-2", "ReduceSum (x, a)", weights="int64[1,1] a = {1}")
    yield node("unsqueeze-axes-of-rank-2", "Unsqueeze (x, a)", weights="int64[1,1] a = {0}")
    yield node("slice-starts-of-rank-2", "Slice (x, s, s)", weights="int64[1,2] s = {0, 0}")
    yield node("transpose-perm-empty", "Transpose <perm = [0]> (x)",
               edit=lambda m: m.graph.node[0].attribute[0].ClearField("ints"))
    yield node("reversesequence-one-axis-for-both",
               "ReverseSequence <batch_axis = 1, time_axis = 1> (x, l)", "float[3,2] x",
               "int64[2] l = {1, 1}")
    yield node("reversesequence-length-past", "ReverseSequence (x, l)", "float[3,2] x",
               "int64[2] l = {4, 1}")


def sizes():
    yield node("pad-of-a-scalar", 'Pad <mode = "edge"> (x, p)', "float x", "int64[2] p = {1, 1}")
    yield node("pad-edge-of-nothing", 'Pad <mode = "edge"> (x, p)', "float[0,3] x",
               "int64[4] p = {1, 0, 0, 0}")
    yield node("pad-edge-of-nothing-by-axes", 'Pad <mode = "edge"> (x, p, , a)', "float[0,3] x",
               "int64[2] p = {1, 0}, int64[1] a = {-2}", edit=without("x", "p", "", "a"))
    yield node("pad-two-values", "Pad (x, p, v)",
               weights="int64[4] p = {0, 1, 0, 1}, float[2] v = {1, 2}")
    image = "float[1,1,2,3] x"
    yield node("resize-scale-zero", "Resize (x, , s)", image, "float[4] s = {1, 1, 0, 2}",
               edit=without("x", "", "s"))
    for name, size in (("negative", -1), ("zero", 0)):
        yield node(f"resize-size-{name}", "Resize (x, , , s)", image,
                   f"int64[4] s = {{1, 1, {size}, 2}}", edit=without("x", "", "", "s"))
    yield node("resize-of-nothing", "Resize (x, , , s)", "float[1,1,0,3] x",
               "int64[4] s = {1, 1, 4, 2}", edit=without("x", "", "", "s"))
    crop = 'Resize <coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear"> '
    yield node("resize-region-of-too-few", crop + "(x, r, s)", image,
               "float[4] r = {0, 0, 1, 1}, float[4] s = {1, 1, 2, 2}")
    yield node("resize-region-left-out", crop + "(x, , s)", image, "float[4] s = {1, 1, 2, 2}",
               edit=without("x", "", "s"))
    yield node("dft-length-zero", "DFT (x, n)", "float[1,4,1] x", "int64 n = {0}")


def single_numbers():
    yield node("clip-bound-of-three", "Clip (x, a)", weights="float[3] a = {1, 2, 3}")
    yield node("clip-bound-of-none", "Clip (x, a)", "float[2,3] x, float[0] a")
    yield node("trilu-two-diagonals", "Trilu (x, k)", weights="int64[2] k = {1, 2}")
    yield node("dropout-ratio-past-1", "Dropout (x, r)", weights="float r = {1.5}")
    yield node("dropout-ratio-negative-7", "Dropout <ratio = -0.5> (x)", opset=7)
    branches = ("then_branch = t () => (float[2,3] a) { a = Abs (x) }, "
                "else_branch = e () => (float[2,3] b) { b = Neg (x) }")
    yield node("if-two-conditions", f"If (c) <{branches}>", "float[2,3] x, bool[2] c")
    loop = ("body = b (int64 i, bool go, float[2,3] v) => (bool again, float[2,3] w) "
            "{ again = Identity (go) w = Abs (v) }")
    yield node("loop-two-trip-counts", f"Loop (n, c, x) <{loop}>",
               weights="int64[2] n = {2, 3}, bool c = {1}")
    yield node("ok-loop-trip-count-of-rank-1", f"Loop (n, , x) <{loop}>",
               weights="int64[1] n = {2}", edit=without("n", "", "x"))
    yield node("lp-norm-of-order-3", "LpNormalization <p = 3> (x)")


def ranks_and_words():
    yield node("mean-variance-axis-of-a-scalar", "MeanVarianceNormalization <axes = [0]> (x)",
               "float x")
    for op in ("InstanceNormalization (x, s, s)", "GroupNormalization <num_groups = 3> (x, s, s)",
               "LRN <size = 3> (x)", "GlobalMaxPool (x)"):
        name = op.split(" ")[0].lower()
        yield node(f"{name}-without-channels", op, "float[3] x", "float[3] s = {1, 1, 1}")
    yield node("ok-globalaveragepool-of-channels-alone", "GlobalAveragePool (x)", "float[2,3] x")
    region = "float[1,4] r = {0, 0, 3, 3}, int64[1] b = {0}"
    yield node("roialign-mode-unknown", 'RoiAlign <mode = "median"> (x, r, b)',
               "float[1,1,6,6] x", region)
    yield node("roialign-coordinates-unknown",
               'RoiAlign <coordinate_transformation_mode = "half"> (x, r, b)', "float[1,1,6,6] x",
               region)
    yield node("bitshift-direction-unknown", 'BitShift <direction = "UP"> (x, x)', "uint8[3] x")
    yield node("dft-of-triples", "DFT (x)", "float[1,4,3] x")


def scans():
    scan = ("body = b (float[3] s, float[3] t) => (float[3] u, float[3] o) "
            "{ u = Add (s, t) o = Neg (u) }")
    for name, attribute in (("scan-direction-2", "scan_input_directions = [2]"),
                            ("scan-two-directions", "scan_output_directions = [0, 0]"),
                            ("ok-scan-from-the-end", "scan_output_directions = [1]")):
        yield node(name, f"Scan <num_scan_inputs = 1, {attribute}, {scan}> (h, x)",
                   "float[3] h, float[2,3] x", outputs="s, y")


def quantized():
    call = "QuantizeLinear <{}> (x, s)"
    yield node("quantize-scales-of-other-number", "QuantizeLinear (x, s)",
               weights="float[2] s = {1, 2}")
    yield node("quantize-zero-points-of-other-number", "QuantizeLinear (x, s, z)",
               weights="float[3] s = {1, 2, 3}, uint8[2] z = {1, 2}")
    yield node("quantize-scales-of-a-scalar", "QuantizeLinear (x, s)", "float x",
               "float[3] s = {1, 2, 3}")
    yield node("quantize-blocks-without-a-size", call.format("axis = 1"), "float[2,4] x",
               "float[2,2] s = {1, 2, 3, 4}")
    yield node("quantize-blocks-of-other-number", call.format("axis = 1, block_size = 2"),
               "float[2,4] x", "float[2,3] s = {1, 2, 3, 4, 5, 6}")
    yield node("quantize-block-size-largest", call.format(f"axis = 1, block_size = {2**63 - 1}"),
               "float[2,4] x", "float[2,2] s = {1, 2, 3, 4}")
    yield node("quantize-block-size-negative", call.format("axis = 1, block_size = -2"),
               "float[2,4] x", "float[2,2] s = {1, 2, 3, 4}")
    yield node("ok-quantize-vector-by-blocks", call.format("axis = 0, block_size = 2"),
               "float[5] x", "float[3] s = {1, 2, 3}")
    yield node("ok-quantize-zero-point-beside-a-list", "QuantizeLinear (x, s, z)",
               weights="float[1] s = {1}, uint8 z = {1}")
    yield node("ok-quantize-list-beside-a-scale", "QuantizeLinear (x, s, z)",
               weights="float s = {1}, uint8[1] z = {1}")


CELL = "float[3,2,4] x, float[1,8,4] w, float[1,8,2] r"


def lstm(name, operands="x, w, r", inputs=CELL, weights="", attributes="hidden_size = 2"):
    """`operands`: a "-" is one that is left out."""
    return node(name, f"LSTM <{attributes}> (x, w, r)", inputs, weights,
                edit=without(*operands.replace("-", "").split(", ")))


def recurrent():
    yield lstm("lstm-weight-of-other-columns",
               inputs="float[3,2,4] x, float[1,8,5] w, float[1,8,2] r")
    yield lstm("lstm-weight-for-one-direction",
               attributes='hidden_size = 2, direction = "bidirectional"')
    yield lstm("lstm-recurrence-of-rank-2",
               inputs="float[3,2,4] x, float[1,8,4] w, float[8,2] r")
    yield lstm("lstm-hidden-size-contradicts", attributes="hidden_size = 3")
    yield lstm("lstm-bias-of-half", "x, w, r, b", CELL + ", float[1,8] b")
    yield lstm("lstm-state-turned", "x, w, r, -, -, h", CELL + ", float[2,1,2] h")
    yield lstm("lstm-cell-of-other-size", "x, w, r, -, -, -, c", CELL + ", float[1,2,3] c")
    yield lstm("lstm-peepholes-of-four", "x, w, r, -, -, -, -, p", CELL + ", float[1,8] p")
    yield lstm("lstm-length-past-the-time", "x, w, r, -, l", weights="int32[2] l = {1, 4}")
    yield lstm("lstm-length-negative", "x, w, r, -, l", weights="int32[2] l = {1, -1}")
    yield lstm("ok-lstm-length-zero", "x, w, r, -, l", weights="int32[2] l = {3, 0}")
    yield lstm("ok-lstm-hidden-size-left-out", attributes="layout = 0")
    yield node("gru-recurrence-of-four-gates", "GRU <hidden_size = 2> (x, w, r)",
               "float[3,2,4] x, float[1,6,4] w, float[1,8,2] r")
    yield node("ok-rnn-open-batch", "RNN <hidden_size = 2> (x, w, r)",
               "float[3,N,4] x, float[1,2,4] w, float[1,2,2] r, float[1,N,2] h",
               edit=without("x", "w", "r", "", "", "h"))


def legal():
    yield node("ok-gather-from-the-end", "Gather <axis = -1> (x, i)",
               weights="int64[2] i = {-3, 2}")
    yield node("ok-gather-none-of-nothing", "Gather (x, i)", "float[0,3] x", edit=empty("i"))
    yield node("ok-gathernd-batch-of-open-size", "GatherND <batch_dims = 1> (x, i)",
               "float[N,3] x", "int64[2,1] i = {-1, 2}")
    yield node("ok-gatherelements-more-than-there-are", "GatherElements <axis = 1> (x, i)",
               weights="int64[1,5] i = {-1, 0, 1, 2, -3}")
    yield node("ok-scatternd-from-the-end", "ScatterND (x, i, u)",
               weights="int64[1,1] i = {-1}, float[1,3] u = {7, 8, 9}")
    yield node("ok-cumsum-axis-in-a-list", "CumSum (x, a)", weights="int64[1] a = {-2}")
    yield node("ok-reduce-axis-as-a-scalar", "ReduceSum (x, a)", weights="int64 a = {1}")
    yield node("ok-reduce-axes-left-out", "ReduceMax (x)", edit=without("x", ""))
    yield node("ok-unsqueeze-axis-as-a-scalar", "Unsqueeze (x, a)", weights="int64 a = {0}")
    yield node("ok-transpose-of-a-scalar", "Transpose (x)", "float x")
    yield node("ok-clip-only-a-maximum", "Clip (x, b)", weights="float[1] b = {0.5}",
               edit=without("x", "", "b"))
    yield node("ok-pad-of-a-scalar-by-nothing", 'Pad <mode = "edge"> (x, p)', "float x",
               edit=empty("p"))
    yield node("ok-pad-constant-of-nothing", "Pad (x, p)", "float[0,3] x",
               "int64[4] p = {1, 1, 0, 2}")
    yield node("ok-pad-edge-beside-nothing", 'Pad <mode = "edge"> (x, p)', "float[0,3] x",
               "int64[4] p = {0, 1, 0, 2}")
    yield node("ok-resize-scales-of-none-11", "Resize (x, r, r, s)", "float[1,1,2,3] x",
               "int64[4] s = {1, 1, 4, 6}", edit=empty("r", onnx.TensorProto.FLOAT), opset=11)
    yield node("ok-loss-label-ignored", "SoftmaxCrossEntropyLoss <ignore_index = -100> (x, l)",
               weights="int64[2] l = {-100, 2}")
    yield node("ok-roialign-of-no-regions", "RoiAlign (x, r, b)",
               "float[2,1,6,6] x, float[0,4] r, int64[0] b")


def cases():
    for family in (indices, axes_and_lists, sizes, single_numbers, ranks_and_words, scans,
                   quantized, recurrent, legal):
        yield from family()
