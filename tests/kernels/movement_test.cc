// The movement family beyond ONNX's node tests: sizes of 0, 16-bit elements, indices out of range,
// shapes that lie.
#include <gtest/gtest.h>

#include "base/error.h"
#include "harness.h"

namespace halfnote::test {
namespace {

Tensor iota(DType dtype, Shape shape) {
  Tensor tensor(DType::kI64, std::move(shape));
  int64_t next = 0;
  for (int64_t& element : tensor.mutable_data<int64_t>()) element = next++;
  return tensor.cast_to(dtype);
}

template <class T>
Tensor ints(std::vector<T> values) {
  return Tensor::of<T>({static_cast<int64_t>(values.size())}, std::span<const T>(values));
}

/// The error that a call ends in.
template <class Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "no error");
}

const std::vector<DType> kTypes = {DType::kBool, DType::kI8,  DType::kF16, DType::kBF16,
                                   DType::kI32,  DType::kF32, DType::kI64, DType::kF64};

TEST(Movement, MovesElementsOfEverySize) {
  for (const DType dtype : kTypes) {
    SCOPED_TRACE(short_name(dtype));
    const Tensor x = iota(dtype, {2, 3});
    const Tensor turned = run_one("", "Transpose", {x}, {}, {dtype, {3, 2}});
    EXPECT_TRUE(identical(run_one("", "Transpose", {turned}, {}, {dtype, {2, 3}}), x));
    const Tensor twice = run_one("", "Concat", {x, x}, {{"axis", int64_t{1}}}, {dtype, {2, 6}});
    const auto parts = run_kernel("", "Split", {twice}, {{"axis", int64_t{1}}},
                                  {{dtype, {2, 3}}, {dtype, {2, 3}}});
    EXPECT_TRUE(identical(parts[0], x) && identical(parts[1], x));
    const Tensor rows = run_one("", "Gather", {x, ints<int64_t>({1, 0, -1})}, {}, {dtype, {3, 3}});
    const Tensor last =
        run_one("", "Slice", {rows, ints<int64_t>({2}), ints<int64_t>({3}), ints<int64_t>({0})}, {},
                {dtype, {1, 3}});
    const Tensor wanted = run_one("", "Gather", {x, ints<int64_t>({1})}, {}, {dtype, {1, 3}});
    EXPECT_TRUE(identical(last, wanted));
  }
}

TEST(Movement, ReshapesAreViews) {
  KernelCall call;
  call.inputs.push_back({DType::kF32, {2, 3}, {}, nullptr});
  call.outputs.push_back({DType::kF32, {3, 2}, {}, nullptr});
  for (const char* op : {"Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze"}) {
    call.op = op;
    EXPECT_TRUE(cpu_kernels().choose(call, "reference").kernel->is_view()) << op;
  }
  call.op = "Transpose";
  EXPECT_FALSE(cpu_kernels().choose(call, "reference").kernel->is_view());
}

/// `x` with its dims in another order, element by element.
Tensor permuted(const Tensor& x, const std::vector<int64_t>& perm) {
  const Shape strides = strides_of(x.shape());
  Shape shape;
  for (const int64_t dim : perm) shape.push_back(x.shape()[static_cast<size_t>(dim)]);
  Tensor y(x.dtype(), shape);
  const size_t size = size_of(x.dtype());
  Shape at(shape.size(), 0);
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t from = 0, rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d])
      from += rest % shape[d] * strides[static_cast<size_t>(perm[d])];
    std::copy_n(x.bytes() + static_cast<size_t>(from) * size, size,
                y.mutable_bytes() + static_cast<size_t>(i) * size);
  }
  return y;
}

TEST(Movement, TurnsMatricesWithinTensors) {
  // Around the squares of 16 and the smallest that are turned in squares, heads of attention.
  const std::vector<Shape> shapes = {{2, 8, 3, 16},  {1, 7, 2, 40},  {3, 17, 2, 15},
                                     {2, 33, 3, 64}, {1, 16, 1, 16}, {2, 130, 2, 9}};
  const std::vector<std::vector<int64_t>> orders = {{0, 2, 1, 3}, {0, 2, 3, 1}, {0, 3, 1, 2},
                                                    {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}};
  for (const DType dtype : {DType::kI8, DType::kBF16, DType::kF32, DType::kI64}) {
    for (const Shape& shape : shapes) {
      const Tensor x = iota(dtype, shape);
      for (const auto& perm : orders) {
        SCOPED_TRACE(to_string(shape) + to_string(perm) + std::string(short_name(dtype)));
        const Tensor want = permuted(x, perm);
        EXPECT_TRUE(identical(
            run_one("", "Transpose", {x}, {{"perm", perm}}, {dtype, want.shape()}, {.threads = 2}),
            want));
      }
    }
  }
}

TEST(Movement, TransposesLargeTensorsAsSmallOnes) {
  const Tensor x = iota(DType::kF32, {37, 5, 129, 3});
  const Tensor y = run_one("", "Transpose", {x}, {{"perm", std::vector<int64_t>{2, 0, 3, 1}}},
                           {DType::kF32, {129, 37, 3, 5}});
  for (int64_t a = 0; a < 37; ++a) {
    for (int64_t b = 0; b < 5; ++b) {
      for (int64_t c = 0; c < 129; c += 16) {
        const int64_t from = ((a * 5 + b) * 129 + c) * 3 + 2, to = ((c * 37 + a) * 3 + 2) * 5 + b;
        ASSERT_EQ(y.at_as_double(to), x.at_as_double(from));
      }
    }
  }
}

TEST(Movement, TakesEmptyTensors) {
  const Tensor none(DType::kF32, {0, 3}), some = iota(DType::kF32, {2, 3});
  EXPECT_TRUE(identical(
      run_one("", "Concat", {none, some, none}, {{"axis", int64_t{0}}}, {DType::kF32, {2, 3}}),
      some));
  EXPECT_EQ(run_one("", "Transpose", {none}, {}, {DType::kF32, {3, 0}}).size(), 0);
  EXPECT_EQ(run_one("", "Reshape", {none}, {}, {DType::kF32, {3, 0, 5}}).size(), 0);
  const Tensor no_rows(DType::kI64, {0});
  EXPECT_EQ(run_one("", "Gather", {some, no_rows}, {}, {DType::kF32, {0, 3}}).size(), 0);
  const Tensor pads = ints<int64_t>({1, 0, 1, 0}), value = Tensor::scalar(7.0f);
  EXPECT_TRUE(identical(run_one("", "Pad", {none, pads, value}, {}, {DType::kF32, {2, 3}}),
                        Tensor::full(DType::kF32, {2, 3}, 7)));
}

TEST(Movement, PadsAndCropsInAllModes) {
  const Tensor x = Tensor::of<float>({4}, {1, 2, 3, 4});
  const auto pad = [&](const char* mode, int64_t before, int64_t after) {
    const Tensor y = run_one("", "Pad", {x, ints<int64_t>({before, after})},
                             {{"mode", std::string(mode)}}, {DType::kF32, {4 + before + after}});
    return std::vector<float>(y.data<float>().begin(), y.data<float>().end());
  };
  using Floats = std::vector<float>;
  EXPECT_EQ(pad("constant", 2, -1), (Floats{0, 0, 1, 2, 3}));
  EXPECT_EQ(pad("constant", -1, 1), (Floats{2, 3, 4, 0}));
  EXPECT_EQ(pad("constant", -3, -1), (Floats{}));
  EXPECT_EQ(pad("reflect", 3, 2), (Floats{4, 3, 2, 1, 2, 3, 4, 3, 2}));
  EXPECT_EQ(pad("edge", 2, 1), (Floats{1, 1, 1, 2, 3, 4, 4}));
  EXPECT_EQ(pad("wrap", 5, 1), (Floats{4, 1, 2, 3, 4, 1, 2, 3, 4, 1}));
  EXPECT_EQ(pad("edge", -1, 2), (Floats{2, 3, 4, 4, 4}));
}

TEST(Movement, SlicesWithAnyStep) {
  const Tensor x = iota(DType::kI32, {10});
  const auto slice = [&](int64_t start, int64_t end, int64_t step, int64_t size) {
    return run_one("", "Slice",
                   {x, ints<int64_t>({start}), ints<int64_t>({end}), ints<int64_t>({0}),
                    ints<int64_t>({step})},
                   {}, {DType::kI32, {size}})
        .to_ints();
  };
  using Ints = std::vector<int64_t>;
  EXPECT_EQ(slice(8, 1, -3, 3), (Ints{8, 5, 2}));
  EXPECT_EQ(slice(INT64_MAX, INT64_MIN, -4, 3), (Ints{9, 5, 1}));
  EXPECT_EQ(slice(INT64_MIN, INT64_MAX, INT64_MAX, 1), (Ints{0}));
  EXPECT_EQ(slice(5, 5, 1, 0), (Ints{}));
}

/// Rows of some elements, which are copied as pieces; padded again they are rows as before.
TEST(Movement, CutsAndPadsShortRows) {
  constexpr int64_t kRows = 37;
  for (const DType dtype : kTypes) {
    for (const int64_t columns : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
      SCOPED_TRACE(std::string(short_name(dtype)) + " " + std::to_string(columns));
      const Tensor x = iota(dtype, {kRows, columns + 1});
      const Tensor rows = run_one(
          "", "Slice", {x, ints<int64_t>({1}), ints<int64_t>({INT64_MAX}), ints<int64_t>({1})}, {},
          {dtype, {kRows, columns}});
      std::vector<int64_t> behind(static_cast<size_t>(columns));
      for (int64_t i = 0; i < columns; ++i) behind[static_cast<size_t>(i)] = i + 1;
      const Tensor places = Tensor::of<int64_t>({columns}, std::span<const int64_t>(behind));
      const Attributes along{{"axis", int64_t{1}}};
      EXPECT_TRUE(
          identical(rows, run_one("", "Gather", {x, places}, along, {dtype, {kRows, columns}})));
      const Tensor padded = run_one("", "Pad", {rows, ints<int64_t>({0, 1, 0, 0})}, {},
                                    {dtype, {kRows, columns + 1}});
      const Tensor zeros = Tensor::full(dtype, {kRows, 1}, 0);
      EXPECT_TRUE(identical(
          padded, run_one("", "Concat", {zeros, rows}, along, {dtype, {kRows, columns + 1}})));
    }
  }
}

/// Whole vectors and what is left of them; twice is the identity.
TEST(Movement, TurnsRowsAround) {
  for (const DType dtype : kTypes) {
    for (const int64_t columns : {1, 2, 3, 4, 7, 8, 9, 16, 21, 37}) {
      SCOPED_TRACE(std::string(short_name(dtype)) + " " + std::to_string(columns));
      const Tensor x = iota(dtype, {3, columns});
      const Tensor last = ints<int64_t>({-1}), before = ints<int64_t>({INT64_MIN});
      const auto turn = [&](const Tensor& from) {
        return run_one("", "Slice", {from, last, before, ints<int64_t>({1}), last}, {},
                       {dtype, {3, columns}});
      };
      std::vector<int64_t> backwards(static_cast<size_t>(columns));
      for (int64_t i = 0; i < columns; ++i) backwards[static_cast<size_t>(i)] = columns - 1 - i;
      const Tensor places = Tensor::of<int64_t>({columns}, std::span<const int64_t>(backwards));
      const Tensor wanted =
          run_one("", "Gather", {x, places}, {{"axis", int64_t{1}}}, {dtype, {3, columns}});
      EXPECT_TRUE(identical(turn(x), wanted));
      EXPECT_TRUE(identical(turn(turn(x)), x));
    }
  }
}

TEST(Movement, RefusesIndicesOutOfRange) {
  const Tensor data = iota(DType::kF32, {3, 4});
  struct Case {
    const char* op;
    Tensor indices;
    Shape output;
  };
  const Case cases[] = {
      {"Gather", Tensor::of<int64_t>({1}, {3}), {1, 4}},
      {"Gather", Tensor::of<int32_t>({1}, {-4}), {1, 4}},
      {"GatherElements", Tensor::of<int64_t>({1, 1}, {INT64_MAX}), {1, 1}},
      {"GatherND", Tensor::of<int64_t>({1, 2}, {0, 4}), {1}},
  };
  for (const Case& test : cases) {
    const Error error = error_of([&] {
      run_one("", test.op, {data, test.indices}, {}, {DType::kF32, test.output});
    });
    EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
    EXPECT_EQ(error.place().op, test.op);
    EXPECT_EQ(error.problem(), "index out of range");
  }
  for (const char* op : {"ScatterElements", "ScatterND"}) {
    const bool nd = std::string_view(op) == "ScatterND";
    const Tensor updates = Tensor::full(DType::kF32, nd ? Shape{1, 4} : Shape{1, 1}, 1);
    const Error error = error_of([&] {
      run_one("", op, {data, Tensor::of<int64_t>({1, 1}, {5}), updates});
    });
    EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
    EXPECT_EQ(error.place().op, op);
  }
}

TEST(Movement, RefusesShapesThatLie) {
  const Tensor x = iota(DType::kF32, {2, 3});
  struct Case {
    const char* op;
    std::vector<Tensor> inputs;
    Attributes attributes;
    Shape output;
  };
  const Case cases[] = {
      {"Reshape", {x}, {}, {7}},
      {"Transpose", {x}, {}, {2, 3}},
      {"Concat", {x, x}, {{"axis", int64_t{0}}}, {5, 3}},
      {"Split", {x}, {{"axis", int64_t{0}}}, {3, 3}},
      {"Slice", {x, ints<int64_t>({0}), ints<int64_t>({1})}, {}, {2, 3}},
      {"Expand", {x}, {}, {4, 3}},
      {"Tile", {x}, {}, {3, 3}},
      {"Pad", {x, ints<int64_t>({0, 0, 1, 0})}, {}, {2, 3}},
      {"Gather", {x, ints<int64_t>({0})}, {}, {2, 3}},
      {"Add", {x, iota(DType::kF32, {4})}, {}, {2, 3}},
      {"ReduceSum", {x, ints<int64_t>({1})}, {}, {3}},
  };
  for (const Case& test : cases) {
    const Error error = error_of([&] {
      run_one("", test.op, test.inputs, test.attributes, {DType::kF32, test.output});
    });
    EXPECT_EQ(error.code(), ErrorCode::kModel) << test.op << ": " << error.what();
  }
}

// From a file it may be a tensor of nothing, in which there is no value to read.
TEST(Movement, PadsWithOneValueOfTheInputsType) {
  const Tensor x = iota(DType::kF32, {4}), pads = ints<int64_t>({0, 1});
  for (const Tensor& value : {Tensor(DType::kF32, {0}), Tensor::full(DType::kF32, {2}, 1),
                              Tensor::full(DType::kBool, {}, 1)}) {
    EXPECT_EQ(refusals("", "Pad", {x, pads, value}, {}, {{DType::kF32, {5}}}),
              "reference: the value to pad with is not one of the input's type");
  }
}

TEST(Movement, SaysWhatItMustKnowBeforehand) {
  const Tensor x = iota(DType::kF32, {4}), zero = ints<int64_t>({0}), two = ints<int64_t>({2});
  RunOptions unknown;
  unknown.constants = false;
  EXPECT_EQ(refusals("", "Slice", {x, zero, two}, {}, {{DType::kF32, {2}}}, unknown),
            "reference: starts and ends are not known before the first step");
  EXPECT_EQ(refusals("", "Pad", {x, ints<int64_t>({0, 1})}, {}, {{DType::kF32, {5}}}, unknown),
            "reference: pads are not known before the first step");
  EXPECT_EQ(refusals("", "NonZero", {x}, {}, {{DType::kI64, {1, 3}}}, unknown),
            "reference: the shape of the result depends on the data");
  const Tensor known = ints<int64_t>({0, 5, 0, 7});
  EXPECT_EQ(run_one("", "NonZero", {known}, {}, {DType::kI64, {1, 2}}).to_ints(),
            (std::vector<int64_t>{1, 3}));
}

TEST(Movement, ScattersInOrderOnAnyNumberOfThreads) {
  const Tensor data = random_tensor(DType::kF32, {50, 700}, -1, 1);
  Tensor rows(DType::kI64, {200, 1});
  int64_t next = 0;
  for (int64_t& row : rows.mutable_data<int64_t>()) row = (next++ * 7) % 50;
  const Tensor updates = random_tensor(DType::kF32, {200, 700}, -1, 1, 2);
  const Tensor sum =
      run_one("", "ScatterND", {data, rows, updates}, {{"reduction", std::string("add")}});
  for (int64_t j = 0; j < 700; j += 13) {
    float wanted = data.data<float>()[3 * 700 + j];
    for (int64_t i = 0; i < 200; ++i) {
      if ((i * 7) % 50 == 3) wanted += updates.data<float>()[i * 700 + j];
    }
    ASSERT_EQ(sum.data<float>()[3 * 700 + j], wanted);
  }
}

}  // namespace
}  // namespace halfnote::test
