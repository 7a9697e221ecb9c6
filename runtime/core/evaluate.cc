// One node at a time: a dynamic op, a kernel, or the op's function body.
#include "runtime/core/evaluate.h"

#include <optional>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "kernels/dynamic.h"
#include "passes/canonical/expand_function.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_ops.h"
#include "runtime/core/interpret/interpreter.h"

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
  alone.create(std::move(spec), std::move(names), alone.end());
  return alone;
}

/// The results of an op that runs outside of the kernels; nothing if it is not such an op.
std::optional<std::vector<Tensor>> run_dynamic(const Graph& graph, NodeId node,
                                               const std::vector<Tensor>& inputs) {
  const Node& data = graph.node(node);
  const DynamicCall call{data.domain, data.op, data.attributes, inputs, graph.outputs(node).size()};
  const DynamicRow* row = find_dynamic(call);
  if (row == nullptr) return std::nullopt;
  return row->run(call);
}

/// An op without kernels may be written in ops that have some: by the rule that a step is compiled
/// with, or else by ONNX's function body (that of AffineGrid is wrong for one picture). `alone`
/// holds just the node.
std::optional<std::vector<Tensor>> run_body(Graph& alone, NodeId node,
                                            const EvaluateOptions& options) {
  const Node& data = alone.node(node);
  if (!cpu_kernels().rows_of(data.domain, data.op).empty()) return std::nullopt;
  for (ValueId output : alone.outputs(node)) {
    if (output.valid()) alone.add_output(alone.main(), output);
  }
  const std::vector<ValueId> named(alone.outputs(node).begin(), alone.outputs(node).end());
  UnsupportedOps refused;
  const bool lowered = lower_graph(alone, infer_node, refused);
  if (!lowered && !expand_function(alone, node, kOpsetVersion)) return std::nullopt;
  std::vector<Datum> results = Interpreter(alone, options).run({});
  std::vector<Tensor> tensors;
  size_t next = 0;
  for (ValueId output : named)
    tensors.push_back(output.valid() ? std::move(results[next++].tensor) : Tensor{});
  return tensors;
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
      .hint("`halfnote ops --device DEVICE` lists the kernels of every operator");
}

Error no_kernels(const std::vector<Error>& failures) {
  if (failures.size() == 1) return failures.front();
  std::string list;
  for (const Error& failure : failures)
    list += std::string(list.empty() ? "" : "\n  ") + failure.what();
  return Error(ErrorCode::kUnsupported, std::to_string(failures.size()) +
                                            " nodes have no kernel on this device:\n  " + list);
}

std::vector<Tensor> evaluate_node(const Graph& graph, NodeId node,
                                  const std::vector<Tensor>& inputs,
                                  const EvaluateOptions& options) {
  if (auto results = run_dynamic(graph, node, inputs)) return std::move(*results);
  Graph alone = isolate(graph, node, inputs);
  const NodeId copy = alone.first(alone.main());
  infer_node(alone, copy);
  if (auto results = run_body(alone, copy, options)) return std::move(*results);
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
  std::vector<Tensor> results;
  for (Datum& result :
       Interpreter(graph, options).run(std::vector<Datum>(inputs.begin(), inputs.end()))) {
    if (!result.is_tensor()) {
      throw Error(ErrorCode::kUnsupported, "an output is a container")
          .hint("the interpreter gives sequences and optional values");
    }
    results.push_back(std::move(result.tensor));
  }
  return results;
}

}  // namespace halfnote
