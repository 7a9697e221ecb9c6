#!/usr/bin/env python3
"""A LLaMA of 7 billion parameters: compiled for training without room for its weights.

    bench/llama_7b.py [--halfnote PROGRAM] [--layers N] [--folder DIR]

Writes the graph as an exporter does (RMS norm and rotary embedding in simple operators; 32 layers,
width 4096, feed-forward 11008, 32 heads, 32000 tokens) with f32 weights in an external file of
27 GB that is sparse: numbers stand only at the ends of each weight. `halfnote compile` makes a bf16
training artifact with AdamW of it. Measured: time, the peak of resident memory (files that are
mapped count too), what the artifact takes on the disk: its weights are as sparse as the source's,
its moments are written as zeros without data. Checked: every weight stands in the artifact with its
size and the bytes of its ends. Bars: 30 s and 1 GB. A real file would be copied by the system,
extent by extent (copy_file_range), and not be read into the program either.
"""
import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compile_scale import run

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, FEED, HEADS, VOCABULARY, TOKENS = 4096, 11008, 32, 32000, 256
HEAD = WIDTH // HEADS
END = 64  # bytes at each end of a weight that hold numbers
MAX_SECONDS, MAX_BYTES = 30, 1e9


class Writer:
    def __init__(self, data):
        self.nodes, self.initializers, self.data, self.place = [], [], data, 0

    def node(self, op, inputs, output, **attributes):
        name = output + "_node"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def constant(self, name, values):
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, name, *dims):
        size = 4 * int(np.prod(dims, dtype=np.int64))
        mark = np.float32(len(self.initializers) + 1).tobytes() * (END // 4)
        for place in (self.place, self.place + size - END):
            self.data.seek(place)
            self.data.write(mark)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": "weights.bin", "offset": self.place, "length": size}
        for key, text in entries.items():
            tensor.external_data.add(key=key, value=str(text))
        self.initializers.append(tensor)
        self.place += size
        return name


def norm(w, x, p):
    square = w.node("Pow", [x, "two"], p + "square")
    mean = w.node("ReduceMean", [square, "last"], p + "mean")
    root = w.node("Sqrt", [w.node("Add", [mean, "epsilon"], p + "shifted")], p + "root")
    scaled = w.node("Div", [x, root], p + "scaled")
    return w.node("Mul", [scaled, w.weight(p + "weight", WIDTH)], p + "out")


def heads(w, x, p):
    product = w.node("MatMul", [x, w.weight(p + "weight", WIDTH, WIDTH)], p + "product")
    split = w.node("Reshape", [product, "by_head"], p + "split")
    return w.node("Transpose", [split], p + "heads", perm=[0, 2, 1, 3])


def rotate(w, x, p):
    low = w.node("Slice", [x, "zero", "half", "axis"], p + "low")
    high = w.node("Slice", [x, "half", "full", "axis"], p + "high")
    turned = w.node("Concat", [w.node("Neg", [high], p + "negative"), low], p + "turned", axis=-1)
    straight = w.node("Mul", [x, "cos"], p + "straight")
    return w.node("Add", [straight, w.node("Mul", [turned, "sin"], p + "across")], p + "rotated")


def layer(w, x, p):
    h = norm(w, x, p + "attention_norm.")
    q = rotate(w, heads(w, h, p + "q."), p + "q.")
    k = rotate(w, heads(w, h, p + "k."), p + "k.")
    v = heads(w, h, p + "v.")
    k = w.node("Transpose", [k], p + "k.transposed", perm=[0, 1, 3, 2])
    scores = w.node("Mul", [w.node("MatMul", [q, k], p + "products"), "scale"], p + "scores")
    masked = w.node("Add", [scores, "mask"], p + "masked")
    mixed = w.node("MatMul", [w.node("Softmax", [masked], p + "shares", axis=-1), v], p + "mixed")
    joined = w.node("Transpose", [mixed], p + "joined", perm=[0, 2, 1, 3])
    joined = w.node("Reshape", [joined, "by_token"], p + "rows")
    out = w.node("MatMul", [joined, w.weight(p + "o.weight", WIDTH, WIDTH)], p + "o")
    x = w.node("Add", [x, out], p + "attended")
    h = norm(w, x, p + "feed_norm.")
    gate = w.node("MatMul", [h, w.weight(p + "gate.weight", WIDTH, FEED)], p + "gate")
    up = w.node("MatMul", [h, w.weight(p + "up.weight", WIDTH, FEED)], p + "up")
    swish = w.node("Mul", [gate, w.node("Sigmoid", [gate], p + "sigmoid")], p + "swish")
    fed = w.node("Mul", [swish, up], p + "fed")
    down = w.node("MatMul", [fed, w.weight(p + "down.weight", FEED, WIDTH)], p + "down")
    return w.node("Add", [x, down], p + "out")


def constants(w):
    angles = np.outer(np.arange(TOKENS), 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD))
    angles = np.concatenate([angles, angles], axis=1)
    for name, values in {"cos": np.cos(angles), "sin": np.sin(angles), "two": 2.0, "epsilon": 1e-5,
                         "scale": HEAD**-0.5,
                         "mask": np.triu(np.full((TOKENS, TOKENS), -1e9), 1)}.items():
        w.constant(name, np.float32(values))
    for name, values in {"last": [-1], "zero": [0], "half": [HEAD // 2], "full": [HEAD],
                         "axis": [-1], "by_head": [0, TOKENS, HEADS, HEAD],
                         "by_token": [0, TOKENS, WIDTH], "flat": [-1, VOCABULARY]}.items():
        w.constant(name, np.int64(values))


def make_model(folder, layers):
    """Gives the names of the weights with their places and sizes."""
    with open(folder / "weights.bin", "wb") as data:
        w = Writer(data)
        constants(w)
        x = w.node("Gather", [w.weight("embedding", VOCABULARY, WIDTH), "tokens"], "embedded")
        for i in range(layers):
            x = layer(w, x, f"layers.{i}.")
        x = norm(w, x, "norm.")
        x = w.node("MatMul", [x, w.weight("head", WIDTH, VOCABULARY)], "head_product")
        w.node("Reshape", [x, "flat"], "logits")
    graph = helper.make_graph(
        w.nodes, "llama",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", TOKENS])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["M", VOCABULARY])],
        w.initializers)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 23)])
    (folder / "llama.onnx").write_bytes(model.SerializeToString())
    return w


def place_of(tensor):
    entries = {e.key: e.value for e in tensor.external_data}
    return entries["location"], int(entries.get("offset", 0)), int(entries["length"])


def ends(folder, tensor):
    location, offset, length = place_of(tensor)
    with open(folder / location, "rb") as file:
        file.seek(offset)
        first = file.read(END)
        file.seek(offset + length - END)
        return length, first, file.read(END)


def weights_are_equal(folder, source):
    artifact = onnx.load(folder / "llama.hn.onnx", load_external_data=False)
    copies = {t.name: t for t in artifact.graph.initializer}
    weights = [t for t in source if t.data_location == TensorProto.EXTERNAL]
    return all(t.name in copies and ends(folder, t) == ends(folder, copies[t.name])
               for t in weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halfnote", default=ROOT / "build/release/bin/halfnote", help="program")
    parser.add_argument("--layers", type=int, default=32, help="default: 32, 7 billion parameters")
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = pathlib.Path(name)
        w = make_model(folder, arguments.layers)
        print(f"{len(w.nodes)} nodes, {w.place / 4e9:.2f} billion parameters, "
              f"{w.place / 1e9:.1f} GB")
        command = [arguments.halfnote, "compile", folder / "llama.onnx", "-o",
                   folder / "llama.hn.onnx", "--loss", "cross_entropy", "--optimizer", "adamw",
                   "--precision", "bf16", "--quiet"]
        seconds, cpu, peak = run(command)
        taken = sum(os.stat(f).st_blocks * 512 for f in folder.glob("llama.hn.onnx*"))
        size = sum(os.stat(f).st_size for f in folder.glob("llama.hn.onnx*"))
        print(f"compile  {seconds:.1f} s ({cpu:.1f} s of CPU), "
              f"{peak / 1e6:.0f} MB resident at most")
        print(f"artifact {size / 1e9:.1f} GB, of which {taken / 1e6:.0f} MB take room on the disk")
        equal = weights_are_equal(folder, w.initializers)
        print(f"weights  {'are those of the source' if equal else 'DIFFER'}")
        return 0 if equal and seconds < MAX_SECONDS and peak < MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
