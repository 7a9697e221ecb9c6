"""No room for what is written beside checkpoints, and files that cannot be read to their end.

Used by run.py: reports, dumps, plans, profiles and standard output on full disks; data, model,
artifact and checkpoint on a disk that stops to give bytes.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile

from faults import check, limit_files, small_disk

DISK = 4096  # bytes of a small file system: one page


def temporary(place):
    return {p.name for p in place.folder.rglob("*") if ".tmp" in p.name}


def expect_full(place, arguments, named, absent, limits=None):
    """The command ends with 8, names the file, and leaves neither `absent` nor temporary files."""
    before = temporary(place)  # a killed compilation leaves its own
    words = place.run(*arguments, code=8, limits=limits)
    check(named in words, f"the error does not name {named}: {words}")
    for name in absent:
        check(not (place.folder / name).exists(), f"{name} in spite of: {words}")
    left = temporary(place) - before
    check(not left, f"left behind: {left}")


def fill_reports(place):
    """A compilation writes its report and its artifact, or neither."""
    compile_ = ["compile", "faults.onnxtxt", "--loss", "cross_entropy", "-q", "-o", "room.hn.onnx"]
    place.run(*compile_, "--report", "room.json", code=0)
    sizes = [(place.folder / name).stat().st_size for name in ("room.hn.onnx", "room.json")]
    for name in ("room.hn.onnx", "room.json"):
        place.remove(name)
    for size in [0, 1, min(sizes) - 1, max(sizes) - 1]:
        expect_full(place, [*compile_, "--report", "room.json"], "room.",
                    ["room.hn.onnx", "room.json"],
                    limit_files(size))
    done = 4
    with small_disk(place.folder / "small", DISK) as there:
        if there:
            expect_full(place, [*compile_, "--report", "small/room.json"], "small/room.json",
                        ["room.hn.onnx", "small/room.json"])
            expect_full(place, [*compile_, "--dump-after", "all", "--dump-folder", "small"],
                        "small/", ["room.hn.onnx"])
            done += 2
    print(f"full: {done} compilations without room for a report, a dump or the artifact")


def fill_runs(place):
    """A plan that does not fit stops a run before it trains; a profile costs nothing trained."""
    arguments = place.training("room", 2, 0)
    with small_disk(place.folder / "small", DISK) as there:
        if not there:
            print("full: no small file system can be mounted here: no plan, no profile")
            return
        place.remove("room")
        expect_full(place, [*arguments, "--profile=small/p.json"], "small/p.",
                    ["small/p.json", "small/p.trace.json"])
        check((place.folder / "room/model.onnx").exists(), "no model for want of a profile")
        (place.folder / "small" / "filler").write_bytes(b"x" * DISK)
        place.remove("room")
        words = place.run(*place.training("small/room", 2, 0), "--tune", code=8)
        check("small/room" in words, f"the error does not name the run: {words}")
    place.remove("room")
    expect_full(place, [*arguments, "--tune"], "room/plan.json", ["room/model.onnx"],
                limit_files(100))
    print("full: a run without room for its plan, its profile, its folder")


def fill_standard_output(place):
    """What is printed for a pipe or a file must arrive."""
    commands = [["inspect", "faults.hn.onnx"], ["inspect", "faults.hn.onnx", "--format", "json"],
                ["ops"], ["compile", "faults.onnxtxt", "--plan", "--loss", "cross_entropy"]]
    for command in commands:
        with open("/dev/full", "wb") as full:
            done = subprocess.run([place.program, *command], cwd=place.folder, stdout=full,
                                  stderr=subprocess.PIPE)
        words = done.stderr.decode("utf-8", "replace")
        check(done.returncode == 8 and "standard output" in words,
              f"{command} on a full disk: exit code {done.returncode}: {words}")
    print(f"full: standard output of {len(commands)} commands")


def broken_reads(place):
    """A disk that gives some bytes of a file, then an error: the error names the file."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("read: no C compiler here: left out")
        return
    source = pathlib.Path(__file__).parent / "read_fails.c"
    with tempfile.TemporaryDirectory(prefix="halfnote-reads-") as folder:
        library = pathlib.Path(folder) / "read_fails.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        count = 0
        for given in (0, 100):
            for name, code, command in read_cases(place):
                environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": str(library),
                               "READ_FAILS": name, "READ_FAILS_AFTER": str(given)}
                done = subprocess.run([place.program, *command], cwd=place.folder,
                                      env=environment, capture_output=True)
                words = done.stderr.decode("utf-8", "replace")
                check(done.returncode == code and name in words and "Input/output error" in words,
                      f"{name} after {given} bytes: exit code {done.returncode}: {words}")
                count += 1
    print(f"read: {count} times an error half-way, each named")


def read_cases(place):
    """One after the other: the file, the exit code, the command that reads it."""
    train = place.training("reads", 2, 0)
    for name in ("x.npy", "labels.npy", "faults.hn.onnx"):
        place.remove("reads")
        yield name, 8, train
    yield "faults.onnxtxt", 8, ["compile", "faults.onnxtxt", "-o", "reads.hn.onnx", "-q", "--loss",
                                "cross_entropy"]
    # Of two checkpoints the older one is taken; none is left where no state can be read.
    for name, code in (("step-00000002/manifest.json", 0), ("state.safetensors", 9)):
        place.remove("reads")
        place.run(*place.training("reads", 2), code=0)
        place.remove("reads/model.onnx")
        yield name, code, [*place.training("reads", 2), "--resume"]
