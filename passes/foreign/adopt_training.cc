// adopt-training: a training graph of ONNX Runtime becomes our training model.
//
//   (x, labels, lazy_reset_grad, w_grad.accumulation.buffer) => loss, logits,
//   w_grad.accumulation.out
//     w_grad = …                                  the backward pass, from the seed loss_grad = 1
//     out = InPlaceAccumulatorV2 (buffer, w_grad, lazy_reset_grad)
//   ──▶   step:      (x, labels) => loss, logits, grad/w      the seed is the state loss_scale
//         evaluate:  (x, labels) => loss, logits              inference form
//         graph:     (x) => logits                            inference form
//
// Exact: the gradients are those of the file; no autodiff runs. Nodes that depend on the seed get
// the role backward, and their forward node, which ONNX Runtime writes into their names
// (`NAME_Grad/…`), as origin. The parameters are initializers already: ort_artifact.cc puts them
// in. Buffers and lazy_reset_grad go: our sums start at zero by themselves (split-accumulation).
// Leaves alone: graphs without InPlaceAccumulatorV2.
#include <algorithm>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "passes/foreign/ort_artifact.h"
#include "passes/passes.h"
#include "passes/train/step.h"
#include "passes/train/step_form.h"

namespace halfnote {
namespace {

constexpr std::string_view kResetInput = "lazy_reset_grad";
constexpr std::string_view kForwardMark = "_Grad/";

struct Accumulator {
  NodeId node;
  ValueId gradient, buffer;
  std::string parameter;
};

std::vector<Accumulator> accumulators_of(const Graph& graph) {
  std::vector<Accumulator> found;
  for (NodeId node : graph.nodes()) {
    if (!is_ort_accumulator(graph.node(node))) continue;
    const ValueId buffer = graph.input(node, 0), gradient = graph.input(node, 1);
    if (!buffer.valid() || !gradient.valid()) {
      throw Error(ErrorCode::kModel, "an accumulator lacks its operands")
          .at({{}, graph.label(node), graph.node(node).op});
    }
    std::string name = graph.value(buffer).name;
    const size_t end = name.rfind("_grad.accumulation.buffer");
    if (end == std::string::npos) {
      throw Error(ErrorCode::kUnsupported, "a gradient buffer does not tell its parameter")
          .at({{}, graph.label(node), graph.node(node).op})
          .expected("NAME_grad.accumulation.buffer, as generate_artifacts calls it", name);
    }
    found.push_back({node, gradient, buffer, name.substr(0, end)});
  }
  return found;
}

void refuse_settings(const CompileOptions& options) {
  const TrainOptions& train = options.train;
  const bool loss = !train.loss.empty() || !train.loss_outputs.empty() || !train.loss_input.empty();
  const bool choice = !train.trainable.empty() || !train.frozen.empty() || !train.tied.empty() ||
                      train.force_training;
  if (!loss && !choice) return;
  throw Error(ErrorCode::kUsage, "an ONNX Runtime training artifact has its loss and its gradients")
      .expected("no --loss…, --trainable, --freeze, --tie or --force-training",
                loss ? "--loss, --loss-output or --loss-input"
                     : "--trainable, --freeze, --tie or --force-training")
      .hint("generate the artifact with other requires_grad, or compile the forward model");
}

/// Takes the nodes that nothing needs, and the inputs that only they read.
void sweep(Graph& graph) {
  std::vector<ValueId> read;
  for (ValueId input : graph.inputs()) {
    if (graph.has_uses(input)) read.push_back(input);
  }
  erase_dead(graph, [](const Graph&, NodeId) { return true; });
  erase_unused_initializers(graph);
  for (ValueId input : read) {
    const std::string& name = graph.value(input).name;
    const bool buffer = name.ends_with(".accumulation.buffer") || name == kResetInput;
    if (buffer && !graph.has_uses(input)) graph.remove_value(input);
  }
}

/// The forward part.
Graph evaluation_of(const Graph& training, const std::vector<Accumulator>& accumulators) {
  Graph graph = training;
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) {
    const NodeId producer = graph.value(output).producer;
    const bool sum = std::any_of(accumulators.begin(), accumulators.end(),
                                 [&](const Accumulator& a) { return a.node == producer; });
    if (!sum) outputs.push_back(output);
  }
  graph.set_outputs(graph.main(), std::move(outputs));
  sweep(graph);
  for (NodeId node : graph.nodes()) {
    Node& data = graph.node(node);
    if (data.op == "BatchNormInternal") data.attributes.set("training_mode", int64_t{0});
    if (data.op == "BitmaskDropout") data.op = "Dropout", data.domain = {};
  }
  return graph;
}

class Adoption {
 public:
  Adoption(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  /// Makes the training step of the whole graph.
  void run(const std::vector<Accumulator>& accumulators) {
    const ValueId seed = seed_of(graph_.outputs().front());
    mark_backward(seed);
    replace_seed(seed);
    std::vector<ValueId> outputs;
    for (ValueId output : graph_.outputs()) {
      const NodeId node = graph_.value(output).producer;
      if (!node.valid() || !is_ort_accumulator(graph_.node(node))) outputs.push_back(output);
    }
    graph_.set_outputs(graph_.main(), outputs);
    for (const Accumulator& accumulator : accumulators) publish(accumulator);
    sweep(graph_);
  }

 private:
  /// The constant 1 from which the backward pass starts: `LOSS_grad`.
  ValueId seed_of(ValueId loss) const {
    const std::string name = graph_.value(loss).name + "_grad";
    const ValueId seed = graph_.find(name);
    const Tensor* tensor = seed.valid() ? graph_.constant(seed) : nullptr;
    const bool one = tensor != nullptr && tensor->size() == 1 && tensor->at_as_double(0) == 1;
    if (one) return seed;
    throw Error(ErrorCode::kUnsupported, "the backward pass of the training graph has no seed")
        .expected("a constant 1 called " + name, seed.valid() ? "something else" : "none")
        .hint("generate the artifacts with onnxruntime-training 1.19.2");
  }

  void mark_backward(ValueId seed) {
    const std::vector<ValueId> from = {seed};
    for (NodeId id : forward_slice(graph_, from)) {
      Node& node = graph_.node(id);
      node.role = Role::kBackward;
      const size_t mark = node.name.find(kForwardMark);
      if (mark != std::string::npos) node.origin = node.name.substr(0, mark);
    }
  }

  void replace_seed(ValueId seed) {
    const ValueType type = graph_.value(seed).type;
    const ValueId scale =
        graph_.add_initializer(std::string(kLossScale), Tensor::scalar<float>(1.0f));
    const NodeId first = graph_.first(graph_.main());
    Builder b(graph_, graph_.before(first), context_.infer);
    b.set_role(Role::kBackward);
    Expr start = b.cast(b.value(scale), type.dtype);
    if (type.rank() > 0) {
      start = b.reshape(start, b.ints(std::vector<int64_t>(size_t(type.rank()), 1)));
    }
    graph_.replace_uses(seed, start.id);
    graph_.add_state(scale, scale, StateKind::kScaler);
  }

  void publish(const Accumulator& accumulator) {
    const ValueId parameter = graph_.find(accumulator.parameter);
    ValueId gradient = accumulator.gradient;
    const bool shared = graph_.value(gradient).kind != ValueKind::kResult ||
                        graph_.value(gradient).name.starts_with(kGradientPrefix);
    if (shared) {
      Builder b(graph_, graph_.before(accumulator.node), context_.infer);
      b.set_role(Role::kBackward);
      gradient = b.op("Identity", {b.value(gradient)}).id;
    }
    // Shapes are inferred later; a gradient has the type of its parameter.
    graph_.value(gradient).type = graph_.value(parameter).type;
    graph_.rename(gradient,
                  graph_.unique_name(std::string(kGradientPrefix) + accumulator.parameter));
    graph_.add_output(graph_.main(), gradient);
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

bool adopt_training(Model& model, PassContext& context) {
  const std::vector<Accumulator> accumulators = accumulators_of(model.graph);
  if (accumulators.empty()) return false;
  refuse_settings(context.options);
  for (const Accumulator& accumulator : accumulators) {
    const ValueId parameter = model.graph.find(accumulator.parameter);
    if (parameter.valid() && model.graph.value(parameter).kind == ValueKind::kInitializer) {
      model.graph.value(parameter).trainable = !context.options.inference_only;
      continue;
    }
    throw Error(ErrorCode::kModel, "the training graph has a gradient, but no value of a parameter")
        .expected("a checkpoint with " + accumulator.parameter, "none")
        .hint("give halfnote the folder with training_model.onnx and its checkpoint");
  }
  const ValueId loss = model.graph.outputs().front();
  const std::set<std::string> losses = {model.graph.value(loss).name};
  TrainingStep evaluation{
      std::string(kEvaluateName), evaluation_of(model.graph, accumulators), {}, {}};
  TrainingStep step{std::string(kStepName), std::move(model.graph), {}, {}};
  model.graph = evaluation.graph;
  make_inference_form(model);
  to_inference_form(evaluation.graph);
  drop_losses(model.graph, losses, context);
  if (context.options.inference_only) return true;
  free_reserved_names(evaluation.graph, context);
  free_reserved_names(step.graph, context);
  Adoption(step.graph, context).run(accumulators);
  model.training.push_back(std::move(step));
  model.training.push_back(std::move(evaluation));
  return true;
}

}  // namespace halfnote
