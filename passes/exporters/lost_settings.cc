#include "passes/exporters/lost_settings.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/query.h"
#include "passes/exporters/module_names.h"
#include "passes/exporters/parameters.h"

namespace halfnote {
namespace {

/// `%y : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, 1), kwargs =
/// {})`
constexpr std::string_view kCallKey = "pkg.torch.onnx.fx_node";

struct TorchCall {
  std::string op;                      // `aten.add.Tensor`
  std::vector<std::string> arguments;  // by position
};

/// Splits at commas that stand in no brackets.
std::vector<std::string> split_arguments(std::string_view text) {
  std::vector<std::string> all;
  std::string one;
  int depth = 0;
  for (const char c : text) {
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (depth < 0) break;  // the end of them all
    if (c == ',' && depth == 0) {
      all.push_back(std::move(one));
      one.clear();
    } else if (c != ' ') {
      one += c;
    }
  }
  if (!one.empty()) all.push_back(std::move(one));
  return all;
}

TorchCall call_of(const Node& node) {
  static constexpr std::string_view kTarget = "target=torch.ops.", kArguments = "](args = (";
  const std::string_view text = metadata_of(node, kCallKey);
  const size_t target = text.find(kTarget), arguments = text.find(kArguments);
  if (target == std::string_view::npos || arguments == std::string_view::npos) return {};
  const size_t op = target + kTarget.size();
  if (op > arguments) return {};
  return {std::string(text.substr(op, arguments - op)),
          split_arguments(text.substr(arguments + kArguments.size()))};
}

/// Is the argument there, and another than those that change nothing?
bool says(const TorchCall& call, size_t argument, std::initializer_list<std::string_view> nothing) {
  return call.arguments.size() > argument &&
         std::ranges::find(nothing, call.arguments[argument]) == nothing.end();
}

/// Is it a mean by index, of which the file has the last value? One call may be two nodes, of which
/// the first one prepares what the second one writes into.
bool is_lost_mean(const Graph& graph, NodeId id, const TorchCall& call) {
  const Node& node = graph.node(id);
  if (call.op != "aten.scatter_reduce.two" || node.op != "ScatterElements") return false;
  if (call.arguments.size() < 5 || call.arguments[4] != "mean") return false;
  if (node.attributes.get_string("reduction", "none") != "none") return false;
  return std::ranges::none_of(graph.uses(graph.output(id)), [&](const Use& use) {
    return use.by_node() &&
           metadata_of(graph.node(use.node()), kCallKey) == metadata_of(node, kCallKey);
  });
}

/// The values among the arguments of a call, in lists too.
std::vector<std::string> values_of(const TorchCall& call) {
  static const RE2 kValue("(%[\\w.]+)");
  std::vector<std::string> values;
  for (const std::string& argument : call.arguments) {
    re2::StringPiece rest = argument;
    for (std::string value; RE2::FindAndConsume(&rest, kValue, &value);) values.push_back(value);
  }
  return values;
}

/// For each value of a graph: does it depend on what is trained? Of other values there is no
/// gradient to be cut off.
std::vector<bool> trained_values(const Graph& graph) {
  std::vector<bool> trained(graph.value_count(), false);
  for (const ValueId id : graph.initializers()) trained[id.index] = graph.value(id).trainable;
  for (const NodeId node : graph.all_nodes()) {
    const bool any = std::ranges::any_of(
        graph.inputs(node), [&](ValueId id) { return id.valid() && trained[id.index]; });
    for (const ValueId output : graph.outputs(node)) {
      if (output.valid() && any) trained[output.index] = true;
    }
  }
  return trained;
}

/// The op of the node whose operands are the values of the call, in their order; empty where the
/// order is another (rsub, addmm, masked_fill), or that is not known. Other nodes of such a call
/// are factors (alpha) and views.
std::string_view node_of_call(std::string_view call) {
  constexpr std::pair<std::string_view, std::string_view> kNodes[] = {
      {"aten.add.Tensor", "Add"},     {"aten.sub.Tensor", "Sub"},
      {"aten.mul.Tensor", "Mul"},     {"aten.div.Tensor", "Div"},
      {"aten.mm.default", "MatMul"},  {"aten.bmm.default", "MatMul"},
      {"aten.cat.default", "Concat"}, {"aten.matmul.default", "MatMul"}};
  for (const auto& [name, op] : kNodes) {
    if (name == call) return op;
  }
  return {};
}

/// Does the code cut a gradient off: at the node, or before what it reads? Where the operand is
/// known, that has to have a gradient.
bool is_detached(const Graph& graph, NodeId id, const TorchCall& call,
                 const std::vector<bool>& trained) {
  static const RE2 kDetached("%detach(_\\d+)?");
  const ValueId result = graph.output(id);
  if (!result.valid() || !trained[result.index]) return false;
  if (call.op == "aten.detach.default") return true;
  const std::string_view op = node_of_call(call.op);
  if (!op.empty() && graph.node(id).op != op) return false;
  const std::vector<std::string> values = values_of(call);
  const auto inputs = graph.inputs(id);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!RE2::FullMatch(values[i], kDetached)) continue;
    const bool known = !op.empty() && values.size() == inputs.size() && inputs[i].valid();
    if (!known || trained[inputs[i].index]) return true;
  }
  return false;
}

constexpr std::string_view kDetach =
    "the code cuts gradients off (detach), and the file does not: they flow on at ";
constexpr std::string_view kDetachWayOut =
    "--freeze REGEX leaves weights alone that are not to be trained; what else is cut off cannot "
    "be said in ONNX";

}  // namespace

void warn_of_lost_settings(const Model& model, PassContext& context) {
  std::map<std::string, std::vector<std::string>> found;  // what, then where
  const Graph& graph = model.graph;
  const std::vector<bool> trained = trained_values(graph);
  for (const NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    const TorchCall call = call_of(node);
    if (call.op.empty()) continue;
    const std::string label = graph.label(id);
    if (is_detached(graph, id, call, trained)) found["detach"].push_back(label);
    if (is_lost_mean(graph, id, call)) {
      context.warn(label,
                   "the code takes means (scatter_reduce), and the file keeps the last of the "
                   "values: ONNX has no such reduction; divide a sum by a count in the model");
    }
    // A call may have become several nodes: the one that ONNX has for it stands for all.
    if (call.op == "aten.cross_entropy_loss.default" && node.op == "SoftmaxCrossEntropyLoss" &&
        says(call, 5, {"0", "0.0"})) {
      context.warn(label, "the code smooths labels by " + call.arguments[5] +
                              ", and the file does not; export the scores, and compile with --loss "
                              "cross_entropy --label-smoothing " +
                              call.arguments[5]);
    }
    if (call.op == "aten.embedding.default" && node.op == "Gather" && says(call, 2, {"-1"})) {
      context.warn(label, "row " + call.arguments[2] +
                              " of the table is trained as all are: padding_idx, by which the "
                              "code leaves it alone, is not in the file");
    }
    if (call.op == "aten.avg_pool2d.default" && node.op == "AveragePool" &&
        says(call, 6, {"None"})) {
      context.warn(label, "the code divides by " + call.arguments[6] +
                              " (divisor_override), and the file by the size of the window; "
                              "multiply the result in the model");
    }
  }
  const std::vector<std::string>& detached = found["detach"];
  if (detached.empty()) return;
  context.warn(model.source,
               std::string(kDetach) + counted(detached) + "; " + std::string(kDetachWayOut));
}

}  // namespace halfnote
