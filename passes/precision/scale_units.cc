#include "passes/precision/scale_units.h"

#include "base/error.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

class UnitCheck {
 public:
  explicit UnitCheck(Graph& graph) : graph_(graph) {}

  void run() {
    for (NodeId node : graph_.all_nodes()) visit(node);
    for (ValueId output : graph_.outputs()) {
      // The scale itself may be shown; what it scales may not.
      if (graph_.value(output).kind == ValueKind::kInitializer) continue;
      require_plain(output, "output \"" + graph_.value(output).name + "\"", {});
    }
    for (const State& state : graph_.states()) {
      const int want = graph_.value(state.current).scale_power;
      const int got = power(state.next);
      if (want == got || is_zero(state.next)) continue;
      throw wrong("the new value of state \"" + graph_.value(state.current).name + "\"", want, got,
                  {});
    }
  }

 private:
  int power(ValueId value) const { return value.valid() ? graph_.value(value).scale_power : 0; }

  static Error wrong(const std::string& what, int want, int got, Place place) {
    return Error(ErrorCode::kInternal, what + " carries the wrong power of the loss scale")
        .at(std::move(place))
        .expected("S^" + std::to_string(want), "S^" + std::to_string(got))
        .hint(got > want ? "a gradient was not unscaled" : "a gradient was unscaled twice");
  }

  void require_plain(ValueId value, const std::string& what, Place place) const {
    if (power(value) != 0) throw wrong(what, 0, power(value), std::move(place));
  }

  void visit(NodeId id) {
    const Node& node = graph_.node(id);
    const OperatorRow* row = find_operator(node);
    const ScaleRule rule = row == nullptr ? ScaleRule::kNone : row->scale;
    const int result = combine(id, rule);
    for (ValueId output : graph_.outputs(id)) {
      if (!output.valid()) continue;
      const bool is_number = is_float(graph_.value(output).type.dtype);
      graph_.value(output).scale_power = static_cast<int8_t>(is_number ? result : 0);
    }
  }

  int combine(NodeId id, ScaleRule rule) const {
    const auto inputs = graph_.inputs(id);
    const Node& node = graph_.node(id);
    const Place place{{}, node.name, node.op};
    int result = 0;
    switch (rule) {
      case ScaleRule::kNone:
        for (ValueId input : inputs) {
          require_plain(input, operand_name(input), place);
        }
        return 0;
      case ScaleRule::kSame:
        return common_power(
            id, [](size_t) { return true; }, place);
      case ScaleRule::kProduct:
        for (ValueId input : inputs) result += power(input);
        return result;
      case ScaleRule::kQuotient:
        return power(graph_.input(id, 0)) - power(graph_.input(id, 1));
      case ScaleRule::kInverse:
        return -power(graph_.input(id, 0));
      case ScaleRule::kFirst:
        for (size_t i = 0; i < inputs.size(); ++i) {
          if (!is_linear(id, i)) require_plain(inputs[i], operand_name(inputs[i]), place);
        }
        return common_power(
            id, [&](size_t i) { return is_linear(id, i); }, place);
      case ScaleRule::kAbsorb:
        return 0;
    }
    return 0;
  }

  std::string operand_name(ValueId input) const {
    return input.valid() ? "operand \"" + graph_.value(input).name + "\"" : "";
  }

  /// May operand `slot` of a node of ScaleRule::kFirst carry the scale?
  bool is_linear(NodeId id, size_t slot) const {
    const OperatorRow* row = find_operator(graph_.node(id));
    return row != nullptr && slot < 32 && (row->linear_inputs >> slot & 1u) != 0;
  }

  /// All float operands for which `counts` holds must carry the same power, but for zeros (they fit
  /// any).
  template <class Counts>
  int common_power(NodeId id, Counts&& counts, const Place& place) const {
    bool have = false;
    int result = 0;
    const auto inputs = graph_.inputs(id);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const ValueId input = inputs[i];
      if (!counts(i) || !input.valid() || !is_float(graph_.value(input).type.dtype)) continue;
      if (is_zero(input)) continue;
      if (have && power(input) != result) {
        throw wrong(operand_name(input), result, power(input), place);
      }
      result = power(input);
      have = true;
    }
    return result;
  }

  /// A constant of zeros, or zeros made in a computed shape: what gradients are scattered into.
  bool is_zero(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    if (producer.valid() && graph_.node(producer).op == "Cast")
      return is_zero(graph_.input(producer, 0));
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
};

}  // namespace

void check_scale_units(Graph& graph) { UnitCheck(graph).run(); }

}  // namespace halfnote
