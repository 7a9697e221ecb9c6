// Which dims of the operands of a contraction must be the same number: what is summed over, and
// channels.
#include "compiler/ops/contraction/parts.h"

namespace halfnote::contraction {
namespace {

/// The rank of an operand; 0 where it is absent or its rank unknown.
size_t rank_of(const Graph& graph, NodeId node, size_t input) {
  if (input >= graph.inputs(node).size() || !graph.input(node, input).valid()) return 0;
  const ValueType& type = graph.value(graph.input(node, input)).type;
  return type.is_tensor() && type.shape ? type.shape->size() : 0;
}

}  // namespace

/// The last dim of A and the last but one of B, of vectors the only one.
std::vector<EqualDims> equal_matmul_dims(const Graph& graph, NodeId node) {
  const size_t a = rank_of(graph, node, 0), b = rank_of(graph, node, 1);
  if (a == 0 || b == 0) return {};
  const Attributes& attributes = graph.node(node).attributes;
  const size_t from_end_a = attributes.get_int("transA", 0) != 0 ? 2 : 1;
  const size_t from_end_b = attributes.get_int("transB", 0) != 0 ? 1 : 2;
  return {{.input = 0,
           .dim = a < from_end_a ? 0 : a - from_end_a,
           .other = 1,
           .other_dim = b < from_end_b ? 0 : b - from_end_b}};
}

/// X (N, g·C, …), W (M, C, …), B (M).
std::vector<EqualDims> equal_conv_dims(const Graph& graph, NodeId node) {
  std::vector<EqualDims> equal;
  const size_t w = rank_of(graph, node, 1);
  if (w < 2) return equal;
  const int64_t groups = graph.node(node).attributes.get_int("group", 1);
  if (rank_of(graph, node, 0) >= 2) {
    equal.push_back({.input = 0, .dim = 1, .other = 1, .other_dim = 1, .times = groups});
  }
  if (rank_of(graph, node, 2) == 1) {
    equal.push_back({.input = 2, .dim = 0, .other = 1, .other_dim = 0});
  }
  return equal;
}

/// X (N, g·C, …), W (g·C, M, …); the third operand is a bias (g·M) of the one, a shape of the
/// other.
std::vector<EqualDims> equal_conv_transpose_dims(const Graph& graph, NodeId node) {
  if (rank_of(graph, node, 0) < 2 || rank_of(graph, node, 1) < 2) return {};
  return {{.input = 0, .dim = 1, .other = 1, .other_dim = 0}};
}

/// X (T, N, I) or (N, T, I), W (D, g·H, I).
std::vector<EqualDims> equal_recurrent_dims(const Graph& graph, NodeId node) {
  if (rank_of(graph, node, 0) != 3 || rank_of(graph, node, 1) != 3) return {};
  return {{.input = 0, .dim = 2, .other = 1, .other_dim = 2}};
}

}  // namespace halfnote::contraction
