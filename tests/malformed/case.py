"""What a malformed model is: a name, its files, and how `halfnote compile` is asked to read it.

Models are written as ONNX text and parsed by the ONNX library, which checks next to nothing, or as
protobuf messages, or byte by byte (`field`, `varint`) where no library would write such a file.
Names of models that halfnote has to accept begin with "ok-".
"""
import dataclasses
import pathlib

import onnx
import onnx.parser

OPSET = 23
HEADER = '<ir_version: 10, opset_import: ["" : %d]>\n'

# What the model families but training are compiled with: no loss, no optimizer.
INFERENCE = ("--inference",)


@dataclasses.dataclass(frozen=True)
class Case:
    """One model. `flags` go to `halfnote compile`; `suffix` names the form of the file."""

    name: str
    content: bytes
    flags: tuple = INFERENCE
    suffix: str = ".onnx"
    # Other files beside the model, by name.
    beside: dict = dataclasses.field(default_factory=dict)

    def write(self, folder: pathlib.Path) -> pathlib.Path:
        folder.mkdir(parents=True)
        for name, content in self.beside.items():
            (folder / name).write_bytes(content)
        path = folder / ("model" + self.suffix)
        path.write_bytes(self.content)
        return path


def parsed(text, opset=OPSET):
    """The ModelProto of a graph in ONNX text; a text that begins with "<" has a header already."""
    text = text.strip()
    return onnx.parser.parse_model(text if text.startswith("<") else HEADER % opset + text)


def case(name, text, edit=None, opset=OPSET, flags=INFERENCE):
    """A model in ONNX text; `edit` changes its ModelProto into what the text cannot say."""
    model = parsed(text, opset)
    if edit is not None:
        edit(model)
    return Case(name, model.SerializeToString(), flags)


def body(name, nodes, inputs="float[2,3] x", outputs="float[2,3] y", weights="", **more):
    """A model from the parts of its one graph."""
    weights = f"<{weights}>" if weights else ""
    return case(name, f"g ({inputs}) => ({outputs}) {weights} {{ {nodes} }}", **more)


def varint(value):
    """A number as protobuf writes it."""
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, payload, wire_type=None):
    """One field: a number as varint, bytes with their length; any other form by `wire_type`."""
    if isinstance(payload, int):
        return varint(number << 3 | (wire_type or 0)) + varint(payload)
    if wire_type is not None:
        return varint(number << 3 | wire_type) + payload
    return varint(number << 3 | 2) + varint(len(payload)) + payload


# Fields of ModelProto and GraphProto.
IR_VERSION, GRAPH, OPSETS = 1, 7, 8
NODE, NAME, INPUT, OUTPUT = 1, 2, 11, 12
