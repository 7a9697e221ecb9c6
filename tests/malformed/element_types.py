"""Element types that an operator or an op-set does not take; types that are no tensors."""
import onnx
from onnx import helper

from case import body

T = onnx.TensorProto


def cast(name, to, **more):
    return body(name, f"[n] y = Cast <to = {to}> (x)", **more)


def retyped(number, index=0, what="input"):
    """Sets the element type of an input or output."""
    def edit(model):
        value = getattr(model.graph, what)[index]
        value.type.tensor_type.elem_type = number
    return edit


def mixed():
    """Inputs that should be of one type."""
    ints = "float[2,3] x, int64[2,3] k"
    for op in ("Add", "Max", "Sum", "MatMul", "Pow", "Where", "Concat", "PRelu", "Mod", "Less"):
        nodes = {"Where": "[n] y = Where (b, x, k)", "Concat": "[n] y = Concat <axis = 0> (x, k)",
                 "MatMul": "t = Transpose (k) [n] y = MatMul (x, t)",
                 "Less": "[n] y = Less (x, k)"}.get(op, f"[n] y = {op} (x, k)")
        inputs = ints + (", bool[2,3] b" if op == "Where" else "")
        name = "ok-" if op == "Pow" else ""
        outputs = {"Less": "bool[2,3] y", "Concat": "float[4,3] y",
                   "MatMul": "float[2,2] y"}.get(op, "float[2,3] y")
        yield body(f"{name}mixed-{op.lower()}", nodes, inputs, outputs)
    yield body("ok-mixed-gemm-16-and-32", "[n] y = Gemm (x, w)", "float[2,3] x, float16[3,4] w",
               "float[2,4] y")
    yield body("ok-mixed-conv-bf16-weight", "[n] y = Conv (x, w)",
               "float[1,2,8] x, bfloat16[4,2,3] w", "float[1,4,6] y")
    yield body("mixed-double-and-float", "[n] y = Mul (x, d)", "float[2,3] x, double[2,3] d")


def refused_by_the_operator():
    yield body("relu-of-bool", "[n] y = Relu (x)", "bool[2] x", "bool[2] y")
    yield body("exp-of-int", "[n] y = Exp (x)", "int64[2] x", "int64[2] y")
    yield body("not-of-float", "[n] y = Not (x)", "float[2] x", "bool[2] y")
    yield body("softmax-of-int", "[n] y = Softmax (x)", "int32[2,3] x", "int32[2,3] y")
    yield body("conv-of-int", "[n] y = Conv (x, w)", "int64[1,1,8] x, int64[1,1,3] w",
               "int64[1,1,6] y")
    yield body("gather-with-float-indices", "[n] y = Gather (x, i)", "float[2,3] x, float[2] i",
               "float[2,3] y")
    yield body("reshape-with-float-shape", "[n] y = Reshape (x, s)", "float[2,3] x, float[2] s",
               "float[3,2] y")
    yield body("where-with-float-condition", "[n] y = Where (x, x, x)")
    yield body("clip-of-string", "[n] y = Clip (x)", "string[2] x", "string[2] y")
    yield body("dropout-ratio-is-int", "[n] y = Dropout (x, r)", "float[2,3] x, int64 r")
    yield body("ok-bfloat16-before-its-opset", "[n] y = Relu (x)", "bfloat16[2] x", "bfloat16[2] y",
               opset=12)
    yield body("ok-bfloat16-add-in-opset-7", "[n] y = Add (x, x)", "bfloat16[2] x", "bfloat16[2] y",
               opset=7)
    yield body("float8-matmul", "[n] y = MatMul (x, x)", "float8e4m3fn[2,2] x",
               "float8e4m3fn[2,2] y")
    yield body("complex-relu", "[n] y = Relu (x)", "complex64[2] x", "complex64[2] y")


def casts():
    yield cast("cast-to-undefined", 0)
    yield cast("cast-to-99", 99)
    yield cast("cast-to-minus-one", -1)
    yield cast("cast-to-past-32-bits", 2**32 + 1)
    yield cast("cast-without-a-type", 1, edit=lambda m: m.graph.node[0].ClearField("attribute"))
    yield cast("cast-to-complex", 14, outputs="complex64[2,3] y")
    yield cast("cast-declared-otherwise", 7, outputs="float[2,3] y")
    yield cast("ok-cast-to-string", 8, outputs="string[2,3] y")
    yield cast("ok-cast-to-bfloat16", 16, outputs="bfloat16[2,3] y")
    yield cast("ok-cast-to-double", 11, outputs="double[2,3] y")


def declared():
    yield body("input-of-type-99", "y = Relu (x)", edit=retyped(99))
    yield body("input-of-type-undefined", "y = Relu (x)", edit=retyped(0))
    yield body("input-without-a-type", "y = Relu (x)",
               edit=lambda m: m.graph.input[0].ClearField("type"))
    yield body("ok-output-declared-f16", "y = Relu (x)", edit=retyped(T.FLOAT16, what="output"))
    yield body("value-info-lies", "t = Relu (x) y = Abs (t)",
               edit=lambda m: m.graph.value_info.append(
                   helper.make_tensor_value_info("t", T.INT32, [2, 3])))
    yield body("ok-value-info-of-nobody", "y = Relu (x)",
               edit=lambda m: m.graph.value_info.append(
                   helper.make_tensor_value_info("nobody", T.INT32, [2, 3])))


def newer():
    """Types that op-set 23 lacks: what they are in cannot be written."""
    for name, dtype in (("float8e8m0", T.FLOAT8E8M0), ("uint2", 25)):
        def edit(model, dtype=dtype):
            model.ir_version = 13
            for value in (model.graph.input[0], model.graph.output[0]):
                value.type.tensor_type.elem_type = dtype
        yield body(f"newer-{name}", "[n] y = Identity (x)", opset=25, edit=edit)


def other_kinds():
    yield body("sequence-to-relu", "[n] y = Relu (x)", "seq(float[2]) x", "float[2] y")
    yield body("optional-to-relu", "[n] y = Relu (x)", "optional(float[2]) x", "float[2] y")
    yield body("map-input", "[n] y = Relu (x)", "map(int64, float[2]) x", "float[2] y")
    yield body("sparse-input", "[n] y = Relu (x)", "sparse_tensor(float[2]) x", "float[2] y")
    yield body("sequence-of-mixed-types", "[n] s = SequenceConstruct (x, k) "
               "y = ConcatFromSequence <axis = 0> (s)", "float[2,3] x, int64[2,3] k",
               "float[4,3] y")
    yield body("sequence-declared-as-tensor", "[n] y = SequenceConstruct (x)")
    yield body("ok-sequence-inside", "s = SequenceConstruct (x, x) "
               "y = ConcatFromSequence <axis = 0> (s)", outputs="float[4,3] y")


def cases():
    yield from mixed()
    yield from refused_by_the_operator()
    yield from casts()
    yield from declared()
    yield from newer()
    yield from other_kinds()
