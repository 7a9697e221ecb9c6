// Pads, triangles and gathered tuples, quantized elements, integer divisions and negative log
// likelihoods: CUDA against the CPU's reference.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "tests/cuda/channels_last/last.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

struct PadCase {
  Shape in;
  std::vector<int64_t> pads;
};

const PadCase kPads[] = {
    {{1}, {0, 0}},
    {{7}, {3, 2}},
    {{3, 5}, {1, 2, 0, 4}},
    {{2, 3, 5, 7}, {0, 0, 2, 3, 0, 0, 1, 2}},
    {{2, 3, 5, 7}, {0, 1, 0, 0, 1, 0, 0, 0}},
    {{4, 6}, {-1, 2, 1, -3}},
    {{65537}, {1, 5}},
    {{2, 2, 2, 2, 2, 2, 2, 2}, {1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}},
    {{3, 0}, {1, 0, 1, 0}},
};

TEST(CudaMovement, PadsInAllModes) {
  for (const PadCase& c : kPads) {
    const auto rank = c.in.size();
    Shape out = c.in;
    for (size_t d = 0; d < rank; ++d) out[d] += c.pads[d] + c.pads[rank + d];
    const Tensor pads = integers(c.pads, {static_cast<int64_t>(c.pads.size())});
    for (const std::string mode : {"constant", "edge", "reflect", "wrap"}) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kBool}) {
        const Attributes how = {{"mode", mode}};
        check({"", "Pad", {random(dtype, c.in), pads}, how, {{dtype, out}}, {1}});
      }
    }
    check({"",
           "Pad",
           {random(DType::kF32, c.in), pads, random(DType::kF32, {}, 3, 4)},
           {},
           {{DType::kF32, out}},
           {1}});
  }
}

TEST(CudaMovement, AddsAtStrides) {
  struct Case {
    Shape x, part;
    std::vector<int64_t> strides;
  };
  const Case cases[] = {{{2, 3, 5, 6}, {2, 3, 3, 3}, {2, 2}},
                        {{1, 2, 7}, {1, 2, 3}, {3}},
                        {{2, 8, 3, 4}, {2, 8, 1, 4}, {9, 1}},
                        {{2, 8, 3, 4}, {2, 8, 1, 1}, {3, 4}},
                        {{1, 16, 3, 4, 5}, {1, 16, 2, 4, 2}, {2, 1, 3}},
                        {{3, 24, 33, 47}, {3, 24, 17, 24}, {2, 2}},
                        {{0, 3, 4, 4}, {0, 3, 2, 2}, {2, 2}}};
  for (const Case& c : cases) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      const Attributes attributes{{"strides", c.strides}};
      const Call call{kOwn,
                      "AddStrided",
                      {random(dtype, c.x), random(dtype, c.part, -1, 1, 2)},
                      attributes,
                      {{dtype, c.x}}};
      check(call);
      if (dtype != DType::kF64 && c.x[0] > 0) check_last(call);
    }
  }
}

TEST(CudaMovement, PadOfManyDimsIsRefused) {
  const Shape in(9, 2), out(9, 3);
  std::vector<int64_t> pads(18, 0);
  std::fill_n(pads.begin(), 9, 1);
  EXPECT_THROW(on_device({"",
                          "Pad",
                          {random(DType::kF32, in), integers(pads, {18})},
                          {},
                          {{DType::kF32, out}},
                          {1}}),
               Error);
}

TEST(CudaMovement, Fills) {
  for (const Shape& shape : {Shape{}, {1}, {7}, {3, 0}, {65537}, {3, 33, 65}}) {
    const Tensor dims = integers(shape, {static_cast<int64_t>(shape.size())});
    check({"", "ConstantOfShape", {dims}, {}, {{DType::kF32, shape}}, {0}});
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kI64, DType::kBool}) {
      const Attributes how = {{"value", random(dtype, {1})}};
      check({"", "ConstantOfShape", {dims}, how, {{dtype, shape}}, {0}});
    }
  }
}

TEST(CudaMovement, Triangles) {
  for (const Shape& shape : {Shape{1, 1}, {5, 7}, {7, 5}, {3, 33, 65}, {2, 0, 3}, {300, 300}}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kI64, DType::kBool}) {
      for (const int64_t diagonal :
           {int64_t{0}, int64_t{2}, int64_t{-3}, std::numeric_limits<int64_t>::max(),
            std::numeric_limits<int64_t>::min()}) {
        for (const int64_t upper : {0, 1}) {
          check({"",
                 "Trilu",
                 {random(dtype, shape), integers({diagonal}, {})},
                 {{"upper", upper}},
                 {{dtype, shape}}});
        }
      }
      check({"", "Trilu", {random(dtype, shape)}, {}, {{dtype, shape}}});
    }
  }
}

TEST(CudaMovement, GathersTuples) {
  const Tensor pairs = integers({0, 1, -1, 2, 2, -5}, {3, 2});
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBool}) {
    check({"", "GatherND", {random(dtype, {3, 5, 33}), pairs}, {}, {{dtype, {3, 33}}}});
    check({"", "GatherND", {random(dtype, {3, 5}), pairs}, {}, {{dtype, {3}}}});
    check({"",
           "GatherND",
           {random(dtype, {3, 4, 7}), integers({1, -2, 0}, {3, 1})},
           {{"batch_dims", int64_t{1}}},
           {{dtype, {3, 7}}}});
    check(
        {"", "GatherND", {random(dtype, {3, 5}), Tensor(DType::kI64, {0, 2})}, {}, {{dtype, {0}}}});
  }
  check({"",
         "GatherND",
         {random(DType::kF32, {2, 70001}), integers({1, 0}, {2, 1})},
         {},
         {{DType::kF32, {2, 70001}}}});
}

TEST(CudaMovement, TupleOutOfRangeIsBadData) {
  EXPECT_THROW(on_device({"",
                          "GatherND",
                          {random(DType::kF32, {3, 5}), integers({2, 5}, {1, 2})},
                          {},
                          {{DType::kF32, {1}}}}),
               Error);
}

/// A scale and zero point for the tensor, for each index of axis 1, for each block of 2 along it.
struct Scales {
  Shape shape;
  int64_t block;
};
const Scales kScales[] = {{{}, 0}, {{5}, 0}, {{3, 3, 7}, 2}};

TEST(CudaQuantized, QuantizesAndBack) {
  const Shape shape = {3, 5, 7};
  for (const DType integer : {DType::kU8, DType::kI8, DType::kU16, DType::kI16, DType::kI32}) {
    for (const DType real : kFloats) {
      for (const Scales& s : kScales) {
        const Tensor scale = random(real, s.shape, 0.02, 0.05, 2);
        const Tensor zero = random(DType::kF32, s.shape, 0, 9, 3).cast_to(integer);
        const Attributes how = {{"axis", int64_t{1}}, {"block_size", s.block}};
        const Tensor q = random(DType::kF32, shape, 0, 100, 4).cast_to(integer);
        // So far that both ends saturate in 8 bits.
        const Tensor x = random(real, shape, -20, 20);
        check({"", "QuantizeLinear", {x, scale, zero}, how, {{integer, shape}}});
        check({"", "QuantizeLinear", {x, scale}, how, {{integer, shape}}});
        check({"", "DequantizeLinear", {q, scale, zero}, how, {{real, shape}}});
      }
    }
  }
  for (const Shape& ugly : kUglyShapes) {
    check({"",
           "QuantizeLinear",
           {random(DType::kF32, ugly), random(DType::kF32, {}, 0.01, 0.02)},
           {},
           {{DType::kU8, ugly}}});
  }
}

TEST(CudaElementwise, ModAndIntegerDiv) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32}) {
    for (const Shape& shape : kUglyShapes) {
      const Tensor a = random(dtype, shape, -50, 50), b = random(dtype, shape, 1, 9, 2);
      check({"", "Mod", {a, b}, {{"fmod", int64_t{1}}}, {{dtype, shape}}});
      check({"", "Div", {a, b}, {}, {{dtype, shape}}});
      if (is_integer(dtype)) check({"", "Mod", {a, b}, {}, {{dtype, shape}}});
    }
  }
  const Tensor lowest = integers({std::numeric_limits<int64_t>::min(), -7, 7}, {3});
  for (const std::string_view op : {"Mod", "Div"}) {
    check({"", op, {lowest, integers({-1}, {})}, {}, {{DType::kI64, {3}}}});
  }
}

TEST(CudaElementwise, IntegerDivisionByZeroIsBadData) {
  for (const std::string_view op : {"Mod", "Div"}) {
    try {
      on_device({"", op, {integers({1, 2}, {2}), integers({1, 0}, {2})}, {}, {{DType::kI64, {2}}}});
      FAIL() << op << " by zero is no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "integer division by zero");
      EXPECT_EQ(error.code(), ErrorCode::kData);
    }
  }
}

TEST(CudaLoss, LogLikelihood) {
  struct Sizes {
    Shape scores, labels;
  };
  const Sizes all[] = {{{1, 1}, {1}},      {{7, 10}, {7}}, {{2, 5, 3, 4}, {2, 3, 4}},
                       {{33, 1031}, {33}}, {{0, 4}, {0}},  {{70000, 2}, {70000}}};
  for (const DType dtype : kFloats) {
    for (const Sizes& s : all) {
      const int64_t classes = s.scores[1];
      const Tensor x = random(dtype, s.scores, -8, 0), dy = random(dtype, {}, 1, 2, 2);
      Tensor labels(DType::kI64, s.labels);
      int64_t next = 0;
      for (int64_t& label : labels.mutable_data<int64_t>()) label = next++ * 7 % classes;
      const Tensor weight = random(dtype, {classes}, 0.5, 2, 3);
      for (const std::string reduction : {"mean", "sum", "none"}) {
        const Attributes how = {{"reduction", reduction}, {"ignore_index", int64_t{1}}};
        const bool none = reduction == "none";
        const Shape loss = none ? s.labels : Shape{};
        check({"", "NegativeLogLikelihoodLoss", {x, labels, weight}, how, {{dtype, loss}}});
        const Tensor upstream = none ? random(dtype, loss, 1, 2, 4) : dy;
        check({kOwn,
               "NegativeLogLikelihoodLossGrad",
               {upstream, labels, weight},
               how,
               {{dtype, s.scores}}});
        check(
            {kOwn, "NegativeLogLikelihoodLossGrad", {upstream, labels}, how, {{dtype, s.scores}}});
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
