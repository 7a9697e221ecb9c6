// lower-ops: writes composite ops in simpler ones, by the lowering of their operator rows.
//
//   y = Einsum <equation = "ij,jk"> (a, b)   ──▶   y = MatMul(a, b)
//
// Exact as far as the op's definition is: the same sums, in f32 accumulation. Gradients, precision
// and kernels are then those of the simpler ops. New nodes bear the old node's name as prefix and
// as origin, so that name patterns of a policy still find them. Leaves alone: ops without a
// lowering, calls that a rule leaves alone because a kernel does them better.
#include "passes/canonical/lower_ops.h"

#include <set>

#include "base/error.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"
#include "passes/train/untrainable.h"

namespace halfnote {
namespace {

constexpr int kMaxLoweringDepth = 8;  // a lowering that lowers to itself is a bug

enum class Rewrite : uint8_t { kLowering, kBody };

class Lowering {
 public:
  Lowering(Graph& graph, const InferNode& infer, Rewrite form, UnsupportedOps* refused = nullptr)
      : graph_(graph), infer_(infer), form_(form), refused_(refused) {}

  bool run() {
    for (NodeId node : graph_.all_nodes()) {
      if (!graph_.node(node).alive) continue;
      if (retyped_) infer_(graph_, node);
      visit(node, 0);
    }
    return changed_;
  }

  void visit(NodeId node) { visit(node, 0); }

 private:
  bool has_form(const OperatorRow& row) const {
    if (form_ == Rewrite::kLowering) return row.lower != nullptr;
    return row.gradient == nullptr && row.body != nullptr;
  }

  std::string name_of(NodeId node) const {
    const std::string& name = graph_.node(node).name;
    if (!name.empty()) return name;
    for (ValueId output : graph_.outputs(node)) {
      if (output.valid()) return graph_.value(output).name;
    }
    return graph_.node(node).op;
  }

  void visit(NodeId node, int depth) {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || !has_form(*row) || depth >= kMaxLoweringDepth) return;
    const Place place{{}, graph_.node(node).name, graph_.node(node).op};
    const std::string name = name_of(node);
    const NodeId before = graph_.prev(node);
    try {
      const std::vector<Expr> results = lower(node, *row, name);
      if (results.empty()) return;
      replace(node, results);
    } catch (Error& error) {
      if (refused_ == nullptr || error.code() != ErrorCode::kUnsupported) throw error.within(place);
      note(node, error, before);
      return;
    }
    changed_ = true;
    const std::vector<NodeId> made = made_between(before, node);
    if (row->precision == PrecisionClass::kFp32) mark(made, *row);
    mark_places(node, made, *row);
    for (NodeId inner : made) visit(inner, depth + 1);
    graph_.remove(node);
  }

  /// Notes why a rule refuses, and takes out what it had made by then.
  void note(NodeId node, const Error& error, NodeId before) {
    std::string instead = error.expectation();
    const std::string& hint = error.hint_text();
    if (!hint.empty()) instead += instead.empty() ? hint : " (" + hint + ")";
    refused_->add(graph_, node, error.problem(), std::move(instead));
    std::vector<NodeId> made = made_between(before, node);
    for (auto part = made.rbegin(); part != made.rend(); ++part) graph_.remove(*part);
  }

  /// The parts of an op of class fp32 have that class, whatever their own is.
  void mark(const std::vector<NodeId>& nodes, const OperatorRow& row) {
    for (NodeId node : nodes) {
      graph_.node(node).metadata.emplace_back(std::string(kLoweredFromKey), std::string(row.name));
    }
  }

  /// The parts that read places tell so, as the op's row did.
  void mark_places(NodeId node, const std::vector<NodeId>& made, const OperatorRow& row) {
    const auto inputs = graph_.inputs(node);
    for (size_t slot = 0; slot < inputs.size() && slot < 32; ++slot) {
      if ((row.place_inputs >> slot & 1u) == 0 || !inputs[slot].valid()) continue;
      for (NodeId part : made) {
        for (size_t i = 0; i < graph_.inputs(part).size(); ++i) {
          if (graph_.input(part, i) != inputs[slot]) continue;
          graph_.node(part).metadata.emplace_back(std::string(kReadsPlacesKey), std::to_string(i));
        }
      }
    }
  }

  std::vector<NodeId> made_between(NodeId before, NodeId node) const {
    std::vector<NodeId> made;
    NodeId at = before.valid() ? graph_.next(before) : graph_.first(graph_.node(node).region);
    for (; at.valid() && at != node; at = graph_.next(at)) made.push_back(at);
    return made;
  }

  std::vector<Expr> lower(NodeId node, const OperatorRow& row, const std::string& name) {
    Builder b(graph_, graph_.before(node), infer_);
    b.set_role(graph_.node(node).role);
    b.set_origin(name);
    b.set_prefix(name + "/");
    if (form_ == Rewrite::kBody) return body_of(node, row, b);
    LowerContext rule{b, node, {}, {}};
    for (ValueId input : graph_.inputs(node)) rule.inputs.push_back(b.value(input));
    for (ValueId output : graph_.outputs(node)) {
      rule.wanted.push_back(output.valid() && graph_.has_uses(output));
    }
    return row.lower(rule);
  }

  std::vector<Expr> body_of(NodeId node, const OperatorRow& row, Builder& b) const {
    const Attributes attributes = graph_.node(node).attributes;  // new nodes move the node's own
    BodyContext call{b, attributes, {}, {}};
    for (ValueId input : graph_.inputs(node)) call.inputs.push_back(b.value(input));
    for (ValueId output : graph_.outputs(node)) {
      call.output_types.push_back(output.valid() ? graph_.value(output).type : ValueType{});
    }
    return row.body(call);
  }

  /// Gives names, types and uses of the node's results to `results`.
  void replace(NodeId node, const std::vector<Expr>& results) {
    Builder b(graph_, graph_.before(node), infer_);
    b.set_role(graph_.node(node).role);
    std::set<ValueId> given;
    for (size_t i = 0; i < graph_.outputs(node).size(); ++i) {
      const ValueId output = graph_.output(node, i);
      if (!output.valid() || !graph_.has_uses(output)) continue;
      if (i >= results.size() || !results[i].valid()) {
        throw Error(ErrorCode::kUnsupported,
                    "result " + std::to_string(i) + " has no form in simpler ops");
      }
      // An operand that is passed through keeps its own name, as what two results share does.
      const bool own = graph_.value(results[i].id).kind == ValueKind::kResult &&
                       graph_.value(results[i].id).name.starts_with(name_of(node) + "/") &&
                       given.insert(results[i].id).second;
      const ValueId result = own ? results[i].id : b.op("Identity", {results[i]}).id;
      refine(result, graph_.value(output).type);
      retyped_ |= tells_more(graph_.value(result).type, graph_.value(output).type);
      take_place(graph_, output, result);
    }
  }

  /// Has `type` a rank, or a number for a dim, that `other` leaves open? The parts of an op may be
  /// inferred where ONNX does not infer the op.
  static bool tells_more(const ValueType& type, const ValueType& other) {
    if (!type.shape || !other.shape || type.rank() != other.rank()) {
      return type.shape.has_value() && !other.shape.has_value();
    }
    for (size_t i = 0; i < type.shape->size(); ++i) {
      if ((*type.shape)[i].known() && !(*other.shape)[i].known()) return true;
    }
    return false;
  }

  /// What was declared of a dim that is still open holds on.
  void refine(ValueId result, const ValueType& declared) {
    ValueType& type = graph_.value(result).type;
    if (!type.shape || !declared.shape || type.rank() != declared.rank()) return;
    for (size_t i = 0; i < type.shape->size(); ++i) {
      Dim& dim = (*type.shape)[i];
      if (!dim.known() && dim.symbol.empty()) dim = (*declared.shape)[i];
    }
  }

  Graph& graph_;
  const InferNode& infer_;
  Rewrite form_;
  UnsupportedOps* refused_;  // null: a rule that refuses is an error
  bool changed_ = false;
  bool retyped_ = false;  // a result is better known than what was inferred from it
};

}  // namespace

bool lower_graph(Graph& graph, const InferNode& infer) {
  return Lowering(graph, infer, Rewrite::kLowering).run();
}

void write_out_bodies(Graph& graph, const InferNode& infer, std::span<const NodeId> nodes) {
  Lowering writing(graph, infer, Rewrite::kBody);
  for (NodeId node : nodes) writing.visit(node);
}

bool lower_graph(Graph& graph, const InferNode& infer, UnsupportedOps& refused) {
  return Lowering(graph, infer, Rewrite::kLowering, &refused).run();
}

bool lower_ops(Graph& graph, PassContext& context) {
  UnsupportedOps refused;
  const bool changed = lower_graph(graph, context.infer, refused);
  if (refused.empty()) return changed;
  const std::string what = refused.ops_text() + " cannot be written in simpler ops";
  const std::vector<ValueId> ends = results_to_train(graph, context);
  refuse_all(what, "", refused, find_untrainable(graph, Progress::kRaw, ends, refused, context));
}

}  // namespace halfnote
