"""Writes arrays as NumPy does, for the tests of the .npy and .npz readers: make_arrays.py FOLDER

Every array holds 0, 1, 2, ... in C order, whatever its shape, type and memory order.
"""
import sys

import numpy as np

folder = sys.argv[1]
shapes = {"scalar": (), "vector": (5,), "matrix": (3, 4), "cube": (2, 3, 4), "empty": (0, 7)}
types = ["f2", "f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "?"]


def counting(shape, dtype):
    count = int(np.prod(shape))
    values = np.arange(count) % 2 if dtype == "?" else np.arange(count)
    return values.astype(dtype).reshape(shape)


members = {}
for shape_name, shape in shapes.items():
    for dtype in types:
        array = counting(shape, dtype)
        name = f"{shape_name}_{array.dtype.name}"
        members[name] = array
        np.save(f"{folder}/{name}.npy", array)
        np.save(f"{folder}/{name}_fortran.npy", array.copy(order="F"))
np.savez(f"{folder}/stored.npz", **members)
np.savez_compressed(f"{folder}/deflated.npz", **members)
for version in (1, 2, 3):
    with open(f"{folder}/version{version}.npy", "wb") as file:
        np.lib.format.write_array(file, counting((2, 3), "f4"), version=(version, 0))
np.save(f"{folder}/big_endian.npy", np.arange(3).astype(">f4"))
np.save(f"{folder}/complex.npy", np.arange(3).astype("c8"))
np.save(f"{folder}/text.npy", np.array(["a", "b"]))
np.save(f"{folder}/object.npy", np.array([{}, None], dtype=object), allow_pickle=True)
np.save(f"{folder}/structured.npy", np.zeros(2, dtype=[("x", "f4"), ("y", "i4")]))
