#!/usr/bin/env python3
"""Checks who includes whom: docs/developer.md has the rule in words.

    scripts/check_includes.py

Every file of a folder may include only what its row below allows; own header first; names from the
root; every header guarded by `#pragma once`; third-party headers only where they belong. Exit code
1 with one line for every offence.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder -> folders it may include, with what is below them, besides itself. The longest folder that
# holds a file counts.
COMPILER = ["base", "compiler/ir", "compiler/ops", "compiler/onnx"]
ALL = COMPILER + ["passes", "kernels", "runtime/core", "runtime/train", "testing"]
MAY_INCLUDE = {
    "base": [],
    "compiler/ir": ["base"],
    "compiler/ops": ["base", "compiler/ir"],
    "compiler/onnx": ["base", "compiler/ir"],
    "passes": COMPILER,
    "kernels/math": ["base"],
    "kernels": ["base"],
    "kernels/cpu": ["base", "kernels"],
    "kernels/cuda": ["base", "kernels"],
    "runtime/core": ["base", "compiler/ir", "compiler/ops", "passes", "kernels"],
    "runtime/train": COMPILER + ["passes", "kernels", "runtime/core"],
    "cli": ALL,
    "testing": ["base", "compiler/ir", "compiler/ops"],
    "tests": ALL + ["cli", "bench"],
    "bench": ALL,
}

# Third-party header (start of its name) -> the only folders that may include it.
ONLY_IN = {
    "onnx/": ["compiler/onnx"],
    "google/protobuf/": ["compiler/onnx"],
    "dnnl": ["kernels/cpu"],
    "cuda": ["kernels/cuda"],
    "cublas": ["kernels/cuda"],
    "CLI/": ["cli", "tests/cases", "tests/random"],
    "gtest/": ["testing", "tests"],
    "gmock/": ["testing", "tests"],
    "zip.h": ["runtime/train/data", "tests"],
    "toml++": ["passes"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def tracked_files():
    """Files under version control, and new ones that git does not ignore."""
    git = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    command = git + ["--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    names = [name.decode() for name in listing.split(b"\0") if name]
    return [name for name in sorted(set(names)) if (ROOT / name).is_file()]


def folder_of(name, folders):
    """The longest of `folders` that holds the file; None if there is none."""
    holding = [f for f in folders if within(name, f)]
    return max(holding, key=len, default=None)


def within(name, folder):
    return name == folder or name.startswith(folder + "/")


def check_quoted(name, target, area):
    """Why this quoted include is wrong; an empty text if it is not."""
    if target.startswith("../") or "/../" in target:
        return "includes by a relative path"
    path = ROOT / target
    if not path.is_file():
        beside = (ROOT / name).parent / target
        local = area == "tests" and beside.is_file()
        return "" if local else "names no file from the root of the repository"
    into = folder_of(target, MAY_INCLUDE)
    if into is None or any(within(into, folder) for folder in [area] + MAY_INCLUDE[area]):
        return ""
    return f"{area} may not include {into}"


def check_angled(name, target):
    for start, folders in ONLY_IN.items():
        if target.startswith(start) and folder_of(name, folders) is None:
            return f"only {', '.join(folders)} may include it"
    return ""


def check_file(name):
    """Yields (line, include, reason)."""
    area = folder_of(name, MAY_INCLUDE)
    if area is None:
        yield 1, name, "lies in no folder that scripts/check_includes.py knows"
        return
    text = (ROOT / name).read_text()
    if name.endswith(".h") and "#pragma once" not in text:
        yield 1, name, "header without #pragma once"
    first = None
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, target = match.groups()
        first = first or target
        reason = check_quoted(name, target, area) if kind == '"' else check_angled(name, target)
        if reason:
            yield number, target, reason
    own = re.sub(r"\.c[cu]$", ".h", name)
    has_own = name.endswith((".cc", ".cu")) and (ROOT / own).is_file()
    if has_own and first not in (own, pathlib.Path(own).name):
        yield 1, own, "a file includes its own header first"


def main():
    files = [name for name in tracked_files() if name.endswith((".cc", ".cu", ".h", ".inc"))]
    offences = [(name, *offence) for name in files for offence in check_file(name)]
    for name, line, target, reason in offences:
        print(f"{name}:{line}: \"{target}\": {reason}")
    verdict = f"{len(offences)} offences" if offences else "ok"
    print(f"include direction: {len(files)} files, {verdict}")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
