// lift_opset: any op-set from 7 on -> op-set 23, on our IR.
//
//   op-set 12:  y = Squeeze <axes = [0]> (x)      ──▶  op-set 23:  y = Squeeze(x, {0})
//
// Exact: an op keeps its meaning. A table of rewrites (lift_rules.cc), each with the op-set that
// changed the op; ops newer than op-set 23 are expanded by their schema's function, or refused.
// Everything that cannot be lifted is reported in one error. Leaves alone: ops whose meaning did
// not change, domains other than ONNX's.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "compiler/onnx/schema.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/lift_rules.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

int64_t default_opset(const Model& model) {
  const auto found = model.opsets.find("");
  return found == model.opsets.end() ? kOpsetVersion : found->second;
}

/// The value that an attribute of a function body takes from the call, or by default.
std::optional<Attribute> resolved(const Function& function, const Attributes& given,
                                  const AttributeReference& reference) {
  if (const Attribute* attribute = given.find(reference.name)) return *attribute;
  for (const auto& [name, value] : function.default_attributes) {
    if (name == reference.name) return value;
  }
  return std::nullopt;
}

/// Expands a node newer than op-set 23 by its schema's function. False if it has none.
bool expand_newer(Graph& graph, NodeId node, int64_t opset) {
  const auto body = schema_function_body(graph, node, opset);
  if (!body) return false;
  ValueMap values;
  const auto formal = body->body.inputs();
  for (size_t i = 0; i < formal.size(); ++i) values[formal[i]] = graph.input(node, i);
  CloneOptions options;
  options.prefix = graph.node(node).name + "/";
  options.resolve = [&](const AttributeReference& reference) {
    return resolved(*body, graph.node(node).attributes, reference);
  };
  const std::vector<ValueId> results =
      clone_into(graph, graph.before(node), body->body, values, options);
  for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
    const ValueId output = graph.output(node, i);
    if (!output.valid()) continue;
    const std::string name = graph.value(output).name;
    graph.rename(output, graph.unique_name(name + ".lifted"));
    graph.replace_uses(output, results[i]);
    graph.rename(results[i], name);
  }
  graph.remove(node);
  return true;
}

class Lifter {
 public:
  Lifter(Graph& graph, PassContext& context, int64_t from)
      : graph_(graph), context_(context), from_(from) {}

  /// Says whether a node changed.
  bool run() {
    for (NodeId node : graph_.all_nodes()) {
      if (!graph_.node(node).alive) continue;
      if (!graph_.node(node).domain.empty()) {
        check_domain(node);
        continue;
      }
      if (from_ != kOpsetVersion) try_infer(node);
      lift(node);
    }
    if (problems_.empty()) return changed_;
    std::string list;
    for (const auto& [op, where] : problems_) list += (list.empty() ? "" : "; ") + op + where;
    throw Error(ErrorCode::kUnsupported,
                std::to_string(problems_.size()) + " op(s) cannot be imported: " + list)
        .hint("export with op-set 23 or lower, and standard ONNX ops");
  }

 private:
  /// Some rewrites read types; a failure shows again, with a better message, in infer-shapes.
  void try_infer(NodeId node) {
    try {
      infer_with_schema(graph_, node, from_);
    } catch (const Error&) {
      return;
    }
  }

  void problem(NodeId node, const std::string& why) {
    const Node& data = graph_.node(node);
    const std::string op = data.domain.empty() ? data.op : data.domain + "." + data.op;
    std::string& text = problems_[op];
    const std::string name = data.name.empty() ? graph_.value(graph_.output(node)).name : data.name;
    if (text.empty())
      text = " (op-set " + std::to_string(from_) + ", " + why + "): node " + name;
    else if (text.size() < 400)
      text += ", " + name;
  }

  void check_domain(NodeId node) {
    if (find_operator(graph_.node(node)) != nullptr) return;
    problem(node, "unknown operator of domain " + graph_.node(node).domain);
  }

  void lift(NodeId node) {
    for (const LiftRule& rule : lift_rules()) {
      if (rule.op != graph_.node(node).op || from_ >= rule.changed_in) continue;
      Builder b(graph_, graph_.before(node), context_.infer);
      rule.apply({graph_, b, node, from_});
      changed_ = true;
      if (!graph_.node(node).alive) return;
    }
    const std::string op = graph_.node(node).op;
    if (has_schema("", op, kOpsetVersion) && (from_ <= kOpsetVersion || fits(node))) return;
    if (from_ > kOpsetVersion && expand_newer(graph_, node, from_)) {
      changed_ = true;
      return;
    }
    problem(node, find_operator("", op) == nullptr ? "unknown operator" : "no form in op-set 23");
  }

  /// Does a node of a newer op-set use only what the op has in op-set 23 already?
  bool fits(NodeId node) const {
    const SchemaOp* op = nullptr;
    for (const SchemaOp& candidate : all_schema_ops()) {
      if (candidate.domain.empty() && candidate.name == graph_.node(node).op) op = &candidate;
    }
    const SchemaVersion* now = op->in(from_);
    const SchemaVersion* then = op->in(kOpsetVersion);
    if (now == nullptr || now->since <= kOpsetVersion) return now != nullptr;
    for (const auto& [name, value] : graph_.node(node).attributes) {
      const auto has = [&name = name](const SchemaAttribute& a) { return a.name == name; };
      if (std::none_of(then->attributes.begin(), then->attributes.end(), has)) return false;
    }
    const bool variadic =
        !then->inputs.empty() && then->inputs.back().option == ParameterOption::kVariadic;
    return variadic || graph_.inputs(node).size() <= then->inputs.size();
  }

  Graph& graph_;
  PassContext& context_;
  const int64_t from_;
  bool changed_ = false;
  std::map<std::string, std::string> problems_;
};

}  // namespace

bool lift_opset(Model& model, PassContext& context) {
  const int64_t from = default_opset(model);
  if (from < kMinOpset) {
    throw Error(ErrorCode::kUnsupported, "the model's op-set is too old")
        .expected("op-set " + std::to_string(kMinOpset) + " or newer", std::to_string(from))
        .hint("export the model again with a newer op-set");
  }
  // Our own artifacts are op-set 23 and hold training steps; there is nothing to lift in them.
  if (from == kOpsetVersion && model.is_training()) return false;
  const bool changed = Lifter(model.graph, context, from).run();
  model.opsets[""] = kOpsetVersion;
  model.ir_version = kIrVersion;
  return changed || from != kOpsetVersion;
}

}  // namespace halfnote
