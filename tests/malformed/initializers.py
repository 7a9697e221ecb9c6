"""Weights whose data does not fit their type and dims, and odd data that does."""
import struct

import onnx
from onnx import helper

from case import body

T = onnx.TensorProto


def weight(name, dims=(3,), dtype=T.FLOAT, raw=None, node="y = Add (x, k)", edit=None, **data):
    """A model that adds the weight w to its input, as f32."""
    def change(model):
        tensor = model.graph.initializer.add(name="w", dims=dims, data_type=dtype)
        if raw is not None:
            tensor.raw_data = raw
        for key, values in data.items():
            getattr(tensor, key).extend(values)
        if edit is not None:
            edit(tensor)

    return body(name, "[cast] k = Cast <to = 1> (w) " + node, edit=change)


F3 = struct.pack("<3f", 1, 2, 3)


def sizes():
    yield weight("raw-short-by-one", raw=F3[:-1])
    yield weight("raw-long-by-one", raw=F3 + b"\0")
    yield weight("raw-empty", raw=b"")
    yield weight("no-data-at-all")
    yield weight("typed-short-by-one", float_data=[1, 2])
    yield weight("typed-long-by-one", float_data=[1, 2, 3, 4])
    yield weight("zero-size-with-data", dims=(0,), raw=F3)
    yield weight("zero-size-with-typed-data", dims=(0, 3), float_data=[1.0])
    yield weight("raw-and-typed", raw=F3, float_data=[1, 2, 3])
    yield weight("two-typed-lists", float_data=[1, 2, 3], int32_data=[1, 2, 3])
    yield weight("scalar-with-two-elements", dims=(), float_data=[1, 2])
    yield weight("terabytes-without-data", dims=(2**38,))
    yield weight("size-overflows", dims=(2**40, 2**40), raw=F3)
    yield weight("size-overflows-to-the-data", dims=(2**32, 2**32, 2), raw=b"")
    yield weight("dim-negative", dims=(-3,), raw=F3)
    yield weight("dims-negative-twice", dims=(-3, -1), raw=F3)
    yield weight("rank-9", dims=(1,) * 9, raw=F3[:4])
    yield weight("int4-odd-short", dims=(3,), dtype=T.INT4, raw=b"\x21")
    yield weight("complex-half-an-element", dims=(1,), dtype=T.COMPLEX64, float_data=[1.0])


def kinds():
    yield weight("wrong-typed-list", int64_data=[1, 2, 3])
    yield weight("type-undefined", dtype=T.UNDEFINED, raw=F3)
    yield weight("type-99", dtype=99, raw=F3)
    yield weight("string-in-raw-data", dtype=T.STRING, raw=b"abc")
    yield weight("ok-string-weight-as-float", dtype=T.STRING, string_data=[b"1", b"2", b"3"])
    yield weight("bool-of-two", dtype=T.BOOL, raw=b"\x00\x01\x02")
    yield weight("int8-out-of-range", dtype=T.INT8, int32_data=[1, 2, 300])
    yield weight("bfloat16-pattern-out-of-range", dtype=T.BFLOAT16, int32_data=[1, 2, 70000])
    yield weight("uint32-out-of-range", dtype=T.UINT32, uint64_data=[1, 2, 2**33])
    yield weight("without-a-name", raw=F3, edit=lambda t: t.ClearField("name"))
    yield weight("with-a-segment", raw=F3,
                 edit=lambda t: t.segment.CopyFrom(T.Segment(begin=0, end=3)))


def sparse(name, indices, dims=(3, 4), values=(1.0, 2.0), index_dims=None):
    """A sparse weight w (3,4)."""
    def change(model):
        data = helper.make_tensor("w", T.FLOAT, [len(values)], values)
        where = helper.make_tensor("w.at", T.INT64, index_dims or [len(indices)], indices)
        model.graph.sparse_initializer.add(values=data, indices=where, dims=dims)

    return body(name, "y = Add (x, w)", "float[3,4] x", "float[3,4] y", edit=change)


def sparse_ones():
    yield sparse("sparse-index-out-of-range", [0, 12])
    yield sparse("sparse-index-negative", [-1, 3])
    yield sparse("ok-sparse-indices-not-sorted", [5, 3])
    yield sparse("sparse-index-twice", [3, 3])
    yield sparse("sparse-too-few-indices", [3])
    yield sparse("sparse-of-a-trillion", [0, 1], dims=(2**20, 2**20))


def legal():
    inf, nan, tiny = float("inf"), float("nan"), 1e-42
    yield weight("ok-nan-and-infinite", float_data=[nan, inf, -inf])
    yield weight("ok-subnormal", float_data=[tiny, -tiny, 0.0])
    yield weight("ok-zero-size", dims=(0,), node="q = Neg (k) y = Abs (x)")
    yield weight("ok-scalar", dims=(), float_data=[1.0])
    yield weight("ok-bfloat16-in-int32", dtype=T.BFLOAT16, int32_data=[0x3F80, 0x4000, 0xC040])
    yield weight("ok-bfloat16-sign-extended", dtype=T.BFLOAT16, int32_data=[0x3F80, 0, -16320])
    yield weight("ok-float16-raw", dtype=T.FLOAT16, raw=struct.pack("<3e", 1, 2, 65504))
    yield weight("ok-int4-packed", dtype=T.INT4, raw=b"\x21\x0f")
    yield body("ok-string-not-used", "y = Abs (x)", edit=lambda m: m.graph.initializer.add(
        name="w", dims=[2], data_type=T.STRING, string_data=[b"a", b"\xff"]))
    yield sparse("ok-sparse", [1, 11])
    yield sparse("ok-sparse-by-coordinates", [0, 1, 2, 3], index_dims=[2, 2])


def cases():
    for family in (sizes, kinds, sparse_ones, legal):
        yield from family()
