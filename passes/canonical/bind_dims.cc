// bind_dims: gives symbolic dims of the graph's inputs their numbers (--dim NAME=N; `halfnote run`
// binds them from the data).
//
//   (float[N,4] x) => …     ──▶ (N = 32)     (float[32,4] x) => …
//
// Exact. Result types are forgotten where they name a bound dim; infer-shapes follows. Leaves
// alone: dims that no option names.
#include "passes/canonical/bind_dims.h"

#include <set>
#include <vector>

#include "base/error.h"
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

void name_input_dims(Graph& graph) {
  for (ValueId input : graph.inputs()) {
    Value& value = graph.value(input);
    if (!value.type.is_tensor() || !value.type.shape) continue;
    for (size_t axis = 0; axis < value.type.shape->size(); ++axis) {
      Dim& dim = (*value.type.shape)[axis];
      if (!dim.known() && dim.symbol.empty()) dim.symbol = value.name + "_d" + std::to_string(axis);
    }
  }
}

void check_dim_names(const Graph& graph, const std::map<std::string, int64_t>& dims) {
  std::set<std::string> symbols;
  for (ValueId input : graph.inputs()) {
    const ValueType& type = graph.value(input).type;
    if (!type.is_tensor() || !type.shape) continue;
    for (const Dim& dim : *type.shape) {
      if (!dim.known() && !dim.symbol.empty()) symbols.insert(dim.symbol);
    }
  }
  const std::vector<std::string> names(symbols.begin(), symbols.end());
  std::string list;
  for (const std::string& symbol : names) list += (list.empty() ? "" : ", ") + symbol;
  for (const auto& [name, number] : dims) {
    if (symbols.contains(name)) continue;
    const std::string_view near = closest(name, names);
    throw Error(ErrorCode::kUsage, "--dim " + name + ": the inputs have no such dim")
        .expected(symbols.empty() ? "no --dim: all dims are numbers" : "one of " + list,
                  "\"" + name + "\"")
        .hint(near.empty() ? std::string() : "did you mean " + std::string(near) + "?");
  }
}

bool bind_dims(Graph& graph, PassContext& context) {
  return !context.options.dims.empty() && bind_symbols(graph, context.options.dims);
}

}  // namespace halfnote
