#!/usr/bin/env python3
"""Writes the malformed models: tests/malformed/make_models.py FOLDER [FOLDER/WITH/PROGRAMS]

Each gets a folder FAMILY/NAME of its own. The family `external` is that of
tests/onnx/external_data_test.cc, whose program writes its cases as files when HALFNOTE_CASE_FOLDER
is set; without the programs it is left out.
"""
import collections
import os
import pathlib
import subprocess
import sys

import attributes
import contracts
import element_types
import initializers
import shapes
import structure
import text
import training
import wire
from case import INFERENCE

MODULES = {"wire": wire, "structure": structure, "types": element_types, "shapes": shapes,
           "attributes": attributes, "contracts": contracts, "initializers": initializers,
           "training": training, "text": text}

# The least number of models in each.
FAMILIES = {"wire": 30, "structure": 60, "types": 50, "shapes": 70, "attributes": 70,
            "contracts": 80, "initializers": 40, "external": 45, "training": 35, "text": 20}

Model = collections.namedtuple("Model", "name path flags")


def write_external(folder, programs):
    """The cases of the unit test, which says by itself what it expects of the reader."""
    environment = {**os.environ, "HALFNOTE_CASE_FOLDER": str(folder)}
    subprocess.run([programs / "halfnote_onnx_test", "--gtest_filter=*/External.*"], check=True,
                   env=environment, stdout=subprocess.DEVNULL)
    for case in sorted(folder.iterdir()):
        yield Model(f"external/{case.name}", case / "models/m.onnx", INFERENCE)


def write_all(folder, programs=None, only=""):
    """Writes the models whose name begins with `only`; returns them in the order of the table."""
    models = []
    for family, module in MODULES.items():
        for case in module.cases():
            name = f"{family}/{case.name}"
            if name.startswith(only):
                models.append(Model(name, case.write(folder / name), case.flags))
    if programs is not None and "external".startswith(only.split("/")[0]):
        (folder / "external").mkdir()
        models += [m for m in write_external(folder / "external", programs)
                   if m.name.startswith(only)]
    return models


def main():
    folder = pathlib.Path(sys.argv[1])
    programs = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    print(f"{len(write_all(folder, programs))} models in {folder}")


if __name__ == "__main__":
    main()
