// find_gelus: a spelled-out Gelu becomes one node.
//
//   Mul(Mul(x, Add(Erf(Div(x, √2)), 1)), 0.5)                            ──▶  Gelu(x)
//   Mul(Mul(x, 0.5), Add(Tanh(Mul(√(2/π), Add(x, 0.044715·x³))), 1))     ──▶  Gelu<tanh>(x)
//
// and the same in any other order of factors and terms. In 16 bits each of these nodes would round
// what it computes: below 0, 1 + erf is the small difference of two numbers near 1, and bf16 leaves
// nothing of it at −4. Rounding: a few units of f32. What the parts give stays where others read
// it. Leaves alone: other numbers than these by more than f32 rounds, numbers of more elements
// than one, parameters that are frozen.
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr int kMostDepth = 8;  // of the nodes that are looked at behind one another
constexpr double kRootTwo = 1.4142135623730951, kOfTanh = 0.7978845608028654, kOfCube = 0.044715;

/// A polynomial in x up to x³, or nothing that is one.
using Polynomial = std::optional<std::array<double, 4>>;

Polynomial sum(const Polynomial& a, const Polynomial& b) {
  if (!a || !b) return {};
  std::array<double, 4> all{};
  for (size_t i = 0; i < 4; ++i) all[i] = (*a)[i] + (*b)[i];
  return all;
}

Polynomial product(const Polynomial& a, const Polynomial& b) {
  if (!a || !b) return {};
  std::array<double, 4> all{};
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const double part = (*a)[i] * (*b)[j];
      if (i + j < 4) all[i + j] += part;
      if (i + j >= 4 && part != 0) return {};
    }
  }
  return all;
}

/// Are they the same but for what f32 rounds?
bool is_near(const Polynomial& p, const std::array<double, 4>& wanted) {
  constexpr double kRounded = 4e-7;
  if (!p) return false;
  for (size_t i = 0; i < 4; ++i) {
    if (!(std::abs((*p)[i] - wanted[i]) <= kRounded * std::abs(wanted[i]))) return false;
  }
  return true;
}

class GeluFinder {
 public:
  GeluFinder(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.all_nodes()) {
      if (is_live_op(node, "Mul") || is_live_op(node, "Div")) changed |= rewrite(node);
    }
    return changed;
  }

 private:
  bool is_live_op(NodeId node, std::string_view op) const {
    return is_op(graph_, node, op) && graph_.node(node).alive;
  }
  NodeId made_by(ValueId value, std::string_view op) const {
    const NodeId node = producer(graph_, value);
    return is_live_op(node, op) ? node : NodeId{};
  }
  std::optional<double> number(ValueId value) const {
    const Tensor* tensor = graph_.constant(value);
    if (tensor == nullptr || tensor->size() != 1 || !is_float(tensor->dtype())) return {};
    if (graph_.value(value).frozen) return {};
    return tensor->at_as_double(0);
  }

  /// 1 + erf or 1 + tanh: the sum, and the node that it adds 1 to.
  struct Gate {
    ValueId sum;
    NodeId curve;
    bool is_tanh = false;
  };
  std::optional<Gate> as_gate(ValueId value) const {
    const NodeId add = made_by(value, "Add");
    for (size_t i = 0; add.valid() && i < 2; ++i) {
      if (number(graph_.input(add, 1 - i)) != 1.0) continue;
      const NodeId erf = made_by(graph_.input(add, i), "Erf");
      const NodeId tanh = made_by(graph_.input(add, i), "Tanh");
      if (erf.valid()) return Gate{value, erf, false};
      if (tanh.valid()) return Gate{value, tanh, true};
    }
    return {};
  }

  /// The gate among the factors of a value, and the values that are no numbers on the way to it:
  /// one of them is x.
  std::optional<Gate> find_gate(ValueId value, int depth, std::vector<ValueId>& others) const {
    if (auto gate = as_gate(value)) return gate;
    const NodeId mul = made_by(value, "Mul"), div = made_by(value, "Div");
    if (depth == 0 || (!mul.valid() && !div.valid())) {
      others.push_back(value);
      return {};
    }
    std::optional<Gate> found;
    const NodeId node = mul.valid() ? mul : div;
    for (size_t i = 0; i < (mul.valid() ? 2 : 1); ++i) {
      const ValueId factor = graph_.input(node, i);
      if (number(factor)) continue;
      others.push_back(factor);
      if (auto gate = find_gate(factor, depth - 1, others)) found = gate;
    }
    return found;
  }

  /// A value as a polynomial in x; `gate` counts as 1.
  Polynomial in_terms_of(ValueId x, ValueId gate, ValueId value, int depth) const {
    if (value == x) return std::array<double, 4>{0, 1, 0, 0};
    if (value == gate) return std::array<double, 4>{1, 0, 0, 0};
    if (const auto constant = number(value)) return std::array<double, 4>{*constant, 0, 0, 0};
    const NodeId node = producer(graph_, value);
    if (depth == 0 || !node.valid() || !graph_.node(node).domain.empty()) return {};
    const auto operand = [&](size_t i) {
      return in_terms_of(x, gate, graph_.input(node, i), depth - 1);
    };
    const SharedText& op = graph_.node(node).op;
    if (op == "Add") return sum(operand(0), operand(1));
    if (op == "Mul") return product(operand(0), operand(1));
    if (op != "Div" && op != "Pow") return {};
    const auto by = number(graph_.input(node, 1));
    if (!by || *by == 0) return {};
    if (op == "Div") return product(operand(0), std::array<double, 4>{1 / *by, 0, 0, 0});
    if (*by != 2 && *by != 3) return {};
    const Polynomial base = operand(0), square = product(base, base);
    return *by == 2 ? square : product(square, base);
  }

  /// Is it x·gate/2, the gate being 1 + the curve of what belongs to it?
  bool is_gelu(ValueId value, const Gate& gate, ValueId x) const {
    if (!is_near(in_terms_of(x, gate.sum, value, kMostDepth), {0, 0.5, 0, 0})) return false;
    const Polynomial inside = in_terms_of(x, ValueId{}, graph_.input(gate.curve, 0), kMostDepth);
    if (gate.is_tanh) return is_near(inside, {0, kOfTanh, 0, kOfTanh * kOfCube});
    return is_near(inside, {0, 1 / kRootTwo, 0, 0});
  }

  bool rewrite(NodeId end) {
    const ValueId result = graph_.output(end);
    std::vector<ValueId> others;
    const std::optional<Gate> gate = find_gate(result, 3, others);
    if (!gate || !is_float(graph_.value(result).type.dtype)) return false;
    for (const ValueId x : others) {
      if (x == gate->sum || !same_type(x, result) || !is_gelu(result, *gate, x)) continue;
      replace(end, x, gate->is_tanh);
      return true;
    }
    return false;
  }

  /// Numbers of one element may have more dims than x.
  bool same_type(ValueId a, ValueId b) const {
    const ValueType &x = graph_.value(a).type, &y = graph_.value(b).type;
    return x.dtype == y.dtype && x.shape && y.shape && x.shape->size() == y.shape->size();
  }

  void replace(NodeId end, ValueId x, bool tanh) {
    Builder b(graph_, graph_.before(end), infer_);
    b.set_role(graph_.node(end).role);
    b.set_origin(graph_.node(end).origin);
    Attributes attributes;
    if (tanh) attributes.set("approximate", std::string("tanh"));
    const Expr y = b.op("Gelu", {b.value(x)}, std::move(attributes));
    graph_.node(b.last()).name = graph_.label(end);
    graph_.node(b.last()).metadata = graph_.node(end).metadata;
    const ValueId old = graph_.output(end);
    graph_.value(y.id).type = graph_.value(old).type;
    take_place(graph_, old, y.id);
    remove_unread(end);
  }

  /// The node and those before it that nobody reads any more.
  void remove_unread(NodeId node) {
    for (const ValueId output : graph_.outputs(node)) {
      if (graph_.has_uses(output)) return;
    }
    const auto inputs = graph_.inputs(node);
    const std::vector<ValueId> operands(inputs.begin(), inputs.end());
    graph_.remove(node);
    for (const ValueId operand : operands) {
      const NodeId before = producer(graph_, operand);
      const bool part = is_live_op(before, "Mul") || is_live_op(before, "Div") ||
                        is_live_op(before, "Add") || is_live_op(before, "Erf") ||
                        is_live_op(before, "Tanh") || is_live_op(before, "Pow");
      if (part) remove_unread(before);
    }
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool find_gelus(Graph& graph, PassContext& context) {
  return GeluFinder(graph, context.infer).run();
}

}  // namespace halfnote
