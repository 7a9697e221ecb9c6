#include "passes/foreign/training_info.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compiler/ir/hash.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/lower_opset.h"
#include "passes/manager.h"
#include "passes/passes.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

constexpr const char* kCompileForward =
    "compile the model without training_info: halfnote makes a step of its own";

/// Runs the compile pipeline up to the canonical form.
void make_canonical(Model& model, PassContext& context, bool inference_only) {
  CompileOptions options = context.options;
  options.inference_only = inference_only;
  options.stop_after = "eliminate-dead";
  PassContext own{options, context.infer, context.evaluate, context.remarks, {}};
  run_pipeline(model, own, compile_pipeline());
}

/// The node's seed, or one made from that of the run and the name of its result.
void set_seed(Graph& graph, NodeId node, PassContext& context) {
  if (graph.node(node).attributes.has("seed")) return;
  const std::string& name = graph.value(graph.output(node)).name;
  const uint64_t made =
      hash_mix(hash_text(name), static_cast<uint64_t>(context.options.train.seed));
  context.note(name, std::string(kDrawnBySeed));
  graph.node(node).attributes.set("seed", static_cast<float>(made >> 40));  // 24 bits: exact
}

/// The outputs of a graph without inputs, by name.
std::map<std::string, Tensor> evaluate_all(Graph& graph, PassContext& context) {
  std::map<ValueId, Tensor> values;
  for (ValueId id : graph.initializers()) values[id] = graph.value(id).tensor;
  for (NodeId node : graph.nodes()) {
    std::vector<Tensor> inputs;
    for (ValueId input : graph.inputs(node)) {
      inputs.push_back(input.valid() ? values.at(input) : Tensor());
    }
    const std::vector<Tensor> results = context.evaluate(graph, node, inputs);
    for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
      const ValueId output = graph.output(node, i);
      if (output.valid()) values[output] = results.at(i);
    }
  }
  std::map<std::string, Tensor> outputs;
  for (ValueId output : graph.outputs()) outputs[graph.value(output).name] = values.at(output);
  return outputs;
}

/// The initialization as a model, with only the outputs that are bound.
Model initialization_of(const Model& model, const TrainingStep& step) {
  Model first;
  first.graph = step.initialization;
  first.functions = model.functions;
  first.opsets = model.opsets;
  first.source = model.source;
  return first;
}

void set_first_value(Graph& graph, const std::string& name, const Tensor& tensor) {
  const ValueId target = graph.find(name);
  if (!target.valid() || graph.value(target).kind != ValueKind::kInitializer) return;
  Value& value = graph.value(target);
  if (value.tensor.dtype() != tensor.dtype() || value.tensor.shape() != tensor.shape()) {
    throw Error(ErrorCode::kModel, "the initialization of \"" + name + "\" does not fit")
        .expected(std::string(short_name(value.tensor.dtype())) + to_string(value.tensor.shape()),
                  std::string(short_name(tensor.dtype())) + to_string(tensor.shape()));
  }
  value.tensor = tensor;
}

/// What the initialization gives becomes the value of the initializers it is bound to.
void initialize(Model& model, PassContext& context) {
  TrainingStep& step = model.training.front();
  if (step.initialization_binding.empty()) return;
  for (NodeId node : step.initialization.all_nodes()) {
    const OperatorRow* row = find_operator(step.initialization.node(node));
    if (row != nullptr && row->purity == Purity::kRandom) {
      set_seed(step.initialization, node, context);
    }
  }
  try {
    Model first = initialization_of(model, step);
    make_canonical(first, context, true);
    const std::map<std::string, Tensor> values = evaluate_all(first.graph, context);
    for (const auto& [target, output] : step.initialization_binding) {
      const auto found = values.find(output);
      if (found == values.end()) {
        throw Error(ErrorCode::kModel, "initialization_binding names \"" + output + "\"")
            .expected("an output of the initialization", "none of that name");
      }
      set_first_value(step.graph, target, found->second);
      set_first_value(model.graph, target, found->second);
    }
  } catch (Error& error) {
    throw error.within({model.source + ": initialization", {}, {}});
  }
  step.initialization = Graph();
  step.initialization_binding.clear();
}

bool is_scalar_float(const ValueType& type) {
  if (!type.is_tensor() || !is_float(type.dtype) || !type.shape) return false;
  return std::all_of(type.shape->begin(), type.shape->end(), [](const Dim& d) { return d.is(1); });
}

/// The loss first, then what else is no new value of a state.
void order_outputs(const Model& model, Graph& graph) {
  std::set<ValueId> bound;
  for (const State& state : graph.states()) bound.insert(state.next);
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) {
    if (!bound.contains(output)) outputs.push_back(output);
  }
  const auto loss = std::find_if(outputs.begin(), outputs.end(), [&](ValueId output) {
    return is_scalar_float(graph.value(output).type);
  });
  if (loss == outputs.end()) {
    throw Error(ErrorCode::kUnsupported, "the training step reports no loss")
        .at({model.source, {}, {}})
        .expected("a float scalar among the outputs of training_info's algorithm", "none")
        .hint("make the loss an output of the algorithm");
  }
  std::rotate(outputs.begin(), loss, loss + 1);
  graph.set_outputs(graph.main(), std::move(outputs));
}

void refuse_random(const Model& model, const Graph& graph) {
  for (NodeId id : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(id));
    if (row == nullptr || row->purity != Purity::kRandom) continue;
    const ValueId mode = graph.node(id).op == "Dropout" ? graph.input(id, 2) : ValueId{};
    const Tensor* training = mode.valid() ? graph.constant(mode) : nullptr;
    const bool off = training != nullptr && training->at_as_int(0) == 0;
    if (off || (graph.node(id).op == "Dropout" && !mode.valid())) continue;
    throw Error(ErrorCode::kUnsupported,
                "the training step draws random numbers, and has no state for them")
        .at({model.source, graph.label(id), graph.node(id).op})
        .hint(kCompileForward);
  }
}

}  // namespace

bool has_foreign_step(const Model& model) {
  return model.is_training() && !model.metadata.contains("halfnote.stage");
}

void adopt_foreign_step(Model& model, PassContext& context) {
  if (model.training.size() != 1) {
    throw Error(ErrorCode::kUnsupported,
                "training_info has several entries, and ONNX does not say when each is run")
        .at({model.source, {}, {}})
        .expected("one", std::to_string(model.training.size()))
        .hint("join them to one algorithm, or " + std::string(kCompileForward));
  }
  TrainingStep& step = model.training.front();
  step.name = kStepName;
  initialize(model, context);
  // The inference graph shares the weights: they are no constants there.
  for (const State& state : step.graph.states()) {
    const ValueId same = model.graph.find(step.graph.value(state.current).name);
    if (!same.valid() || model.graph.value(same).kind != ValueKind::kInitializer) continue;
    model.graph.value(same).trainable = true;
  }
  note_source_opset(model);
  make_canonical(model, context, false);
  order_outputs(model, model.training.front().graph);
  refuse_random(model, model.training.front().graph);
}

}  // namespace halfnote
