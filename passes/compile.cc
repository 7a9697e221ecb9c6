#include "passes/compile.h"

#include <nlohmann/json.hpp>

#include <map>
#include <set>

#include "base/version.h"
#include "compiler/ir/node_names.h"
#include "compiler/ops/body.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/infer_shapes.h"

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

nlohmann::ordered_json scaler_json(const LossScaler& s) {
  return {{"preset", s.preset},
          {"dynamic", s.dynamic},
          {"init", s.init},
          {"up", s.up},
          {"down", s.down},
          {"interval", s.interval},
          {"warmup_interval", s.warmup_interval},
          {"hysteresis", s.hysteresis},
          {"refill", s.refill},
          {"first_window_extra", s.first_window_extra},
          {"publish_delay", s.publish_delay},
          {"min", s.min},
          {"max", s.max}};
}

nlohmann::ordered_json optimizer_json(const Optimizer& o) {
  return {{"kind", o.kind},
          {"lr", o.lr},
          {"momentum", o.momentum},
          {"beta1", o.beta1},
          {"beta2", o.beta2},
          {"epsilon", o.epsilon},
          {"weight_decay", o.weight_decay},
          {"clip_norm", o.clip_norm},
          {"schedule", o.schedule.kind},
          {"warmup", o.schedule.warmup},
          {"total", o.schedule.total}};
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

std::string describe(const CompileOptions& options) {
  const Policy& policy = options.policy;
  nlohmann::ordered_json json = {{"precision", short_name(policy.dtype)}};
  if (policy.dtype != DType::kF32) {
    json["allow_ops"] = policy.allow_ops;
    json["fp32_ops"] = policy.fp32_ops;
    json["allow_nodes"] = policy.allow_nodes;
    json["fp32_nodes"] = policy.fp32_nodes;
    json["cost_refinement"] = policy.cost_refinement;
    json["pad"] = policy.pad;
  }
  if (policy.dtype == DType::kF16) json["scaler"] = scaler_json(policy.scaler);
  if (!options.inference_only) {
    json["loss"] = options.train.loss.empty() ? options.train.loss_output : options.train.loss;
    json["optimizer"] = optimizer_json(options.train.optimizer);
    json["accumulation"] = options.train.accumulation;
    json["seed"] = options.train.seed;
  }
  return json.dump();
}

CompileResult compile(Model model, const CompileOptions& options, EvaluateConstants evaluate) {
  CompileResult result;
  PassContext context{options, infer_node, std::move(evaluate), result.remarks, {}};
  result.pipeline = run_pipeline(model, context, compile_pipeline());
  for_each_graph(model, make_node_names_unique);
  attach_bodies(model);
  model.ir_version = kIrVersion;
  model.producer_name = "halfnote";
  model.producer_version = kVersion;
  model.metadata["halfnote.version"] = kVersion;
  model.metadata["halfnote.policy"] = describe(options);
  model.metadata["halfnote.stage"] = std::string(stage_name(result.pipeline.stage));
  result.model = std::move(model);
  return result;
}

}  // namespace halfnote
