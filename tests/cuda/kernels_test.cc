// The CUDA kernels, under the emulation in three thread orders or on a GPU, against the CPU's
// reference kernels: every family, all float types, sizes that no tile divides.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/libraries/dnn_request.h"
#include "kernels/cuda/libraries/lt_request.h"
#include "kernels/cuda/table.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaElementwise, Unary) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : kUglyShapes) {
      const Tensor x = random(dtype, shape), dy = random(dtype, shape, -1, 1, 2);
      for (const std::string_view op : {"Relu", "Tanh", "Erf", "Gelu", "Sigmoid"}) {
        check({"", op, {x}, {}, {{dtype, shape}}});
      }
      for (const std::string_view op : {"ReluGrad", "TanhGrad", "ErfGrad", "GeluGrad"}) {
        check({kOwn, op, {dy, x}, {}, {{dtype, shape}}});
      }
    }
  }
  Attributes alpha;
  alpha.set("alpha", 0.25f);
  check({"", "LeakyRelu", {random(DType::kF32, {33})}, alpha, {{DType::kF32, {33}}}});
}

TEST(CudaElementwise, BinaryBroadcasts) {
  struct Shapes {
    Shape a, b, y;
  };
  const Shapes all[] = {{{5}, {5}, {5}},
                        {{3, 7, 5}, {5}, {3, 7, 5}},
                        {{3, 1, 5}, {7, 1}, {3, 7, 5}},
                        {{}, {70000}, {70000}},
                        {{2, 0, 3}, {1, 3}, {2, 0, 3}}};
  for (const DType dtype : kFloats) {
    for (const Shapes& s : all) {
      const Tensor a = random(dtype, s.a), b = random(dtype, s.b, 1, 3, 2);
      for (const std::string_view op : {"Add", "Sub", "Mul", "Div"}) {
        check({"", op, {a, b}, {}, {{dtype, s.y}}});
      }
      check({"", "Less", {a, b}, {}, {{DType::kBool, s.y}}});
    }
  }
  check({"",
         "Pow",
         {random(DType::kF32, {9}), random(DType::kF32, {}, 3, 3.0001)},
         {},
         {{DType::kF32, {9}}}});
}

TEST(CudaElementwise, CastAndWhere) {
  const Tensor x = random(DType::kF32, {1037}, -300, 300);
  const DType types[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                         DType::kI64, DType::kI32, DType::kBool};
  for (const DType from : types) {
    for (const DType to : types) {
      check({"", "Cast", {x.cast_to(from)}, {}, {{to, {1037}}}});
    }
  }
  const Tensor condition = random(DType::kF32, {3, 1, 5}).cast_to(DType::kBool);
  for (const DType dtype : kStored) {
    check({"",
           "Where",
           {condition, random(dtype, {7, 1}), random(dtype, {3, 7, 5})},
           {},
           {{dtype, {3, 7, 5}}}});
  }
}

TEST(CudaReduction, AnyAxes) {
  struct Case {
    Shape shape;
    std::vector<int64_t> axes;
    Shape result;
  };
  const Case cases[] = {{{5, 7}, {0}, {1, 7}},          {{5, 7}, {1}, {5, 1}},
                        {{300, 129}, {0}, {1, 129}},    {{3, 5000}, {1}, {3, 1}},
                        {{4, 3, 5}, {0, 2}, {1, 3, 1}}, {{70001}, {0}, {1}},
                        {{2900, 7}, {0}, {1, 7}},       {{577, 8}, {0}, {1, 8}},
                        {{0, 3}, {0}, {1, 3}},          {{3, 0}, {0}, {1, 0}}};
  for (const DType dtype : kFloats) {
    for (const Case& c : cases) {
      const Tensor axes = integers(c.axes, {static_cast<int64_t>(c.axes.size())});
      for (const std::string_view op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2"}) {
        check({"", op, {random(dtype, c.shape), axes}, {}, {{dtype, c.result}}, {1}});
      }
    }
  }
}

TEST(CudaMovement, Copies) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    const Tensor x = random(DType::kF32, {5, 33, 70}).cast_to(dtype);
    for (const std::vector<int64_t>& perm :
         {std::vector<int64_t>{0, 2, 1}, {2, 1, 0}, {1, 0, 2}, {0, 1, 2}}) {
      Attributes attributes;
      attributes.set("perm", perm);
      Shape out;
      for (const int64_t d : perm) out.push_back(x.shape()[static_cast<size_t>(d)]);
      check({"", "Transpose", {x}, attributes, {{dtype, out}}});
    }
    Attributes axis;
    axis.set("axis", int64_t{1});
    check({"", "Concat", {x, x}, axis, {{dtype, {5, 66, 70}}}});
    check({"", "Split", {x}, axis, {{dtype, {5, 30, 70}}, {dtype, {5, 3, 70}}}});
    check({"",
           "Slice",
           {x, integers({1, -1}, {2}), integers({5, -40}, {2}), integers({0, 2}, {2}),
            integers({2, -3}, {2})},
           {},
           {{dtype, {2, 33, 13}}},
           {1, 2, 3, 4}});
    check({"", "Pad", {x, integers({0, 1, -2, 0, 3, 4}, {6})}, {}, {{dtype, {5, 37, 72}}}, {1}});
  }
}

/// Tiles that are read and written by 16 bytes, and those that are not; more than one tile a side;
/// and strips of a matrix with a short side.
TEST(CudaMovement, TransposesByPacks) {
  Attributes swapped;
  swapped.set("perm", std::vector<int64_t>{0, 2, 1});
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI8}) {
    for (const Shape& shape : {Shape{2, 64, 72},
                               {1, 136, 24},
                               {3, 16, 144},
                               {1, 130, 64},
                               {2, 8, 8},
                               {1, 9, 200},
                               {0, 16, 16},
                               // With one short side: strips.
                               {3, 300, 9},
                               {2, 9, 128},
                               {70, 8, 40},
                               {1, 129, 31},
                               {2, 32, 1025}}) {
      const Tensor x = random(DType::kF32, shape, -100, 100).cast_to(dtype);
      check({"", "Transpose", {x}, swapped, {{dtype, {shape[0], shape[2], shape[1]}}}});
    }
  }
}

/// Lines that begin at 16 bytes, at 8, at 4, 2 and anywhere.
TEST(CudaMovement, CopiesByPacks) {
  Attributes axis;
  axis.set("axis", int64_t{1});
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kBool}) {
    for (const int64_t width : {64, 40, 36, 34, 33}) {
      const Tensor x = random(DType::kF32, {6, 4, width}).cast_to(dtype);
      for (const std::vector<int64_t>& perm : {std::vector<int64_t>{1, 0, 2}, {2, 0, 1}}) {
        Attributes attributes;
        attributes.set("perm", perm);
        Shape out;
        for (const int64_t d : perm) out.push_back(x.shape()[static_cast<size_t>(d)]);
        check({"", "Transpose", {x}, attributes, {{dtype, out}}});
      }
      const Tensor rows = random(DType::kF32, {5, width}).cast_to(dtype);
      const Tensor others = random(DType::kF32, {5, 8}, -1, 1, 2).cast_to(dtype);
      check({"", "Concat", {rows, others}, axis, {{dtype, {5, width + 8}}}});
      check({"", "Split", {rows}, axis, {{dtype, {5, 16}}, {dtype, {5, width - 16}}}});
      for (const int64_t first : {0, 1, 2, 4, 8}) {
        check({"",
               "Slice",
               {rows, integers({first}, {1}), integers({first + 16}, {1}), integers({1}, {1})},
               {},
               {{dtype, {5, 16}}},
               {1, 2, 3}});
      }
    }
  }
}

TEST(CudaMovement, GatherAndScatter) {
  for (const DType dtype : kStored) {
    const Tensor table = random(dtype, {11, 65});
    const Tensor picks = integers({3, -1, 0, 3, 10, 3}, {2, 3});
    check({"", "Gather", {table, picks}, {}, {{dtype, {2, 3, 65}}}});
    check({"", "Gather", {random(dtype, {11, 48}), picks}, {}, {{dtype, {2, 3, 48}}}});
    Attributes axis;
    axis.set("axis", int64_t{1});
    check({"", "Gather", {table, picks}, axis, {{dtype, {11, 2, 3}}}});
    Attributes add;
    add.set("reduction", std::string("add"));
    const Tensor rows = integers({3, 10, 0, 3, 10, 3}, {6, 1});
    check({"",
           "ScatterND",
           {table, rows, random(dtype, {6, 65}, -1, 1, 2)},
           add,
           {{dtype, {11, 65}}}});
  }
}

/// `count` indices into `limit` places, some counted from the end; the first half is all one place.
Tensor crowded_indices(int64_t count, int64_t limit, Shape shape) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i < count / 2 ? limit / 2 : (i * 7919 + i / 3) % limit;
    values.push_back(i % 5 == 0 ? at - limit : at);
  }
  return integers(std::move(values), std::move(shape));
}

TEST(CudaMovement, ScattersCrowdsInTheOrderOfTheUpdates) {
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    Attributes attributes;
    attributes.set("reduction", std::string(reduction));
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      // Near 1, so that products of hundreds stay in range.
      const auto values = [&](Shape shape, uint32_t seed) {
        return random(dtype, std::move(shape), 0.99, 1.01, seed);
      };
      check({"",
             "ScatterND",
             {values({19, 5}, 1), crowded_indices(500, 19, {500, 1}), values({500, 5}, 2)},
             attributes,
             {{dtype, {19, 5}}}});
      // A run over more chunks than a thread joins, and one that is all there is.
      check({"",
             "ScatterND",
             {values({19, 13}, 1), crowded_indices(1501, 19, {1501, 1}), values({1501, 13}, 2)},
             attributes,
             {{dtype, {19, 13}}}});
      check({"",
             "ScatterND",
             {values({1, 3}, 1), crowded_indices(1130, 1, {1130, 1}), values({1130, 3}, 2)},
             attributes,
             {{dtype, {1, 3}}}});
      check({"",
             "ScatterElements",
             {values({300, 3}, 1), crowded_indices(600, 300, {200, 3}), values({200, 3}, 2)},
             attributes,
             {{dtype, {300, 3}}}});
    }
  }
  // More updates than a block sorts, keys of more than one digit; and none at all.
  Attributes last;
  check({"",
         "ScatterElements",
         {random(DType::kF32, {70001}), crowded_indices(5003, 70001, {5003}),
          random(DType::kF32, {5003}, -1, 1, 2)},
         last,
         {{DType::kF32, {70001}}}});
  check({"",
         "ScatterND",
         {random(DType::kF32, {4, 3}), integers({}, {0, 1}), random(DType::kF32, {0, 3})},
         last,
         {{DType::kF32, {4, 3}}}});
}

TEST(CudaMovement, GathersElementsAndOneHots) {
  Attributes axis;
  axis.set("axis", int64_t{1});
  for (const DType dtype : kStored) {
    check({"",
           "GatherElements",
           {random(dtype, {3, 11, 4}), crowded_indices(84, 11, {3, 7, 4})},
           axis,
           {{dtype, {3, 7, 4}}}});
    check({"",
           "OneHot",
           {crowded_indices(30, 9, {5, 6}), integers({7}, {}), random(dtype, {2})},
           axis,
           {{dtype, {5, 7, 6}}}});
  }
}

TEST(CudaDivisor, DividesLikeTheProcessor) {
  const int64_t edge = int64_t{1} << 31;
  for (const int64_t divisor : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{641},
                                int64_t{65535}, int64_t{65537}, edge - 1, edge, edge + 1}) {
    const Divisor d(divisor);
    for (const int64_t near : {int64_t{0}, divisor, 2 * divisor, 5 * divisor, edge - 1, edge,
                               edge / divisor * divisor, 9 * edge}) {
      for (int64_t n = std::max<int64_t>(0, near - 2); n <= near + 2; ++n) {
        ASSERT_EQ(d.quotient(n), n / divisor) << n << " / " << divisor;
        ASSERT_EQ(d.remainder(n), n % divisor) << n << " / " << divisor;
      }
    }
  }
}

TEST(CudaMovement, IndexOutOfRangeIsBadData) {
  try {
    on_device({"",
               "Gather",
               {random(DType::kF32, {4, 3}), integers({1, 4}, {2})},
               {},
               {{DType::kF32, {2, 3}}}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_EQ(error.value(), "4");
  }
}

TEST(CudaContraction, Products) {
  for (const DType dtype : kFloats) {
    for (const bool transposed : {false, true}) {
      Attributes attributes;
      attributes.set("transA", int64_t{transposed});
      attributes.set("transB", int64_t{!transposed});
      attributes.set("alpha", 0.5f);
      const Tensor a = random(dtype, transposed ? Shape{9, 5} : Shape{5, 9});
      const Tensor b = random(dtype, transposed ? Shape{9, 7} : Shape{7, 9}, -1, 1, 2);
      for (const Shape& c : {Shape{}, {7}, {5, 1}, {5, 7}}) {
        check({"", "Gemm", {a, b, random(dtype, c, -1, 1, 3)}, attributes, {{dtype, {5, 7}}}});
      }
    }
    check({"",
           "MatMul",
           {random(dtype, {2, 3, 5, 9}), random(dtype, {9, 7})},
           {},
           {{dtype, {2, 3, 5, 7}}}});
    check({"",
           "MatMul",
           {random(dtype, {2, 1, 5, 9}), random(dtype, {3, 9, 7})},
           {},
           {{dtype, {2, 3, 5, 7}}}});
    check({"", "MatMul", {random(dtype, {4, 0}), random(dtype, {0, 3})}, {}, {{dtype, {4, 3}}}});
  }
}

/// A number for each column is added by the library, before the one rounding.
TEST(CudaContraction, TheLibraryAddsABias) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "only the emulation records";
  const auto adds_bias = [](DType dtype, const Shape& c, float beta) {
    std::vector<MatmulCall> calls;
    record_matmuls(&calls);
    on_device({"",
               "Gemm",
               {random(dtype, {5, 9}), random(dtype, {9, 7}), random(dtype, c)},
               {{"beta", beta}},
               {{dtype, {5, 7}}}});
    record_matmuls(nullptr);
    return calls.size() == 1 && calls[0].request.has_bias;
  };
  for (const DType dtype : kStored) {
    EXPECT_TRUE(adds_bias(dtype, {7}, 1));
    EXPECT_TRUE(adds_bias(dtype, {1, 7}, 1));
    EXPECT_FALSE(adds_bias(dtype, {5, 1}, 1)) << "a number for each row";
    EXPECT_FALSE(adds_bias(dtype, {7}, 0.5f)) << "times beta";
  }
  EXPECT_FALSE(adds_bias(DType::kF64, {7}, 1));
}

/// The forward op and both gradients, for all types.
void check_convolutions() {
  struct Case {
    Shape x, w, y;
    std::vector<int64_t> strides, pads;
    int64_t group;
  };
  const Case cases[] = {
      {{2, 4, 7, 5}, {6, 4, 3, 3}, {2, 6, 4, 3}, {2, 2}, {1, 1, 1, 1}, 1},
      {{1, 4, 6}, {4, 2, 3}, {1, 4, 4}, {1}, {0, 0}, 2},
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1}, {0, 0, 0, 0}, 1},
      {{0, 2, 4, 4}, {3, 2, 2, 2}, {0, 3, 3, 3}, {1, 1}, {0, 0, 0, 0}, 1},
      {{1, 35, 6, 6}, {40, 35, 1, 1}, {1, 40, 6, 6}, {1, 1}, {0, 0, 0, 0}, 1},
      {{2, 2, 3, 4, 3}, {4, 1, 2, 2, 3}, {2, 4, 2, 3, 3}, {1, 1, 1}, {0, 0, 1, 0, 0, 1}, 2},
      {{1, 2, 5, 5}, {3, 2, 2, 2}, {1, 3, 5, 5}, {1, 1}, {0, 1, 1, 0}, 1}};
  for (const DType dtype : kFloats) {
    for (const Case& c : cases) {
      Attributes attributes;
      attributes.set("strides", c.strides);
      attributes.set("pads", c.pads);
      attributes.set("group", c.group);
      const Tensor x = random(dtype, c.x), w = random(dtype, c.w, -1, 1, 2);
      const Tensor dy = random(dtype, c.y, -1, 1, 3), bias = random(dtype, {c.w[0]}, -1, 1, 4);
      check({"", "Conv", {x, w, bias}, attributes, {{dtype, c.y}}});
      check({kOwn,
             "ConvGradInput",
             {dy, w, integers(c.x, {static_cast<int64_t>(c.x.size())})},
             attributes,
             {{dtype, c.x}},
             {2}});
      check({kOwn, "ConvGradWeight", {dy, x}, attributes, {{dtype, c.w}}});
    }
  }
}

TEST(CudaContraction, Convolutions) { check_convolutions(); }

/// Where the library has no plan: for 16-bit operands, for f32 that lies plain, for nothing at all.
TEST(CudaContraction, ConvolutionsThatTheLibraryRefuses) {
  using libraries::DnnRequest;
  refuse_convolutions([](const DnnRequest& r) {
    return std::string(is_16bit_float(r.x.dtype) || is_16bit_float(r.y.dtype) ? "no 16 bits" : "");
  });
  check_convolutions();
  refuse_convolutions(
      [](const DnnRequest& r) { return std::string(r.tensor_cores ? "" : "no f32"); });
  check_convolutions();
  refuse_convolutions([](const DnnRequest& r) {
    return std::string(r.x.strides[1] == 1 ? "" : "not channels-last");
  });
  check_convolutions();
  refuse_convolutions([](const DnnRequest&) { return std::string("nothing"); });
  check_convolutions();
  refuse_convolutions(nullptr);
}

TEST(CudaReduction, Pools) {
  Attributes attributes;
  attributes.set("kernel_shape", std::vector<int64_t>{3, 2});
  attributes.set("strides", std::vector<int64_t>{2, 1});
  attributes.set("pads", std::vector<int64_t>{1, 0, 1, 1});
  for (const int64_t with_pad : {0, 1}) {
    attributes.set("count_include_pad", with_pad);
    for (const DType dtype : kFloats) {
      const Tensor x = random(dtype, {2, 3, 7, 5}), dy = random(dtype, {2, 3, 4, 5}, -1, 1, 2);
      const Result y = {dtype, {2, 3, 4, 5}}, dx = {dtype, {2, 3, 7, 5}};
      check({"", "AveragePool", {x}, attributes, {y}});
      check({kOwn, "AveragePoolGrad", {dy, x}, attributes, {dx}});
      Attributes maximum = attributes;
      maximum.erase("count_include_pad");
      check({"", "MaxPool", {x}, maximum, {y, {DType::kI64, {2, 3, 4, 5}}}});
      check({kOwn, "MaxPoolGrad", {dy, x}, maximum, {dx}});
      for (const int64_t p : {1, 2, 3}) {
        maximum.set("p", p);
        check({"", "LpPool", {x}, maximum, {y}});
      }
    }
  }
}

TEST(CudaTable, NamesItsRows) {
  for (const KernelRow& row : kernel_table().rows()) {
    EXPECT_TRUE(row.name.starts_with("own.") || row.name.starts_with("blas.") ||
                row.name.starts_with("dnn.") || row.name.starts_with("generated."))
        << row.name;
    EXPECT_FALSE(cpu_kernels().rows_of(row.domain, row.op).empty())
        << row.op << " has no kernel on the CPU";
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
