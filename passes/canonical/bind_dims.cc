// bind_dims: gives symbolic dims of the graph's inputs their numbers (--dim NAME=N; `halfnote run`
// binds them from the data).
//
//   (float[N,4] x) => …     ──▶ (N = 32)     (float[32,4] x) => …
//
// Exact. Result types are forgotten where they name a bound dim; infer-shapes follows. Leaves
// alone: dims that no option names.
#include "passes/canonical/bind_dims.h"

#include "passes/passes.h"

namespace halfnote {
namespace {

bool bind(ValueType& type, const std::map<std::string, int64_t>& dims) {
  if (!type.is_tensor() || !type.shape) return false;
  bool changed = false;
  for (Dim& dim : *type.shape) {
    const auto found = dim.known() ? dims.end() : dims.find(dim.symbol);
    if (found == dims.end()) continue;
    dim = Dim(found->second);
    changed = true;
  }
  return changed;
}

}  // namespace

bool bind_symbols(Graph& graph, const std::map<std::string, int64_t>& dims) {
  bool changed = false;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    Value& value = graph.value(ValueId{i});
    if (value.alive) changed |= bind(value.type, dims);
  }
  return changed;
}

bool bind_dims(Graph& graph, PassContext& context) {
  return !context.options.dims.empty() && bind_symbols(graph, context.options.dims);
}

}  // namespace halfnote
