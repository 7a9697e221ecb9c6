// What the tests of single operators on a device share: every type of element, and elements that
// are hard on it.
#pragma once

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {

inline constexpr DType kWhole[] = {DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                                   DType::kI32, DType::kU32, DType::kI64, DType::kU64};
/// The types that arithmetic is done in, and bool.
inline constexpr DType kAllTypes[] = {
    DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI8,  DType::kU8,  DType::kI16,
    DType::kU16, DType::kI32, DType::kU32, DType::kI64,  DType::kU64, DType::kBool};
/// Those that are only stored.
inline constexpr DType kFewBits[] = {
    DType::kF8E4M3FN, DType::kF8E4M3FNUZ, DType::kF8E5M2, DType::kF8E5M2FNUZ, DType::kF8E8M0,
    DType::kF4E2M1,   DType::kU4,         DType::kI4,     DType::kU2,         DType::kI2};

/// Is it an integer type with negative numbers?
bool is_signed(DType dtype);

/// Elements of the whole range of an integer type: the ends, small ones and any. Floats in [-2, 2),
/// every eighth one a NaN, an infinity, a zero of either sign, the largest or the smallest.
Tensor ugly(DType dtype, const Shape& shape, uint32_t seed = 1);
/// The same, with 3 in place of the zeros of an integer type.
Tensor without_zeros(Tensor of);

/// Numbers as elements of a type of few bits.
Tensor as_few_bits(DType dtype, const Tensor& numbers);

/// check(), where the CPU's reference takes the call at all; what it refuses, the device must
/// refuse. True if it was checked.
bool check_as_on_cpu(const Call& call);
/// check(), and that floats are those of the CPU too, not only near.
void check_exactly(const Call& call);

}  // namespace halfnote::cuda_emulated
