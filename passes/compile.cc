#include "passes/compile.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/version.h"
#include "compiler/ir/hash.h"
#include "compiler/ir/node_names.h"
#include "compiler/ops/body.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/bind_dims.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_opset.h"
#include "passes/foreign/training_info.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

/// The bodies that nodes call. A body follows from the op, the attributes and the types of a call:
/// calls that agree in them share one, and only the first builds it.
class Bodies {
 public:
  void add_calls(Graph& graph) {
    for (NodeId id : graph.all_nodes()) {
      if (graph.node(id).domain == kHalfnoteDomain) add_call(graph, id);
    }
  }

  std::map<std::string, Function> take() { return std::move(bodies_); }

 private:
  struct Call {
    const Graph* graph;
    NodeId node;
  };

  void add_call(Graph& graph, NodeId id) {
    std::vector<Call>& alike = calls_[hash_of(graph, id)];
    for (const Call& call : alike) {
      if (!same(graph, id, call)) continue;
      graph.node(id).overload = call.graph->node(call.node).overload;
      return;
    }
    Function body = build_body(graph, id, infer_node);
    graph.node(id).overload = body.overload;
    alike.push_back({&graph, id});
    bodies_.try_emplace(body.name + ":" + body.overload, std::move(body));
  }

  static uint64_t hash_of(const Graph& graph, NodeId id) {
    const Node& node = graph.node(id);
    uint64_t hash = hash_mix(hash_text(node.op), content_hash(node.attributes));
    const auto add = [&](ValueId value) {
      const ValueType type = value.valid() ? graph.value(value).type : ValueType{};
      hash = hash_mix(
          hash, static_cast<uint64_t>(type.dtype) * 16 + static_cast<uint64_t>(type.rank() + 1));
    };
    for (ValueId input : graph.inputs(id)) add(input);
    for (ValueId output : graph.outputs(id)) add(output);
    return hash;
  }

  static bool same(const Graph& graph, NodeId id, const Call& other) {
    const Node& a = graph.node(id);
    const Node& b = other.graph->node(other.node);
    const auto agree = [&](std::span<const ValueId> ours, std::span<const ValueId> theirs) {
      return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                        [&](ValueId x, ValueId y) {
                          if (x.valid() != y.valid()) return false;
                          return !x.valid() || graph.value(x).type == other.graph->value(y).type;
                        });
    };
    return a.op == b.op && a.attributes == b.attributes &&
           agree(graph.inputs(id), other.graph->inputs(other.node)) &&
           agree(graph.outputs(id), other.graph->outputs(other.node));
  }

  std::unordered_map<uint64_t, std::vector<Call>> calls_;
  std::map<std::string, Function> bodies_;
};

/// Drops the op-sets of domains that no node is of any more (ONNX Runtime lists all it has).
void drop_unused_opsets(Model& model) {
  std::set<std::string> used = {""};
  for_each_graph(model, [&](const Graph& graph) {
    for (NodeId id : graph.all_nodes()) used.insert(graph.node(id).domain);
  });
  for (const Function& function : model.functions) used.insert(function.domain);
  std::erase_if(model.opsets, [&](const auto& entry) { return !used.contains(entry.first); });
}

}  // namespace

void attach_bodies(Model& model) {
  Bodies calls;
  for_each_graph(model, [&](Graph& graph) { calls.add_calls(graph); });
  std::map<std::string, Function> bodies = calls.take();
  const bool any = !bodies.empty();
  std::erase_if(model.functions, [](const Function& f) { return f.domain == kHalfnoteDomain; });
  model.functions.reserve(model.functions.size() + bodies.size());
  for (auto& [name, body] : bodies) model.functions.push_back(std::move(body));
  model.opsets[""] = kOpsetVersion;
  if (any) model.opsets[std::string(kHalfnoteDomain)] = 1;
}

namespace {

/// Steps, padding and casts of an earlier compilation would be taken for the user's own.
void refuse_compiled(const Model& model) {
  const auto stage = model.metadata.find("halfnote.stage");
  if (stage == model.metadata.end()) return;
  throw Error(ErrorCode::kModel, "the model was compiled by halfnote already")
      .at({model.source, {}, {}})
      .expected("a source model", "stage " + stage->second)
      .hint("compile the model that this was made from, or one that halfnote run exported");
}

/// A step that came with the model is run as it is: precision and optimizer are its own.
void refuse_foreign_step(const Model& model) {
  if (!has_foreign_step(model)) return;
  throw Error(ErrorCode::kUnsupported, "the model has a training step of its own (training_info)")
      .at({model.source, {}, {}})
      .expected("a forward model", counted(model.training.size(), "step"))
      .hint(
          "`halfnote run` trains it as it is; for mixed precision take training_info out, and "
          "compile the forward graph");
}

}  // namespace

CompileResult compile(Model model, const CompileOptions& options, EvaluateConstants evaluate) {
  refuse_compiled(model);
  refuse_foreign_step(model);
  name_input_dims(model.graph);
  check_dim_names(model.graph, options.dims);
  note_source_opset(model);
  CompileResult result;
  PassContext context{options, infer_node, std::move(evaluate), result.remarks, {}};
  result.pipeline = run_pipeline(model, context, compile_pipeline());
  for_each_graph(model, make_node_names_unique);
  attach_bodies(model);
  drop_unused_opsets(model);
  model.ir_version = kIrVersion;
  model.producer_name = "halfnote";
  model.producer_version = kVersion;
  model.metadata["halfnote.version"] = kVersion;
  model.metadata["halfnote.policy"] = describe(options);
  if (options.train.micro_batch > 0) {
    model.metadata["halfnote.micro_batch"] = std::to_string(options.train.micro_batch);
  }
  model.metadata["halfnote.stage"] = std::string(stage_name(result.pipeline.stage));
  result.model = std::move(model);
  return result;
}

}  // namespace halfnote
