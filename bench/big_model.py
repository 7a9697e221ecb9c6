#!/usr/bin/env python3
"""A model of more than 2 GiB there and back: compiled, written with external data, read again.

    bench/big_model.py [--halfnote PROGRAM] [--gib N] [--folder DIR]

Makes a chain of MatMul, Relu with N GiB of weights (default: 2.5) in a sparse external file that
holds numbers only at the ends of each weight. `halfnote compile` makes a training artifact of it,
`halfnote inspect` reads that again. Checked: every weight of the artifact has the bytes of the
source, byte for byte, and the artifact describes itself as the source's step. Measured: the peak of
memory of each program, what it allocates (anonymous) apart from the files that it maps. The bar:
neither allocates a tenth of the weights: nothing big is copied. Needs N GiB of disk below DIR
(default: the folder for temporary files).
"""
import argparse
import mmap
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import onnx
from onnx import TensorProto, helper

ROOT = pathlib.Path(__file__).resolve().parent.parent
GIB = 2**30
SIDE = 8192  # a weight of SIDE x SIDE floats has 256 MiB
WEIGHT_BYTES = SIDE * SIDE * 4


def external(name, place):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "weights.bin", "offset": place, "length": WEIGHT_BYTES}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


def make_model(folder, count):
    with open(folder / "weights.bin", "wb") as data:
        data.truncate(count * WEIGHT_BYTES)
        for i in range(count):
            for place in (i * WEIGHT_BYTES, (i + 1) * WEIGHT_BYTES - 64):
                data.seek(place)
                data.write(bytes([i + 1, 0, 0, 0x3F]) * 16)
    nodes, value = [], "x"
    for i in range(count):
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"], name=f"matmul{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], name=f"relu{i}"))
        value = f"r{i}"
    graph = helper.make_graph(
        nodes, "big", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", SIDE])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["N", SIDE])])
    graph.initializer.extend(external(f"w{i}", i * WEIGHT_BYTES) for i in range(count))
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 23)])
    (folder / "big.onnx").write_bytes(model.SerializeToString())


def watch(process, peaks):
    """Notes the peaks of /proc/PID/status, in bytes, until the process ends."""
    while process.poll() is None:
        try:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            key, _, rest = line.partition(":")
            if key in ("RssAnon", "RssFile"):
                peaks[key] = max(peaks.get(key, 0), int(rest.split()[0]) * 1024)
        time.sleep(0.005)


def measure(command):
    """(seconds, peaks, standard output); fails with the program."""
    begin, peaks = time.monotonic(), {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=watch, args=(process, peaks))
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"big_model: {' '.join(map(str, command))}: exit code {process.returncode}")
    return time.monotonic() - begin, peaks, output


def place_of(tensor):
    entries = {e.key: e.value for e in tensor.external_data}
    return entries["location"], int(entries.get("offset", 0)), int(entries["length"])


def weights_are_equal(folder, count):
    artifact = onnx.load(folder / "big.hn.onnx", load_external_data=False)
    tensors = {t.name: t for t in artifact.graph.initializer}
    equal = all(f"w{i}" in tensors for i in range(count))
    with open(folder / "weights.bin", "rb") as file:
        source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for i in range(count if equal else 0):
        location, offset, length = place_of(tensors[f"w{i}"])
        equal = equal and length == WEIGHT_BYTES
        with open(folder / location, "rb") as file:
            file.seek(offset)
            for at in range(i * WEIGHT_BYTES, (i + 1) * WEIGHT_BYTES, 2**24):
                equal = equal and file.read(2**24) == source[at : at + 2**24]
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halfnote", default=ROOT / "build/release/bin/halfnote", help="program")
    parser.add_argument("--gib", type=float, default=2.5, help="size of the weights (default: 2.5)")
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    arguments = parser.parse_args()
    count = max(1, round(arguments.gib * GIB / WEIGHT_BYTES))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = pathlib.Path(name)
        make_model(folder, count)
        size = count * WEIGHT_BYTES
        print(f"{count} weights, {size / GIB:.2f} GiB")
        good = True
        commands = {
            "compile": [arguments.halfnote, "compile", folder / "big.onnx", "-o",
                        folder / "big.hn.onnx", "--loss", "mse", "--optimizer", "sgd",
                        "--precision", "bf16", "--quiet"],
            "inspect": [arguments.halfnote, "inspect", folder / "big.hn.onnx"],
        }
        for verb, command in commands.items():
            seconds, peaks, output = measure(command)
            allocated, mapped = peaks.get("RssAnon", 0), peaks.get("RssFile", 0)
            good = good and allocated < size / 10
            print(f"{verb:8} {seconds:6.1f} s, allocates {allocated / 2**20:.0f} MiB, maps "
                  f"{mapped / 2**20:.0f} MiB at the most")
        model_bytes = (folder / "big.hn.onnx").stat().st_size
        data_bytes = sum(f.stat().st_size for f in folder.glob("big.hn.onnx.*"))
        print(f"artifact {model_bytes / 2**20:.2f} MiB and {data_bytes / GIB:.2f} GiB of data")
        good = good and data_bytes >= size and f"in {count} tensors" in output
        equal = weights_are_equal(folder, count)
        print(f"weights {'are those of the source' if equal else 'DIFFER'}")
        return 0 if good and equal else 1


if __name__ == "__main__":
    sys.exit(main())
