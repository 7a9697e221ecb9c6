"""Broken models without number: cuts and flipped bits of small seeds, edits of ONNX's node tests.

    tests/malformed/run.py FOLDER/WITH/PROGRAMS --generated N [--seed S] [--keep FOLDER]

Nothing is expected of them but an end: accepted, or refused with a documented error, within 2 s of
processor time and 1 GiB. halfnote-survive compiles them, each in a child of its own. The same N and
S give the same models; what fails is kept as a file.
"""
import collections
import concurrent.futures
import pathlib
import random
import subprocess

import structure
import training
import wire

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NODE_TESTS = ROOT / ".cache/onnx-tests-1.22.0"
LARGEST = 4096  # bytes of a node test's model: a random edit of a large one hits its weights
GOOD = {"ok", "2", "3", "4", "5"}


def seeds():
    """Small models with functions, subgraphs, weights and a training step."""
    wanted = {"ok-if-captures", "ok-loop", "ok-function", "step-is-for-run", "ok-minimal"}
    for module in (wire, structure, training):
        for case in module.cases():
            if case.name in wanted:
                yield case.name, case.content


def cuts_and_flips():
    """Every cut and every flipped bit of every seed."""
    for name, content in seeds():
        for length in range(len(content)):
            yield f"{name}-cut-{length}", content[:length]
    for name, content in seeds():
        for bit in range(8 * len(content)):
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            yield f"{name}-bit-{bit}", bytes(changed)


# Numbers that a reader may stumble over, as they stand in a varint.
NUMBERS = (b"\x00", b"\x01", b"\x7f", b"\xff\xff\xff\xff\x07", b"\xff" * 9 + b"\x01",
           b"\x80\x80\x80\x80\x10")


def edited(content, numbers):
    """1 to 4 edits; most keep the length, so that the message around them stays whole."""
    content = bytearray(content)
    for _ in range(numbers.randint(1, 4)):
        if not content:
            break
        at = numbers.randrange(len(content))
        kind = numbers.random()
        if kind < 0.4:
            content[at] = numbers.randrange(256)
        elif kind < 0.6:
            content[at] ^= 1 << numbers.randrange(8)
        elif kind < 0.75:
            content[at] = (content[at] + numbers.choice((-1, 1))) % 256
        elif kind < 0.85:
            word = numbers.choice(NUMBERS)
            content[at:at + len(word)] = word
        elif kind < 0.93:
            del content[at:at + numbers.randint(1, 4)]
        else:
            content[at:at] = bytes(numbers.randrange(256) for _ in range(numbers.randint(1, 3)))
    return bytes(content)


def node_edits(seed):
    """Random edits of ONNX's node tests, without end."""
    models = [path for path in sorted(NODE_TESTS.rglob("model.onnx"))
              if path.stat().st_size <= LARGEST]
    if not models:
        raise SystemExit(f"no models below {NODE_TESTS}: run scripts/setup.sh")
    content = {path: path.read_bytes() for path in models}
    numbers = random.Random(seed)
    while True:
        path = numbers.choice(models)
        yield f"{path.parent.name}-{numbers.getrandbits(32):08x}", edited(content[path], numbers)


def models(count, seed):
    """`count` models: half of them edits, the others spread over all cuts and flips."""
    regular = list(cuts_and_flips())
    random.Random(seed).shuffle(regular)
    regular = regular[:count // 2]
    edits = node_edits(seed)
    return regular + [next(edits) for _ in range(count - len(regular))]


def survive(program, folder, worker, share):
    """Gives one process its share of the models; yields name, content and how each ended."""
    path = folder / f"{worker}.onnx"
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as server:
        for name, content in share:
            path.write_bytes(content)
            server.stdin.write(f"{path}\n")
            server.stdin.flush()
            yield name, content, server.stdout.readline().rstrip("\n")
        server.stdin.close()


def run(programs, folder, count, seed, jobs, keep):
    """Returns how many models ended badly."""
    todo = models(count, seed)
    program = programs / "halfnote-survive"
    ends = collections.Counter()
    bad = 0

    def work(worker):
        return list(survive(program, folder, worker, todo[worker::jobs]))

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for results in pool.map(work, range(jobs)):
            for name, content, end in results:
                status = end.split(" ")[0]
                ends[status if status != "signal" else end] += 1
                if status in GOOD:
                    continue
                bad += 1
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{name}.onnx").write_bytes(content)
                print(f"{keep / name}.onnx: {end[:300]}")
    print(f"{count} generated models (seed {seed}): " +
          ", ".join(f"{number} {status}" for status, number in sorted(ends.items())))
    return bad
