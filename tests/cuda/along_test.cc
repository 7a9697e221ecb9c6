// Ops along one axis, resizes and shifted reductions: CUDA against the CPU's reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

constexpr int64_t kOne = 1;

struct AlongCase {
  Shape shape;
  int64_t axis;
};

// Lines of a thread and of a block, side by side and one behind the other, none and empty ones.
const AlongCase kAlongCases[] = {{{1}, 0},         {{7}, -1},          {{3, 65}, 1},
                                 {{5, 129, 3}, 1}, {{3, 5, 1000}, -1}, {{2, 0}, 0},
                                 {{65537}, 0},     {{4, 300}, 0},      {{0, 7}, 1}};

Shape without_axis(const AlongCase& c, int64_t size) {
  Shape shape = c.shape;
  shape[static_cast<size_t>(c.axis < 0 ? c.axis + static_cast<int64_t>(shape.size()) : c.axis)] =
      size;
  return shape;
}

/// Few different values, so that there are equal ones; a NaN and a 0 of either sign among them.
Tensor crowded(DType dtype, const Shape& shape) {
  Tensor x = random(dtype, shape, -3, 3).cast_to(DType::kI64).cast_to(DType::kF64);
  auto data = x.mutable_data<double>();
  if (data.size() > 5) data[data.size() / 2] = std::numeric_limits<double>::quiet_NaN();
  if (data.size() > 5) data[data.size() / 3] = -0.0;
  return x.cast_to(dtype);
}

TEST(CudaAlong, ArgMaxAndArgMin) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                            DType::kI32, DType::kBool}) {
    for (const AlongCase& c : kAlongCases) {
      for (const int64_t last : {0, 1}) {
        const Attributes how = {{"axis", c.axis}, {"select_last_index", last}};
        const Result result = {DType::kI64, without_axis(c, 1)};
        for (const std::string_view op : {"ArgMax", "ArgMin"}) {
          check({"", op, {crowded(dtype, c.shape)}, how, {result}});
        }
      }
    }
  }
}

TEST(CudaAlong, ArgMaxOfNothingHasNoKernel) {
  EXPECT_THROW(
      on_device(
          {"", "ArgMax", {Tensor(DType::kF32, {3, 0})}, {{"axis", kOne}}, {{DType::kI64, {3, 1}}}}),
      Error);
}

TEST(CudaAlong, CumSum) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32}) {
    for (const AlongCase& c : kAlongCases) {
      for (const int64_t variant : {0, 1, 2, 3}) {
        // Hundreds of tiles of a block: one variant shows them.
        if (element_count(c.shape) > 50000 && (variant != 3 || size_of(dtype) != 4)) continue;
        const Attributes how = {{"exclusive", variant % 2}, {"reverse", variant / 2}};
        const Tensor x = random(dtype, c.shape, is_float(dtype) ? -1 : -9, is_float(dtype) ? 1 : 9);
        check({"", "CumSum", {x, integers({c.axis}, {})}, how, {{dtype, c.shape}}, {1}});
      }
    }
  }
}

/// Lines that are few and long are cut into pieces.
TEST(CudaAlong, CumSumOfPieces) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI64, DType::kI8}) {
    for (const AlongCase& c : {AlongCase{{2, 5000}, 1}, {{1025}, 0}, {{3, 1500, 2}, 1}}) {
      for (const int64_t variant : {0, 1, 2, 3}) {
        const Attributes how = {{"exclusive", variant % 2}, {"reverse", variant / 2}};
        const Tensor x = random(dtype, c.shape, is_float(dtype) ? -1 : -9, is_float(dtype) ? 1 : 9);
        check({"", "CumSum", {x, integers({c.axis}, {})}, how, {{dtype, c.shape}}, {1}});
      }
    }
  }
}

TEST(CudaAlong, TopK) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64}) {
    for (const AlongCase& c : kAlongCases) {
      const int64_t dim = c.shape.empty() ? 0 : without_axis(c, -1) == c.shape ? 0 : 3;
      for (const int64_t largest : {0, 1}) {
        const Shape picked = without_axis(c, dim);
        if (picked.size() != c.shape.size() || c.shape == Shape{1}) continue;
        if (element_count(c.shape) == 0 && c.shape[0] != 0) continue;
        // That many are sorted, digit by digit: one type shows it.
        if (element_count(c.shape) > 50000 && (largest == 0 || dtype != DType::kBF16)) continue;
        check({"",
               "TopK",
               {crowded(dtype, c.shape), integers({dim}, {1})},
               {{"axis", c.axis}, {"largest", largest}},
               {{dtype, picked}, {DType::kI64, picked}}});
      }
    }
  }
}

TEST(CudaAlong, TopKOfAllSorts) {
  const Shape shape = {2, 131};
  for (const int64_t largest : {0, 1}) {
    check({"",
           "TopK",
           {crowded(DType::kF32, shape), integers({131}, {1})},
           {{"largest", largest}},
           {{DType::kF32, shape}, {}}});
  }
}

/// Numbers of all sizes and both signs, the ends of the type among them.
Tensor scattered(DType dtype, const Shape& shape) {
  const double infinity = std::numeric_limits<double>::infinity();
  Tensor x = random(DType::kF64, shape, -9, 9);
  auto data = x.mutable_data<double>();
  for (double& value : data) value = std::copysign(std::exp2(4 * std::abs(value) - 24), value);
  const double ends[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 0, -0.0};
  std::copy(std::begin(ends), std::end(ends), data.begin() + 7);
  return x.cast_to(dtype);
}

/// Many of each line: the lines are sorted.
TEST(CudaAlong, TopKOfMany) {
  struct Case {
    Shape shape;
    int64_t axis, count;
  };
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Case& c :
         {Case{{2, 700}, 1, 300}, {{300, 4}, 0, 299}, {{5, 129, 3}, 1, 129}, {{2500}, 0, 2500}}) {
      if (c.shape.size() == 1 && dtype != DType::kF16) continue;
      const Shape picked = without_axis({c.shape, c.axis}, c.count);
      for (const int64_t largest : {0, 1}) {
        for (const Tensor& x : {crowded(dtype, c.shape), scattered(dtype, c.shape)}) {
          check({"",
                 "TopK",
                 {x, integers({c.count}, {1})},
                 {{"axis", c.axis}, {"largest", largest}},
                 {{dtype, picked}, {DType::kI64, picked}}});
        }
      }
    }
  }
}

TEST(CudaReduction, LogSumExpIsShifted) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {5, 129}, {30, 2}, {2, 70000}, {3, 0}}) {
      if (element_count(shape) > 65536 && dtype != DType::kF32) continue;
      // Their exponentials overflow every type but f64.
      Tensor x = random(dtype, shape, 200, 300);
      for (const int64_t axis : {0, 1}) {
        if (shape[1] == 0 && axis == 0) continue;
        const Shape reduced = axis == 0 ? Shape{1, shape[1]} : Shape{shape[0], 1};
        check({"", "ReduceLogSumExp", {x, integers({axis}, {1})}, {}, {{dtype, reduced}}, {1}});
      }
    }
    Tensor ends(DType::kF64, {3, 2});
    const double values[] = {-infinity, -infinity, infinity, 1, -infinity, 2};
    std::copy(std::begin(values), std::end(values), ends.mutable_data<double>().begin());
    check({"",
           "ReduceLogSumExp",
           {ends.cast_to(dtype), integers({1}, {1})},
           {},
           {{dtype, {3, 1}}},
           {1}});
  }
}

TEST(CudaReduction, Integers) {
  for (const DType dtype : {DType::kI64, DType::kI32}) {
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {5, 1029}, {30, 2}, {3, 0}}) {
      const Tensor x = random(dtype, shape, -9, 9);
      for (const std::string_view op : {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"}) {
        check({"", op, {x, integers({1}, {1})}, {}, {{dtype, {shape[0], 1}}}, {1}});
        check({"", op, {x, integers({0}, {1})}, {}, {{dtype, {1, shape[1]}}}, {1}});
      }
    }
  }
}

struct ResizeCase {
  std::string mode, coordinates;
  std::vector<float> scales;
  Shape in, out;
  int64_t antialias = 0;
};

const ResizeCase kResizes[] = {
    {"nearest", "asymmetric", {1, 1, 2, 2}, {2, 3, 4, 5}, {2, 3, 8, 10}},
    {"linear", "half_pixel", {1, 1, 2, 3}, {1, 2, 5, 7}, {1, 2, 10, 21}},
    {"linear", "align_corners", {1, 1, 0.5f, 2}, {1, 1, 8, 3}, {1, 1, 4, 6}},
    {"cubic", "half_pixel", {1, 1, 1.5f, 0.6f}, {1, 1, 6, 10}, {1, 1, 9, 6}},
    {"linear", "half_pixel", {1, 1, 0.4f, 1}, {2, 1, 10, 3}, {2, 1, 4, 3}, 1},
    {"linear", "half_pixel", {2, 2, 2}, {3, 4, 5}, {6, 8, 10}},
    {"nearest", "half_pixel", {1, 1}, {3, 5}, {3, 5}},
    {"linear", "half_pixel", {1, 700}, {3, 100}, {3, 70000}},
    {"nearest", "asymmetric", {1, 2}, {0, 3}, {0, 6}},
};

TEST(CudaResize, ForwardAndBackward) {
  for (const DType dtype : kFloats) {
    for (const ResizeCase& c : kResizes) {
      const Tensor x = random(dtype, c.in), dy = random(dtype, c.out, -1, 1, 2);
      Attributes how = {{"mode", c.mode},
                        {"coordinate_transformation_mode", c.coordinates},
                        {"antialias", c.antialias}};
      const Tensor scales = Tensor::of<float>({static_cast<int64_t>(c.scales.size())},
                                              std::span<const float>(c.scales));
      check({"", "Resize", {x, Tensor(), scales}, how, {{dtype, c.out}}, {2}});
      how.set("scales", c.scales);
      check({kOwn, "ResizeGrad", {dy}, how, {{dtype, c.in}}});
    }
  }
}

TEST(CudaResize, OutsideIsExtrapolated) {
  const Attributes how = {{"mode", std::string("linear")},
                          {"coordinate_transformation_mode", std::string("tf_crop_and_resize")},
                          {"extrapolation_value", 9.0f}};
  const float roi[] = {0, 0, 1, 1.5f};
  check({"",
         "Resize",
         {random(DType::kF32, {2, 6}), Tensor::of<float>({4}, std::span<const float>(roi)),
          Tensor(), integers({2, 11}, {2})},
         how,
         {{DType::kF32, {2, 11}}},
         {1, 3}});
}

}  // namespace
}  // namespace halfnote::cuda_emulated
