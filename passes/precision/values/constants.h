// The constant doctor: constants that a 16-bit type does not hold, and the values that carry them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// What is wrong with a constant in the 16-bit type.
struct UnfitConstant {
  enum class Kind : uint8_t {
    kTooLarge,  // finite here, infinite there: masks such as -1e9 or -FLT_MAX, clip bounds
    kTooSmall,  // vanishes, or is a subnormal that is off by more than 1 %: eps
    kMerged,    // of whole numbers two neighbours become one: a table of positions
  };
  Kind kind = Kind::kTooLarge;
  std::string name;  // of the value
  double number = 0, rounded = 0;
};

/// The element of `tensor` (f32) that does not fit `low`: one whose rounding is infinite, or, if
/// the tensor as a whole (its largest element) vanishes or is distorted, that element; if it holds
/// whole numbers only, one that its neighbour's rounding is too.
std::optional<UnfitConstant> unfit_constant(const Tensor& tensor, DType low);

/// Which f32 values of a graph carry a constant that does not fit, in one sweep. A constant too
/// large is followed through ops that only move bits and through sums and products (a mask added to
/// scores is still a mask); all others only through ops that move bits.
class UnfitValues {
 public:
  UnfitValues(const Graph& graph, DType low);
  /// The constant that this value carries; null if there is none.
  const UnfitConstant* of(ValueId value) const;
  /// The constant that this value is, moved about but not computed with; null if there is none.
  const UnfitConstant* itself(ValueId value) const;

 private:
  void look_at_constant(const Graph& graph, ValueId value, DType low);
  void look_at_fill(const Graph& graph, NodeId node, DType low);
  void pass_on(const Graph& graph, NodeId node);
  /// Index into `found_` plus 1 by value; 0: none.
  std::vector<uint32_t> carried_;
  std::vector<bool> computed_;
  std::vector<UnfitConstant> found_;
};

/// `constant "mask" does not fit f16: -1e+09 would be -inf`.
std::string describe(const UnfitConstant& constant, DType low);

}  // namespace halfnote
