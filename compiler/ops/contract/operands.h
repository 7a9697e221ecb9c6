// What the checks of operands share: a node with the shapes and constants it reads, and the words
// of a refusal. Open dims fit anything.
#pragma once

#include <string>

#include "base/error.h"
#include "compiler/ir/graph.h"

namespace halfnote::contract {

/// A node and the shapes of its operands.
struct Operands {
  const Graph& graph;
  NodeId id;
  const Node& node;

  /// The absent operand is no valid one.
  ValueId operand(size_t index) const;
  /// Null where the operand is absent or its rank is not known.
  const SymbolicShape* shape(size_t index) const;
  /// Null where the operand is absent or computed.
  const Tensor* constant(size_t index) const;
  std::string name(size_t index) const { return graph.value(graph.input(id, index)).name; }
};

/// Throws Error(kModel): `WHAT "NAME" does not fit: expected EXPECTED, got GOT`.
[[noreturn]] void refuse(const Operands& o, size_t index, const std::string& what,
                         std::string expected, std::string got);

/// Error(kModel): `WHAT in "NAME" is out of range`.
Error out_of_range(const Operands& o, size_t index, const char* what);

/// Can the number stand where this dim is wanted?
inline bool fits(const Dim& dim, int64_t wanted) { return !dim.known() || dim.value == wanted; }
/// Can both dims be the same?
inline bool fits(const Dim& a, const Dim& b) { return !b.known() || fits(a, b.value); }

/// The operand has this shape, or one that may become it.
void check_shape(const Operands& o, size_t index, const char* what, const SymbolicShape& wanted);
/// A scalar, or dims of 1.
bool may_be_one_element(const SymbolicShape& shape);
/// The operand has one element: a scalar, or dims of 1.
void check_one_element(const Operands& o, size_t index, const char* what);
/// Where the operand stands in the model, its numbers are from `least` to `most`; `of` follows
/// these in the message and says why.
void check_range(const Operands& o, size_t index, const char* what, int64_t least, int64_t most,
                 const std::string& of);

// Indices, axes and lengths that stand in the model (indices.cc).
void check_gather(const Operands& o);
void check_gather_elements(const Operands& o);
void check_scatter_elements(const Operands& o);
void check_gather_nd(const Operands& o);
void check_scatter_nd(const Operands& o);
void check_max_unpool(const Operands& o);
void check_cum_sum(const Operands& o);
void check_reverse_sequence(const Operands& o);
void check_roi_align(const Operands& o);
void check_labels(const Operands& o);

// Sizes that a node asks for (sizes.cc).
void check_pad(const Operands& o);
void check_resize(const Operands& o);
void check_dft(const Operands& o);

/// QuantizeLinear and DequantizeLinear (quantized.cc).
void check_quantized(const Operands& o);
/// RNN, GRU and LSTM (recurrent.cc).
void check_recurrent(const Operands& o);

}  // namespace halfnote::contract
