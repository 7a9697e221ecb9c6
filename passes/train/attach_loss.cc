// attach_loss: makes the steps of training out of a forward graph.
//
//   model.graph (x -> logits)
//     ──▶   training step       (x, labels -> loss, logits)   training form
//           training evaluate   (x, labels -> loss, logits)   inference form
//           model.graph         (x -> logits)                 inference form
//
// Exact in the step. A graph that has its loss inside (--loss-output) keeps it in both steps; in
// model.graph the loss and the inputs that only it reads are taken away where another output
// remains. With --loss the loss is attached to the first output (or --loss-input): cross_entropy
// reads logits (N, C, d…) and labels i64 (N, d…), nll log-probabilities, mse a target of the
// output's own type. A value whose name the train passes need (step.h) gets another in the steps;
// an input or weight of such a name is an error. Leaves alone: a model that has training steps
// already.
#include "base/error.h"
#include "passes/passes.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

std::string list_outputs(const Graph& graph) {
  std::string names;
  for (ValueId output : graph.outputs()) {
    names += (names.empty() ? "" : ", ") + graph.value(output).name;
  }
  return names;
}

ValueId named_value(const Graph& graph, const std::string& name, const char* flag) {
  const ValueId value = graph.find(name);
  if (value.valid() && graph.value(value).region == graph.main()) return value;
  std::vector<std::string> outputs;
  for (ValueId output : graph.outputs()) outputs.push_back(graph.value(output).name);
  const std::string_view near = closest(name, outputs);
  throw Error(ErrorCode::kUsage, std::string(flag) + " names no value of the graph")
      .expected("one of the outputs: " + list_outputs(graph), "\"" + name + "\"")
      .hint(near.empty() ? "see halfnote inspect for the names"
                         : "did you mean " + std::string(near) + "?");
}

/// cross_entropy wants logits: of a graph that ends in Softmax, the value before it.
ValueId logits_of(Graph& graph, ValueId output, PassContext& context) {
  const NodeId producer = graph.value(output).producer;
  if (!producer.valid() || graph.node(producer).op != "Softmax") return output;
  context.note(graph.value(output).name,
               "cross_entropy reads logits: the loss is attached before this Softmax");
  return graph.input(producer, 0);
}

SymbolicShape label_shape(const SymbolicShape& scores) {
  SymbolicShape shape = scores;
  if (shape.size() >= 2) shape.erase(shape.begin() + 1);
  return shape;
}

ValueId attach_named_loss(Graph& graph, PassContext& context) {
  const TrainOptions& train = context.options.train;
  ValueId from = train.loss_input.empty() ? graph.outputs().front()
                                          : named_value(graph, train.loss_input, "--loss-input");
  Builder b(graph, graph.end(), context.infer);
  b.set_role(Role::kLoss);
  if (train.loss == "mse") {
    const Expr y = b.value(from);
    const Expr target =
        b.value(graph.add_input(graph.main(), graph.unique_name("target"), y.type()));
    const Expr difference = y - target;
    return b.op("ReduceMean", {difference * difference}, {{"keepdims", int64_t{0}}}).id;
  }
  const bool cross_entropy = train.loss == "cross_entropy";
  if (!cross_entropy && train.loss != "nll") {
    static constexpr std::string_view kLosses[] = {"cross_entropy", "nll", "mse"};
    const std::string_view near = closest(train.loss, kLosses);
    throw Error(ErrorCode::kUsage, "unknown loss")
        .expected("cross_entropy, nll or mse", "\"" + train.loss + "\"")
        .hint(near.empty() ? "use --loss-output NAME for a loss that is in the graph"
                           : "did you mean " + std::string(near) + "?");
  }
  if (cross_entropy) from = logits_of(graph, from, context);
  const Expr scores = b.value(from);
  if (scores.rank() < 2) {
    throw Error(ErrorCode::kModel, "--loss " + train.loss + " needs scores of shape (N, C, …)")
        .at({{}, graph.value(from).name, {}})
        .expected("rank 2 or more", to_string(scores.type()));
  }
  const Expr labels =
      b.value(graph.add_input(graph.main(), graph.unique_name("labels"),
                              ValueType::tensor(DType::kI64, label_shape(scores.shape()))));
  const Attributes mean = {{"reduction", std::string("mean")}};
  return b
      .op(cross_entropy ? "SoftmaxCrossEntropyLoss" : "NegativeLogLikelihoodLoss", {scores, labels},
          mean)
      .id;
}

/// Makes the loss output 0 of a step and checks that it is a scalar.
void put_loss_first(Graph& graph, ValueId loss) {
  const ValueType& type = graph.value(loss).type;
  bool scalar = type.is_tensor() && is_float(type.dtype) && type.shape;
  if (scalar) {
    for (const Dim& dim : *type.shape) scalar &= dim.is(1);
  }
  if (!scalar) {
    throw Error(ErrorCode::kModel, "the loss is no scalar")
        .at({{}, graph.value(loss).name, {}})
        .expected("a float tensor with one element", to_string(type))
        .hint("reduce it (ReduceMean) in the model, or use --loss");
  }
  std::vector<ValueId> outputs = {loss};
  for (ValueId output : graph.outputs()) {
    if (output != loss) outputs.push_back(output);
  }
  graph.set_outputs(graph.main(), std::move(outputs));
}

/// Dropout becomes the identity, BatchNormalization uses its running statistics.
void to_inference_form(Graph& graph) {
  for (NodeId node : graph.all_nodes()) {
    const std::string& op = graph.node(node).op;
    if (!graph.node(node).domain.empty()) continue;
    if (op == "Dropout" && !graph.has_uses(graph.output(node))) continue;
    if (op == "Dropout") {
      graph.replace_uses(graph.output(node), graph.input(node, 0));
    } else if (op == "BatchNormalization") {
      graph.node(node).attributes.erase("training_mode");
      for (size_t i = graph.outputs(node).size(); i-- > 1;) {
        if (graph.output(node, i).valid() && !graph.has_uses(graph.output(node, i))) {
          graph.drop_output(node, i);
        }
      }
    }
  }
}

/// Takes the loss, and the inputs that only it reads, out of the inference graph where another
/// output remains.
void drop_loss(Graph& graph, const std::string& loss, PassContext& context) {
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) {
    if (graph.value(output).name != loss) outputs.push_back(output);
  }
  if (outputs.empty() || outputs.size() == graph.outputs().size()) return;
  std::vector<ValueId> read;
  for (ValueId input : graph.inputs()) {
    if (graph.has_uses(input)) read.push_back(input);
  }
  graph.set_outputs(graph.main(), std::move(outputs));
  eliminate_dead(graph, context);
  for (ValueId input : read) {
    if (!graph.has_uses(input)) graph.remove_value(input);
  }
}

/// Renames results whose names the train passes need. Inputs and weights are known by theirs.
void free_reserved_names(Graph& graph, PassContext& context) {
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    const ValueId id{i};
    if (!graph.value(id).alive || !is_reserved(graph.value(id).name)) continue;
    const std::string name = graph.value(id).name;
    const bool inner = graph.value(id).region != graph.main();
    if (graph.value(id).kind != ValueKind::kResult && !inner) {
      throw Error(ErrorCode::kModel, "an input or weight has a name that the training step uses")
          .at({{}, name, {}})
          .expected("another name than loss_scale, finite, learning_rate, … or grad/…", name)
          .hint("rename it in the model");
    }
    const std::string renamed = graph.unique_name("model." + name);
    graph.rename(id, renamed);
    context.note(name, "is called " + renamed + " in the training step, which uses the name");
  }
}

}  // namespace

bool attach_loss(Model& model, PassContext& context) {
  const TrainOptions& train = context.options.train;
  if (context.options.inference_only || model.is_training()) return false;
  if (train.loss.empty() == train.loss_output.empty()) {
    throw Error(ErrorCode::kUsage, "a training step needs exactly one loss")
        .expected(
            "--loss NAME for a graph without a loss, or --loss-output NAME for one that has it",
            train.loss.empty() ? "neither" : "both")
        .hint("the outputs of the graph are " + list_outputs(model.graph));
  }
  if (model.graph.outputs().empty()) throw Error(ErrorCode::kModel, "the graph has no output");

  TrainingStep step;
  step.name = kStepName;
  step.graph = model.graph;
  const ValueId loss = train.loss.empty()
                           ? named_value(step.graph, train.loss_output, "--loss-output")
                           : attach_named_loss(step.graph, context);
  put_loss_first(step.graph, loss);
  free_reserved_names(step.graph, context);
  TrainingStep evaluation;
  evaluation.name = kEvaluateName;
  evaluation.graph = step.graph;
  to_inference_form(evaluation.graph);
  to_inference_form(model.graph);
  drop_loss(model.graph, train.loss_output, context);
  model.training.push_back(std::move(step));
  model.training.push_back(std::move(evaluation));
  return true;
}

}  // namespace halfnote
