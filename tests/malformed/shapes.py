"""Dims and ranks that cannot be, or that contradict each other."""
import onnx
from onnx import helper

from case import body

MAX = 2**63 - 1


def dims(values, what="input"):
    """Declares the shape of the first input or output."""
    def edit(model):
        shape = getattr(model.graph, what)[0].type.tensor_type.shape
        shape.ClearField("dim")
        for value in values:
            dim = shape.dim.add()
            if isinstance(value, str):
                dim.dim_param = value
            elif value is not None:
                dim.dim_value = value
    return edit


def relu(name, values, what="input", **more):
    return body(name, "[n] y = Relu (x)", edit=dims(values, what), **more)


def both(values):
    def edit(model):
        dims(values)(model)
        dims(values, "output")(model)
    return edit


def declared():
    yield relu("dim-minus-one", [-1, 3])
    yield relu("dim-smallest", [-(2**63), 3])
    yield relu("dim-largest", [MAX])
    yield relu("dim-2-to-62", [2**62])
    for name, sizes in (("overflows", [2**40, 2**40]), ("overflows-to-zero", [2**32, 2**32]),
                        ("over-the-limit", [2**30, 2**11])):
        yield body(f"product-{name}", "[n] y = Relu (x)", edit=both(sizes))
    yield relu("rank-9", [1] * 9)
    yield relu("rank-1000", [1] * 1000)
    yield relu("output-rank-9", [1] * 9, "output")
    yield relu("output-dim-minus-one", [-1, 3], "output")
    yield relu("output-of-other-size", [2, 4], "output")
    yield relu("output-of-other-rank", [6], "output")
    yield body("ok-value-info-contradicts", "t = Relu (x) y = Abs (t)",
               edit=lambda m: m.graph.value_info.append(
                   helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [2, 4])))
    yield body("ok-value-info-of-other-rank", "t = Relu (x) y = Abs (t)",
               edit=lambda m: m.graph.value_info.append(
                   helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [2, 3, 1])))
    yield relu("dim-name-over-the-limit", ["N" * 70_000, 3])
    yield body("initializer-input-of-other-shape", "y = Add (x, w)", "float[2,3] x, float[4] w",
               weights="float[3] w = {1, 2, 3}")


def elementwise():
    yield body("add-does-not-broadcast", "[n] y = Add (x, b)", "float[2,3] x, float[2] b")
    yield body("add-declared-too-small", "[n] y = Add (x, b)", "float[2,3] x, float[4,2,3] b")
    yield body("where-does-not-broadcast", "[n] y = Where (c, x, x)", "float[2,3] x, bool[4] c")
    yield body("sum-of-three-does-not-broadcast", "[n] y = Sum (x, x, b)",
               "float[2,3] x, float[2] b")
    yield body("expand-does-not-fit", "[n] y = Expand (x, s)", weights="int64[2] s = {2, 4}",
               outputs="float[2,4] y")
    yield body("prelu-slope-does-not-fit", "[n] y = PRelu (x, s)", "float[2,3] x, float[2] s")


def contractions():
    yield body("matmul-inner-sizes", "[n] y = MatMul (x, w)", "float[2,3] x, float[4,5] w",
               "float[2,5] y")
    yield body("matmul-of-a-scalar", "[n] y = MatMul (x, s)", "float[2,3] x, float s",
               "float[2] y")
    yield body("matmul-batch-sizes", "[n] y = MatMul (x, w)", "float[5,2,3] x, float[4,3,2] w",
               "float[5,2,2] y")
    yield body("gemm-inner-sizes", "[n] y = Gemm (x, w)", "float[2,3] x, float[4,5] w",
               "float[2,5] y")
    yield body("gemm-rank-3", "[n] y = Gemm (x, w)", "float[1,2,3] x, float[3,5] w",
               "float[2,5] y")
    yield body("gemm-bias-does-not-fit", "[n] y = Gemm (x, w, c)",
               "float[2,3] x, float[3,5] w, float[4] c", "float[2,5] y")
    yield body("conv-channels", "[n] y = Conv (x, w)", "float[1,3,8,8] x, float[4,2,3,3] w",
               "float[1,4,6,6] y")
    yield body("conv-rank-2-input", "[n] y = Conv (x, w)", "float[3,8] x, float[4,3,3] w",
               "float[4,6] y")
    yield body("conv-weight-rank", "[n] y = Conv (x, w)", "float[1,3,8,8] x, float[4,3,3] w",
               "float[1,4,6,6] y")
    yield body("conv-window-larger-than-image", "[n] y = Conv (x, w)",
               "float[1,3,4,4] x, float[4,3,9,9] w", "float[1,4,1,1] y")
    yield body("conv-bias-size", "[n] y = Conv (x, w, b)",
               "float[1,3,8,8] x, float[4,3,3,3] w, float[5] b", "float[1,4,6,6] y")
    yield body("conv-bias-rank", "[n] y = Conv (x, w, b)",
               "float[1,3,8,8] x, float[4,3,3,3] w, float[4,1] b", "float[1,4,6,6] y")
    yield body("conv-output-lies", "[n] y = Conv (x, w)", "float[1,3,8,8] x, float[4,3,3,3] w",
               "float[1,4,8,8] y")
    yield body("einsum-sizes", '[n] y = Einsum <equation = "ij,jk->ik"> (x, w)',
               "float[2,3] x, float[4,5] w", "float[2,5] y")
    yield body("attention-head-sizes", "[n] y = Attention (x, k, k)",
               "float[1,2,4,8] x, float[1,2,4,6] k", "float[1,2,4,6] y")


def normalizations():
    yield body("batchnorm-scale-size", "[n] y = BatchNormalization (x, s, s, s, s)",
               "float[2,3,4] x, float[5] s", "float[2,3,4] y")
    yield body("batchnorm-scale-rank", "[n] y = BatchNormalization (x, s, s, s, s)",
               "float[2,3,4] x, float[3,1] s", "float[2,3,4] y")
    yield body("layernorm-scale-size", "[n] y = LayerNormalization (x, s)",
               "float[2,3] x, float[5] s")
    yield body("groupnorm-scale-size",
               "[n] y = GroupNormalization <num_groups = 2> (x, s, s)",
               "float[2,4,5] x, float[3] s", "float[2,4,5] y")
    yield body("instancenorm-scale-size", "[n] y = InstanceNormalization (x, s, s)",
               "float[2,3,4] x, float[5] s", "float[2,3,4] y")
    yield body("rmsnorm-scale-size", "[n] y = RMSNormalization (x, s)",
               "float[2,3] x, float[5] s")


def moves():
    yield body("reshape-to-other-size", "[n] y = Reshape (x, s)", weights="int64[2] s = {4, 2}",
               outputs="float[4,2] y")
    yield body("reshape-two-unknown", "[n] y = Reshape (x, s)", weights="int64[2] s = {-1, -1}")
    yield body("reshape-minus-two", "[n] y = Reshape (x, s)", weights="int64[2] s = {-2, 3}")
    yield body("reshape-does-not-divide", "[n] y = Reshape (x, s)",
               weights="int64[2] s = {-1, 4}")
    yield body("reshape-zero-past-the-rank", "[n] y = Reshape (x, s)",
               weights="int64[3] s = {2, 3, 0}", outputs="float[2,3,1] y")
    yield body("reshape-overflows", "[n] y = Reshape (x, s)",
               weights=f"int64[3] s = {{{2**62}, 4, -1}}", outputs="float[A,B,C] y")
    yield body("reshape-shape-of-rank-2", "[n] y = Reshape (x, s)",
               weights="int64[1,2] s = {3, 2}", outputs="float[3,2] y")
    yield body("concat-other-sizes", "[n] y = Concat <axis = 0> (x, b)",
               "float[2,3] x, float[2,4] b", "float[4,3] y")
    yield body("concat-other-ranks", "[n] y = Concat <axis = 0> (x, b)",
               "float[2,3] x, float[2] b", "float[4,3] y")
    yield body("split-sizes-do-not-sum", "[n] y, z = Split <axis = 1> (x, s)",
               weights="int64[2] s = {1, 1}", outputs="float[2,1] y, float[2,1] z")
    yield body("split-negative-size", "[n] y, z = Split <axis = 1> (x, s)",
               weights="int64[2] s = {-1, 4}", outputs="float[2,1] y, float[2,4] z")
    yield body("split-more-outputs-than-sizes", "[n] y, z, q = Split <axis = 1> (x, s)",
               weights="int64[2] s = {1, 2}", outputs="float[2,1] y, float[2,2] z, float[2,1] q")
    yield body("squeeze-of-a-dim-of-3", "[n] y = Squeeze (x, a)", weights="int64[1] a = {1}",
               outputs="float[2] y")
    yield body("squeeze-axis-out-of-range", "[n] y = Squeeze (x, a)", weights="int64[1] a = {7}",
               outputs="float[2] y")
    yield body("unsqueeze-axis-twice", "[n] y = Unsqueeze (x, a)", weights="int64[2] a = {0, 0}",
               outputs="float[1,1,2,3] y")
    yield body("unsqueeze-axis-out-of-range", "[n] y = Unsqueeze (x, a)",
               weights="int64[1] a = {4}", outputs="float[2,3,1] y")
    yield body("unsqueeze-past-the-rank-limit", "[n] y = Unsqueeze (x, a)",
               weights="int64[7] a = {0,1,2,3,4,5,6}", outputs="float[1,1,1,1,1,1,1,2,3] y")
    yield body("pad-too-few-pads", "[n] y = Pad (x, p)", weights="int64[3] p = {0, 0, 1}",
               outputs="float[3,3] y")
    yield body("pad-away-more-than-there-is", "[n] y = Pad (x, p)",
               weights="int64[4] p = {-2, 0, -1, 0}", outputs="float[0,3] y")
    yield body("pad-to-2-to-62", "[n] y = Pad (x, p)", weights=f"int64[4] p = {{0, 0, {2**62}, 0}}",
               outputs="float[A,3] y")
    yield body("slice-step-zero", "[n] y = Slice (x, z, e, z, z)",
               weights="int64[1] z = {0}, int64[1] e = {2}", outputs="float[A,3] y")
    yield body("slice-axes-twice", "[n] y = Slice (x, s, e, a)",
               weights="int64[2] s = {0, 0}, int64[2] e = {1, 1}, int64[2] a = {1, 1}",
               outputs="float[2,1] y")
    yield body("slice-starts-and-ends-differ-in-number", "[n] y = Slice (x, s, e)",
               weights="int64[2] s = {0, 0}, int64[1] e = {1}", outputs="float[1,3] y")
    yield body("expand-negative", "[n] y = Expand (x, s)", weights="int64[2] s = {-1, 3}")
    yield body("expand-to-a-trillion", "[n] y = Expand (x, s)", "float[1] x",
               weights=f"int64[2] s = {{{2**35}, {2**30}}}", outputs="float[A,B] y")
    yield body("tile-negative", "[n] y = Tile (x, r)", weights="int64[2] r = {-1, 1}",
               outputs="float[A,B] y")
    yield body("tile-overflows", "[n] y = Tile (x, r)", weights=f"int64[2] r = {{{2**62}, 8}}",
               outputs="float[A,B] y")
    yield body("gather-constant-index-out-of-range", "[n] y = Gather (x, i)",
               weights="int64[1] i = {5}", outputs="float[1,3] y")
    yield body("gather-constants-out-of-range", "i = Constant <value = int64[1] {7}> () "
               "c = Constant <value = float[2] {1,2}> () [n] g = Gather (c, i) y = Add (x, g)")
    yield body("constant-of-shape-negative", "[n] c = ConstantOfShape (s) y = Add (x, c)",
               weights="int64[1] s = {-5}")
    yield body("constant-of-shape-huge", "[n] c = ConstantOfShape (s) y = Add (x, c)",
               weights=f"int64[1] s = {{{2**39}}}")
    yield body("range-huge", "[n] c = Range (a, b, d) k = Cast <to = 1> (c) y = Add (x, k)",
               weights=f"int64 a = {{0}}, int64 b = {{{2**62}}}, int64 d = {{1}}")
    yield body("range-without-a-step", "[n] c = Range (a, b, a) k = Cast <to = 1> (c) "
               "y = Add (x, k)", weights="int64 a = {0}, int64 b = {3}")
    yield body("one-hot-huge-depth", "[n] h = OneHot (i, d, v) y = Identity (h)",
               "int64[4] i", "float[4,A] y",
               weights=f"int64 d = {{{2**50}}}, float[2] v = {{0, 1}}")
    yield body("resize-to-2-to-40", "[n] y = Resize (x, , s)", "float[1,1,2,3] x",
               "float[A,B,C,D] y", weights="float[4] s = {1e10, 1e10, 1e10, 1e10}",
               edit=lambda m: m.graph.node[0].input.__setitem__(slice(0, 4), ["x", "", "s"]))


def low_ranks():
    """ONNX's own inference has read dims that are not there."""
    for rank, x in enumerate(("float x", "float[4] x")):
        yield body(f"det-of-rank-{rank}", "[n] y = Det (x)", x, "float y")
        yield body(f"det-of-rank-{rank}-without-a-result", "[n] y = Det (x)", x, "y")
    for rank, shape in enumerate(("", "[4]", "[2,2]")):
        yield body(f"grid-sample-of-rank-{rank}", "[n] y = GridSample (x, g)",
                   f"float{shape} x, float{shape} g", "y")
    yield body("grid-sample-of-two-ranks", "[n] y = GridSample (x, g)",
               "float[1,1,4,4] x, float[4] g", "y")


def legal():
    yield relu("ok-rank-8", [1] * 8, outputs="float[1,1,1,1,1,1,1,1] y")
    yield body("ok-zero-size", "y = Relu (x)", "float[0,3] x", "float[0,3] y")
    yield body("ok-scalar", "y = Relu (x)", "float x", "float y")
    yield body("ok-symbols-differ", "y = Relu (x)", "float[N,3] x", "float[M,3] y")
    yield body("ok-no-output-shape", "y = Relu (x)",
               edit=lambda m: m.graph.output[0].type.tensor_type.ClearField("shape"))
    yield body("ok-symbol-named-as-a-number", "y = Relu (x)", "float[N,3] x", "float[N,3] y",
               edit=both(["7", 3]))
    yield body("ok-unnamed-unknown-dim", "y = Relu (x)", edit=both([None, 3]))
    yield body("ok-open-dim-known-by-lowering",
               "y = Attention (q, k, k, m)",
               "float[2,3,?,8] q, float[2,3,6,8] k, float[4,6] m", "float[2,3,4,8] y")
    yield body("ok-reshape-keeps-zero-size", "y = Reshape (x, s)", "float[0,3] x", "float[0,3] y",
               weights="int64[2] s = {0, 3}")
    yield body("ok-slice-of-nothing", "y = Slice (x, s, e)", outputs="float[0,3] y",
               weights="int64[1] s = {2}, int64[1] e = {1}")
    yield body("ok-slice-past-the-end", "y = Slice (x, s, e)",
               weights=f"int64[1] s = {{-9}}, int64[1] e = {{{MAX}}}")


def cases():
    for family in (declared, elementwise, contractions, normalizations, moves, low_ranks, legal):
        yield from family()
