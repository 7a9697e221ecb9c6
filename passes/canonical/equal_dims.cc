// equal-dims: a symbolic dim that must be a number is that number, everywhere.
//
//   (float[N,k] x) => … y = MatMul (x, w: float[5,6])     ──▶ (k = 5)     (float[N,5] x) => …
//
// Exact. Operators say which dims of their operands are the same (`equal_dims` in their rows);
// numbers go from node to node until nothing changes. A model whose dims contradict one another is
// an error. Leaves alone: dims of nobody's contraction (a broadcast allows 1 beside any number),
// dims without a name, and what stands in bodies of control flow, which may not run.
#include <map>
#include <string>

#include "compiler/ir/verify.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/bind_dims.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

/// The symbol and the number that two dims make of each other; none (-1) if both or neither is
/// known.
std::pair<std::string, int64_t> solve(const Dim& dim, const Dim& other, int64_t times) {
  if (times <= 0) return {"", -1};
  if (other.known() && !dim.known()) return {dim.symbol, other.value * times};
  if (dim.known() && !other.known() && dim.value % times == 0) {
    return {other.symbol, dim.value / times};
  }
  return {"", -1};
}

std::map<std::string, int64_t> find_numbers(const Graph& graph) {
  std::map<std::string, int64_t> numbers;
  for (NodeId id : graph.nodes()) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row == nullptr || row->equal_dims == nullptr) continue;
    for (const EqualDims& equal : row->equal_dims(graph, id)) {
      const SymbolicShape& one = *graph.value(graph.input(id, equal.input)).type.shape;
      const SymbolicShape& other = *graph.value(graph.input(id, equal.other)).type.shape;
      const auto [symbol, number] = solve(one[equal.dim], other[equal.other_dim], equal.times);
      // A second number is an error that inference tells.
      if (!symbol.empty() && number >= 0) numbers.emplace(symbol, number);
    }
  }
  return numbers;
}

}  // namespace

bool equal_dims(Graph& graph, PassContext&) {
  std::map<std::string, int64_t> bound;
  for (;;) {
    const size_t before = bound.size();
    bound.merge(find_numbers(graph));
    if (bound.size() == before) break;
    bind_symbols(graph, bound);
    infer_graph(graph);
  }
  if (!bound.empty()) check_state_types(graph);
  return !bound.empty();
}

}  // namespace halfnote
