// Quantized products and elements of few bits on a device: the integers of the CPU, bit for bit.
#include <gtest/gtest.h>

#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

constexpr DType kBytes[] = {DType::kU8, DType::kI8};

Tensor zero_points(DType dtype, const Shape& shape, uint32_t seed) {
  return random(dtype, shape, 0, 9, seed);
}
Tensor scales(DType dtype, const Shape& shape, uint32_t seed) {
  return random(dtype, shape, 0.02, 0.05, seed);
}

struct Product {
  Shape a, b, y;
};

const Product kProducts[] = {
    {{1, 1}, {1, 1}, {1, 1}},
    {{5, 7}, {7, 3}, {5, 3}},
    {{2, 1, 5, 9}, {3, 9, 4}, {2, 3, 5, 4}},
    {{9}, {9, 4}, {4}},
    {{5, 9}, {9}, {5}},
    {{0, 4}, {4, 3}, {0, 3}},
    {{3, 0}, {0, 5}, {3, 5}},
    {{2, 1}, {1, 33000}, {2, 33000}},
};

int64_t rows_of(const Product& p) { return p.a.size() == 1 ? 1 : p.a[p.a.size() - 2]; }
int64_t columns_of(const Product& p) { return p.b.size() == 1 ? 1 : p.b.back(); }

TEST(CudaQuantizedProduct, MatMulInteger) {
  for (const DType left : kBytes) {
    for (const DType right : kBytes) {
      for (const Product& p : kProducts) {
        const Tensor a = ugly(left, p.a), b = ugly(right, p.b, 2);
        const Result y = {DType::kI32, p.y};
        check({"", "MatMulInteger", {a, b}, {}, {y}});
        const Tensor one = zero_points(left, {}, 3), for_all = zero_points(right, {}, 4);
        check({"", "MatMulInteger", {a, b, one, for_all}, {}, {y}});
        const Tensor rows = zero_points(left, {rows_of(p)}, 3);
        const Tensor columns = zero_points(right, {columns_of(p)}, 4);
        check({"", "MatMulInteger", {a, b, rows, columns}, {}, {y}});
        check({"", "MatMulInteger", {a, b, Tensor(), columns}, {}, {y}});
      }
    }
  }
}

TEST(CudaQuantizedProduct, QLinearMatMul) {
  for (const DType real : kStored) {
    for (const DType result : kBytes) {
      for (const Product& p : kProducts) {
        const auto run = [&](const Shape& rows, const Shape& columns) {
          check({"",
                 "QLinearMatMul",
                 {ugly(DType::kU8, p.a), scales(real, rows, 2), zero_points(DType::kU8, rows, 3),
                  ugly(DType::kI8, p.b, 4), scales(real, columns, 5),
                  zero_points(DType::kI8, columns, 6), scales(real, {}, 7),
                  zero_points(result, {}, 8)},
                 {},
                 {{result, p.y}}});
        };
        run({}, {});
        run({rows_of(p)}, {columns_of(p)});
      }
    }
  }
}

struct Convolution {
  Shape x, w, y;
  std::vector<int64_t> strides, dilations, pads;
  int64_t group = 1;
};

const Convolution kConvolutions[] = {
    {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1}, {1}, {0, 0}},
    {{2, 3, 11}, {5, 3, 3}, {2, 5, 6}, {2}, {1}, {1, 1}},
    {{1, 4, 7, 9}, {6, 2, 3, 2}, {1, 6, 7, 7}, {1, 1}, {1, 2}, {1, 0, 1, 0}, 2},
    {{1, 2, 3, 4, 5},
     {2, 1, 2, 2, 2},
     {1, 2, 2, 3, 4},
     {1, 1, 1},
     {1, 1, 1},
     {0, 0, 0, 0, 0, 0},
     2},
    {{0, 2, 4}, {3, 2, 3}, {0, 3, 2}, {1}, {1}, {0, 0}},
};

Attributes conv_attributes(const Convolution& c) {
  return {{"strides", c.strides}, {"dilations", c.dilations}, {"pads", c.pads}, {"group", c.group}};
}

TEST(CudaQuantizedProduct, ConvInteger) {
  for (const DType left : kBytes) {
    for (const DType right : kBytes) {
      for (const Convolution& c : kConvolutions) {
        const Tensor x = ugly(left, c.x), w = ugly(right, c.w, 2);
        const Attributes how = conv_attributes(c);
        const Result y = {DType::kI32, c.y};
        check({"", "ConvInteger", {x, w}, how, {y}});
        check({"", "ConvInteger", {x, w, zero_points(left, {}, 3)}, how, {y}});
        const Tensor each = zero_points(right, {c.w[0]}, 4);
        check({"", "ConvInteger", {x, w, zero_points(left, {}, 3), each}, how, {y}});
      }
    }
  }
}

TEST(CudaQuantizedProduct, QLinearConv) {
  for (const DType result : kBytes) {
    for (const Convolution& c : kConvolutions) {
      for (const Shape& each : {Shape{}, Shape{c.w[0]}}) {
        Call call{"",
                  "QLinearConv",
                  {ugly(DType::kU8, c.x), scales(DType::kF32, {}, 2),
                   zero_points(DType::kU8, {}, 3), ugly(DType::kI8, c.w, 4),
                   scales(DType::kF32, each, 5), zero_points(DType::kI8, each, 6),
                   scales(DType::kF32, {}, 7), zero_points(result, {}, 8)},
                  conv_attributes(c),
                  {{result, c.y}}};
        check(call);
        call.inputs.push_back(random(DType::kI32, {c.w[0]}, -900, 900, 9));
        check(call);
      }
    }
  }
}

TEST(CudaQuantizedProduct, ElementsOfFewBits) {
  for (const DType low : kFewBits) {
    for (const DType real : kFloats) {
      const Shape shape = {3, 5, 7};
      for (const int64_t block : {0, 2}) {
        const Shape own = block == 0 ? Shape{} : Shape{3, 3, 7};
        const Attributes how = {{"axis", int64_t{1}}, {"block_size", block}};
        const Tensor scale = random(real, own, 0.25, 2, 2), q = ugly(low, shape, 3);
        check_exactly({"", "QuantizeLinear", {ugly(real, shape), scale}, how, {{low, shape}}});
        check_exactly({"", "DequantizeLinear", {q, scale}, how, {{real, shape}}});
        const Tensor zero = as_few_bits(low, Tensor::full(DType::kF32, own, 1));
        check_exactly({"",
                       "QuantizeLinear",
                       {random(real, shape, -99, 99), scale, zero},
                       how,
                       {{low, shape}}});
        check_exactly({"", "DequantizeLinear", {q, scale, zero}, how, {{real, shape}}});
      }
    }
    for (const Shape& shape : kUglyShapes) {
      const Tensor scale = random(DType::kF32, {}, 0.25, 2, 2);
      check({"", "QuantizeLinear", {random(DType::kF32, shape), scale}, {}, {{low, shape}}});
    }
  }
}

TEST(CudaQuantizedProduct, ScalesOfPowersOfTwo) {
  const Tensor x = random(DType::kF32, {4, 64}, -9, 9);
  const Tensor scale = as_few_bits(DType::kF8E8M0, random(DType::kF32, {4, 2}, 0.1, 9, 2));
  const Attributes how = {{"axis", int64_t{1}}, {"block_size", int64_t{32}}};
  for (const DType low : {DType::kF8E4M3FN, DType::kF4E2M1, DType::kI4}) {
    check_exactly({"", "QuantizeLinear", {x, scale}, how, {{low, {4, 64}}}});
    check_exactly(
        {"", "DequantizeLinear", {ugly(low, {4, 64}), scale}, how, {{DType::kBF16, {4, 64}}}});
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
