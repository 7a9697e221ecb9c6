// Elements and checks of the tests of single operators.
#include "tests/cuda/operators/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/low_bit.h"
#include "kernels/cuda/table.h"

namespace halfnote::cuda_emulated {

namespace {

/// An element of `bits` bits, as the low ones of a number.
uint64_t whole_bits(int64_t i, int bits, bool has_sign, std::mt19937_64& engine) {
  const uint64_t top = uint64_t{1} << (bits - 1);
  const uint64_t ends[] = {0, ~uint64_t{0}, has_sign ? top : 0, has_sign ? top - 1 : ~uint64_t{0}};
  switch (i % 4) {
    case 0:
      return ends[i / 4 % 4];
    case 1:
      return engine() % 7 - (has_sign ? 3 : 0);
    default:
      return engine();
  }
}

double ugly_float(int64_t i, DType dtype, std::mt19937_64& engine) {
  const double infinity = std::numeric_limits<double>::infinity();
  const bool is_half = dtype == DType::kF16;
  const double special[] = {std::numeric_limits<double>::quiet_NaN(),
                            infinity,
                            -infinity,
                            0.0,
                            -0.0,
                            is_half ? 65504 : 0x1p127,
                            is_half ? 0x1p-24 : 0x1p-126};
  if (i % 8 == 7) return special[i / 8 % 7];
  return static_cast<double>(engine() >> 11) * 0x1p-51 - 2;
}

}  // namespace

bool is_signed(DType dtype) {
  switch (dtype) {
    case DType::kI2:
    case DType::kI4:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return true;
    default:
      return false;
  }
}

Tensor ugly(DType dtype, const Shape& shape, uint32_t seed) {
  std::mt19937_64 engine(seed);
  if (is_float(dtype) && !is_low_bit(dtype)) {
    Tensor tensor(DType::kF64, shape);
    int64_t i = seed;
    for (double& x : tensor.mutable_data<double>()) x = ugly_float(i++, dtype, engine);
    return dtype == DType::kF64 ? tensor : tensor.cast_to(dtype);
  }
  Tensor tensor(dtype, shape);
  std::byte* to = tensor.mutable_bytes();
  const int bits = bits_of(dtype);
  const bool has_sign = is_signed(dtype);
  for (int64_t i = 0; i < tensor.size(); ++i, to += size_of(dtype)) {
    uint64_t code = whole_bits(i + seed, bits, has_sign, engine);
    if (dtype == DType::kBool) code &= 1;
    if (bits < 8) code &= (uint64_t{1} << bits) - 1;
    if (bits < 8 && has_sign && code >> (bits - 1) != 0) code -= uint64_t{1} << bits;
    std::memcpy(to, &code, size_of(dtype));
  }
  return tensor;
}

Tensor without_zeros(Tensor of) {
  Tensor tensor = of.deep_copy();
  const size_t size = size_of(tensor.dtype());
  if (!is_integer(tensor.dtype())) return tensor;
  std::byte* at = tensor.mutable_bytes();
  for (int64_t i = 0; i < tensor.size(); ++i, at += size) {
    uint64_t code = 0;
    std::memcpy(&code, at, size);
    if (code == 0) *at = std::byte{3};
  }
  return tensor;
}

Tensor as_few_bits(DType dtype, const Tensor& numbers) {
  Tensor tensor(dtype, numbers.shape());
  for (int64_t i = 0; i < numbers.size(); ++i)
    tensor.mutable_bytes()[i] = std::byte{write_low_bit(dtype, numbers.at_as_double(i))};
  return tensor;
}

bool check_as_on_cpu(const Call& call) {
  if (cpu_kernels().choose(kernel_call(call), "reference").kernel) {
    check(call);
    return true;
  }
  EXPECT_FALSE(kernel_table().choose(kernel_call(call)).kernel)
      << call.op << " of " << short_name(call.inputs[0].dtype()) << ", which the CPU refuses";
  return false;
}

void check_exactly(const Call& call) {
  check(call);
  const std::vector<Tensor> got = on_device(call), wanted = on_cpu(call);
  for (size_t k = 0; k < wanted.size(); ++k) {
    const DType dtype = wanted[k].defined() ? wanted[k].dtype() : DType::kBool;
    if (!is_float(dtype) || is_low_bit(dtype)) continue;  // check() did
    for (int64_t i = 0; i < wanted[k].size(); ++i) {
      const double a = got[k].at_as_double(i), b = wanted[k].at_as_double(i);
      if (std::isnan(a) && std::isnan(b)) continue;
      ASSERT_EQ(a, b) << call.op << " to " << short_name(dtype) << ", element " << i;
      ASSERT_EQ(std::signbit(a), std::signbit(b)) << call.op << ", element " << i;
    }
  }
}

}  // namespace halfnote::cuda_emulated
