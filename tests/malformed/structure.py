"""Graphs whose parts do not fit together: names, order, cycles, subgraphs, functions, metadata."""
import onnx
from onnx import helper

from case import body, case

IF = "z = If (c) <then_branch = a () => (t) {{ {0} }}, else_branch = b () => (u) {{ {1} }}>"


def branches(name, then, other="u = Abs (x)", outputs="float[2,3] z", after="", **more):
    return body(name, IF.format(then, other) + after, "float[2,3] x, bool c", outputs, **more)


def loops(name, nodes, inputs="cond_in, ", outputs="cond_out, v_out", **more):
    """A Loop over x whose body is `nodes`."""
    text = ("trips = Constant <value = int64 {3}> () true = Constant <value = bool {1}> () "
            "y = Loop (trips, true, x) <body = b (int64 i, bool cond, float[2,3] v) => "
            f"({outputs}) {{ {nodes} }}>")
    return body(name, text, **more)


def graphs():
    yield body("cycle-of-two", "[one] a = Add (x, b) [two] b = Relu (a) y = Neg (b)")
    yield body("cycle-of-a-thousand",
               "y = Relu (c0) " + " ".join(f"[n{i}] c{i} = Abs (c{(i + 1) % 1000})"
                                           for i in range(1000)))
    yield body("two-cycles", "a = Add (x, b) b = Relu (a) c = Add (x, d) d = Neg (c) "
               "y = Add (b, d)")
    yield body("no-nodes-no-source", "")
    yield body("ok-no-outputs", "y = Relu (x)", edit=lambda m: m.graph.ClearField("output"))
    yield body("no-inputs", "y = Relu (x)", edit=lambda m: m.graph.ClearField("input"))
    yield body("output-is-typed-otherwise", "y = Relu (x)", outputs="int64[2,3] y")
    yield body("input-named-as-initializer-of-other-type", "y = Relu (x)",
               edit=lambda m: m.graph.initializer.append(
                   helper.make_tensor("x", onnx.TensorProto.INT64, [2], [1, 2])))
    yield body("node-defines-an-initializer", "[n] w = Relu (x) y = Abs (w)",
               weights="float[2,3] w = {1,2,3,4,5,6}")
    yield body("node-defines-an-output-twice", "[n] y, y = Split <axis = 0, num_outputs = 2> (x)",
               outputs="float[1,3] y")
    yield body("typo-in-an-input", "hidden = Relu (x) y = Abs (hiden)")
    yield body("too-few-inputs", "[n] y = MatMul (x)")
    yield body("too-many-inputs", "[n] y = Relu (x, x)")
    yield body("too-many-outputs", "[n] y, z = Relu (x)")
    yield body("no-outputs-of-a-node", "[n] y = Relu (x) [m] = Abs (x)",
               edit=lambda m: m.graph.node[1].ClearField("output"))
    yield body("required-input-empty", "[n] y = Gemm (x, )",
               edit=lambda m: m.graph.node[0].input.__setitem__(slice(0, 2), ["x", ""]))
    yield body("required-output-empty", "[n] y = MaxPool <kernel_shape = [1]> (x)",
               inputs="float[1,2,3] x", outputs="float[1,2,3] y",
               edit=lambda m: m.graph.node[0].output.__setitem__(0, ""))
    yield body("operator-of-no-opset", "[n] y = Reluu (x)")
    yield body("ok-operator-newer-than-its-opset", "[n] y = Gelu (x)", opset=17)
    yield body("ok-operator-older-than-its-opset",
               "[n] y = Upsample <scales = [1.0, 1.0]> (x)", opset=13)
    yield body("domain-not-imported", "[n] y = com.acme.Fuse (x)")
    yield body("operand-over-the-limit", "[n] y = Sum (" + ", ".join(["x"] * 100_001) + ")")
    yield body("attribute-over-the-limit", "[n] y = Relu (x)",
               edit=lambda m: m.graph.node[0].attribute.extend(
                   helper.make_attribute(f"a{i}", i) for i in range(70)))


def subgraphs():
    yield branches("if-branch-outputs-differ-in-number", "t = Abs (x)", outputs="float[2,3] z",
                   edit=lambda m: m.graph.node[0].attribute[0].g.output.append(
                       helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])))
    yield branches("if-branch-types-differ", "t = Cast <to = 7> (x)")
    yield branches("if-branch-with-inputs", "t = Abs (x)",
                   edit=lambda m: m.graph.node[0].attribute[0].g.input.append(
                       helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, [2, 3])))
    yield branches("if-branch-missing", "t = Abs (x)",
                   edit=lambda m: m.graph.node[0].attribute.pop())
    yield branches("if-condition-is-float", "t = Abs (x)",
                   edit=lambda m: m.graph.input[1].type.tensor_type.__setattr__("elem_type", 1))
    yield branches("if-branch-reads-its-own-later-name", "t = Abs (later) later = Abs (t)")
    yield branches("if-branch-reads-the-other-branch", "t = Abs (u)")
    yield branches("if-result-read-inside", "t = Abs (z)")
    yield branches("if-branch-name-leaks-out", "inner = Abs (x) t = Abs (inner)",
                   after=" q = Abs (inner)")
    yield branches("if-branch-shadows-an-outer-name", "x = Abs (c) t = Cast <to = 1> (x)")
    yield branches("if-branch-cycle", "a = Add (x, t) t = Relu (a)")
    yield branches("if-branch-undefined-output", "q = Abs (x)")
    yield body("ok-if-branch-hands-on-an-outer-value",
               "z = If (c) <then_branch = a () => (float[2,3] t) { t = Abs (x) }, "
               "else_branch = b () => (float[2,3] x) { }>", "float[2,3] x, bool c",
               "float[2,3] z")
    yield loops("loop-condition-is-float", "cond_out = Cast <to = 1> (cond) v_out = Abs (v)")
    yield loops("loop-body-with-too-few-outputs", "cond_out = Identity (cond)", outputs="cond_out")
    yield loops("loop-value-changes-type",
                "cond_out = Identity (cond) v_out = Cast <to = 7> (v)")
    yield loops("loop-trip-count-is-float", "cond_out = Identity (cond) v_out = Abs (v)",
                edit=lambda m: m.graph.node[0].attribute[0].CopyFrom(
                    helper.make_attribute("value_float", 3.0)))
    yield body("scan-without-its-count",
               "[n] y = Scan (x) <body = b (float[3] e) => (float[3] f) { f = Abs (e) }>")
    yield body("scan-with-too-many-inputs", "[n] y = Scan (x) <num_scan_inputs = 5, body = b "
               "(float[3] e) => (float[3] f) { f = Abs (e) }>")


FUNCTION = '\n<opset_import: ["" : 23], domain: "d"> twice (a) => (r) { r = Add (a, a) }'
IMPORTS = '<ir_version: 10, opset_import: ["" : 23, "d" : 1]>\n'
CALL = "g (float[2,3] x) => (float[2,3] y) { [n] y = d.twice (x) }"


def functions():
    yield case("function-calls-itself", IMPORTS + CALL + FUNCTION.replace("Add (a, a)",
                                                                          "d.twice (a)"))
    yield case("functions-call-each-other",
               IMPORTS + CALL + FUNCTION.replace("Add (a, a)", "d.other (a)") +
               FUNCTION.replace("twice (a)", "other (a)").replace("Add (a, a)", "d.twice (a)"))
    yield case("function-twice", IMPORTS + CALL + FUNCTION + FUNCTION)
    yield case("function-without-opset", IMPORTS + CALL + FUNCTION,
               lambda m: m.functions[0].ClearField("opset_import"))
    yield case("function-output-undefined", IMPORTS + CALL + FUNCTION,
               lambda m: m.functions[0].output.__setitem__(0, "nothing"))
    yield case("function-with-too-many-arguments", IMPORTS + CALL + FUNCTION,
               lambda m: m.graph.node[0].input.extend(["x", "x"]))
    yield case("ok-function-attribute-missing", IMPORTS + CALL + FUNCTION,
               lambda m: m.functions[0].attribute.append("alpha"))
    yield case("function-doubling-20-times", IMPORTS + CALL.replace("twice", "f20") + "".join(
        f'\n<opset_import: ["" : 23, "d" : 1], domain: "d"> f{i} (a) => (r) '
        f"{{ t = d.f{i - 1} (a) r = d.f{i - 1} (t) }}" for i in range(1, 21)) +
        '\n<opset_import: ["" : 23], domain: "d"> f0 (a) => (r) { r = Neg (a) }')
    yield case("function-doubling-past-the-limit", IMPORTS + CALL.replace("twice", "f14") + "".join(
        f'\n<opset_import: ["" : 23, "d" : 1], domain: "d"> f{i} (a) => (r) {{ '
        + " ".join(f"t{k + 1} = d.f{i - 1} (t{k})" for k in range(8)).replace("t0)", "a)")
        + " r = Neg (t8) }" for i in range(1, 15)) +
        '\n<opset_import: ["" : 23], domain: "d"> f0 (a) => (r) { r = Neg (a) }')


def legal():
    yield body("ok-unsorted", "y = Relu (b) b = Abs (a) a = Neg (x)")
    yield body("ok-no-graph-name", "y = Relu (x)", edit=lambda m: m.graph.ClearField("name"))
    yield body("ok-same-node-name-twice", "[n] a = Relu (x) [n] y = Abs (a)")
    yield body("ok-output-is-an-initializer", "y = Relu (x)", outputs="float[2,3] y, float[2] w",
               weights="float[2] w = {1, 2}")
    yield body("ok-output-is-an-input", "y = Relu (x)", outputs="float[2,3] y, float[2,3] x")
    yield body("ok-unused-input-and-initializer", "y = Relu (x)", "float[2,3] x, int64[4] q",
               weights="float[2] w = {1, 2}")
    yield body("ok-dead-nodes", "y = Relu (x) dead = Abs (x) deader = Neg (dead)")
    yield body("ok-input-with-a-default", "y = Add (x, w)", "float[2,3] x, float[3] w",
               weights="float[3] w = {1, 2, 3}")
    yield branches("ok-if-captures", "t = Abs (x)", "u = Neg (x)")
    yield branches("ok-if-branch-output-captured", "t = Identity (x)", "u = Identity (x)")
    yield loops("ok-loop", "cond_out = Identity (cond) v_out = Abs (v)")
    yield case("ok-function", IMPORTS + CALL + FUNCTION)
    yield case("ok-function-not-used", IMPORTS + CALL.replace("d.twice", "Neg") + FUNCTION)
    yield body("ok-no-inputs-but-constants", "y = Constant <value = float[2,3] {1,2,3,4,5,6}> ()",
               edit=lambda m: m.graph.ClearField("input"))


def cases():
    yield from graphs()
    yield from subgraphs()
    yield from functions()
    yield from legal()
