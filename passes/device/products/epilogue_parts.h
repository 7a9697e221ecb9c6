// What the pass fuse-epilogues looks for: products of two matrices, and elementwise nodes that are
// an activation or its gradient, however these are spelled.
#pragma once

#include <optional>
#include <vector>

#include "base/ops/epilogue.h"
#include "compiler/ir/graph.h"

namespace halfnote::epilogues {

/// A MatMul or Gemm that is one product of two matrices, with a bias or nothing added to it. The
/// rows of a stack of A under one B are rows of one matrix.
struct Product {
  NodeId node;
  ValueId a, b, bias;
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  DType operands = DType::kUndefined, result = DType::kUndefined;
};
std::optional<Product> product_of(const Graph& graph, NodeId node);

/// What a value is a view of: itself, where it is none.
ValueId viewed(const Graph& graph, ValueId value);
/// The nodes that read a value or a view of it, views left out; nothing if it is a result of the
/// graph, the new value of a state, or read in another region.
std::optional<std::vector<NodeId>> readers_through_views(const Graph& graph, ValueId value);

/// An elementwise node whose one result besides a sum is, for every element,
///   activation(z)           of operand `z`,
///   activation(z + bias)    with a number for each of the last dim's elements, or
///   z · activation'(saved)  where saved is what the activation read (Gelu) or gave (Relu).
struct Elementwise {
  NodeId node;
  GemmActivation activation = GemmActivation::kRelu;
  ValueId z, bias, saved;
  ValueId result, sum;  // sum: down all dims but the last one
};
/// The node as an activation, or the gradient of one, of a product's result `z`. Told by values at
/// a hundred places of a function of a few smooth steps: how a file spells it does not matter.
std::optional<Elementwise> activation_of(const Graph& graph, NodeId node, ValueId z);
std::optional<Elementwise> gradient_of(const Graph& graph, NodeId node, ValueId z);

}  // namespace halfnote::epilogues
