#include "runtime/core/device_ready.h"

#include <set>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ir/verify.h"
#include "kernels/kernel.h"
#include "passes/canonical/expand_function.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/padding/remove_padding.h"
#include "passes/passes.h"
#include "runtime/core/evaluate.h"

namespace halfnote {
namespace {

constexpr int kMaxExpansions = 8;  // bodies in bodies

void refuse_open_dims(const Graph& graph) {
  std::set<std::string> open;
  for (ValueId input : graph.inputs()) {
    const ValueType& type = graph.value(input).type;
    if (!type.shape) {
      throw Error(ErrorCode::kUnsupported,
                  "input \"" + graph.value(input).name + "\" has no known rank");
    }
    for (const Dim& dim : *type.shape) {
      if (!dim.known())
        open.insert(dim.symbol.empty() ? graph.value(input).name + " (unnamed)" : dim.symbol);
    }
  }
  if (open.empty()) return;
  std::string names;
  for (const std::string& name : open) names += (names.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kUnsupported, "dims are still symbolic: " + names)
      .hint("bind them with --dim NAME=N or --batch N");
}

/// Nodes whose op has no kernel but a function body become that body, until nothing is left to
/// expand.
bool expand_without_kernel(Graph& graph) {
  bool changed = false;
  for (int depth = 0; depth < kMaxExpansions; ++depth) {
    bool expanded = false;
    for (NodeId node : graph.nodes()) {
      const Node& data = graph.node(node);
      if (!cpu_kernels().rows_of(data.domain, data.op).empty()) continue;
      if (data.domain == kHalfnoteDomain || !graph.subgraphs(node).empty()) continue;
      expanded |= expand_function(graph, node, kOpsetVersion);
    }
    if (!expanded) break;
    infer_graph(graph);
    changed = true;
  }
  return changed;
}

}  // namespace

Graph make_device_ready(const Graph& graph, const std::map<std::string, int64_t>& dims) {
  Graph ready = graph;
  CompileOptions options;
  options.dims = dims;
  std::vector<Remark> remarks;
  PassContext context{options, infer_node,
                      [](const Graph& g, NodeId n, const std::vector<Tensor>& inputs) {
                        return evaluate_node(g, n, inputs);
                      },
                      remarks, "device-ready"};
  bind_dims(ready, context);
  refuse_open_dims(ready);
  remove_padding(ready);
  infer_graph(ready);
  fold_constants(ready, context);
  if (expand_without_kernel(ready)) fold_constants(ready, context);
  canonicalize(ready, context);
  eliminate_dead(ready, context);
  verify(ready);
  return ready;
}

std::map<std::string, int64_t> dims_from_shapes(const Graph& graph, std::span<const Shape> shapes) {
  const auto inputs = graph.inputs();
  if (inputs.size() != shapes.size()) {
    throw Error(ErrorCode::kData, "wrong number of inputs")
        .expected(std::to_string(inputs.size()), std::to_string(shapes.size()));
  }
  std::map<std::string, int64_t> dims;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Value& value = graph.value(inputs[i]);
    const SymbolicShape formal = value.type.shape.value_or(symbolic(shapes[i]));
    bool fits = formal.size() == shapes[i].size();
    for (size_t d = 0; fits && d < formal.size(); ++d) {
      if (formal[d].known()) {
        fits = formal[d].is(shapes[i][d]);
      } else if (!formal[d].symbol.empty()) {
        fits = dims.emplace(formal[d].symbol, shapes[i][d]).first->second == shapes[i][d];
      }
    }
    if (fits) continue;
    throw Error(ErrorCode::kData, "input \"" + value.name + "\" does not fit the model")
        .expected(to_string(value.type), to_string(std::span<const int64_t>(shapes[i])));
  }
  return dims;
}

}  // namespace halfnote
