// Shapes, concrete and symbolic, with sizes that cannot overflow silently.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/text/shared_text.h"

namespace halfnote {

/// A concrete shape; an empty one is a scalar.
using Shape = std::vector<int64_t>;

inline constexpr int64_t kMaxElements = int64_t{1} << 40;
inline constexpr int kMaxRank = 8;

/// Product of two sizes; throws Error(kModel) when it leaves int64.
int64_t checked_mul(int64_t a, int64_t b);
int64_t checked_add(int64_t a, int64_t b);
/// Number of elements; throws Error(kModel) for a negative dim or more than kMaxElements. A dim of
/// 0 counts as 1 for that limit, so that the product of any of the dims fits as well.
int64_t element_count(std::span<const int64_t> shape);
/// Row-major strides in elements.
Shape strides_of(std::span<const int64_t> shape);
/// `[2,3]`, `[]` for a scalar.
std::string to_string(std::span<const int64_t> shape);
/// An axis in [0, rank); throws Error(kModel) for one outside [-rank, rank).
int64_t normalize_axis(int64_t axis, int64_t rank);
/// The shape that ONNX's (NumPy's) multidirectional broadcasting gives; throws Error(kModel) when
/// there is none.
Shape broadcast_shapes(std::span<const int64_t> a, std::span<const int64_t> b);

/// One dim of a type: a number, a named symbol (`N`, `seq + 1`), or unknown.
struct Dim {
  int64_t value = -1;
  SharedText symbol;

  Dim() = default;
  Dim(int64_t number) : value(number) {}  // NOLINT(google-explicit-constructor): a number is a dim
  static Dim named(SharedText name) {
    Dim dim;
    dim.symbol = std::move(name);
    return dim;
  }
  bool known() const { return value >= 0; }
  bool is(int64_t number) const { return value == number; }
  /// Same number or same symbol; two unknown dims are never the same.
  bool same_as(const Dim& other) const {
    return known() ? value == other.value
                   : !symbol.empty() && !other.known() && symbol == other.symbol;
  }
  friend bool operator==(const Dim&, const Dim&) = default;
};

using SymbolicShape = std::vector<Dim>;

/// All dims are numbers.
bool is_concrete(const SymbolicShape& shape);
/// The numbers of a concrete symbolic shape.
Shape concrete(const SymbolicShape& shape);
SymbolicShape symbolic(std::span<const int64_t> shape);
std::string to_string(const SymbolicShape& shape);

}  // namespace halfnote
