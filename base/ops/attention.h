// The attributes of Attention and AttentionGrad of ai.halfnote with every default filled in: read
// here once, for the compiler's rules and for the kernels.
//
//   S = Q·Kᵀ·scale, then the terms in their order: a float term is added, a bool term puts
//   `hidden[i]` where it is false; causal: key j is hidden (−inf) from query i where j > i.
//   P = Softmax(S) along the keys, Y = P·V; MAX is the largest score of a row, SUM Σ exp(S − MAX).
//
// K and V may have fewer heads (the last batch dim) than Q, whose heads are a multiple of them:
// head h of Q reads head h / (heads of Q / heads of K), and dK and dV are sums over those that read
// it.
//
// With `ratio` Y = Dropout(P)·V, by the words of ai.halfnote.Dropout for element ((batch·M + i)·N +
// j) with all batch dims as one, heads before rows however they are stored: those that it would
// draw for P. Its seed and its step are the last two operands.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/attribute.h"
#include "base/error.h"

namespace halfnote {

struct AttentionAttributes {
  /// Which of Q, K, V and Y, each with its gradient, are stored with their rows before the last
  /// batch dim: (…, rows, heads, size) for (…, heads, rows, size), as a linear layer makes them.
  struct RowsFirst {
    bool q = false, k = false, v = false, y = false;
  };

  float scale = 1;
  bool causal = false;
  /// Probabilities that are NaN (of a row hidden by −inf) count as 0 in Y and in dV.
  bool nan_is_zero = false;
  /// K and dK are stored as (…, D, N).
  bool trans_k = false;
  RowsFirst rows_first;
  /// Q, K and V, and their gradients, are parts of one tensor (…, rows, 3, heads, size), which
  /// stands for each of the three operands, and as the first result.
  bool packed = false;
  size_t terms = 0;
  std::vector<float> hidden;   // by term; those of float terms mean nothing
  std::optional<float> ratio;  // of the dropout of P, which has seed and step behind the terms
  int64_t node = 0;            // of the dropout
};

/// Of a call with `operands` behind those that every call has: terms, then seed and step of a
/// dropout. Throws Error(kModel) unless `hidden` has a number for each term (or none at all: all
/// terms are float), `ratio` is a probability with seed and step, or where transK, rows_first and
/// packed contradict each other.
AttentionAttributes read_attention(const Attributes& attributes, size_t operands);

/// Operands of a dropout at the end: its seed and step, or none.
size_t dropout_operands(const Attributes& attributes);

/// The attribute rows_first alone; throws Error(kModel) unless it has four numbers.
AttentionAttributes::RowsFirst read_rows_first(const Attributes& attributes);

/// The shape that is meant by one that is stored with its rows before the heads, and back. Throws
/// Error(kModel) where there are no heads.
template <class AnyShape>
AnyShape swap_rows_and_heads(AnyShape shape) {
  if (shape.size() < 3) {
    throw Error(ErrorCode::kModel, "rows_first of an operand without heads")
        .expected("rank 3 or more", "rank " + std::to_string(shape.size()));
  }
  std::swap(shape[shape.size() - 2], shape[shape.size() - 3]);
  return shape;
}

/// One part of a shape that holds Q, K and V: (…, rows, heads, size). Throws Error(kModel) where
/// there are not three parts.
template <class AnyShape>
AnyShape part_of_packed(AnyShape shape) {
  const size_t rank = shape.size();
  if (rank < 4 || shape[rank - 3] != typename AnyShape::value_type(3))
    throw Error(ErrorCode::kModel, "a packed operand has not the shape (…, rows, 3, heads, size)");
  shape.erase(shape.end() - 3);
  return shape;
}

}  // namespace halfnote
