// Einsum equations as lists of labels.
#pragma once

#include <string_view>
#include <vector>

#include "compiler/ir/builder.h"

namespace halfnote::contraction {

/// The axes of an operand by label: letters stand for themselves, the dims of the ellipsis for
/// numbers above all letters, the last dim the largest.
using Labels = std::vector<int>;

struct Equation {
  std::vector<Labels> operands;
  Labels result;
};

/// Reads an equation for operands of these ranks. An implicit result has the dims of the ellipsis,
/// then the letters that stand once, in the order of the alphabet. Throws Error(kModel) for
/// equations that are malformed or do not fit the ranks.
Equation parse_equation(std::string_view text, const std::vector<int>& ranks);

}  // namespace halfnote::contraction
