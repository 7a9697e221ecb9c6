#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: tests/fuzz/corpus/TARGET/seed_*.

    tests/fuzz/make_seeds.py HALFNOTE    the program, which compiles the seeds of `artifact`

Small valid inputs of every form a reader knows. What fuzzing found lies beside them under other
names and is left alone. Needs numpy and onnx (scripts/setup.sh).
"""
import gzip
import io
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"


def put(target, name, content):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    (folder / f"seed_{name}").write_bytes(data)


def idx(kind, dims, data):
    return struct.pack(">HBB", 0, kind, len(dims)) + struct.pack(f">{len(dims)}I", *dims) + data


def data_seeds():
    images = idx(8, [2, 3, 3], bytes(range(18)))
    for name, content in {
        "u8": images, "labels": idx(8, [3], b"\0\1\2"), "i16": idx(11, [2], b"\0\1\xff\xfe"),
        "f32": idx(13, [1, 2], struct.pack(">2f", 1, -2)), "f64": idx(14, [1], bytes(8)),
        "gz": gzip.compress(images, mtime=0), "two_gz": gzip.compress(images[:9], mtime=0) +
        gzip.compress(images[9:], mtime=0), "empty": idx(8, [0, 28], b"")}.items():
        put("idx", name, content)
    record = bytes(range(256)) * 12
    put("cifar", "ten", b"\0" + b"\3" + record + b"\7" + record)
    put("cifar", "hundred", b"\1" + b"\3\x40" + record)
    put("cifar", "short", b"\0" + b"\3" + record[:-1])


def npy_bytes(array, version=(1, 0)):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


def numpy_seeds():
    arrays = {"f4": np.arange(6, dtype="<f4").reshape(2, 3), "i8": np.arange(3, dtype="<i8"),
              "fortran": np.asfortranarray(np.arange(6, dtype="<f8").reshape(2, 3)),
              "bool": np.array([True, False]), "scalar": np.array(7, "<u2"),
              "half": np.zeros((0, 4), "<f2"), "big_endian": np.arange(2, dtype=">i4"),
              "complex": np.zeros(2, "<c8"), "structured": np.zeros(1, [("a", "<f4")])}
    for name, array in arrays.items():
        put("npy", name, npy_bytes(array))
    put("npy", "version2", npy_bytes(arrays["f4"], (2, 0)))
    put("npy", "version3", npy_bytes(arrays["f4"], (3, 0)))
    for method, name in [(zipfile.ZIP_STORED, "stored"), (zipfile.ZIP_DEFLATED, "deflated")]:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as archive:
            for member in ["f4", "i8", "fortran"]:
                info = zipfile.ZipInfo(member + ".npy")
                info.compress_type = method
                archive.writestr(info, npy_bytes(arrays[member]))
        put("npz", name, stream.getvalue())


def settings_seeds():
    text = (HERE.parents[1] / "docs/policy.md").read_text()
    for i, block in enumerate(text.split("```toml\n")[1:]):
        put("policy", f"docs{i}", block.split("```")[0])
    put("policy", "groups", '[[groups]]\nmatch = "a.*"\nweight_decay = 0\nlr_factor = 0.5\n')
    for i, config in enumerate([
        {"train_batch_size": 64, "gradient_accumulation_steps": 4,
         "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
                  "min_loss_scale": 1, "initial_scale_power": 16}},
        {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 8,
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8,
                                                   "weight_decay": 0.01}},
         "scheduler": {"type": "WarmupDecayLR",
                       "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3,
                                  "warmup_num_steps": 10, "total_num_steps": 100}}},
        {"fp16": {"enabled": True, "loss_scale": 128}, "steps_per_print": 10,
         "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 0},
         "optimizer": {"type": "Lamb", "params": {"lr": "auto"}}},
    ]):
        put("deepspeed", f"config{i}", json.dumps(config, indent=1))


def safetensors(tensors, metadata=None):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def checkpoint_seeds(manifest, state):
    put("safetensors", "saved", state)
    put("safetensors", "types", safetensors({
        "a": ("F64", [1], bytes(8)), "b": ("BF16", [2, 2], bytes(8)), "c": ("BOOL", [2], b"\0\1"),
        "d": ("F32", [], bytes(4)), "e": ("U8", [0, 3], b""), "f": ("F8_E4M3", [1], b"\0"),
        "g": ("I64", [1], bytes(8))}))
    put("safetensors", "metadata",
        safetensors({"x": ("U8", [4], bytes(4))}, {"dtype:x": "c64", "k": "v"}))
    head = manifest[:manifest.rindex(b",\n \"xxh3_128\"")]
    put("manifest", "saved", head + b"\0" + state)


def text_seeds():
    source = (HERE.parent / "ir/text_fuzz_test.cc").read_text()
    put("import_text", "everything", source.split('R"(', 1)[1].split(')";', 1)[0])
    for name in ["cse", "lift_opset", "fold_constants", "insert_casts"]:
        for path in sorted((HERE.parent / "passes/golden").rglob(name + ".*"))[:1]:
            put("import_text", name, path.read_text()[:6000])
    put("import_text", "if", """<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[N] x) => (y) {
  y = If (c) <then_branch = t () => (a) { a = Neg (x) }, else_branch = e () => (b) { b = Abs (x) }>
}
""")


def info(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes, inputs, outputs, tensors=(), **more):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(tensors))
    return helper.make_model(graph, ir_version=10,
                             opset_imports=[helper.make_opsetid("", more.pop("opset", 17))], **more)


def binary_seeds():
    f32 = TensorProto.FLOAT
    w = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    typed = helper.make_tensor("t", TensorProto.BFLOAT16, [2], [1.0, 2.0])
    x, y = info("x", f32, ["N", 3]), info("y", f32, ["N", 2])
    put("import_binary", "matmul", model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [x],
                                            [y], [w, typed]).SerializeToString())
    branch = [helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], [info(op, f32, None)])
              for op in ["Neg", "Abs"]]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])
    put("import_binary", "if", model_of([node], [info("c", TensorProto.BOOL, []), x],
                                        [y]).SerializeToString())
    relu = helper.make_node("Relu", ["a"], ["b"])
    function = helper.make_function("d", "F", ["a"], ["b"], [relu], [helper.make_opsetid("", 17)])
    model = model_of([helper.make_node("F", ["x"], ["y"], domain="d")], [x], [info("y", f32, None)],
                     functions=[function])
    model.opset_import.append(helper.make_opsetid("d", 1))
    put("import_binary", "function", model.SerializeToString())
    sparse = helper.make_node("Constant", [], ["s"], sparse_value=helper.make_sparse_tensor(
        helper.make_tensor("v", f32, [1], [2.0]), helper.make_tensor("i", 7, [1], [3]), [4]))
    strings = helper.make_node("Constant", [], ["u"], value_strings=["a", "b"])
    put("import_binary", "constants",
        model_of([sparse, strings], [], [info("s", f32, [4])]).SerializeToString())
    for path in sorted(FIXTURES.glob("training_info/*.onnx"))[:2]:
        put("import_binary", path.stem, path.read_bytes())
    for path in sorted(FIXTURES.glob("ort_training/ops/*LayerNorm*.onnx")):
        put("import_binary", path.stem, path.read_bytes())
    put("ort_checkpoint", "mlp", (FIXTURES / "ort_training/mlp_sgd_bce/checkpoint").read_bytes())


def external_seeds():
    body = struct.pack("<4f", 1, 2, 3, 4)
    for name, lines in {
        "plain": ["location=weights.bin"], "part": ["location=weights.bin", "offset=8", "length=8"],
        "sub": ["location=sub/weights.bin", "length=8"], "near": ["location=near.bin"],
        "link": ["location=link.bin"], "far": ["location=far.bin"],
        "up": ["location=up/secret.bin"],
        "parent": ["location=sub/../../secret.bin"], "absolute": ["location=/etc/hostname"],
        "loop": ["location=loop"], "pipe": ["location=pipe"], "folder": ["location=sub"],
        "far_offset": ["location=weights.bin", "offset=18446744073709551608", "length=8"],
        "checksum": ["location=weights.bin", "checksum=da39a3ee5e6b4b0d3255bfef95601890afd80709"],
    }.items():
        put("external_data", name, "\n".join(lines).encode() + b"\n\n" + body)


LINEAR = """<ir_version: 10, opset_import: ["" : 23]>
m (float[N,4] x) => (float[N,3] y) <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
  h = Relu (x)
  y = MatMul (h, w)
}
"""


def artifact_seeds(halfnote):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "m.onnxtxt").write_text(LINEAR)
        for title, flags in {
            "sgd": ["--optimizer", "sgd"], "bf16": ["--precision", "bf16", "--no-pad"],
            "fp16": ["--precision", "fp16", "--optimizer", "sgd"],
            "accumulate": ["--optimizer", "sgd", "--accumulate", "2"]}.items():
            artifact = folder / f"{title}.hn.onnx"
            subprocess.run([halfnote, "compile", folder / "m.onnxtxt", "--loss", "cross_entropy",
                            "-o", artifact, *flags], check=True, capture_output=True)
            put("artifact", title, artifact.read_bytes())
        np.savez(folder / "d.npz", x=np.zeros((4, 4), "f4"), labels=np.zeros(4, "i8"))
        subprocess.run([halfnote, "run", folder / "sgd.hn.onnx", "--data", folder / "d.npz",
                        "--batch", "2", "--steps", "1", "--run-dir", folder / "run"], check=True,
                       capture_output=True)
        saved = folder / "run/checkpoints/step-00000001"
        checkpoint_seeds((saved / "manifest.json").read_bytes(),
                         (saved / "state.safetensors").read_bytes())
    for path in sorted(FIXTURES.glob("training_info/linear_sgd.onnx")):
        put("artifact", path.stem, path.read_bytes())


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-") or not shutil.which(sys.argv[1]):
        sys.exit(__doc__)
    data_seeds()
    numpy_seeds()
    settings_seeds()
    text_seeds()
    binary_seeds()
    external_seeds()
    artifact_seeds(sys.argv[1])


if __name__ == "__main__":
    main()
