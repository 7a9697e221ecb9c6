// Matrix products take transposes in: swapping the last two dims of an operand is a flag, and costs
// nothing.
//
//   t = Transpose <perm = [1, 0]> (w)           y = ai.halfnote.MatMul <transB = 1> (x, w)
//   y = MatMul (x, t)
//
//   p = MatMul (a, b)                           y = ai.halfnote.MatMul <transA = 1, transB = 1> (b,
//   a) y = Transpose <perm = [1, 0]> (p)
//
// The second, Yᵀ = Bᵀ·Aᵀ, is how weight gradients come where the forward transposed the weight. It
// wants a product that nothing else reads and a Gemm without C. Exact: the same products are
// summed. Left alone: transposes that move other dims, operands that are vectors, bodies, and small
// MatMuls of f32 (absorb_transposes.h).
//
// absorb-gradients, in the compile pipeline, does the second to the backward pass alone: a weight's
// gradient is then the product itself, which may write f32 from 16-bit operands.
#include "passes/device/products/absorb_transposes.h"

#include <numeric>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/pass_through.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr const char* kFlags[] = {"transA", "transB"};

bool is_gemm(const Node& node) {
  return node.op == "Gemm" && (node.domain.empty() || node.domain == kHalfnoteDomain);
}

bool is_product(const Node& node) {
  if (is_gemm(node)) return true;
  return node.op == "MatMul" && (node.domain.empty() || node.domain == kHalfnoteDomain);
}

size_t rank_of(const Graph& graph, ValueId value) {
  if (!value.valid()) return 0;
  const ValueType& type = graph.value(value).type;
  return type.shape ? type.shape->size() : 0;
}

/// A Transpose that swaps the last two dims and leaves the others.
bool swaps_last_two(const Graph& graph, NodeId id) {
  if (!id.valid()) return false;
  const Node& node = graph.node(id);
  if (node.op != "Transpose" || !node.domain.empty()) return false;
  const size_t rank = rank_of(graph, graph.input(id, 0));
  if (rank < 2) return false;
  std::vector<int64_t> swapped(rank), reversed(rank);
  std::iota(swapped.begin(), swapped.end(), 0);
  reversed.assign(swapped.rbegin(), swapped.rend());
  std::swap(swapped[rank - 1], swapped[rank - 2]);
  return node.attributes.get_ints("perm", reversed) == swapped;
}

void set_flag(Node& node, size_t operand, bool on) {
  if (on) {
    node.attributes.set(kFlags[operand], int64_t{1});
  } else {
    node.attributes.erase(kFlags[operand]);
  }
}

bool flag(const Node& node, size_t operand) {
  return node.attributes.get_int(kFlags[operand], 0) != 0;
}

/// ONNX's MatMul has no flags, ours has.
void allow_flags(Node& node) {
  if (!is_gemm(node)) node.domain = kHalfnoteDomain;
}

/// An f32 MatMul of few multiply-adds; one of unknown size counts as such.
bool keeps_its_form(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (is_gemm(node) || !node.domain.empty()) return false;
  const ValueType& a = graph.value(graph.input(id, 0)).type;
  const ValueType& y = graph.value(graph.output(id)).type;
  if (a.dtype != DType::kF32) return false;
  if (!y.has_concrete_shape() || !a.shape->back().known()) return true;
  return element_count(concrete(*y.shape)) * a.shape->back().value <= kSmallProduct;
}

bool takes_flags(const Graph& graph, NodeId id) {
  return is_product(graph.node(id)) && rank_of(graph, graph.input(id, 0)) >= 2 &&
         rank_of(graph, graph.input(id, 1)) >= 2 && !keeps_its_form(graph, id);
}

bool absorb_operands(Graph& graph, NodeId id) {
  bool changed = false;
  for (size_t operand = 0; operand < 2; ++operand) {
    const NodeId transpose = producer(graph, graph.input(id, operand));
    if (!swaps_last_two(graph, transpose)) continue;
    Node& node = graph.node(id);
    set_flag(node, operand, !flag(node, operand));
    allow_flags(node);
    graph.set_input(id, operand, graph.input(transpose, 0));
    changed = true;
  }
  return changed;
}

/// The transpose that is all that reads the product; invalid if there is none.
NodeId transpose_of_result(const Graph& graph, NodeId id) {
  const auto uses = graph.uses(graph.output(id));
  if (uses.size() != 1 || !uses[0].by_node()) return {};
  const NodeId user = uses[0].node();
  const bool near = graph.node(user).region == graph.node(id).region;
  return near && swaps_last_two(graph, user) ? user : NodeId{};
}

bool absorb_result(Graph& graph, NodeId id) {
  if (graph.inputs(id).size() > 2 && graph.input(id, 2).valid()) return false;
  const NodeId transpose = transpose_of_result(graph, id);
  if (!transpose.valid()) return false;
  Node& node = graph.node(id);
  const bool a = flag(node, 0), b = flag(node, 1);
  set_flag(node, 0, !b);
  set_flag(node, 1, !a);
  allow_flags(node);
  const ValueId left = graph.input(id, 0), right = graph.input(id, 1);
  graph.set_input(id, 0, right);
  graph.set_input(id, 1, left);
  graph.value(graph.output(id)).type = graph.value(graph.output(transpose)).type;
  pass_through(graph, transpose);
  return true;
}

}  // namespace

bool absorb_transposes(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    if (!takes_flags(graph, id)) continue;
    changed |= absorb_operands(graph, id);
    changed |= absorb_result(graph, id);
  }
  return changed;
}

bool absorb_gradients(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    if (node.role != Role::kBackward || node.domain != kHalfnoteDomain) continue;
    if (takes_flags(graph, id)) changed |= absorb_result(graph, id);
  }
  return changed;
}

}  // namespace halfnote
