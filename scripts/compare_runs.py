#!/usr/bin/env python3
"""Prints the results of training runs side by side.

    scripts/compare_runs.py [--json FILE] [--markdown FILE] NAME=FOLDER…

FOLDER is what samples/fashion_mnist/run.sh leaves (log.txt and run/metrics.jsonl). Several folders
under one NAME are runs with other seeds: accuracy is then their mean with the lowest and highest,
time and memory their median.
"""
import argparse
import json
import pathlib
import re
import statistics
import sys

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def read_log(path):
    """The `key=value` lines of `halfnote run`; the last of each key holds: the result."""
    found = {}
    for line in path.read_text().splitlines():
        match = re.fullmatch(r'([a-z0-9_-]+)=(?:"(.*)"|(.*))', line)
        if match:
            found[match.group(1)] = match.group(2) if match.group(2) is not None else match.group(3)
    return found


def number(text, unit):
    match = re.match(r"([0-9.eE+-]+) ?" + unit, text)
    if not match:
        raise ValueError(f"expected a number in {unit}, got \"{text}\"")
    return float(match.group(1))


def size(text):
    match = re.match(r"([0-9.]+) (B|[KMGT]iB)", text)
    if not match:
        raise ValueError(f"expected a size, got \"{text}\"")
    return float(match.group(1)) * UNITS[match.group(2)]


def read_run(folder):
    """What one run measured."""
    log = read_log(folder / "log.txt")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    evaluations = [m for m in metrics if m.get("event") == "evaluation" and "eval_top1" in m]
    steps = [m for m in metrics if "event" not in m and "skipped" in m]
    missing = [k for k in ("time_per_step", "memory") if k not in log]
    if not evaluations or not steps or missing:
        raise ValueError(f"{folder}: the run is not complete ({', '.join(missing) or 'metrics'})")
    return {
        "top1": evaluations[-1]["eval_top1"],
        "step_ms": number(log["time_per_step"], "ms"),
        "memory_bytes": size(log["memory"]),
        "skipped": steps[-1]["skipped"],
        "steps": steps[-1]["step"],
        "share_16bit": log.get("16-bit_share", ""),
    }


def summarize(runs):
    top1 = [run["top1"] for run in runs]
    return {
        "runs": len(runs),
        "top1_mean": statistics.fmean(top1),
        "top1_min": min(top1),
        "top1_max": max(top1),
        "step_ms": statistics.median(run["step_ms"] for run in runs),
        "memory_bytes": statistics.median(run["memory_bytes"] for run in runs),
        "skipped": sum(run["skipped"] for run in runs),
        "steps": sum(run["steps"] for run in runs),
    }


def rows_of(summaries):
    """The table: one row a name; ratios are against the first."""
    names = list(summaries)
    first = summaries[names[0]]

    def ratio(name, key):
        value = summaries[name][key]
        return "" if name == names[0] else f" ({value / first[key]:.2f}x)"

    def accuracy(s):
        spread = f" ({100 * s['top1_min']:.2f}–{100 * s['top1_max']:.2f})" if s["runs"] > 1 else ""
        return f"{100 * s['top1_mean']:.2f} %{spread}"

    table = [["", "time per step", "memory", "test accuracy", "skipped steps"]]
    for name, s in summaries.items():
        table.append([
            name,
            f"{s['step_ms']:.2f} ms{ratio(name, 'step_ms')}",
            f"{s['memory_bytes'] / 2**20:.1f} MiB{ratio(name, 'memory_bytes')}",
            accuracy(s),
            f"{s['skipped']} of {s['steps']}",
        ])
    return table


def plain(table):
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def markdown(table):
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path, help="write all numbers there")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table there")
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    runs = {}
    for argument in arguments.runs:
        name, equals, folder = argument.partition("=")
        if not equals:
            parser.error(f"expected NAME=FOLDER, got \"{argument}\"")
        runs.setdefault(name, []).append(read_run(pathlib.Path(folder)))
    summaries = {name: summarize(found) for name, found in runs.items()}
    table = rows_of(summaries)
    print(plain(table))
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": summaries, "runs": runs}, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(table) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
