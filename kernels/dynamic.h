// Ops that no plan can hold: the shapes of their results depend on the values of their operands
// (NonZero, Unique), or their elements have no fixed size (strings). They take and give whole
// tensors; the interpreter runs them, a Program never does.
#pragma once

#include <string_view>
#include <vector>

#include "base/attribute.h"
#include "base/tensor.h"

namespace halfnote {

struct DynamicCall {
  std::string_view domain, op;
  const Attributes& attributes;
  const std::vector<Tensor>& inputs;  // an undefined tensor stands for an absent one
  size_t outputs = 1;                 // results that the node names, absent ones in between counted

  bool has_input(size_t index) const { return index < inputs.size() && inputs[index].defined(); }
};

struct DynamicRow {
  std::string_view domain, op;
  /// Is this call one for the row? Null: always. A row for strings leaves numbers to the kernels.
  bool (*takes)(const DynamicCall& call);
  /// Gives the results, in order; at least as many as the node names. Throws Error(kData) for
  /// operands that do not fit.
  std::vector<Tensor> (*run)(const DynamicCall& call);
};

/// The row for a call; null where there is none.
const DynamicRow* find_dynamic(const DynamicCall& call);
/// All rows, by op.
std::vector<DynamicRow> dynamic_rows();

}  // namespace halfnote
