#!/usr/bin/env python3
"""Faults while halfnote runs: killed at random moments, a full disk, data that vanishes.

    tests/faults/run.py FOLDER/WITH/PROGRAMS [--moments N] [--seed S] [--keep FOLDER]

Whatever happens, the error is one line with the documented exit code, a checkpoint or an output
that has its name is whole, and `--resume` ends with the bytes of a run that nothing happened to.

    killed     kill -9 of a run that saves after every step: at N moments while it saves, and at
               N / 4 from its start to its end (the export included); every third is killed again
               while it resumes
    compile    kill -9 of a compilation over an older output at N / 4 moments: old bytes or new ones
    full       a limit on the size of files, and a small file system where one can be mounted:
               checkpoints, exports, logs, reports, dumps, plans, profiles, standard output
    data       training data cut off, removed or made unreadable while a run reads it
    read       a disk that gives a part of a file, then an error
    damaged    a checkpoint that is cut or has a flipped bit: the one before it is taken
    left       what a save killed in its clean-up left goes with the next run, also with one that
               saves nothing

Exit code 0: all as expected.
"""
import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

import outputs
from faults import Failure, check, limit_files, small_disk

STEPS = 8
FEW, SAMPLES = 64, 1 << 19  # of 64 bytes: small files are read at once
WIDTH = 384  # of the hidden layer: a save then takes about as long as a step
WALL_SECONDS = 120


def write_model(path):
    """Two hidden layers; the numbers stand in the text, so that nothing else is needed."""
    dice = np.random.default_rng(1)

    def weight(name, rows, columns):
        numbers = dice.standard_normal(rows * columns) / np.sqrt(rows)
        listed = ",".join(f"{x:.4f}" for x in numbers)
        return f"float[{rows},{columns}] {name} = {{{listed}}}"

    weights = [weight("w1", 16, WIDTH), weight("w2", WIDTH, WIDTH), weight("w3", WIDTH, 3)]
    path.write_text(
        '<ir_version: 10, opset_import: ["" : 23]>\n'
        f"faults (float[N,16] x) => (float[N,3] logits) <{', '.join(weights)}> {{\n"
        "   h = MatMul (x, w1)\n   r = Relu (h)\n   s = MatMul (r, w2)\n   t = Tanh (s)\n"
        "   logits = MatMul (t, w3)\n}\n")


class Place:
    """A folder with a compiled model, its data, and the results of an undisturbed run."""

    def __init__(self, programs, folder):
        self.program = str((programs / "halfnote").resolve())
        self.folder = folder
        write_model(folder / "faults.onnxtxt")
        self.write_data(FEW)
        self.run("compile", "faults.onnxtxt", "-o", "faults.hn.onnx", "--loss", "cross_entropy",
                 "--optimizer", "adam", "-q", code=0)
        begin = time.monotonic()
        self.train("reference", code=0)
        self.seconds = time.monotonic() - begin
        self.trained = (folder / "reference" / "model.onnx").read_bytes()

    def write_data(self, samples):
        dice = np.random.default_rng(2)
        np.save(self.folder / "x.npy", dice.standard_normal((samples, 16)).astype(np.float32))
        np.save(self.folder / "labels.npy", dice.integers(0, 3, samples))

    def start(self, *arguments, limits=None):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([self.program, *map(str, arguments)], cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=limits, env=environment, stdin=subprocess.DEVNULL)

    def run(self, *arguments, code=None, limits=None):
        process = self.start(*arguments, limits=limits)
        _, error = process.communicate(timeout=WALL_SECONDS)
        words = error.decode("utf-8", "replace")
        if code is not None:
            check(process.returncode == code,
                  f"halfnote {' '.join(map(str, arguments))}: exit code {process.returncode}, "
                  f"not {code}: {words.strip()}")
        if process.returncode not in (0, 75):
            check(process.returncode > 0, f"ended by signal {-process.returncode}: {words}")
            check(words.count("halfnote: error (") == 1, f"not one error: {words!r}")
        return words

    @staticmethod
    def training(run_dir, steps=STEPS, save_every=1):
        return ["run", "faults.hn.onnx", "--data", "x=x.npy,labels=labels.npy", "--batch", "4",
                "--threads", "1", "--steps", str(steps), "--save-every", str(save_every),
                "--log-every", "1", "-q", "--run-dir", run_dir]

    def train(self, run_dir, *more, code=None, limits=None):
        return self.run(*self.training(run_dir), *more, code=code, limits=limits)

    def checkpoints(self, run_dir):
        folder = self.folder / run_dir / "checkpoints"
        return sorted(folder.glob("step-*")) if folder.is_dir() else []

    def expect_whole(self, run_dir):
        """Resuming takes the newest checkpoint without a complaint and ends as if undisturbed."""
        words = self.train(run_dir, "--resume", code=0)
        check("damaged" not in words and "not the one" not in words, f"{run_dir}: {words}")
        check((self.folder / run_dir / "model.onnx").read_bytes() == self.trained,
              f"{run_dir}: another model than without the fault")
        # What a killed save was writing or removing goes with the next run.
        left = [p.name for p in (self.folder / run_dir).rglob("*")
                if p.name.startswith((".tmp-", ".trash-", ".old-", ".hn-"))]
        check(not left, f"{run_dir}: left behind: {left}")

    def remove(self, name):
        path = self.folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def killed_after(process, seconds):
    """Whether the process still ran when it was killed."""
    time.sleep(seconds)
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=WALL_SECONDS)
    return running


def killed_while_saving(process, checkpoints, dice, seconds):
    """Killed up to so long after one of its saves began; whether that save was not done yet."""
    wanted, begun = dice.randrange(1, STEPS + 1), set()
    while process.poll() is None and len(begun) < wanted:
        begun.update(path.name for path in checkpoints.glob(".tmp-*"))
    killed_after(process, dice.uniform(0, seconds))
    return any(checkpoints.glob(".tmp-*"))


def kill_runs(place, moments, dice):
    hit = in_save = resumed = 0
    runs = moments + moments // 4
    for k in range(runs):
        run_dir = "killed"
        place.remove(run_dir)
        process = place.start(*place.training(run_dir))
        if k < moments:
            in_save += killed_while_saving(process, place.folder / run_dir / "checkpoints", dice,
                                           place.seconds / STEPS / 6)
        else:
            hit += killed_after(process, dice.uniform(0, 1.05 * place.seconds))
        if not place.checkpoints(run_dir):
            # Nothing was saved: resuming says so, a new run goes through.
            place.remove(run_dir)
            place.train(run_dir, code=0)
            check((place.folder / run_dir / "model.onnx").read_bytes() == place.trained,
                  "another model after a kill")
            continue
        if k % 3 == 0:
            killed_after(place.start(*place.training(run_dir), "--resume"),
                         dice.uniform(0, place.seconds))
        place.expect_whole(run_dir)
        resumed += 1
    check(in_save * 10 >= moments, f"only {in_save} of {moments} runs were killed within a save")
    print(f"killed: {moments} runs while they saved, {in_save} of them left a save half done; "
          f"{runs - moments} at any moment, {hit} before their end; {resumed} resumed with the "
          "same bytes")


def kill_compilations(place, moments, dice):
    command = ["compile", "faults.onnxtxt", "-o", "again.hn.onnx", "--loss", "cross_entropy",
               "--optimizer", "adam", "-q"]
    fresh = (place.folder / "faults.hn.onnx").read_bytes()
    begin = time.monotonic()
    place.run(*command, code=0)
    seconds = time.monotonic() - begin
    old = new = 0
    for _ in range(moments):
        (place.folder / "again.hn.onnx").write_bytes(b"older")
        killed_after(place.start(*command), dice.uniform(0, 1.05 * seconds))
        found = (place.folder / "again.hn.onnx").read_bytes()
        check(found in (b"older", fresh), f"an output of {len(found)} bytes, neither old nor new")
        old, new = old + (found == b"older"), new + (found == fresh)
    check(fresh == (place.folder / "faults.hn.onnx").read_bytes(), "the first output changed")
    print(f"compile: {moments} killed, {old} with the older output, {new} with the new one")


def fill_disk(place):
    """A limit on the size of files: the checkpoint, the export or the log does not fit."""
    state = max(p.stat().st_size for p in (place.folder / "reference").rglob("*.safetensors"))
    refused = 0
    for size in [0, 1, 100, 1000, 4096, 20000, state // 3, state // 2, state - 1]:
        place.remove("full")
        words = place.train("full", code=8, limits=limit_files(size))
        check("full" in words, f"the error does not name the file: {words}")
        check(not place.checkpoints("full"), f"a checkpoint in {size} bytes")
        refused += 1
    # The disk becomes full after some steps were saved.
    for size in [100, state // 2]:
        place.remove("full")
        place.run(*place.training("full", STEPS // 2), code=0)
        place.remove("full/model.onnx")
        place.train("full", "--resume", code=8, limits=limit_files(size))
        place.expect_whole("full")
    print(f"full: {refused + 2} limits on the size of files")


def fill_small_disks(place, count):
    """A real file system that is full after some of the saves."""
    state = max(p.stat().st_size for p in (place.folder / "reference").rglob("*.safetensors"))
    mounted = 0
    for k in range(count):
        with small_disk(place.folder / "small", int(state * (0.5 + 4.0 * k / count))) as there:
            if not there:
                print("full: no small file system can be mounted here: left out")
                return
            mounted += 1
            words = place.run(*place.training("small/run"), "--keep", "1")
            saved = place.checkpoints("small/run")
            done = (place.folder / "small/run/model.onnx").exists()
            check(done or "No space left" in words, f"on {k}: {words}")
            if saved and not done:
                place.remove("moved")
                shutil.copytree(place.folder / "small" / "run", place.folder / "moved")
                place.expect_whole("moved")
    print(f"full: {mounted} small file systems")


def spoil_data(place):
    """While a run reads them the samples are cut off, removed, overwritten by something else."""
    data = place.folder / "x.npy"

    def cut(at):
        with open(data, "r+b") as file:
            file.truncate(at)

    size = SAMPLES * 16 * 4
    spoils = {"cut to a half": (lambda: cut(size // 2), 8),
              "cut to nothing": (lambda: cut(0), 8),
              "removed": (data.unlink, 0),  # who has it open keeps it
              "cut before the start": (None, 5)}
    for name, (spoil, code) in spoils.items():
        place.write_data(SAMPLES)
        place.remove("data")
        if spoil is None:
            cut(size)
        process = place.start(*place.training("data", 16000, 0))
        if spoil is not None:
            for _ in range(2000):
                log = place.folder / "data" / "metrics.jsonl"
                if log.exists() and log.stat().st_size > 0:
                    break
                time.sleep(0.005)
            spoil()
        _, error = process.communicate(timeout=WALL_SECONDS)
        words = error.decode("utf-8", "replace")
        check(process.returncode == code, f"{name}: exit code {process.returncode}: {words}")
        if process.returncode:
            check("x.npy" in words, f"{name}: the error does not name the file: {words}")
    print(f"data: {len(spoils)} ways to spoil them")


def damage_checkpoints(place, dice):
    """The newest checkpoint is cut or changed: a warning, and the one before is taken."""
    for k in range(6):
        place.remove("damaged")
        place.run(*place.training("damaged", STEPS - 2), code=0)
        place.remove("damaged/model.onnx")
        newest = place.checkpoints("damaged")[-1]
        target = newest / ("manifest.json" if k % 3 == 0 else "state.safetensors")
        content = bytearray(target.read_bytes())
        if k % 2:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            target.write_bytes(content)
        else:
            target.write_bytes(content[:dice.randrange(len(content))])
        words = place.run(*[word for word in place.training("damaged") if word != "-q"],
                          "--resume", code=0)
        check(target.name in words, f"no warning names {target.name}: {words}")
        check((place.folder / "damaged" / "model.onnx").read_bytes() == place.trained,
              "another model after the newest checkpoint was damaged")
    print("damaged: 6 checkpoints, each time the one before it was taken")


def leave_rubbish(place):
    """A run that was killed while its last save removed an older checkpoint."""
    for name in (".trash-step-00000001", ".tmp-step-00000009"):
        place.remove("left")
        place.run(*place.training("left"), code=0)
        folder = place.folder / "left" / "checkpoints" / name
        shutil.copytree(place.checkpoints("left")[-1], folder)
        (folder / "manifest.json").unlink()
        place.remove("left/model.onnx")
        # What the export was writing, by a process that is gone, and what is not ours.
        gone = subprocess.Popen(["true"])
        gone.wait()
        (place.folder / "left" / f".hn-{gone.pid}-1.tmp").write_bytes(b"half a model")
        foreign = place.folder / "left" / ".hn-notes.tmp"
        foreign.write_bytes(b"kept")
        place.train("left", "--resume", code=0)
        check(foreign.exists(), "a file that is not ours is gone")
        foreign.unlink()
        place.remove("left/model.onnx")
        place.expect_whole("left")
    print("left: 3 kinds of rubbish after the last save, gone with the next run")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="work here, and leave all as it is")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="halfnote-faults-") as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        place = Place(options.programs, folder)
        print(f"a run of {STEPS} steps that saves after each takes {place.seconds:.2f} s")
        families = [lambda: kill_runs(place, options.moments, dice),
                    lambda: kill_compilations(place, options.moments // 4, dice),
                    lambda: fill_disk(place),
                    lambda: fill_small_disks(place, max(4, options.moments // 25)),
                    lambda: damage_checkpoints(place, dice),
                    lambda: leave_rubbish(place),
                    lambda: outputs.fill_reports(place),
                    lambda: outputs.fill_runs(place),
                    lambda: outputs.fill_standard_output(place),
                    lambda: outputs.broken_reads(place),
                    lambda: spoil_data(place)]
        failed = 0
        for family in families:
            try:
                family()
            except Failure as failure:
                failed += 1
                print(f"FAIL: {failure}")
                place.write_data(FEW)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
