#!/usr/bin/env python3
"""Checks that files, folders and lines stay small: scripts/check_sizes.py

A source file has at most 600 lines of at most 100 columns, a C++ function at most 60 lines; a
folder at most 24 files. Test data (fixtures and golden folders) is exempt, and so are the lines of
documents. Raw strings may be as wide as they print, and as long. Exit code 1 with one line for
every offence.
"""
import collections
import pathlib
import re
import sys
import unicodedata

from check_includes import ROOT, tracked_files

MAX_LINES = 600
MAX_COLUMNS = 100
MAX_FILES = 24
MAX_FUNCTION = 60
SOURCES = (".cc", ".h", ".inc", ".cu", ".py", ".sh", ".cmake", "CMakeLists.txt")
EXEMPT_FOLDERS = ("fixtures", "golden")


def columns(line):
    """Terminal columns, as clang-format counts them."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in line)
    return sum(unicodedata.combining(c) == 0 for c in line) + wide


# Raw strings first: they may hold anything.
TEXT = re.compile(r'R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|//[^\n]*|/\*.*?\*/'
                  r'|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\''
                  r'|^\s*#[^\n]*', re.S | re.M)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
FUNCTION = re.compile(r"^(?!.*\boperator\b\s*=)[^=]*\(.*\)|\boperator\b.*\(.*\)", re.S)


def without_text(source):
    """The code: comments, strings and directives become blanks, raw strings lose their lines."""
    def blank(match):
        if match.group().startswith("R\""):
            return "0"
        return re.sub(r"[^\n]", " ", match.group())
    return TEXT.sub(blank, source)


def functions(source):
    """(first line, lines, head) of each function that stands in a namespace or a class.

    Lines are those of the code without raw strings."""
    code = without_text(source)
    blocks, start, parentheses = [], 0, 0
    for at, c in enumerate(code):
        if c in "()":
            parentheses += 1 if c == "(" else -1
        if c == "{":
            head = code[start:at]
            outside = all(kind == "scope" for kind, _, _ in blocks)
            kind = "other"
            if outside and parentheses == 0:
                kind = "function" if FUNCTION.search(head) else "other"
                if SCOPE.search(head.split("(")[0]):
                    kind = "scope"
            blocks.append((kind, start + len(head) - len(head.lstrip()), head))
        if c == "}" and blocks:
            kind, begin, head = blocks.pop()
            if kind == "function":
                first = code.count("\n", 0, begin) + 1
                yield first, code.count("\n", begin, at) + 1, " ".join(head.split())[:60]
        if c in ";{}" and parentheses == 0:
            start = at + 1


def long_lines(name, lines, source):
    raw = set()
    if name.endswith((".cc", ".h")):
        for match in TEXT.finditer(source):
            if match.group().startswith("R\""):
                first = source.count("\n", 0, match.start()) + 1
                raw.update(range(first, first + match.group().count("\n") + 1))
    for number, line in enumerate(lines, 1):
        if number not in raw and columns(line) > MAX_COLUMNS:
            yield f"{name}:{number}: {columns(line)} columns, at most {MAX_COLUMNS}"


def check_file(name):
    source = (ROOT / name).read_text()
    lines = source.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines, at most {MAX_LINES}"
    yield from long_lines(name, lines, source)
    if not name.endswith((".cc", ".h", ".inc", ".cu")):
        return
    for first, count, head in functions(source):
        if count > MAX_FUNCTION:
            yield f"{name}: a function of {count} lines, at most {MAX_FUNCTION}: {head}"


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
