"""Writes NAME.onnx (weights from the seed of models.py) and NAME.npz (its batch) into a folder.

    export.py NAME FOLDER
"""
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import models


def export(name, folder):
    module, batch = models.make(name, attention="eager")
    names = ["x", "labels"]
    # The trace runs the model: with gradients it would keep every activation of the batch.
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, batch, str(folder / f"{name}.onnx"), input_names=names,
                          output_names=["loss"], opset_version=17, dynamo=False,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    np.savez(folder / f"{name}.npz", **{n: t.numpy() for n, t in zip(names, batch)})


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]))
