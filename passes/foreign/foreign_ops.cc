// The table of foreign ops and what their rules share.
#include "passes/foreign/foreign_ops.h"

#include <algorithm>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/rule_support.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/foreign/parts.h"

namespace halfnote {
namespace foreign {

Expr input_or_none(const LowerContext& c, size_t index) {
  return c.has_input(index) ? c.inputs[index] : c.b.none();
}

Expr require_input(const LowerContext& c, size_t index) {
  if (!c.has_input(index)) refuse(c, "operand " + std::to_string(index) + " is missing");
  return c.inputs[index];
}

void refuse(const LowerContext& c, const std::string& why) {
  const Node& node = c.b.graph().node(c.node);
  throw Error(ErrorCode::kUnsupported, why).at({{}, node.name, node.op});
}

Attributes chosen_attributes(LowerContext& c, std::initializer_list<const char*> names) {
  Attributes attributes;
  for (const char* name : names) {
    if (const Attribute* value = c.attributes().find(name)) attributes.set(name, *value);
  }
  return attributes;
}

Results gradient_of(LowerContext& c, std::string_view op, Attributes attributes,
                    const std::vector<Expr>& inputs, Expr dy, const std::vector<bool>& needed) {
  const OperatorRow* row = find_operator("", op);
  if (row == nullptr || row->gradient == nullptr) refuse(c, "no gradient of " + std::string(op));
  GradientContext rule{c.b, {}, inputs, {}, {}, needed, infer_node};
  rule.outputs = c.b.ops(op, inputs, 1, std::move(attributes));
  rule.node = c.b.last();
  rule.grads = {dy};
  const NodeId forward = rule.node;
  Results results = row->gradient(rule);
  results.resize(inputs.size(), c.b.none());
  Graph& graph = c.b.graph();
  const auto outputs = graph.outputs(forward);
  const bool read = std::any_of(outputs.begin(), outputs.end(), [&](ValueId output) {
    return output.valid() && graph.has_uses(output);
  });
  if (!read) graph.remove(forward);
  return results;
}

Expr shaped_as(LowerContext& c, Expr shape, DType dtype) {
  Graph& graph = c.b.graph();
  const NodeId producer = producer_of(c, shape);
  if (producer.valid() && graph.node(producer).op == "Shape") {
    const Node& node = graph.node(producer);
    const ValueId source = graph.input(producer, 0);
    const bool whole = !node.attributes.has("start") && !node.attributes.has("end");
    if (whole && graph.value(source).type.dtype == dtype) return c.b.value(source);
  }
  return zeros(dtype, shape);
}

NodeId producer_of(const LowerContext& c, Expr value) {
  return value.valid() ? c.b.graph().value(value.id).producer : NodeId{};
}

namespace {

constexpr std::string_view kPreview = "ai.onnx.preview.training";
constexpr std::string_view kMs = "com.microsoft";
constexpr std::string_view kDevices =
    "part of ONNX Runtime's training on several devices; export the model for one";
constexpr std::string_view kTrainer =
    "of the ORTTrainer (before 1.14), which had the update in the graph; generate artifacts with "
    "onnxruntime-training 1.19.2, or compile the forward model";
constexpr std::string_view kModule =
    "calls back into Python (ORTModule); export the forward model with torch.onnx";
constexpr std::string_view kSummary =
    "writes events for TensorBoard; take it out of the model: a run has its losses in "
    "metrics.jsonl";
constexpr std::string_view kGist = "compressed activations; export without memory optimizations";

// Ordered by domain and name.
constexpr ForeignOp kOps[] = {
    {"", "AveragePoolGrad", average_pool_grad},
    {"", "MaxPoolGrad", max_pool_grad},
    {"", "SimplifiedLayerNormalization", simplified_layer_norm},
    {"", "SoftmaxCrossEntropyGrad", softmax_cross_entropy_grad},
    {"", "SparseSoftmaxCrossEntropy", sparse_softmax_cross_entropy},
    {"", "SparseSoftmaxCrossEntropyGrad", sparse_softmax_cross_entropy_grad},
    {kPreview, "Adagrad", preview_adagrad},
    {kPreview, "Adam", preview_adam},
    {kPreview, "Momentum", preview_momentum},
    {kMs, "ATen", nullptr, kModule},
    {kMs, "AdamOptimizer", nullptr, kTrainer},
    {kMs, "AdamWOptimizer", nullptr, kTrainer},
    {kMs, "AdasumAllReduce", nullptr, kDevices},
    {kMs, "All", all_true},
    {kMs, "AveragePoolGrad", average_pool_grad},
    {kMs, "BatchNormInternal", batch_norm_internal},
    {kMs, "BatchNormalizationGrad", batch_norm_grad},
    {kMs, "BatchScale", batch_scale},
    {kMs, "BiasFastGeluGrad_dX", fast_gelu_grad},
    {kMs, "BiasGelu", gelu},
    {kMs, "BiasGeluGrad_dX", gelu_grad},
    {kMs, "BiasSoftmaxDropout", bias_softmax_dropout},
    {kMs, "BitmaskDropout", bitmask_dropout},
    {kMs, "BitmaskDropoutGrad", dropout_grad},
    {kMs, "BroadcastGradientArgs", broadcast_gradient_args},
    {kMs, "ConcatTraining", concat_training},
    {kMs, "ConvGrad", conv_grad},
    {kMs, "ConvTransposeGrad", conv_transpose_grad},
    {kMs, "DivGrad", div_grad},
    {kMs, "DropoutGrad", dropout_grad},
    {kMs, "ExternalGradient", nullptr, kModule},
    {kMs, "FakeQuant", fake_quant},
    {kMs, "FakeQuantGrad", fake_quant_grad},
    {kMs, "FastGelu", fast_gelu},
    {kMs, "FastGeluGrad", fast_gelu_grad},
    {kMs, "FlattenAndUnpad", flatten_and_unpad},
    {kMs, "FusedMatMul", fused_matmul},
    {kMs, "GRUGrad", gru_grad},
    {kMs, "GRUTraining", gru_training},
    {kMs, "GatherElementsGrad", gather_elements_grad},
    {kMs, "GatherGrad", gather_grad},
    {kMs, "GatherNDGrad", gather_nd_grad},
    {kMs, "Gelu", gelu},
    {kMs, "GeluGrad", gelu_grad},
    {kMs, "GistBinarizeDecoder", nullptr, kGist},
    {kMs, "GistBinarizeEncoder", nullptr, kGist},
    {kMs, "GistPack16Decoder", nullptr, kGist},
    {kMs, "GistPack16Encoder", nullptr, kGist},
    {kMs, "GistPack1Decoder", nullptr, kGist},
    {kMs, "GistPack1Encoder", nullptr, kGist},
    {kMs, "GistPack8Decoder", nullptr, kGist},
    {kMs, "GistPack8Encoder", nullptr, kGist},
    {kMs, "GistPackMsfp15Decoder", nullptr, kGist},
    {kMs, "GistPackMsfp15Encoder", nullptr, kGist},
    {kMs, "Group", group},
    {kMs, "InPlaceAccumulator", nullptr, kTrainer},
    {kMs, "InvertibleLayerNormalizationGrad", invertible_layer_norm_grad},
    {kMs, "IsAllFinite", all_finite},
    {kMs, "IsFinite", is_finite},
    {kMs, "LSTMGrad", lstm_grad},
    {kMs, "LSTMTraining", lstm_training},
    {kMs, "LambOptimizer", nullptr, kTrainer},
    {kMs, "LayerNormalizationGrad", layer_norm_grad},
    {kMs, "LeakyReluGrad", leaky_relu_grad},
    {kMs, "LogSoftmaxGrad", softmax_grad},
    {kMs, "LogSoftmaxGrad_13", softmax_grad_13},
    {kMs, "MaxPoolGrad", max_pool_grad},
    {kMs, "MegatronF", nullptr, kDevices},
    {kMs, "MegatronG", nullptr, kDevices},
    {kMs, "MixedPrecisionScale", nullptr, kTrainer},
    {kMs, "NcclAllGather", nullptr, kDevices},
    {kMs, "NcclAllReduce", nullptr, kDevices},
    {kMs, "NcclReduceScatter", nullptr, kDevices},
    {kMs, "NegativeLogLikelihoodLossInternal", loss_internal},
    {kMs, "NegativeLogLikelihoodLossInternal2", loss_internal},
    {kMs, "PadAndUnflatten", pad_and_unflatten},
    {kMs, "PassThrough", pass_through},
    {kMs, "PythonOp", nullptr, kModule},
    {kMs, "PythonOpGrad", nullptr, kModule},
    {kMs, "QuickGelu", quick_gelu},
    {kMs, "QuickGeluGrad", quick_gelu_grad},
    {kMs, "RecordEvent", nullptr, kDevices},
    {kMs, "Recv", nullptr, kDevices},
    {kMs, "ReduceAllL2", all_l2},
    {kMs, "ReduceSumTraining", reduce_sum_training},
    {kMs, "ReluGrad", same_gradient},
    {kMs, "ResizeGrad", resize_grad},
    {kMs, "SGDOptimizer", nullptr, kTrainer},
    {kMs, "SGDOptimizerV2", nullptr, kTrainer},
    {kMs, "Scale", scale},
    {kMs, "ScaledSum", scaled_sum},
    {kMs, "Send", nullptr, kDevices},
    {kMs, "SigmoidGrad", same_gradient},
    {kMs, "SimplifiedLayerNormalizationGrad", simplified_layer_norm_grad},
    {kMs, "SliceGrad", slice_grad},
    {kMs, "SoftmaxCrossEntropy", softmax_cross_entropy},
    {kMs, "SoftmaxCrossEntropyGrad", softmax_cross_entropy_grad},
    {kMs, "SoftmaxCrossEntropyLossGrad", softmax_cross_entropy_loss_grad},
    {kMs, "SoftmaxCrossEntropyLossInternal", loss_internal},
    {kMs, "SoftmaxCrossEntropyLossInternalGrad", softmax_cross_entropy_loss_internal_grad},
    {kMs, "SoftmaxDropoutGrad", softmax_dropout_grad},
    {kMs, "SoftmaxGrad", softmax_grad},
    {kMs, "SoftmaxGrad_13", softmax_grad_13},
    {kMs, "SparseSoftmaxCrossEntropy", sparse_softmax_cross_entropy},
    {kMs, "SparseSoftmaxCrossEntropyGrad", sparse_softmax_cross_entropy_grad},
    {kMs, "SplitTraining", split_training},
    {kMs, "SummaryHistogram", nullptr, kSummary},
    {kMs, "SummaryMerge", nullptr, kSummary},
    {kMs, "SummaryScalar", nullptr, kSummary},
    {kMs, "SummaryText", nullptr, kSummary},
    {kMs, "TanhGrad", same_gradient},
    {kMs, "TransposeMatMul", fused_matmul},
    {kMs, "View", nullptr, kDevices},
    {kMs, "WaitEvent", nullptr, kDevices},
    {kMs, "YieldOp", nullptr, kModule},
    {kMs, "ZeroGradient", nullptr, kTrainer},
};

/// Gives name and uses of the node's results to `results`.
void replace_results(Builder& b, NodeId node, const Results& results, uint32_t made_from) {
  Graph& graph = b.graph();
  for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
    const ValueId output = graph.output(node, i);
    if (!output.valid() || !graph.has_uses(output)) continue;
    if (i >= results.size() || !results[i].valid()) {
      throw Error(ErrorCode::kUnsupported, "result " + std::to_string(i) + " is used")
          .at({{}, graph.node(node).name, graph.node(node).op})
          .expected("uses of the other results only", "\"" + graph.value(output).name + "\"");
    }
    // A value that was there before keeps its own name.
    const Value& value = graph.value(results[i].id);
    const bool own = value.kind == ValueKind::kResult && results[i].id.index >= made_from;
    const ValueId result = own ? results[i].id : b.op("Identity", {results[i]}).id;
    take_place(graph, output, result);
  }
}

}  // namespace
}  // namespace foreign

std::span<const ForeignOp> foreign_ops() { return foreign::kOps; }

const ForeignOp* find_foreign_op(const Node& node) {
  for (const ForeignOp& op : foreign::kOps) {
    if (op.domain == node.domain && op.name == node.op) return &op;
  }
  return nullptr;
}

void lift_foreign_op(Graph& graph, NodeId node, const InferNode& infer) {
  const ForeignOp* op = find_foreign_op(graph.node(node));
  if (op == nullptr || op->rule == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                op == nullptr ? "no foreign op" : std::string(op->refusal));
  }
  Builder b(graph, graph.before(node), infer);
  const std::string name = graph.label(node);
  b.set_role(graph.node(node).role);
  b.set_origin(graph.node(node).origin.empty() ? name : graph.node(node).origin.str());
  b.set_prefix(name + "/");
  LowerContext rule{b, node, {}, {}};
  for (ValueId input : graph.inputs(node)) rule.inputs.push_back(b.value(input));
  for (ValueId output : graph.outputs(node)) {
    rule.wanted.push_back(output.valid() && graph.has_uses(output));
  }
  const uint32_t made_from = graph.value_count();
  const foreign::Results results = op->rule(rule);
  foreign::replace_results(b, node, results, made_from);
  graph.remove(node);
}

}  // namespace halfnote
