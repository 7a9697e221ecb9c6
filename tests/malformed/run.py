#!/usr/bin/env python3
"""Holds halfnote against the malformed models: the right error, in bounds, and nothing left over.

    tests/malformed/run.py FOLDER/WITH/PROGRAMS [--update] [--only PREFIX] [--jobs N]
    tests/malformed/run.py FOLDER/WITH/PROGRAMS --generated N [--seed S] [--keep FOLDER]

Each model of make_models.py is compiled and inspected in a process of its own, which may take 2 s
of processor time and 1 GiB of address space. expected.tsv says with which exit code each ends and
what the error says behind the file's name; models whose name begins with "ok-" must be accepted.
`--update` writes the table anew from what was seen: review the difference. `--generated` takes
random models instead (generated.py).

Exit code 0: all as expected.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import generated
import make_models

TABLE = pathlib.Path(__file__).resolve().parent / "expected.tsv"
CPU_SECONDS = 2
WALL_SECONDS = 60  # for a machine that does much else
MEMORY = 1 << 30
SHOWN = 400  # bytes of a message that the table holds

KINDS = {2: "usage", 3: "model", 4: "unsupported", 5: "data", 6: "numerics", 7: "memory", 8: "io"}
Run = collections.namedtuple("Run", "code error output")
# What was seen of one model: the exit code, the message without the file, and what is wrong.
Seen = collections.namedtuple("Seen", "code message complaints")


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True,
                              preexec_fn=limit, env=environment, stdin=subprocess.DEVNULL,
                              timeout=WALL_SECONDS)
    except subprocess.TimeoutExpired:
        return Run(-1, "hangs", "")
    return Run(done.returncode, done.stderr.decode("utf-8", "replace"),
               done.stdout.decode("utf-8", "replace"))


def ended_badly(verb, code):
    """Signals, hangs and errors that call themselves a bug."""
    if code < 0:
        return [f"{verb} ended by signal {-code}" if code != -1 else f"{verb} hangs"]
    if code in (7, 70) or code not in (0, *KINDS):
        return [f"{verb} ended with exit code {code}"]
    return []


def check_form(text, code, model):
    """The documented form of an error: one line, printable, with kind and file."""
    lines = text.rstrip("\n").split("\n")
    head = f"halfnote: error ({KINDS.get(code)}): "
    wrong = []
    if not lines[-1].startswith(head):
        wrong.append(f"the last line of the error does not begin with {head!r}")
    if code != 2 and str(model) not in lines[-1]:
        wrong.append("the error does not name the file")
    if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffd]", text):
        wrong.append("the error holds control characters or no text")
    return wrong


def message_of(text, model):
    """What the error says behind the kind and the file."""
    line = text.rstrip("\n").split("\n")[-1]
    line = re.sub(r"^halfnote: error \([a-z]+\): ", "", line)
    return line.replace(f"{model}: ", "", 1).replace(str(model.parent) + "/", "")[:SHOWN]


def check_inspect(program, model, compiled):
    """Inspect reads the same files: it ends well or with an error in JSON, and never badly."""
    seen = run(program, "--json-errors", "inspect", "--nodes", model)
    wrong = ended_badly("inspect", seen.code)
    if wrong:
        return wrong
    if compiled == 0 and seen.code != 0:
        wrong.append(f"inspect refuses what compile accepts: {seen.error[:300]}")
    if seen.code == 0:
        return wrong
    try:
        error = json.loads(seen.error.rstrip("\n").split("\n")[-1])
        if error["code"] != seen.code or error["kind"] != KINDS[seen.code]:
            wrong.append(f"inspect --json-errors says code {error['code']}, not {seen.code}")
    except (ValueError, KeyError):
        wrong.append(f"inspect --json-errors writes no JSON: {seen.error[:300]!r}")
    return wrong


def examine(program, model, flags):
    """Compiles and inspects one model."""
    before = set(os.listdir(model.parent))
    output = model.parent / "out.hn.onnx"
    seen = run(program, "compile", model, *flags, "-o", output)
    wrong = ended_badly("compile", seen.code)
    message = ""
    if seen.code != 0 and not wrong:
        wrong += check_form(seen.error, seen.code, model)
        left = set(os.listdir(model.parent)) - before
        if left:
            wrong.append(f"files are left: {sorted(left)}")
    if seen.code != 0:
        message = message_of(seen.error, model)
    if seen.code == 0:
        again = run(program, "inspect", output)
        if again.code != 0:
            wrong.append(f"the artifact cannot be inspected: {again.error[:300]}")
    return Seen(seen.code, message, wrong + check_inspect(program, model, seen.code))


def compare(name, seen, expected):
    """What differs from the table."""
    accepted = name.split("/")[-1].startswith("ok-")
    if accepted != (seen.code == 0):
        yield "has to be accepted" if accepted else "has to be refused"
    if expected is None:
        yield "stands not in expected.tsv"
    elif seen.code != expected[0]:
        yield f"expected exit code {expected[0]}, got {seen.code}"
    elif expected[1] not in seen.message:
        yield f"expected the error to say: {expected[1]}"


def read_table():
    rows = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        name, code, message = line.split("\t")
        rows[name] = (int(code), message)
    return rows


def write_table(results):
    rows = [f"{name}\t{seen.code}\t{seen.message}\n" for name, seen in results.items()]
    TABLE.write_text("".join(rows))


def judge(results, table, whole):
    """Prints what is wrong; returns how much."""
    bad = 0
    for name, seen in results.items():
        wrong = seen.complaints + list(compare(name, seen, table.get(name)))
        bad += bool(wrong)
        for text in wrong:
            print(f"{name}: {text}\n    exit code {seen.code}: {seen.message}")
    if whole:
        for name in sorted(table.keys() - results.keys()):
            print(f"{name}: stands in expected.tsv, but there is no such model")
            bad += 1
        for family, least in make_models.FAMILIES.items():
            count = sum(name.startswith(family + "/") for name in results)
            if count < least:
                print(f"{family}: expected at least {least} models, got {count}")
                bad += 1
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--generated", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("build/malformed"))
    arguments = parser.parse_args()
    program = arguments.programs.resolve() / "halfnote"
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.generated > 0:
            bad = generated.run(program.parent, pathlib.Path(folder), arguments.generated,
                                arguments.seed, arguments.jobs, arguments.keep)
            return 1 if bad else 0
        # Paths in messages are escaped where they are odd; the real one is not.
        models = make_models.write_all(pathlib.Path(folder).resolve(), arguments.programs.resolve(),
                                       arguments.only)
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            seen = pool.map(lambda m: examine(program, m.path, m.flags), models)
            results = {model.name: result for model, result in zip(models, seen)}
    if arguments.update:
        write_table({**{n: Seen(*row, []) for n, row in read_table().items() if arguments.only},
                     **results})
    bad = judge(results, read_table(), not arguments.only)
    refused = sum(seen.code != 0 for seen in results.values())
    print(f"{len(results)} models, {refused} refused, {len(results) - refused} accepted, "
          f"{bad} not as expected, {time.monotonic() - begin:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
