#include "passes/precision/scale_units.h"

#include <algorithm>
#include <vector>

#include "compiler/ir/walk.h"
#include "compiler/ops/control/links.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

class UnitCheck {
 public:
  UnitCheck(Graph& graph, ErrorCode code)
      : graph_(graph), code_(code), gives_zero_(graph.value_count(), false) {}

  /// Has any value another power now?
  bool run() {
    if (!any_scaled()) return false;  // then nothing becomes so
    visit_region(graph_.main());
    for (ValueId output : graph_.outputs()) {
      // The scale itself may be shown; what it scales may not.
      if (graph_.value(output).kind == ValueKind::kInitializer) continue;
      require_plain(output, "output", {});
    }
    for (const State& state : graph_.states()) {
      const int want = graph_.value(state.current).scale_power;
      const int got = power(state.next);
      if (want == got || is_zero(state.next)) continue;
      throw wrong("the new value of state", state.current, want, got, {});
    }
    return changed_;
  }

 private:
  bool any_scaled() const {
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      const Value& value = graph_.value(ValueId{i});
      if (value.alive && value.scale_power != 0) return true;
    }
    return false;
  }

  int power(ValueId value) const { return value.valid() ? graph_.value(value).scale_power : 0; }

  /// Texts are made here only: a check of 100,000 nodes that are right makes none.
  Error wrong(std::string what, ValueId value, int want, int got, NodeId node) const {
    Place place;
    if (node.valid()) place = {{}, graph_.label(node), graph_.node(node).op};
    what += " \"" + graph_.value(value).name + "\"";
    return Error(code_, what + " carries the wrong power of the loss scale")
        .at(std::move(place))
        .expected("S^" + std::to_string(want), "S^" + std::to_string(got))
        .hint(got > want ? "a gradient was not unscaled" : "a gradient was unscaled twice");
  }

  void require_plain(ValueId value, const char* what, NodeId node) const {
    if (power(value) != 0 && !is_zero(value)) throw wrong(what, value, 0, power(value), node);
  }

  void visit_region(RegionId region) {
    for (NodeId id = graph_.first(region); id.valid(); id = graph_.next(id)) visit(id);
  }

  void set_power(ValueId value, int power_of_s) {
    const bool is_number = is_float(graph_.value(value).type.dtype);
    const auto wanted = static_cast<int8_t>(is_number ? power_of_s : 0);
    changed_ = changed_ || graph_.value(value).scale_power != wanted;
    graph_.value(value).scale_power = wanted;
  }

  /// The power that something a node reads has, if anything is scaled.
  int power_of_reads(NodeId id) const {
    for (ValueId value : reads(graph_, id)) {
      if (power(value) != 0) return power(value);
    }
    return 0;
  }

  /// A node with bodies: its operands are inputs of the bodies, and their outputs its results. A
  /// sum that starts as zero has the power of what is added to it.
  void visit_bodies(NodeId id) {
    const BodyLinks links = links_of(graph_, id);
    std::vector<int> powers(graph_.outputs(id).size(), 0);
    std::vector<char> zeros(powers.size(), links.carried == 0);
    for (RegionId region : graph_.subgraphs(id)) {
      const auto inputs = graph_.inputs(region);
      for (size_t i = links.own_inputs; i < inputs.size(); ++i) {
        const ValueId operand = graph_.input(id, i - links.own_inputs + links.own_operands);
        const bool zero = operand.valid() && is_zero(operand);
        set_power(inputs[i], zero ? power_of_reads(id) : power(operand));
      }
      visit_region(region);
      const auto outputs = graph_.outputs(region);
      for (size_t i = links.own_outputs; i < outputs.size(); ++i) {
        const size_t result = i - links.own_outputs;
        if (is_zero(outputs[i])) {
          // Without a trip the result is what was carried in.
          if (result < std::min(links.carried, powers.size()))
            powers[result] = power(inputs[links.own_inputs + result]);
          continue;
        }
        if (result < zeros.size()) zeros[result] = false;
        const int got = power(outputs[i]);
        if (result < links.carried && got != power(inputs[links.own_inputs + result])) {
          throw wrong("carried value", outputs[i], power(inputs[links.own_inputs + result]), got,
                      id);
        }
        if (result < powers.size()) powers[result] = got;
      }
    }
    for (size_t i = 0; i < powers.size(); ++i) {
      if (!graph_.output(id, i).valid()) continue;
      set_power(graph_.output(id, i), powers[i]);
      if (zeros[i]) note_zero(graph_.output(id, i));
    }
  }

  void visit(NodeId id) {
    if (!graph_.subgraphs(id).empty()) return visit_bodies(id);
    const Node& node = graph_.node(id);
    const OperatorRow* row = find_operator(node);
    const ScaleRule rule = row == nullptr ? ScaleRule::kNone : row->scale;
    const int result = combine(id, rule);
    for (ValueId output : graph_.outputs(id)) {
      if (!output.valid()) continue;
      set_power(output, result);
    }
    if (node.role != Role::kForward && node.role != Role::kLoss && zero_stays_zero(id, rule))
      for (ValueId output : graph_.outputs(id)) note_zero(output);
  }

  void note_zero(ValueId value) {
    if (value.valid()) gives_zero_[value.index] = true;
  }

  /// Is the result zero because the operands that it is linear in are?
  bool zero_stays_zero(NodeId id, ScaleRule rule) const {
    const auto inputs = graph_.inputs(id);
    const auto zero = [&](ValueId value) { return value.valid() && is_zero(value); };
    if (rule == ScaleRule::kProduct) return std::ranges::any_of(inputs, zero);
    if (rule == ScaleRule::kQuotient) return zero(graph_.input(id, 0));
    if (rule != ScaleRule::kSame && rule != ScaleRule::kFirst) return false;
    bool have = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool counts = inputs[i].valid() && is_float(graph_.value(inputs[i]).type.dtype) &&
                          (rule == ScaleRule::kSame || is_linear(id, i));
      if (!counts) continue;
      if (!is_zero(inputs[i])) return false;
      have = true;
    }
    return have;
  }

  int combine(NodeId id, ScaleRule rule) const {
    const auto inputs = graph_.inputs(id);
    int result = 0;
    switch (rule) {
      case ScaleRule::kNone:
        for (ValueId input : inputs) require_plain(input, "operand", id);
        return 0;
      case ScaleRule::kSame:
        return common_power(id, [](size_t) { return true; });
      case ScaleRule::kProduct:
        for (ValueId input : inputs) result += power(input);
        return result;
      case ScaleRule::kQuotient:
        return power(graph_.input(id, 0)) - power(graph_.input(id, 1));
      case ScaleRule::kInverse:
        return -power(graph_.input(id, 0));
      case ScaleRule::kFirst:
        for (size_t i = 0; i < inputs.size(); ++i) {
          if (!is_linear(id, i)) require_plain(inputs[i], "operand", id);
        }
        return common_power(id, [&](size_t i) { return is_linear(id, i); });
      case ScaleRule::kAbsorb:
        return 0;
    }
    return 0;
  }

  /// May operand `slot` of a node of ScaleRule::kFirst carry the scale?
  bool is_linear(NodeId id, size_t slot) const {
    const OperatorRow* row = find_operator(graph_.node(id));
    return row != nullptr && slot < 32 && (row->linear_inputs >> slot & 1u) != 0;
  }

  /// All float operands for which `counts` holds must carry the same power, but for zeros (they fit
  /// any). Where all are zeros, the power of one is kept: a body that the result goes into does not
  /// know that it is zero.
  template <class Counts>
  int common_power(NodeId id, Counts&& counts) const {
    bool have = false;
    int result = 0, of_zeros = 0;
    const auto inputs = graph_.inputs(id);
    // Nearly always nothing is scaled: then nobody has to look for zeros in large constants.
    if (std::ranges::all_of(inputs, [&](ValueId input) { return power(input) == 0; })) return 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ValueId input = inputs[i];
      if (!counts(i) || !input.valid() || !is_float(graph_.value(input).type.dtype)) continue;
      if (is_zero(input)) {
        if (of_zeros == 0) of_zeros = power(input);
        continue;
      }
      if (have && power(input) != result) {
        throw wrong("operand", input, result, power(input), id);
      }
      result = power(input);
      have = true;
    }
    return have ? result : of_zeros;
  }

  /// A constant of zeros, or zeros made in a computed shape: what gradients are scattered into, and
  /// the gradients of what has no elements. Also what was noted to come of them.
  bool is_zero(ValueId value) const {
    NodeId producer = graph_.value(value).producer;
    const auto hands_on = [&] {
      const std::string& op = graph_.node(producer).op;
      return op == "Cast" || op == "Identity";
    };
    while (producer.valid() && hands_on()) {  // a file may have a million in a row
      value = graph_.input(producer, 0);
      producer = graph_.value(value).producer;
    }
    if (gives_zero_[value.index]) return true;
    const Tensor* constant = graph_.constant(value);
    if (producer.valid() && graph_.node(producer).op == "ConstantOfShape") {
      const Attribute* element = graph_.node(producer).attributes.find("value");
      if (element == nullptr) return true;  // ONNX's default
      constant = std::get_if<Tensor>(element);
    }
    if (constant == nullptr) return false;
    for (int64_t i = 0; i < constant->size(); ++i) {
      if (constant->at_as_double(i) != 0) return false;
    }
    return true;
  }

  Graph& graph_;
  ErrorCode code_;
  std::vector<char> gives_zero_;  // by value
  bool changed_ = false;
};

}  // namespace

bool check_scale_units(Graph& graph, ErrorCode code) { return UnitCheck(graph, code).run(); }

}  // namespace halfnote
