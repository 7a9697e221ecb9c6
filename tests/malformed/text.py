"""Names that would steer a terminal, break a format or are no text, and broken ONNX text."""
from case import HEADER, Case, body

BAD = {"escape": "\x1b[31mred\x1b[0m", "bell-and-backspace": "\a\b\b\b", "newline": "a\nb: error",
       "carriage-return": "safe\rhidden", "right-to-left": "abc\u202egnp.exe",
       "script": "<script>alert(1)</script>", "percent": "%n%n%s%x",
       "quote": 'a"b\'c\\d', "nul": "a\0b", "64-kib": "n" * 65536, "c1-control": "a\u009b31m"}


def named(name, text, node="Relu"):
    """A node with that name; of an operator that is not there, so that the error shows it."""
    return body(name, f"y = {node} (x)",
                edit=lambda m: m.graph.node[0].__setattr__("name", text))


def names():
    for kind, text in BAD.items():
        yield named(f"node-name-{kind}", text, "NoSuchOperator")
    yield named("node-name-over-the-limit", "n" * 65537)
    yield body("value-name-escape", "y = Relu (x)",
               edit=lambda m: m.graph.node[0].input.__setitem__(0, "\x1b[2J"))
    yield body("operator-name-escape", "y = Relu (x)",
               edit=lambda m: m.graph.node[0].__setattr__("op_type", "\x1b]0;title\a"))
    yield body("domain-name-newline", "y = Relu (x)",
               edit=lambda m: m.graph.node[0].__setattr__("domain", "a\nb"))
    for kind in ("escape", "script", "quote", "newline", "percent", "64-kib"):
        yield named(f"ok-node-name-{kind}", BAD[kind])


def written(name, text, header=HEADER % 23, flags=("--inference",)):
    content = text if isinstance(text, bytes) else (header + text).encode()
    return Case(name, content, flags, ".onnxtxt")


def broken_text():
    graph = "g (float[2] x) => (float[2] y) { y = Relu (x) }"
    yield written("text-ends-early", graph[:-9])
    yield written("text-unknown-type", graph.replace("float", "flot"))
    yield written("text-undefined-name", graph.replace("(x) }", "(q) }"))
    yield written("text-number-too-large", graph.replace("2", "9" * 30))
    yield written("text-not-utf8", b"<ir_version: 10> g \xff\xfe () => () {}")
    yield written("text-is-empty", b"")
    yield written("text-is-binary", b"\x08\x0a\x3a\x02\x00\x00")
    yield written("ok-text-without-header", graph, header="")
    yield written("text-brackets-10000-deep", "g (" + "seq(" * 10000 + "float" + ")" * 10000 +
                  " x) => (float y) { y = Relu (x) }")
    yield written("text-string-not-closed", 'g (float[2] x) => (float[2] y) '
                  '{ y = Conv <auto_pad = "VALID> (x) }')
    yield written("text-weight-too-short",
                  "g (float[2] x) => (float[2] y) <float[2] w = {1}> { y = Add (x, w) }")
    yield written("ok-text", graph)


def cases():
    yield from names()
    yield from broken_text()
