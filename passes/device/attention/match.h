// Attention as exporters and the gradient rules write it, recognised (fuse_attention.cc says what
// becomes of it). Knows graphs only, no device.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"
#include "compiler/ir/query.h"

namespace halfnote {

/// Something added to the scores, or a mask that hides some.
struct ScoreTerm {
  ValueId value;
  bool mask = false;  // bool: `hidden` where it is false, or where it is true if `inverted`
  bool inverted = false;
  float hidden = 0;
  Shape met = {};   // the scores where it met them
  Shape view = {};  // that it has to be seen in, where `score_shape` is not what it was added to
};

/// A value that is K, times its factor.
struct SeenKey {
  ValueId value;
  bool turned = false;  // it is stored as (…, D, N)
};

/// The forward: MatMul(Q, K) → scales → terms → Softmax → MatMul(P, V).
struct AttentionForward {
  NodeId product, softmax, result;
  NodeId dropout;  // of P (ours), before the product with V: invalid where there is none
  ValueId query, key, value;
  bool trans_k = false;   // K is stored as (…, D, N)
  bool one_head = false;  // K and V have one head, which all of Q read
  /// What the products read: Q and K, or these times a number, K either way round.
  ValueId query_read;
  std::vector<SeenKey> keys_read;
  double query_factor = 1, key_factor = 1;
  double score_scale = 1;        // behind the product
  double scale = 1;              // all in all
  std::vector<ScoreTerm> terms;  // in their order
  bool causal = false;           // in place of the only term
  ValueId causal_mask;           // … which was this, if it was a mask
  bool nan_is_zero = false;
  Shape product_shape;                 // of the scores as the product gives them
  Shape score_shape;                   // … and as all terms can be broadcast to them
  std::vector<ValueId> probabilities;  // all values that are P, cast or looked at otherwise
  std::vector<ValueId> dropped;        // those of them behind the dropout
  std::vector<NodeId> nodes;           // all that the fused node stands for
  std::vector<NodeId> passed;          // before Q and K: gone where nobody else reads them
};

/// The backward of it; invalid values where nobody asks for a gradient.
struct AttentionBackward {
  ValueId grad;  // dY
  ValueId dq, dk, dv;
  bool dk_transposed = false;  // dK is (…, D, N)
  ValueId term_grad;           // the sum of dS to the shape of term `term`, or dS itself
  size_t term = 0;
  std::vector<NodeId> nodes;
};

/// The forward around a Softmax; nothing, and the reason why in `why`, if it is no attention or
/// somebody else reads what it computes on the way. Other readers of P (the backward) are not
/// looked at.
std::optional<AttentionForward> match_attention(const Graph& graph, NodeId softmax,
                                                std::string* why);
/// All else that reads P, as the backward of `forward`; nothing, and the reason in `why`, where it
/// is something else. `grad` stays invalid where nobody asks for a gradient.
std::optional<AttentionBackward> match_attention_gradient(const Graph& graph,
                                                          const AttentionForward& forward,
                                                          std::string* why);

// --- what both matchers ask ---

/// The number of a constant of one element, casts skipped.
std::optional<double> constant_number(const Graph& graph, ValueId value);
/// Is this node a product of matrices, and which flags has it?
struct ProductFlags {
  bool a = false, b = false;
};
std::optional<ProductFlags> product_flags(const Graph& graph, NodeId node);
/// Does it swap the last two dims and leave the others?
bool is_matrix_transpose(const Graph& graph, NodeId node);
/// A dropout as a training step has it.
bool is_dropout(const Graph& graph, NodeId node);
/// A Cast between floats.
bool is_float_cast(const Graph& graph, NodeId node);
/// A Reshape, Squeeze or Unsqueeze that keeps the last two dims.
bool is_batch_view(const Graph& graph, NodeId node);
/// The condition if the node is Where(IsNaN(P), 0, x) for a P of the forward.
bool is_nan_guard(const Graph& graph, NodeId node, const std::vector<ValueId>& probabilities);
/// A Mul or Div of operand `x` by a number; the factor.
std::optional<double> scale_factor(const Graph& graph, NodeId node, ValueId x);

}  // namespace halfnote
