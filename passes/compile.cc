#include "passes/compile.h"

#include <map>
#include <set>

#include "base/error.h"
#include "base/version.h"
#include "compiler/ir/node_names.h"
#include "compiler/ops/body.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/bind_dims.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/foreign/training_info.h"

namespace halfnote {
namespace {

/// Adds the bodies that the nodes of one graph call, each once.
void collect_bodies(Graph& graph, std::map<std::string, Function>& bodies, bool& any) {
  for (NodeId id : graph.all_nodes()) {
    if (graph.node(id).domain != kHalfnoteDomain) continue;
    Function body = build_body(graph, id, infer_node);
    graph.node(id).overload = body.overload;
    any = true;
    bodies.try_emplace(body.name + ":" + body.overload, std::move(body));
  }
}

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
  std::map<std::string, Function> bodies;
  bool any = false;
  for_each_graph(model, [&](Graph& graph) { collect_bodies(graph, bodies, any); });
  std::erase_if(model.functions, [](const Function& f) { return f.domain == kHalfnoteDomain; });
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
      .expected("a forward model", std::to_string(model.training.size()) + " step(s)")
      .hint(
          "`halfnote run` trains it as it is; for mixed precision take training_info out, and "
          "compile the forward graph");
}

}  // namespace

CompileResult compile(Model model, const CompileOptions& options, EvaluateConstants evaluate) {
  refuse_compiled(model);
  refuse_foreign_step(model);
  check_dim_names(model.graph, options.dims);
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
