#!/usr/bin/env python3
"""Runs the commands that the documents show, and checks that every option they name exists.

    scripts/check_examples.py FOLDER/WITH/PROGRAMS

A ```sh block after a line `<!-- run -->` is executed; all blocks of one document share an empty
folder that holds links to `samples` and `tests`. `--help` of the program and of every verb must
work. In all documents, every `--option` behind `halfnote VERB` must be in the help of that verb,
and every other option in code that starts with `--` in the help of some verb or script. Exit code 1
with one line for every offence.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from check_includes import ROOT

VERBS = ["compile", "run", "inspect", "ops"]
SCRIPTS = [
    "scripts/setup.sh",
    "scripts/test.sh",
    "scripts/gpu_check.sh",
    "bench/pytorch/gpu.py",
    "scripts/demo.sh",
    "scripts/compare_runs.py",
    "samples/fashion_mnist/run.sh",
    "samples/cifar_cnn/run.sh",
    "bench/fashion_mnist.sh",
]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
MARK = "<!-- run -->"
LIMIT_SECONDS = 300


def documents():
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return found + sorted(ROOT.glob("samples/*/README.md")) + sorted(ROOT.glob("bench/*.md"))


def blocks(text):
    """Yields (line, language, code, whether it is marked to be run) for every fenced block."""
    lines = text.splitlines()
    begin, language, marked = None, "", False
    for number, line in enumerate(lines):
        if begin is None and line.startswith("```"):
            before = [other for other in lines[:number] if other.strip()]
            begin, language = number, line[3:].strip()
            marked = bool(before) and before[-1].strip() == MARK
        elif begin is not None and line.startswith("```"):
            yield begin + 1, language, "\n".join(lines[begin + 1 : number]), marked
            begin = None


def helps(environment):
    """The options of each verb and script by name; a help that fails is an offence."""
    options, offences = {}, []
    commands = {"": ["halfnote", "--help"]}
    commands.update({tool: [tool, "--help"] for tool in ("halfnote-cases", "halfnote-random")})
    commands.update({verb: ["halfnote", verb, "--help"] for verb in VERBS})
    commands.update({script: [str(ROOT / script), "--help"] for script in SCRIPTS})
    for name, command in commands.items():
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0 or not done.stdout.strip():
            why = f"exit code {done.returncode}: {done.stderr.strip()}"
            offences.append(f"{' '.join(command)}: {why}")
        options[name] = set(OPTION.findall(done.stdout))
    return options, offences


def commands_of(text):
    """The command lines of a document: lines of sh blocks (joined), and code in the text."""
    outside = text
    for line, language, code, marked in blocks(text):
        outside = outside.replace(code, "")
        if language == "sh":
            yield from code.replace("\\\n", " ").splitlines()
    yield from re.findall(r"`([^`\n]+)`", outside)


def check_options(document, text, options):
    anywhere = set().union(*options.values())
    for command in commands_of(text):
        command = command.strip()
        words = command.split()
        if not words or not (words[0] == "halfnote" or words[0].startswith(("--", "scripts/"))):
            continue
        known, where = anywhere, "any --help"
        if words[0] == "halfnote" and len(words) > 1 and words[1] in VERBS:
            known, where = options[words[1]] | options[""], f"halfnote {words[1]} --help"
        elif words[0] == "halfnote" and len(words) > 1 and re.fullmatch("[a-z]+", words[1]):
            yield f"{document}: `{command}`: no verb \"{words[1]}\""
        for option in OPTION.findall(command):
            if option not in known:
                yield f"{document}: `{command}`: {option} is not in {where}"


def run_blocks(document, text, environment):
    """Executes the marked blocks in one folder."""
    marked = [(line, code) for line, language, code, run in blocks(text) if run]
    if not marked:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in ("samples", "tests"):
            os.symlink(ROOT / name, pathlib.Path(folder) / name)
        for line, code in marked:
            command = ["bash", "-euo", "pipefail", "-c", code]
            try:
                done = subprocess.run(command, cwd=folder, env=environment, capture_output=True,
                                      text=True, timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                yield f"{document}:{line}: still running after {LIMIT_SECONDS} s"
                return
            print(f"{document}:{line}: exit code {done.returncode}")
            if done.returncode != 0:
                tail = (done.stdout + done.stderr)[-2000:]
                yield f"{document}:{line}: exit code {done.returncode}\n{tail}"
                return


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    programs = pathlib.Path(sys.argv[1]).resolve()
    environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}")
    options, offences = helps(environment)
    for path in documents():
        name, text = str(path.relative_to(ROOT)), path.read_text()
        offences += check_options(name, text, options)
        offences += run_blocks(name, text, environment)
    for offence in offences:
        print(offence)
    verdict = f"{len(offences)} offences" if offences else "ok"
    print(f"examples: {len(documents())} documents, {verdict}")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
