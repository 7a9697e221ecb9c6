// Reductions, running sums, picks and scatters of every integer type on a device.
#include <gtest/gtest.h>

#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

// Rows and columns, side by side and one behind the other, none and empty ones, several slices.
const Shape kMatrices[] = {{1, 1}, {3, 7}, {5, 1029}, {30, 2}, {3, 0}, {0, 3}};

Call reduce_call(std::string_view op, DType dtype, const Shape& shape, int64_t axis) {
  const Shape reduced = axis == 0 ? Shape{1, shape[1]} : Shape{shape[0], 1};
  const Tensor x = is_float(dtype) ? random(dtype, shape) : ugly(dtype, shape);
  return {"", op, {x, integers({axis}, {1})}, {}, {{dtype, reduced}}, {1}};
}

TEST(CudaIntegerReduction, AllOfAllTypes) {
  for (const std::string_view op :
       {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
        "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}) {
    for (const DType dtype : kAllTypes) {
      if (is_float(dtype)) continue;
      for (const Shape& shape : kMatrices) {
        for (const int64_t axis : {0, 1}) check_as_on_cpu(reduce_call(op, dtype, shape, axis));
      }
    }
  }
}

TEST(CudaIntegerReduction, OverLongLinesAndAllAxes) {
  for (const DType dtype : {DType::kU64, DType::kI32}) {
    for (const std::string_view op : {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}) {
      check(reduce_call(op, dtype, {2, 65537}, 1));
      check(reduce_call(op, dtype, {65537, 2}, 0));
      const Tensor x = ugly(dtype, {3, 5, 7});
      check({"", op, {x}, {{"keepdims", int64_t{0}}}, {{dtype, {}}}});
    }
  }
  for (const DType dtype : {DType::kI8, DType::kU8}) {
    for (const std::string_view op : {"ReduceMax", "ReduceMin"})
      check(reduce_call(op, dtype, {2, 65537}, 1));
  }
}

TEST(CudaIntegerReduction, FirstAndLastOfTheLargest) {
  for (const DType dtype : kAllTypes) {
    for (const Shape& shape : {Shape{1, 1}, {3, 65}, {2, 1000}, {300, 2}}) {
      for (const int64_t axis : {0, 1}) {
        const Shape reduced = axis == 0 ? Shape{1, shape[1]} : Shape{shape[0], 1};
        for (const std::string_view op : {"ArgMax", "ArgMin"}) {
          const Attributes how = {{"axis", axis}, {"select_last_index", axis}};
          check_as_on_cpu({"", op, {ugly(dtype, shape)}, how, {{DType::kI64, reduced}}});
        }
      }
    }
  }
}

TEST(CudaIntegerReduction, TopK) {
  for (const DType dtype : kAllTypes) {
    for (const int64_t largest : {0, 1}) {
      for (const Shape& shape : {Shape{3, 3}, {2, 131}, {1, 1000}}) {
        for (const int64_t count : {int64_t{3}, shape[1]}) {
          const Shape picked = {shape[0], count};
          check_as_on_cpu({"",
                           "TopK",
                           {ugly(dtype, shape), integers({count}, {1})},
                           {{"largest", largest}},
                           {{dtype, picked}, {DType::kI64, picked}}});
        }
      }
    }
  }
}

TEST(CudaIntegerReduction, CumSum) {
  for (const DType dtype : kAllTypes) {
    if (is_float(dtype)) continue;
    for (const Shape& shape : {Shape{1}, {7}, {0}, {1000}, {20001}}) {
      for (const int64_t variant : {0, 1, 2, 3}) {
        if (shape[0] > 2000 && variant != 2) continue;
        const Attributes how = {{"exclusive", variant % 2}, {"reverse", variant / 2}};
        const Tensor x = ugly(dtype, shape);
        check_as_on_cpu({"", "CumSum", {x, integers({0}, {})}, how, {{dtype, shape}}, {1}});
      }
    }
  }
}

/// Indices below `size`, some of them several times.
Tensor some_indices(const Shape& shape, int64_t size) {
  Tensor tensor(DType::kI64, shape);
  int64_t next = 3;
  for (int64_t& index : tensor.mutable_data<int64_t>()) {
    index = next % size - (next % 2 == 0 ? size : 0);
    next = (next * 7 + 5) % 10007;
  }
  return tensor;
}

/// Updates by which products of floats stay finite; their sums have one order on any device.
Tensor updates_of(DType dtype, const Shape& shape, uint32_t seed) {
  return is_float(dtype) ? random(dtype, shape, 0.5, 1.5, seed) : ugly(dtype, shape, seed);
}

TEST(CudaScatter, ReducesAllTypes) {
  for (const std::string reduction : {"none", "add", "mul", "max", "min"}) {
    for (const DType dtype : kAllTypes) {
      const Attributes how = {{"reduction", reduction}};
      const auto scatter = [&](std::string_view op, const Shape& data, const Tensor& indices,
                               const Shape& updates) {
        return check_as_on_cpu(
            {"",
             op,
             {updates_of(dtype, data, 1), indices, updates_of(dtype, updates, 2)},
             how,
             {{dtype, data}}});
      };
      // Without a reduction which of two updates stays is nobody's promise but ours: the last.
      if (!scatter("ScatterElements", {9, 4}, some_indices({5, 4}, 9), {5, 4})) continue;
      if (dtype == DType::kU64 || dtype == DType::kI8) {
        scatter("ScatterElements", {1}, some_indices({1}, 1), {1});
        scatter("ScatterElements", {3, 0}, some_indices({2, 0}, 3), {2, 0});
        scatter("ScatterND", {7, 3}, Tensor(DType::kI64, {0, 1}), {0, 3});
        scatter("ScatterND", {2, 5}, some_indices({900, 1}, 2), {900, 5});
      }
      scatter("ScatterND", {7, 3}, some_indices({9, 1}, 7), {9, 3});
    }
  }
}

TEST(CudaIntegerReduction, MaxPoolOfBytes) {
  for (const DType dtype : {DType::kI8, DType::kU8}) {
    const Attributes how = {{"kernel_shape", std::vector<int64_t>{3, 2}},
                            {"strides", std::vector<int64_t>{2, 1}},
                            {"pads", std::vector<int64_t>{1, 0, 1, 1}}};
    const Shape x = {2, 3, 7, 9}, y = {2, 3, 4, 9};
    check({"", "MaxPool", {ugly(dtype, x)}, how, {{dtype, y}, {DType::kI64, y}}});
    check({"", "MaxPool", {ugly(dtype, {0, 3, 7, 9})}, how, {{dtype, {0, 3, 4, 9}}}});
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
