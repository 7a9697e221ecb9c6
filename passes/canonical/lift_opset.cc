// lift_opset: any op-set -> op-set 23, on our IR.
//
//   op-set 12:  y = Squeeze <axes = [0]> (x)      ──▶  op-set 23:  y = Squeeze(x, {0})
//
// Exact: an op keeps its meaning. A table of rewrites (lift_rules.cc), each with the op-set that
// changed the op; ops newer than op-set 23 are expanded by their schema's function, or refused.
// Of op-sets below 7 only ops are read that did not change up to 7, or whose old form a rewrite
// knows. Everything that cannot be lifted is reported in one error, together with what else keeps
// the model from being trained, if it is to be. Leaves alone: ops whose
// meaning did not change, domains other than ONNX's.
#include <algorithm>

#include "base/error.h"
#include "base/text/printable.h"
#include "compiler/ir/hash.h"
#include "compiler/ir/verify.h"
#include "compiler/ir/walk.h"
#include "compiler/onnx/schema.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/expand_function.h"
#include "passes/canonical/lift_rules.h"
#include "passes/foreign/foreign_ops.h"
#include "passes/passes.h"
#include "passes/train/untrainable.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

int64_t default_opset(const Model& model) {
  const auto found = model.opsets.find("");
  return found == model.opsets.end() ? kOpsetVersion : found->second;
}

/// ONNX's op of this name; null if there is none.
const SchemaOp* find_schema_op(const std::string& name) {
  for (const SchemaOp& op : all_schema_ops()) {
    if (op.domain.empty() && op.name == name) return &op;
  }
  return nullptr;
}

/// Does a rule hold for the op in every op-set?
bool is_always_lifted(const Node& node) {
  return node.domain.empty() &&
         std::any_of(lift_rules().begin(), lift_rules().end(), [&](const LiftRule& rule) {
           return rule.changed_in == kAlways && rule.op == node.op;
         });
}

class Lifter {
 public:
  Lifter(Graph& graph, PassContext& context, int64_t from, UnsupportedOps& problems)
      : graph_(graph), context_(context), from_(from), problems_(problems) {}

  /// Says whether a node changed. What cannot be lifted is noted in the problems.
  bool run() {
    const std::vector<NodeId> nodes = graph_.all_nodes();
    const bool always = std::any_of(nodes.begin(), nodes.end(),
                                    [&](NodeId n) { return is_always_lifted(graph_.node(n)); });
    types_wanted_ =
        from_ != kOpsetVersion || always || std::any_of(nodes.begin(), nodes.end(), [&](NodeId n) {
          return find_foreign_op(graph_.node(n)) != nullptr;
        });
    const uint64_t before = always ? content_hash(graph_) : 0;
    for (NodeId node : nodes) {
      if (!graph_.node(node).alive) continue;
      if (find_foreign_op(graph_.node(node)) != nullptr) {
        lift_foreign(node);
        continue;
      }
      if (!graph_.node(node).domain.empty()) {
        check_domain(node);
        if (types_wanted_) try_infer_ours(node);
        continue;
      }
      if (types_wanted_) try_infer(node);
      lift(node);
      if (types_wanted_ && graph_.node(node).alive) infer_newer(node);
    }
    return changed_ || (always && content_hash(graph_) != before);
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

  /// The same for an op of another domain whose row knows its types.
  void try_infer_ours(NodeId node) {
    try {
      context_.infer(graph_, node);
    } catch (const Error&) {
      return;
    }
  }

  /// Are sizes of its result open?
  bool is_open(NodeId node) const {
    const ValueId output = graph_.output(node);
    if (!output.valid() || !graph_.value(output).type.shape) return false;
    const SymbolicShape& shape = *graph_.value(output).type.shape;
    return std::any_of(shape.begin(), shape.end(),
                       [](const Dim& dim) { return !dim.known() && dim.symbol.empty(); });
  }

  /// Ops that a runtime had in ONNX's domain before ONNX did (LayerNormalization below op-set 17),
  /// and those that an older op-set leaves open.
  void infer_newer(NodeId node) {
    if (graph_.node(node).op.empty()) return;
    if (has_schema("", graph_.node(node).op, from_) && !is_open(node)) return;
    try {
      context_.infer(graph_, node);
    } catch (const Error&) {
      return;
    }
  }

  void lift_foreign(NodeId node) {
    try {
      lift_foreign_op(graph_, node, context_.infer);
      changed_ = true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      problem(node,
              error.problem() + (error.hint_text().empty() ? "" : " (" + error.hint_text() + ")"));
    }
  }

  void problem(NodeId node, const std::string& why) { problems_.add(graph_, node, why); }

  void check_domain(NodeId node) {
    if (find_operator(graph_.node(node)) != nullptr) return;
    problem(node, "unknown operator of domain " + printable(graph_.node(node).domain));
  }

  /// Did the op change between the model's op-set and op-set 7, in a way that no rewrite knows?
  bool is_too_old(NodeId node) const {
    if (from_ >= kMinOpset) return false;
    const std::string& name = graph_.node(node).op;
    for (const LiftRule& rule : lift_rules()) {
      if (rule.op == name && rule.changed_in == kMinOpset) return false;
    }
    const SchemaOp* op = find_schema_op(name);
    const SchemaVersion* then = op == nullptr ? nullptr : op->in(from_);
    const SchemaVersion* later = op == nullptr ? nullptr : op->in(kMinOpset);
    return then != nullptr && later != nullptr && then->since != later->since;
  }

  /// Applies the rules of the op; false where one refuses, which is noted.
  bool apply_rules(NodeId node) {
    for (const LiftRule& rule : lift_rules()) {
      if (rule.op != graph_.node(node).op || from_ >= rule.changed_in) continue;
      Builder b(graph_, graph_.before(node), context_.infer);
      try {
        rule.apply({graph_, b, node, from_});
      } catch (Error& error) {
        if (error.code() != ErrorCode::kUnsupported) {
          throw error.within({.node = graph_.label(node), .op = graph_.node(node).op});
        }
        problem(node, error.problem() +
                          (error.hint_text().empty() ? "" : " (" + error.hint_text() + ")"));
        return false;
      }
      changed_ |= rule.changed_in != kAlways;  // `run` sees whether that one did anything
    }
    return true;
  }

  void lift(NodeId node) {
    if (is_too_old(node)) {
      problem(node, "a form older than op-set 7");
      return;
    }
    if (!apply_rules(node)) return;
    if (!graph_.node(node).alive) return;
    const std::string op = graph_.node(node).op;
    if (has_schema("", op, kOpsetVersion) && (from_ <= kOpsetVersion || fits(node))) return;
    if (from_ > kOpsetVersion && expand_function(graph_, node, from_)) {
      changed_ = true;
      return;
    }
    problem(node, find_operator("", op) == nullptr ? "unknown operator" : "no form in op-set 23");
  }

  /// Does a node of a newer op-set use only what the op has in op-set 23 already?
  bool fits(NodeId node) const {
    const SchemaOp* op = find_schema_op(graph_.node(node).op);
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
  UnsupportedOps& problems_;
  bool types_wanted_ = false;  // by rewrites of older op-sets or of every one, and of foreign ops
  bool changed_ = false;
};

/// Types of results that are the same whatever the operands are: indices, masks.
void set_fixed_types(Graph& graph, NodeId node) {
  const SchemaOp* op = find_schema_op(graph.node(node).op);
  const SchemaVersion* version = op == nullptr ? nullptr : op->in(kOpsetVersion);
  const auto outputs = graph.outputs(node);
  for (size_t i = 0; version != nullptr && i < std::min(outputs.size(), version->outputs.size());
       ++i) {
    const std::vector<DType>& types = version->outputs[i].dtypes;
    if (!outputs[i].valid() || types.size() != 1) continue;
    ValueType& type = graph.value(outputs[i]).type;
    if (type.kind == TypeKind::kUnknown) type = ValueType::tensor(types.front());
  }
}

/// What else keeps the model from being trained, for the same error. The model is not used any
/// more: types are inferred as far as they can be.
Untrainable rest_of(Model& model, PassContext& context, const UnsupportedOps& problems) {
  if (context.options.inference_only || model.is_training()) return {};
  Graph& graph = model.graph;
  for (NodeId node : graph.nodes()) {
    try {
      context.infer(graph, node);
    } catch (const Error&) {  // its results may stay of unknown type
    }
    set_fixed_types(graph, node);
  }
  try {
    choose_trainable(model, context);
  } catch (const Error&) {
    return {};  // a wrong --trainable is told when the ops are known
  }
  const std::vector<ValueId> ends = results_to_train(graph, context);
  return find_untrainable(graph, Progress::kRaw, ends, problems, context);
}

[[noreturn]] void refuse(const UnsupportedOps& problems, const Untrainable& rest) {
  const auto number = [](int64_t opset) { return std::to_string(opset); };
  refuse_all(problems.ops_text() + " cannot be imported",
             "export with standard ONNX ops; op-sets " + number(kMinOpset) + " to " +
                 number(kOpsetVersion) + " are read in full, others from 1 to " +
                 number(newest_opset("")) +
                 " where an op kept its form or is a function of older ops",
             problems, rest);
}

}  // namespace

bool lift_opset(Model& model, PassContext& context) {
  const int64_t from = default_opset(model);
  UnsupportedOps problems;
  bool changed = false;
  const auto lift = [&](Graph& graph) { changed |= Lifter(graph, context, from, problems).run(); };
  for_each_graph(model, lift);
  for (TrainingStep& step : model.training) {
    lift(step.initialization);
    check_state_types(step.graph);
  }
  if (!problems.empty()) {
    refuse(problems, rest_of(model, context, problems));
  }
  model.opsets[""] = kOpsetVersion;
  model.ir_version = kIrVersion;
  return changed || from != kOpsetVersion;
}

}  // namespace halfnote
