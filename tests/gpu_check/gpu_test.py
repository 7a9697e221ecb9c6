#!/usr/bin/env python3
"""bench/pytorch/gpu.py without a GPU, PyTorch or halfnote: what it asks of both sides, in which
order, and what becomes of what goes wrong."""
import argparse
import importlib.util
import json
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("gpu", ROOT / "bench" / "pytorch" / "gpu.py")
gpu = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu)


class Process:
    def __init__(self):
        self.code = None

    def poll(self):
        return self.code


class Side:
    """In place of halfnote-steps."""

    def __init__(self, *_):
        self.process = Process()
        Side.made += 1
        if Side.made in Side.broken:
            raise RuntimeError("halfnote-steps: exit code 3")

    def start(self):
        pass

    def close(self):
        self.process.code = 0


class Runs(unittest.TestCase):
    def rows(self, compare_one, broken=(), against="eager,own-fp32,compiled", before=""):
        Side.made, Side.broken = 0, broken
        with tempfile.TemporaryDirectory() as folder:
            args = argparse.Namespace(
                model="gpt2", batch=0, work=Path(folder), keep=False, device="cuda",
                against=against, precisions="bf16,fp16", tune=False,
                out=Path(folder) / "lines.jsonl")
            args.out.write_text(before, encoding="utf-8")
            gpu.Ours, gpu.compare_one = Side, compare_one
            gpu.gpu_models = lambda batch: {"gpt2": None}
            gpu.export = lambda *_: None
            gpu.sheet_rates = lambda device: {"flops": 1, "bytes": 1}
            gpu.compile_model = lambda *_: "artifact"
            gpu.free_torch = lambda: None
            gpu.run(args)
            return list(map(json.loads, args.out.read_text(encoding="utf-8").splitlines()))

    def test_what_compiles_for_long_comes_last(self):
        rows = self.rows(lambda *_: {"status": "pass"})
        self.assertEqual([row["name"] for row in rows],
                         ["gpt2 bf16 eager", "gpt2 fp16 eager", "gpt2 bf16 own-fp32",
                          "gpt2 fp16 own-fp32", "gpt2 bf16 compiled", "gpt2 fp16 compiled"])
        self.assertEqual(Side.made, 2)

    def test_a_side_that_dies_is_started_again(self):
        def compare_one(how, precision, ours, *_):
            if how == "eager":
                ours.process.code = 11
            return {"status": "pass"}
        self.assertEqual({row["status"] for row in self.rows(compare_one)}, {"pass"})
        self.assertEqual(Side.made, 4)

    def test_a_side_that_cannot_be_started_again_fails_its_rows_alone(self):
        def compare_one(how, precision, ours, *_):
            if (how, precision) == ("eager", "bf16"):
                raise ValueError("lost")
            return {"status": "pass"}
        rows = self.rows(compare_one, broken=(3,))
        self.assertEqual([row["status"] for row in rows],
                         ["fail", "pass", "fail", "pass", "pass", "pass"])
        self.assertIn("exit code 3", rows[2]["why"])

    def test_what_is_known_is_not_compared_again(self):
        before = "".join(json.dumps(row) + "\n" for row in (
            {"name": "gpt2 bf16 eager", "status": "fail"},
            {"name": "gpt2 fp16 eager", "status": "unfinished"},
            {"name": "gpt2", "status": "fail"})) + '{"name": "gpt2 bf'
        rows = self.rows(lambda *_: {"status": "pass"}, against="eager", before=before)
        self.assertEqual([(row["name"], row["status"]) for row in rows],
                         [("gpt2 bf16 eager", "fail"), ("gpt2 fp16 eager", "pass")])
        self.rows(None, against="eager", before="".join(json.dumps(
            {"name": f"gpt2 {precision} eager", "status": "pass"}) + "\n"
            for precision in ("bf16", "fp16")))
        self.assertEqual(Side.made, 0)

    def test_a_side_that_is_ended_with_the_rest_is_no_failure(self):
        error = RuntimeError("halfnote-steps: exit code -15: ")
        try:
            raise error
        except RuntimeError:
            self.assertEqual(gpu.failure(error)["status"], "unfinished")

    def test_losses_that_are_no_numbers_are_told(self):
        for ours, theirs in (([1.0, None], [1.0, 1.0]), ([1.0, 1.0], [float("nan"), 1.0])):
            agreement = gpu.agreement(ours, theirs)
            self.assertEqual(agreement, {"status": "fail", "why": "a loss is not finite"})
        self.assertEqual(gpu.agreement([2.0], [2.01]), {"status": "pass"})
        self.assertEqual(gpu.agreement([2.0], [3.0])["status"], "fail")
        self.assertEqual(gpu.agreement([2.0], [2.0, 2.0])["status"], "fail")
        self.assertEqual(json.dumps(gpu.listed([1.0, None, float("inf")])), "[1.0, null, null]")


class Timed:
    """A side that takes so many seconds a step."""

    def __init__(self, *seconds):
        self.seconds, self.counts, self.about = seconds, [], {"flops": 1, "bytes": 1, "memory": 1}

    def steps(self, count):
        self.counts.append(count)
        return self.seconds[len(self.counts) % len(self.seconds)], [2.0] * count

    def floor(self, rates):
        return 1e-4


class Blocks(unittest.TestCase):
    def row(self, mine, other, steps=0):
        args = argparse.Namespace(blocks=5, steps=steps)
        return gpu.compare_own(mine, other, args, {})

    def test_last_on_the_faster_side(self):
        mine, other = Timed(4e-4), Timed(1e-3)
        row = self.row(mine, other)
        self.assertGreaterEqual(row["steps"] * 4e-4, gpu.BLOCK_SECONDS)
        self.assertLess(row["steps"] * 4e-4, 1.2 * gpu.BLOCK_SECONDS)
        self.assertEqual(mine.counts, other.counts)
        self.assertEqual(mine.counts[-5:], [row["steps"]] * 5)

    def test_have_ten_steps_at_least_or_as_many_as_are_asked_for(self):
        self.assertEqual(self.row(Timed(2.0), Timed(1.0))["steps"], 10)
        mine = Timed(1e-3)
        self.assertEqual(self.row(mine, Timed(1e-3), steps=7)["steps"], 7)
        self.assertEqual(mine.counts, [3] + [7] * 5)

    def test_their_spread_is_told(self):
        row = self.row(Timed(1.0, 3.0), Timed(2.0))
        self.assertEqual((row["ms_min"], row["ms_max"]), (1e3, 3e3))
        self.assertEqual((row["own_ms"], row["own_ms_min"], row["own_ms_max"]), (2e3, 2e3, 2e3))
        self.assertEqual(row["last_losses"], [2.0, 2.0])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-q"])
