#!/usr/bin/env python3
"""Runs trained models in onnxruntime and compares their accuracy with our own evaluation.

    tests/judges/judge_trained.py FOLDER/WITH/PROGRAMS

The Fashion-MNIST sample is trained for a few steps, as scripts/demo.sh --quick does, in FP32 and in
16 bit. `halfnote run` evaluates on the test images and writes the model as plain inference ONNX;
onnxruntime runs that on the same images. Read here on their own: the idx files, the normalization,
the count of hits.

How many hits may differ: both runtimes add in another order, so a logit may be off by e times the
largest logit of its image, and an image whose two best logits lie closer than twice that may go to
either class. Only those are allowed to differ. In FP32, e = 64 spacings (the longest sum has 576
terms, whose rounding errors mostly cancel). In 16 bit our evaluation computes with 16-bit operands
and the exported model in FP32; with D roundings on the way to the logits e = 2 u D, as in
judge_step.py, u = 2^-8 for bf16 and 2^-11 for fp16; and as roundings go both ways, the hits may
differ by 0.3 points at the most, which is what training in 16 bit may cost.

Exit code 0: they agree.
"""
import gzip
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime as ort

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
SAMPLES = 2560
MEAN, DEVIATION = 0.286, 0.353  # as samples/fashion_mnist/run.sh says
POINTS = 0.003
UNIT = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def read_idx(name):
    path = DATA / name
    packed = path.with_name(name + ".gz")
    data = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    rank = data[3]
    assert data[:3] == b"\0\0\x08" and rank in (1, 3), f"{name} is no idx file of bytes"
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def train(programs, precision, folder):
    """The exported model, and the hits of our evaluation."""
    command = [ROOT / "samples/fashion_mnist/run.sh", "--precision", precision, "--epochs", "1",
               "--samples", str(SAMPLES), "--out", folder]
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "OMP_WAIT_POLICY": "passive"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    last = [m for m in metrics if m.get("event") == "evaluation"][-1]
    return folder / "model.onnx", last["eval_top1"] * SAMPLES


def roundings(artifact):
    """Casts to 16 bit on the longest path of the evaluation's graph."""
    model = onnx.load(artifact)
    low = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16)
    depth = {}
    for node in model.graph.node:
        rounds = node.op_type == "Cast" and node.attribute[0].i in low
        # What computes on 16-bit operands rounds its result to 16 bit too.
        before = max((depth.get(name, 0) for name in node.input), default=0)
        computes = node.op_type != "Cast" and before > 0
        for name in node.output:
            depth[name] = before + (rounds or computes)
    return max(depth.values(), default=0)


def judge(programs, precision, folder):
    model, ours = train(programs, precision, folder)
    images = read_idx("t10k-images-idx3-ubyte")[:SAMPLES].astype(np.float32)
    labels = read_idx("t10k-labels-idx1-ubyte")[:SAMPLES]
    images = ((images / np.float32(255) - np.float32(MEAN)) / np.float32(DEVIATION))[:, None]
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    logits = session.run(None, {session.get_inputs()[0].name: images})[0]
    theirs = int((logits.argmax(1) == labels).sum())
    depth = roundings(folder / "artifact.hn.onnx")
    e = 64 * 2.0**-23 if precision == "fp32" else 2 * UNIT[precision] * depth
    best = np.sort(logits, 1)
    close = int((best[:, -1] - best[:, -2] <= 2 * e * np.abs(logits).max(1)).sum())
    whole = abs(ours - round(ours)) < 1e-6 * SAMPLES
    allowed = min(close, POINTS * SAMPLES)
    good = whole and abs(round(ours) - theirs) <= allowed and theirs > SAMPLES // 2
    print(f"{precision}: of {SAMPLES} test images halfnote hits {ours:.6g}, onnxruntime {theirs}; "
          f"{close} are too close to call: {'agree' if good else 'DIFFER'}")
    return good


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    good = True
    with tempfile.TemporaryDirectory() as name:
        for precision in ("fp32", "bf16", "fp16"):
            good &= judge(programs, precision, pathlib.Path(name) / precision)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
