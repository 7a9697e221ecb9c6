#include "runtime/core/evaluate.h"

#include "base/error.h"
#include "passes/canonical/infer_shapes.h"

namespace halfnote {
namespace {

/// A graph of just this node, its inputs constants, so that inference sees their values.
Graph isolate(const Graph& graph, NodeId node, const std::vector<Tensor>& inputs) {
  Graph alone;
  const Node& source = graph.node(node);
  if (!graph.subgraphs(node).empty()) {
    throw Error(ErrorCode::kUnsupported, "control flow cannot be evaluated")
        .at({.node = source.name, .op = source.op});
  }
  NodeSpec spec{source.op, {}, source.attributes, source.domain, source.name};
  for (const Tensor& input : inputs) {
    spec.inputs.push_back(input.defined() ? alone.add_initializer("in", input) : ValueId{});
  }
  std::vector<std::string> names;
  for (ValueId output : graph.outputs(node)) names.push_back(output.valid() ? "out" : "-");
  const NodeId copy = alone.create(std::move(spec), std::move(names), alone.end());
  infer_node(alone, copy);
  return alone;
}

Operand operand_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.dtype(), tensor.shape(), {}, &tensor};
}

}  // namespace

Error no_kernel(const KernelCall& call, const std::vector<Refusal>& refusals) {
  std::string operands;
  for (const Operand& input : call.inputs) {
    operands += operands.empty() ? "" : ", ";
    operands +=
        input.present() ? std::string(short_name(input.dtype)) + to_string(input.shape) : "-";
  }
  std::string reasons;
  for (const Refusal& refusal : refusals) {
    reasons += (reasons.empty() ? "" : "; ") + std::string(refusal.kernel) + ": " + refusal.reason;
  }
  if (reasons.empty()) reasons = "no kernel is registered for this op";
  const std::string op(call.op);
  return Error(ErrorCode::kUnsupported, "no kernel on this device (" + reasons + ")")
      .at({.op = call.domain.empty() ? op : std::string(call.domain) + "." + op})
      .expected("operands that a kernel takes", "(" + operands + ")")
      .hint("`halfnote ops` lists the kernels of every operator");
}

std::vector<Tensor> evaluate_node(const Graph& graph, NodeId node,
                                  const std::vector<Tensor>& inputs,
                                  const EvaluateOptions& options) {
  const Graph alone = isolate(graph, node, inputs);
  const NodeId copy = alone.first(alone.main());
  const Node& data = alone.node(copy);

  KernelCall call;
  call.domain = data.domain;
  call.op = data.op;
  call.attributes = &data.attributes;
  call.threads = options.threads;
  for (const Tensor& input : inputs) call.inputs.push_back(operand_of(input));
  std::vector<Tensor> results;
  for (ValueId output : alone.outputs(copy)) {
    if (!output.valid()) {
      call.outputs.emplace_back();
      results.emplace_back();
      continue;
    }
    const ValueType& type = alone.value(output).type;
    if (!type.has_concrete_shape()) {
      throw Error(ErrorCode::kUnsupported, "the shape of a result depends on data")
          .at({.node = data.name, .op = data.op})
          .expected("a shape that follows from the operands' shapes and constants",
                    to_string(type));
    }
    const Shape shape = concrete(*type.shape);
    call.outputs.push_back({type.dtype, shape, {}, nullptr});
    results.emplace_back(type.dtype, shape);
  }

  KernelChoice choice = cpu_kernels().choose(call, options.kernels);
  if (choice.kernel == nullptr) throw no_kernel(call, choice.refusals).within({.node = data.name});
  std::vector<const std::byte*> in;
  for (const Tensor& input : inputs) in.push_back(input.defined() ? input.bytes() : nullptr);
  std::vector<std::byte*> out;
  for (Tensor& result : results) out.push_back(result.defined() ? result.mutable_bytes() : nullptr);
  Tensor workspace(DType::kU8, {static_cast<int64_t>(choice.kernel->workspace_bytes())});
  choice.kernel->run({in, out, workspace.mutable_bytes()});
  return results;
}

std::vector<Tensor> evaluate(const Graph& graph, const std::vector<Tensor>& inputs,
                             const EvaluateOptions& options) {
  const auto formal = graph.inputs();
  if (formal.size() != inputs.size()) {
    throw Error(ErrorCode::kUsage, "wrong number of inputs")
        .expected(std::to_string(formal.size()), std::to_string(inputs.size()));
  }
  std::vector<Tensor> values(graph.value_count());
  for (size_t i = 0; i < inputs.size(); ++i) values[formal[i].index] = inputs[i];
  for (ValueId initializer : graph.initializers()) {
    values[initializer.index] = graph.value(initializer).tensor;
  }
  for (NodeId node : graph.nodes()) {
    std::vector<Tensor> operands;
    for (ValueId input : graph.inputs(node)) {
      operands.push_back(input.valid() ? values[input.index] : Tensor{});
    }
    std::vector<Tensor> results = evaluate_node(graph, node, operands, options);
    const auto outputs = graph.outputs(node);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].valid()) values[outputs[i].index] = std::move(results[i]);
    }
  }
  std::vector<Tensor> results;
  for (ValueId output : graph.outputs()) results.push_back(values[output.index]);
  return results;
}

}  // namespace halfnote
