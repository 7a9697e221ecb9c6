#!/usr/bin/env python3
"""Checks that files, folders and lines stay small: scripts/check_sizes.py

A source file has at most 600 lines of at most 100 columns; a folder at most 24 files. Test data
(fixtures and golden folders) is exempt, and so are the lines of documents. Exit code 1 with one
line for every offence.
"""
import collections
import pathlib
import sys
import unicodedata

from check_includes import ROOT, tracked_files

MAX_LINES = 600
MAX_COLUMNS = 100
MAX_FILES = 24
SOURCES = (".cc", ".h", ".inc", ".cu", ".py", ".sh", ".cmake", "CMakeLists.txt")
EXEMPT_FOLDERS = ("fixtures", "golden")


def columns(line):
    """Terminal columns, as clang-format counts them."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in line)
    return sum(unicodedata.combining(c) == 0 for c in line) + wide


def check_file(name):
    lines = (ROOT / name).read_text().splitlines()
    if len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines, at most {MAX_LINES}"
    # clang-format holds the code of tests; graphs in raw strings are as wide as they print.
    if name.startswith("tests/") and name.endswith((".cc", ".h")):
        return
    for number, line in enumerate(lines, 1):
        if columns(line) > MAX_COLUMNS:
            yield f"{name}:{number}: {columns(line)} columns, at most {MAX_COLUMNS}"


def main():
    files = tracked_files()
    offences = []
    folders = collections.Counter()
    for name in files:
        path = pathlib.PurePosixPath(name)
        exempt = any(part in EXEMPT_FOLDERS for part in path.parts[:-1])
        if not exempt:
            folders[str(path.parent)] += 1
        if name.endswith(SOURCES) and not exempt:
            offences += check_file(name)
    for folder, count in sorted(folders.items()):
        if count > MAX_FILES:
            offences.append(f"{folder}/: {count} files, at most {MAX_FILES}")
    for offence in offences:
        print(offence)
    print(f"sizes: {len(files)} files, " + (f"{len(offences)} offences" if offences else "ok"))
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
