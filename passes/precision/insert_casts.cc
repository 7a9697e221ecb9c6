// insert_casts: rewrites the graph to the decisions of assign_precision.
//
//   y = Conv(x, w)   [bf16]            x1 = Cast <bf16> (x)   w1 = Cast <bf16> (w)
//   z = Softmax(y)   [f32]      ──▶    y  = Conv(x1, w1)      y1 = Cast <f32> (y)
//                                      z  = Softmax(y1)
//
// Rounding: every cast to 16 bits rounds once, and stands in the graph. One shared cast per value
// and type, right behind the value (for weights and inputs: before the first reader). Slots that an
// op keeps in f32 get f32. An op that may write f32 from 16-bit operands (weight gradients) does so
// when all its readers want f32. A comparison in a gradient takes the rounded operands of its
// forward node (Equal of x and Max(x, y)). Graph outputs, states, and what goes in and out of
// bodies keep their type; the cast of a capture stands outside of the body. Leaves alone: nodes
// without a decision (they get back the type they had). An InstanceNormalization in 16 bits becomes
// the GroupNormalization that is the same (group_form.h).
#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"
#include "passes/precision/group_form.h"
#include "passes/precision/keep_dims.h"

namespace halfnote {
namespace {

class Inserter {
 public:
  Inserter(Graph& graph, PassContext& context)
      : graph_(graph), context_(context), low_(context.options.policy.dtype) {}

  bool run() {
    const std::vector<NodeId> nodes = graph_.nodes();
    bool any = false;
    for (NodeId id : graph_.all_nodes()) any |= graph_.node(id).precision.dtype == low_;
    if (!any) return false;
    original_.resize(graph_.value_count());
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      original_[i] = graph_.value(ValueId{i}).type.dtype;
    }
    // A body of a gradient makes anew what the forward body made: there too.
    for (NodeId id : graph_.all_nodes()) {
      const Node& node = graph_.node(id);
      if (node.role == Role::kForward || node.region != graph_.main()) {
        forward_.emplace(graph_.label(id), id);
      }
    }
    for (NodeId id : nodes) rewrite(id);
    restore_borders();
    return changed_;
  }

 private:
  /// The type an operand must have: f32 operands follow the node's decision, others stay what they
  /// were.
  DType wanted(NodeId id, size_t slot, ValueId value) const {
    const DType before = original_[value.index];
    const Node& node = graph_.node(id);
    if (before != DType::kF32 || node.precision.dtype != low_) return before;
    const OperatorRow* row = find_operator(node);
    const bool fixed = slot < 32 && (row->fp32_inputs >> slot & 1u) != 0;
    return fixed ? before : low_;
  }

  /// A node without a decision that only moves, compares or measures (Shape, ArgMax, Equal) takes
  /// 16-bit operands as they are, if all its float operands are: a cast up would tell it nothing.
  bool takes_low(NodeId id) const {
    const Node& node = graph_.node(id);
    const OperatorRow* row = find_operator(node);
    if (node.precision.dtype != DType::kUndefined || row == nullptr) return false;
    if (row->precision != PrecisionClass::kClear) return false;
    const int since = low_ == DType::kF16 ? row->legality.f16 : row->legality.bf16;
    if (since == 0 || since > kOpsetVersion) return false;
    for (ValueId input : graph_.inputs(id)) {
      if (!input.valid() || !is_float(graph_.value(input).type.dtype)) continue;
      if (graph_.value(input).type.dtype != low_) return false;
    }
    return true;
  }

  /// A comparison in a gradient sees what the forward node saw: an element is found in the maximum
  /// of rounded ones only if it is rounded as well.
  void compare_rounded(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.role != Role::kBackward || node.precision.dtype != DType::kUndefined) return;
    const auto forward = forward_.find(node.origin);
    if (forward == forward_.end()) return;
    const auto read = graph_.inputs(forward->second);
    const std::vector<ValueId> before(graph_.inputs(id).begin(), graph_.inputs(id).end());
    bool rounds = false;
    for (size_t i = 0; i < before.size(); ++i) {
      const auto cast = casts_.find({before[i], low_});
      if (cast == casts_.end() || std::find(read.begin(), read.end(), cast->second) == read.end())
        continue;
      graph_.set_input(id, i, cast->second);
      rounds = true;
    }
    if (!rounds) return;
    // The other side is what the forward node gave, however far it was moved in f32: exact.
    for (size_t i = 0; i < before.size(); ++i) {
      const ValueId other = graph_.input(id, i);
      if (other.valid() && graph_.value(other).type.dtype == DType::kF32) {
        graph_.set_input(id, i, as(other, low_, id));
      }
    }
    const bool whole = takes_low(id);
    changed_ |= whole;
    for (size_t i = 0; i < before.size() && !whole; ++i) graph_.set_input(id, i, before[i]);
  }

  /// Casts have a decision only if they were inserted here, in an earlier run.
  bool is_inserted(NodeId id) const {
    const Node& node = graph_.node(id);
    return is_cast(node) && node.precision.dtype != DType::kUndefined;
  }

  void rewrite(NodeId id) {
    compare_rounded(id);
    if (takes_low(id) || is_inserted(id)) return;
    if (graph_.node(id).precision.dtype == low_ && has_group_form(graph_, id))
      take_group_form(graph_, id);
    const std::vector<ValueId> inputs(graph_.inputs(id).begin(), graph_.inputs(id).end());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].valid() || inputs[i].index >= original_.size()) continue;
      set_input(id, i, as(inputs[i], wanted(id, i, inputs[i]), id));
    }
    for (RegionId region : graph_.subgraphs(id)) rewrite_body(region);
    if (graph_.node(id).precision.dtype == low_) widen_result(id);
    retype(id);
  }

  void set_input(NodeId id, size_t slot, ValueId value) {
    if (graph_.input(id, slot) == value) return;
    graph_.set_input(id, slot, value);
    changed_ = true;
  }

  /// Infers the results afresh; dims that inference does not know are kept from before.
  void retype(NodeId id) {
    std::vector<ValueType> before;
    for (ValueId output : graph_.outputs(id)) {
      before.push_back(output.valid() ? graph_.value(output).type : ValueType{});
      if (output.valid()) graph_.value(output).type = {};
    }
    context_.infer(graph_, id);
    for (size_t i = 0; i < before.size(); ++i) {
      if (graph_.output(id, i).valid()) keep_dims(graph_.value(graph_.output(id, i)), before[i]);
    }
    for (size_t i = 0; i < before.size(); ++i) {
      const ValueId output = graph_.output(id, i);
      changed_ |= output.valid() && !(graph_.value(output).type == before[i]);
    }
  }

  /// A contraction whose readers all want f32 writes f32 itself.
  void widen_result(NodeId id) {
    const OperatorRow* row = find_operator(graph_.node(id));
    if (row == nullptr || !row->has_out_dtype) return;
    if (graph_.node(id).attributes.has("out_dtype")) return;  // by the model, or an earlier run
    for (size_t i = 0; i < graph_.outputs(id).size() && i < 32; ++i) {
      const ValueId output = graph_.output(id, i);
      if ((row->wide_outputs >> i & 1u) == 0 || !output.valid()) continue;
      for (const Use& use : graph_.uses(output)) {
        if (use.by_node() && wanted(use.node(), use.slot, output) == low_) return;
      }
    }
    graph_.node(id).attributes.set("out_dtype", static_cast<int64_t>(DType::kF32));
    SharedText& reason = graph_.node(id).precision.reason;
    reason = reason + ", result kept in f32";
  }

  /// `value` in type `dtype`: itself, or its shared cast.
  ValueId as(ValueId value, DType dtype, NodeId reader) {
    if (graph_.value(value).type.dtype == dtype) return value;
    auto [found, is_new] = casts_.try_emplace({value, dtype}, ValueId{});
    if (!is_new) return found->second;
    const NodeId producer = graph_.value(value).producer;
    const InsertPoint at =
        producer.valid() ? graph_.after(producer) : graph_.before(first_reader(value, reader));
    Builder b(graph_, at, context_.infer);
    b.set_role(producer.valid() ? graph_.node(producer).role : Role::kForward);
    b.set_origin(producer.valid() ? graph_.node(producer).name : graph_.value(value).name);
    b.set_prefix(graph_.value(value).name + ".");
    const Expr cast = b.op("Cast", {b.value(value)}, {{"to", static_cast<int64_t>(dtype)}});
    const NodeId node = b.last();
    graph_.node(node).precision = {dtype,
                                   "cast inserted: readers want " + std::string(short_name(dtype))};
    graph_.rename(cast.id, graph_.unique_name(graph_.value(value).name + "." +
                                              std::string(short_name(dtype))));
    graph_.node(node).name = graph_.value(cast.id).name;
    return found->second = cast.id;
  }

  /// The node itself, or the one around it that stands in `region`.
  NodeId in_region(NodeId node, RegionId region) const {
    while (node.valid() && graph_.node(node).region != region) {
      node = graph_.region_owner(graph_.node(node).region);
    }
    return node;
  }

  NodeId first_reader(ValueId value, NodeId reader) const {
    const RegionId home = graph_.value(value).region;
    NodeId first = in_region(reader, home);
    for (const Use& use : graph_.uses(value)) {
      if (!use.by_node()) continue;
      const NodeId other = in_region(use.node(), home);
      if (other.valid() && graph_.is_before(other, first)) first = other;
    }
    return first;
  }

  /// What a body gives keeps its type.
  void rewrite_body(RegionId region) {
    for (NodeId id : graph_.nodes(region)) rewrite(id);
    const std::vector<ValueId> outputs(graph_.outputs(region).begin(),
                                       graph_.outputs(region).end());
    for (uint32_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].index >= original_.size()) continue;
      const ValueId cast = as(outputs[i], original_[outputs[i].index], graph_.region_owner(region));
      if (cast == outputs[i]) continue;
      graph_.replace_use({UseKind::kRegionOutput, region.index, i}, cast);
      changed_ = true;
    }
  }

  void restore_borders() {
    const std::vector<ValueId> outputs(graph_.outputs().begin(), graph_.outputs().end());
    for (size_t i = 0; i < outputs.size(); ++i) {
      restore_output(outputs[i],
                     {UseKind::kRegionOutput, graph_.main().index, static_cast<uint32_t>(i)});
    }
    for (uint32_t i = 0; i < graph_.states().size(); ++i) {
      const ValueId next = graph_.states()[i].next;
      const ValueId cast = as(next, original_[next.index], NodeId{});
      if (cast == next) continue;
      graph_.set_state_next(i, cast);
      changed_ = true;
    }
  }

  /// An output keeps name and type: the cast takes the name.
  void restore_output(ValueId value, Use use) {
    const ValueId cast = as(value, original_[value.index], NodeId{});
    if (cast == value) return;
    const std::string name = graph_.value(value).name;
    graph_.rename(value, graph_.unique_name(name + "." + std::string(short_name(low_))));
    graph_.rename(cast, name);
    graph_.replace_use(use, cast);
    changed_ = true;
  }

  Graph& graph_;
  PassContext& context_;
  const DType low_;
  std::vector<DType> original_;                      // of every value before the rewrite
  std::unordered_map<std::string, NodeId> forward_;  // by label: what gradients compare with
  std::map<std::pair<ValueId, DType>, ValueId> casts_;
  bool changed_ = false;
};

}  // namespace

bool insert_casts(Graph& graph, PassContext& context) {
  if (context.options.policy.dtype == DType::kF32) return false;
  return Inserter(graph, context).run();
}

}  // namespace halfnote
