// GemmActivation, GemmActivationGrad and GemmSums of ai.halfnote: products that make something of
// their sums before these go to memory. What the compiler's rules and the kernels must agree on
// stands here once.
#pragma once

#include <cstdint>

#include "base/attribute.h"

namespace halfnote {

enum class GemmActivation : uint8_t {
  kRelu,
  kGelu,  // by the tanh, as Gelu with `approximate = "tanh"`
};

/// Attribute `activation`; throws Error(kModel) for another word than Relu and Gelu.
GemmActivation gemm_activation(const Attributes& attributes);

/// Bytes of a row of the mask that a Relu of n columns leaves to its gradient: a bit an element,
/// the first one lowest, in whole groups of 128.
constexpr int64_t mask_row_bytes(int64_t n) { return (n + 127) / 128 * 16; }

/// Attribute `of` of GemmSums: is it A whose sums along k are wanted, and not B? Throws
/// Error(kModel) for other words.
bool sums_are_of_a(const Attributes& attributes);

}  // namespace halfnote
