"""Files that are no protobuf message, or a strange one."""
import gzip

import onnx

from case import GRAPH, INPUT, IR_VERSION, NODE, OPSETS, Case, field, parsed, varint

VALID = parsed("g (float[2,3] x) => (float[2,3] y) { [relu] y = Relu(x) }").SerializeToString()
HEAD = field(IR_VERSION, 10) + field(OPSETS, field(2, 23))
RELU = parsed("g (float[2,3] x) => (float[2,3] y) { [relu] y = Relu(x) }").graph


def graph_without(*fields):
    graph = onnx.GraphProto()
    graph.CopyFrom(RELU)
    for name in fields:
        graph.ClearField(name)
    return graph.SerializeToString()


def foreign_files():
    """What people give by mistake."""
    yield Case("one-byte", b"\x08")
    yield Case("zeros", bytes(4096))
    yield Case("all-ones", b"\xff" * 4096)
    yield Case("html-page", b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n")
    yield Case("git-lfs-pointer", b"version https://git-lfs.github.com/spec/v1\n"
               b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
               b"size 12345\n")
    yield Case("json", b'{"graph": {"node": []}}\n')
    yield Case("text-named-binary", b'<ir_version: 10, opset_import: ["" : 23]>\n'
               b"g (float[2] x) => (float[2] y) { y = Relu(x) }\n")
    yield Case("gzip", gzip.compress(VALID, mtime=0))
    yield Case("pickle", b"\x80\x02}q\x00(X\x05\x00\x00\x00modelq\x01K\x01u.")


def cut_and_bent():
    yield Case("cut-in-half", VALID[: len(VALID) // 2])
    yield Case("cut-by-a-byte", VALID[:-1])
    yield Case("trailing-garbage", VALID + b"\xde\xad\xbe\xef\x00")
    yield Case("length-two-gigabytes", HEAD + varint(GRAPH << 3 | 2) + varint(2**31 - 1) + b"x")
    yield Case("length-of-64-bits", HEAD + varint(GRAPH << 3 | 2) + varint(2**64 - 1) + b"x")
    yield Case("inner-length-past-outer",
               HEAD + field(GRAPH, varint(NODE << 3 | 2) + varint(100) + b"abc"))
    yield Case("wire-type-6", HEAD + b"\x3e\x01")
    yield Case("wire-type-7", HEAD + b"\x3f\x01")
    yield Case("group-end-alone", HEAD + b"\x3c" + field(GRAPH, graph_without()))
    yield Case("graph-as-number", HEAD + field(GRAPH, 7))
    yield Case("ir-version-as-text", field(IR_VERSION, b"ten") + VALID[2:])
    yield Case("ir-version-negative", field(IR_VERSION, -1) + VALID[2:])
    yield Case("model-twice", VALID + VALID)


def deep(levels):
    """Graphs in graphs, each the branch of an If without a condition."""
    graph = graph_without()
    for _ in range(levels - 1):
        branch = field(1, b"b") + field(6, graph) + field(20, onnx.AttributeProto.GRAPH)
        graph = field(NODE, field(4, b"If") + field(5, branch))
    return HEAD + field(GRAPH, graph)


def nested():
    yield Case("graphs-17-deep", deep(17))
    yield Case("graphs-2000-deep", deep(2000))
    sequence = field(1, field(1, 1))
    for _ in range(2000):
        sequence = field(4, field(1, sequence))
    yield Case("types-2000-deep",
               VALID + field(GRAPH, field(INPUT, field(1, b"q") + field(2, sequence))))


def legal():
    """What protobuf allows, and readers must take."""
    yield Case("ok-minimal", VALID)
    yield Case("ok-unknown-field", VALID + field(100, b"from the future") + field(101, 7))
    yield Case("ok-fields-backwards",
               field(GRAPH, graph_without()) + field(OPSETS, field(2, 23)) + field(IR_VERSION, 10))
    yield Case("ok-number-in-ten-bytes",
               b"\x08\x8a" + b"\x80" * 8 + b"\x00" + VALID[2:])
    yield Case("ok-graph-in-two-parts",
               HEAD + field(GRAPH, graph_without("node")) +
               field(GRAPH, graph_without("name", "input", "output")))


def cases():
    yield from foreign_files()
    yield from cut_and_bent()
    yield from nested()
    yield from legal()
