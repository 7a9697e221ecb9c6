// The inference form of a graph, its losses and its names.
#include "passes/train/step_form.h"

#include "base/error.h"
#include "compiler/ir/builder.h"
#include "compiler/ir/replace.h"
#include "compiler/onnx/metadata.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"
#include "passes/train/step.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

/// A running statistic that is read as result `i` of its BatchNormalization stays what it is.
void keep_statistic(Graph& graph, NodeId node, size_t i) {
  const ValueId kept = graph.input(node, i + 2);
  Builder b(graph, graph.before(node),
            [&](Graph& g, NodeId same) { g.value(g.output(same)).type = g.value(kept).type; });
  take_place(graph, graph.output(node, i), b.op("Identity", {b.value(kept)}).id);
}

}  // namespace

void check_scalar(const Graph& graph, ValueId loss, ErrorCode code) {
  const ValueType& type = graph.value(loss).type;
  bool scalar = type.is_tensor() && is_float(type.dtype) && type.shape;
  if (scalar) {
    for (const Dim& dim : *type.shape) scalar &= dim.is(1);
  }
  if (scalar) return;
  throw Error(code, "the loss is no scalar")
      .expected("a float tensor with one element",
                "\"" + graph.value(loss).name + "\", " + to_string(type))
      .hint("reduce it (ReduceMean) in the model, or use --loss");
}

void put_loss_first(Graph& graph, ValueId loss) {
  check_scalar(graph, loss);
  std::vector<ValueId> outputs = {loss};
  for (ValueId output : graph.outputs()) {
    if (output != loss) outputs.push_back(output);
  }
  graph.set_outputs(graph.main(), std::move(outputs));
}

size_t to_inference_form(Graph& graph) {
  size_t dropouts = 0;
  for (NodeId node : graph.all_nodes()) {
    const std::string& op = graph.node(node).op;
    if (!graph.node(node).domain.empty()) continue;
    if (op == "Dropout" && !graph.has_uses(graph.output(node))) continue;
    if (op == "Dropout") {
      const Tensor* ratio = graph.constant(graph.input(node, 1));
      dropouts += ratio == nullptr || ratio->at_as_double(0) > 0 ? 1 : 0;
      graph.replace_uses(graph.output(node), graph.input(node, 0));
    } else if (op == "BatchNormalization") {
      graph.node(node).attributes.erase("training_mode");
      for (size_t i = graph.outputs(node).size(); i-- > 1;) {
        if (!graph.output(node, i).valid()) continue;
        if (graph.has_uses(graph.output(node, i))) keep_statistic(graph, node, i);
        graph.drop_output(node, i);
      }
    }
  }
  return dropouts;
}

void make_inference_form(Model& model) {
  const size_t dropouts = to_inference_form(model.graph);
  if (dropouts > 0) model.metadata[std::string(kDropoutsKey)] = std::to_string(dropouts);
}

void warn_of_lost_dropouts(const Model& model, PassContext& context) {
  const auto lost = model.metadata.find(std::string(kDropoutsKey));
  if (lost == model.metadata.end()) return;
  context.warn(
      model.source,
      "is a trained model without the dropout of its training (Dropout nodes: " + lost->second +
          "): it trains on without; go on from the checkpoint (halfnote run --resume), or "
          "train the source model");
}

void warn_of_noise(const Graph& graph, PassContext& context) {
  constexpr size_t kMostNames = 4;
  std::string names;
  size_t count = 0;
  for (NodeId node : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(node));
    if (row == nullptr || row->purity != Purity::kRandom) continue;
    if (!graph.has_uses(graph.output(node)) || ++count > kMostNames) continue;
    names += (count == 1 ? "" : ", ") + graph.label(node);
  }
  if (count == 0) return;
  context.warn(
      names + (count > kMostNames ? ", …" : ""),
      "random numbers are drawn in training, in evaluation and in the trained model (" +
          counted(count, "node") +
          "); of a dropout that the exporter wrote out that is not what is meant: "
          "Dropout(inplace=True) in PyTorch's newer exporter wants inplace=False, or "
          "dynamo=False. onnxruntime 1.31 has kernels for random operators up to op-set 21: the "
          "trained model has the op-set of the source where that holds every operator");
}

void drop_losses(Graph& graph, const std::set<std::string>& losses, PassContext& context) {
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) {
    if (!losses.contains(graph.value(output).name)) outputs.push_back(output);
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

}  // namespace halfnote
