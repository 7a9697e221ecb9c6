#include "passes/compile.h"

#include <nlohmann/json.hpp>

#include <map>
#include <set>

#include "base/version.h"
#include "compiler/ir/node_names.h"
#include "compiler/ops/body.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/train/optimizer_form.h"

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

/// A number or text attribute.
nlohmann::ordered_json attribute_json(const Attribute& attribute) {
  if (const auto* number = std::get_if<float>(&attribute)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&attribute)) return *integer;
  return std::get<std::string>(attribute);
}

nlohmann::ordered_json optimizer_json(const Optimizer& o) {
  nlohmann::ordered_json json = {{"kind", o.kind}, {"lr", o.lr}};
  if (o.kind != "none") {
    for (const auto& [name, value] : optimizer_form(o).attributes) {
      json[name] = attribute_json(value);
    }
  }
  json["weight_decay"] = o.weight_decay;
  json["clip_norm"] = o.clip_norm;
  json["schedule"] = o.schedule.kind;
  json["warmup"] = o.schedule.warmup;
  json["total"] = o.schedule.total;
  if (o.schedule.warmup_kind != "linear") json["warmup_kind"] = o.schedule.warmup_kind;
  return json;
}

/// `cross_entropy`, or the outputs that are summed.
std::string loss_text(const TrainOptions& train) {
  if (!train.loss.empty()) return train.loss;
  std::string text;
  for (const std::string& loss : train.loss_outputs) text += (text.empty() ? "" : " + ") + loss;
  return text;
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
    if (!policy.like.empty()) json["like"] = policy.like;
    json["allow_ops"] = policy.allow_ops;
    json["fp32_ops"] = policy.fp32_ops;
    json["allow_nodes"] = policy.allow_nodes;
    json["fp32_nodes"] = policy.fp32_nodes;
    json["cost_refinement"] = policy.cost_refinement;
    json["pad"] = policy.pad;
  }
  if (policy.dtype == DType::kF16) json["scaler"] = scaler_json(policy.scaler);
  if (!options.inference_only) {
    json["loss"] = loss_text(options.train);
    json["optimizer"] = optimizer_json(options.train.optimizer);
    if (options.train.label_smoothing != 0) json["label_smoothing"] = options.train.label_smoothing;
    if (options.train.loss == "huber") json["huber_delta"] = options.train.huber_delta;
    json["accumulation"] = options.train.accumulation;
    if (options.train.micro_batch > 0) json["micro_batch"] = options.train.micro_batch;
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
  if (options.train.micro_batch > 0) {
    model.metadata["halfnote.micro_batch"] = std::to_string(options.train.micro_batch);
  }
  model.metadata["halfnote.stage"] = std::string(stage_name(result.pipeline.stage));
  result.model = std::move(model);
  return result;
}

}  // namespace halfnote
