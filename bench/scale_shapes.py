"""Source models for compile_scale.py: large graphs of small weights, in the forms that people have.

SHAPES names them; each is a function that adds one repetition to a Maker and returns the value that
the next one reads. make(name, path, nodes) writes a model of about so many nodes.
"""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Maker:
    """Collects nodes and weights; op(...) returns the name of the result."""

    def __init__(self, name):
        self.name = name
        self.nodes, self.weights, self.infos, self.functions = [], [], [], []
        self.random = np.random.default_rng(0)
        self.opset, self.repetition = 23, 0
        self.metadata = None  # (op, output) -> what an exporter notes on a node

    def op(self, op, *inputs, domain="", count=1, **attributes):
        output = f"{op.lower()}_{len(self.nodes)}"
        outputs = [output] + [f"{output}_{i}" for i in range(1, count)]
        node = helper.make_node(op, inputs, outputs, name=f"node_{output}", domain=domain,
                                **attributes)
        for key, value in (self.metadata(op, output) if self.metadata else {}).items():
            node.metadata_props.add(key=key, value=value)
        self.nodes.append(node)
        return output if count == 1 else outputs

    def add_weight(self, role, values):
        name = f"layers.{self.repetition}.{role}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, role, *shape):
        return self.add_weight(role, self.random.normal(0, 0.3, shape).astype(np.float32))

    def ones(self, role, *shape):
        return self.add_weight(role, np.ones(shape, np.float32))

    def constant(self, values, dtype=np.int64):
        tensor = numpy_helper.from_array(np.array(values, dtype))
        return self.op("Constant", value=tensor)

    def info(self, name, *shape):
        self.infos.append(helper.make_tensor_value_info(name, FLOAT, shape))
        return name


def blocks(m, x):
    """Residual blocks of 8 x 8: MatMul, Add, Relu, LayerNormalization, a gate."""
    h = m.op("MatMul", x, m.weight("w", 8, 8))
    h = m.op("Relu", m.op("Add", h, m.weight("b", 8)))
    h = m.op("LayerNormalization", h, m.weight("s", 8), m.weight("o", 8))
    h = m.op("Mul", h, m.op("Sigmoid", h))
    return m.op("Add", h, x)


def mlp(m, x):
    """A deep perceptron of 4 x 4: two weights for two nodes, the most that there are."""
    return m.op("Relu", m.op("Gemm", x, m.weight("weight", 4, 4), m.weight("bias", 4), transB=1))


def chain(m, x):
    """Elementwise operators alone: no weight but one scale."""
    h = m.op("Mul", m.op("Tanh", x), m.weight("scale", 4))
    return m.op("Add", m.op("Sigmoid", h), m.op("Softplus", h))


def residual(m, x):
    """MatMul and Add with a skip over two layers."""
    h = m.op("Relu", m.op("MatMul", x, m.weight("first", 8, 8)))
    return m.op("Add", m.op("MatMul", h, m.weight("second", 8, 8)), x)


def attention(m, h):
    """Heads of 4 out of (N, 6, 8), sizes as Constant nodes."""
    parts = []
    for name in "qkv":
        y = m.op("Add", m.op("MatMul", h, m.weight(name + ".w", 8, 8)), m.weight(name + ".b", 8))
        y = m.op("Reshape", y, m.constant([0, 6, 2, 4]))
        parts.append(m.op("Transpose", y, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]))
    scores = m.op("MatMul", parts[0], parts[1])
    scores = m.op("Div", scores, m.constant(2.0, np.float32))
    y = m.op("MatMul", m.op("Softmax", scores, axis=-1), parts[2])
    y = m.op("Reshape", m.op("Transpose", y, perm=[0, 2, 1, 3]), m.constant([0, 6, 8]))
    return m.op("Add", m.op("MatMul", y, m.weight("o.w", 8, 8)), m.weight("o.b", 8))


def transformer(m, x):
    """Layers of a transformer, (N, 6, 8), two heads, pre-norm."""
    h = m.op("LayerNormalization", x, m.weight("n1.s", 8), m.weight("n1.o", 8))
    x = m.op("Add", x, attention(m, h))
    h = m.op("LayerNormalization", x, m.weight("n2.s", 8), m.weight("n2.o", 8))
    h = m.op("Gelu", m.op("Add", m.op("MatMul", h, m.weight("up", 8, 16)), m.weight("up.b", 16)))
    h = m.op("Add", m.op("MatMul", h, m.weight("down", 16, 8)), m.weight("down.b", 8))
    return m.op("Add", x, h)


def conv(m, x):
    """Convolutions of 4 channels on 6 x 6 with BatchNormalization."""
    h = m.op("Conv", x, m.weight("conv", 4, 4, 3, 3), pads=[1, 1, 1, 1])
    h = m.op("BatchNormalization", h, m.weight("s", 4), m.weight("b", 4), m.ones("running_mean", 4),
             m.ones("running_var", 4))
    return m.op("Relu", h)


def wide(m, _):
    """Branches beside each other that all read the input; their sum is the result."""
    h = m.op("Relu", m.op("Gemm", "x", m.weight("w", 4, 4), m.weight("b", 4)))
    return m.op("Add", m.result, h) if m.repetition else h


def fan(m, _):
    """As wide, but joined by one node with all branches as inputs."""
    h = m.op("Tanh", m.op("MatMul", "x", m.weight("w", 4, 4)))
    m.joined = getattr(m, "joined", []) + [h]
    return h


def tied(m, x):
    """All layers share their weights: gradients of thousands of uses are summed."""
    if m.repetition == 0:
        m.shared = m.weight("w", 4, 4), m.weight("b", 4)
    return m.op("Tanh", m.op("Gemm", x, *m.shared))


def constants(m, x):
    """Numbers as Constant nodes, one for each use."""
    h = m.op("Mul", x, m.constant(0.5, np.float32))
    h = m.op("Add", m.op("MatMul", h, m.weight("w", 4, 4)), m.constant([1, 2, 3, 4], np.float32))
    h = m.op("Reshape", h, m.constant([-1, 4]))
    return m.op("Clip", h, m.constant(-3, np.float32), m.constant(3, np.float32))


def shapes(m, x):
    """Sizes computed in the graph, as the older exporters write them."""
    size = m.op("Gather", m.op("Shape", x), m.constant(0), axis=0)
    size = m.op("Concat", m.op("Unsqueeze", size, m.constant([0])), m.constant([-1]), axis=0)
    return m.op("Relu", m.op("MatMul", m.op("Reshape", x, size), m.weight("w", 4, 4)))


def exported(m, x):
    """As PyTorch's exporter writes: op-set 18, notes on each node, types of each value."""
    m.opset = 18
    scope = f"layers.{m.repetition}"

    def notes(op, output):
        return {
            "namespace": f": model.Net/{scope}: model.Block/{scope}.{op}: torch.nn.{op}/{output}: "
                         f"aten.{op.lower()}.default",
            "pkg.torch.onnx.class_hierarchy":
                f"['model.Net', 'model.Block', 'torch.nn.{op}', 'aten.{op.lower()}.default']",
            "pkg.torch.onnx.name_scopes": f"['', '{scope}', '{scope}.{op}', '{output}']",
            "pkg.torch.onnx.fx_node":
                f"%{output} : [num_users=1] = call_function[target=torch.ops.aten.{op.lower()}"
                f".default](args = (%{x}, %p_layers_{m.repetition}_weight), kwargs = {{}})",
            "pkg.torch.onnx.stack_trace":
                f'File "/home/user/project/train/model.py", line {m.repetition}, in forward\n'
                "    x = self.blocks(x)\n"
                'File "/home/user/project/train/model.py", line 17, in forward\n'
                "    return torch.relu(self.linear(x)) + x\n",
        }

    m.metadata = notes
    h = m.op("Gemm", x, m.weight("weight", 4, 4), m.weight("bias", 4), transB=1)
    m.info(h, "N", 4)
    return m.info(m.op("Add", m.info(m.op("Relu", h), "N", 4), x), "N", 4)


def functions(m, x):
    """Each layer a call of one function of the model."""
    if not m.functions:
        body = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
                helper.make_node("Relu", ["h"], ["y"])]
        m.functions.append(helper.make_function("own", "Layer", ["x", "w", "b"], ["y"], body,
                                                [helper.make_opsetid("", 23)]))
    return m.op("Layer", x, m.weight("w", 4, 4), m.weight("b", 4), domain="own")


SHAPES = {f.__name__: f for f in (blocks, mlp, chain, residual, transformer, conv, wide, fan, tied,
                                  constants, shapes, exported, functions)}
INPUTS = {"blocks": ["N", 8], "residual": ["N", 8], "transformer": ["N", 6, 8],
          "conv": ["N", 4, 6, 6]}


def make(name, path, nodes):
    """Writes the model and returns its number of nodes."""
    m = Maker(name)
    m.result = "x"
    while len(m.nodes) < nodes:
        m.result = SHAPES[name](m, m.result)
        m.repetition += 1
    if name == "fan":
        m.result = m.op("Sum", *m.joined)
    shape = INPUTS.get(name, ["N", 4])
    graph = helper.make_graph(
        m.nodes, "scale", [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(m.result, FLOAT, shape)], m.weights, value_info=[
            info for info in m.infos if info.name != m.result])
    opsets = [helper.make_opsetid("", m.opset)]
    if m.functions:
        opsets.append(helper.make_opsetid("own", 1))
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=m.functions)
    path.write_bytes(model.SerializeToString())
    return len(m.nodes)


def described():
    """What each shape is, by name."""
    return {name: shape.__doc__ for name, shape in SHAPES.items()}


def count_nodes(path):
    """Of an artifact, all its graphs together."""
    model = onnx.load(path)
    steps = (info.algorithm for info in model.training_info)
    return len(model.graph.node) + sum(len(graph.node) for graph in steps)
