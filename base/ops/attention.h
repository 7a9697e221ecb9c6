// The attributes of Attention and AttentionGrad of ai.halfnote with every default filled in: read
// here once, for the compiler's rules and for the kernels.
//
//   S = Q·Kᵀ·scale, then the terms in their order: a float term is added, a bool term puts
//   `hidden[i]` where it is false; causal: key j is hidden (−inf) from query i where j > i.
//   P = Softmax(S) along the keys, Y = P·V; MAX is the largest score of a row, SUM Σ exp(S − MAX).
#pragma once

#include <vector>

#include "base/attribute.h"

namespace halfnote {

struct AttentionAttributes {
  float scale = 1;
  bool causal = false;
  /// Probabilities that are NaN (of a row hidden by −inf) count as 0 in Y and in dV.
  bool nan_is_zero = false;
  /// K and dK are stored as (…, D, N).
  bool trans_k = false;
  std::vector<float> hidden;  // by term; those of float terms mean nothing
};

/// Throws Error(kModel) unless `hidden` has a number for each of `terms` terms (or none at all: all
/// terms are float).
AttentionAttributes read_attention(const Attributes& attributes, size_t terms);

}  // namespace halfnote
