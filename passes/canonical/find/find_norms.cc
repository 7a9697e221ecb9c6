// find_norms: normalizations that exporters and models spell out become one node, which has a
// kernel, a gradient and a 16-bit form of its own.
//
//   d = Sub(x, ReduceMean(x))
//   y = Div(d, Sqrt(Add(ReduceMean(Pow(d, 2)), ε)))       ──▶  LayerNormalization(x, 1)
//   y = Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2)), ε))))   ──▶  RMSNormalization(x, 1)
//   y = Reshape(InstanceNormalization(Reshape(x, (N, groups, −1)), 1, 0), Shape(x))
//                                                         ──▶  GroupNormalization(x, 1, 0)
//   Mul(y, scale), and Add(y, bias) of the first and the last   ──▶  operands of the node
//
// Squares are Pow or Mul, roots Sqrt or Pow; quotients Div, or Mul by Reciprocal or by 1 / …; the
// operands of Add and Mul come in either order.
//
// Rounding: the same sums in another order, f32 as before, some of it wider; a few units of f32.
// Leaves alone: f64 (these ops compute in f32), means over other than the last dims, what somebody
// else reads on the way, and a scale or bias that is broadcast otherwise (it stays a node).
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

/// What one node will stand for.
struct Norm {
  std::string_view op;
  ValueId x, scale, bias;  // scale and bias invalid: 1 and 0
  Attributes attributes;
  Shape own;                  // of scale and bias
  NodeId end;                 // the node whose result is that of the norm
  std::vector<NodeId> nodes;  // all of them, the last one first
};

class NormFinder {
 public:
  NormFinder(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.all_nodes()) {
      if (!graph_.node(node).alive || !graph_.node(node).domain.empty()) continue;
      std::optional<Norm> norm = find_line_norm(node);
      if (!norm) norm = find_group_norm(node);
      if (!norm) continue;
      replace(*norm);
      changed = true;
    }
    return changed;
  }

 private:
  // --- what the matchers ask ---

  /// The node of ONNX's that gives this value, if it is such an op.
  NodeId made_by(ValueId value, std::string_view op) const {
    const NodeId node = value.valid() ? producer(graph_, value) : NodeId{};
    return is_op(graph_, node, op) ? node : NodeId{};
  }

  /// … and nobody else reads it.
  NodeId only_made_by(ValueId value, std::string_view op) const {
    const NodeId node = made_by(value, op);
    return node.valid() && graph_.uses(value).size() == 1 ? node : NodeId{};
  }

  /// The node that alone reads a result, once; invalid if there is none in its region.
  NodeId only_user(NodeId node) const {
    const auto uses = graph_.uses(graph_.output(node));
    if (uses.size() != 1 || !uses[0].by_node()) return {};
    const NodeId user = uses[0].node();
    const bool is_near = graph_.node(user).region == graph_.node(node).region;
    return is_near && graph_.node(user).domain.empty() ? user : NodeId{};
  }

  std::optional<double> number(ValueId value) const {
    const Tensor* tensor = value.valid() ? graph_.constant(value) : nullptr;
    if (tensor == nullptr || tensor->size() != 1 || !is_float(tensor->dtype())) return {};
    return tensor->at_as_double(0);
  }

  bool is_number(ValueId value, double wanted) const { return number(value) == wanted; }

  /// The other operand of a node of two, of which one is `value`.
  ValueId other_operand(NodeId node, ValueId value) const {
    const ValueId a = graph_.input(node, 0), b = graph_.input(node, 1);
    return a == value ? b : b == value ? a : ValueId{};
  }

  /// f32 of known rank.
  const SymbolicShape* shape_of(ValueId value) const {
    const ValueType& type = graph_.value(value).type;
    return type.is_tensor() && type.dtype == DType::kF32 && type.shape ? &*type.shape : nullptr;
  }

  /// The first of the last dims that a ReduceMean goes over, if it keeps them.
  std::optional<int64_t> first_axis(NodeId mean) const {
    const ValueId axes = graph_.input(mean, 1);
    const Tensor* constant = axes.valid() ? graph_.constant(axes) : nullptr;
    const SymbolicShape* shape = shape_of(graph_.input(mean, 0));
    if (constant == nullptr || constant->size() == 0 || shape == nullptr) return {};
    if (graph_.node(mean).attributes.get_int("keepdims", 1) != 1) return {};
    const auto rank = static_cast<int64_t>(shape->size());
    std::vector<int64_t> numbers = constant->to_ints();
    for (int64_t& axis : numbers) axis = axis < 0 ? axis + rank : axis;
    std::ranges::sort(numbers);
    const int64_t first = rank - static_cast<int64_t>(numbers.size());
    if (first < 0) return {};
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] != first + static_cast<int64_t>(i)) return {};
    }
    return first;
  }

  // --- LayerNormalization and RMSNormalization ---

  /// What a root is taken of and divided by: 1/sqrt(mean(base²) + ε)·base.
  struct Root {
    ValueId base;
    double epsilon = 0;
    int64_t axis = 0;
    NodeId square, mean, sum;
  };

  /// `operand` = mean(base²) + ε
  std::optional<Root> match_root(ValueId operand) const {
    Root root;
    root.sum = only_made_by(operand, "Add");
    if (!root.sum.valid()) return {};
    const ValueId a = graph_.input(root.sum, 0), b = graph_.input(root.sum, 1);
    const std::optional<double> epsilon = number(b) ? number(b) : number(a);
    if (!epsilon || !std::isfinite(*epsilon) || *epsilon < 0) return {};
    root.epsilon = *epsilon;
    root.mean = only_made_by(number(b) ? a : b, "ReduceMean");
    if (!root.mean.valid()) return {};
    const std::optional<int64_t> axis = first_axis(root.mean);
    if (!axis) return {};
    root.axis = *axis;
    const ValueId squares = graph_.input(root.mean, 0);
    root.square = only_made_by(squares, "Pow");
    if (!root.square.valid()) root.square = only_made_by(squares, "Mul");
    if (!root.square.valid()) return {};
    root.base = graph_.input(root.square, 0);
    const ValueId second = graph_.input(root.square, 1);
    const bool is_square =
        is_op(graph_, root.square, "Pow") ? is_number(second, 2) : second == root.base;
    if (!is_square || shape_of(root.base) == nullptr) return {};
    // A constant of one element, but of more dims than base, would give the sum more dims.
    return graph_.value(operand).type.rank() == graph_.value(root.base).type.rank()
               ? std::optional(root)
               : std::nullopt;
  }

  /// The quotient of base and the root that `node` takes; it and what leads to it go to `nodes`.
  NodeId match_quotient(NodeId node, ValueId base, std::vector<NodeId>& nodes) const {
    NodeId at = node;
    bool is_inverse = is_op(graph_, node, "Pow");
    nodes = {node};
    if (!is_inverse) {
      at = only_user(node);
      if (!at.valid()) return {};
      nodes.insert(nodes.begin(), at);
      const ValueId root = graph_.output(node);
      if (is_op(graph_, at, "Div") && graph_.input(at, 1) == root && graph_.input(at, 0) == base)
        return at;
      is_inverse = is_op(graph_, at, "Reciprocal") ||
                   (is_op(graph_, at, "Div") && graph_.input(at, 1) == root &&
                    is_number(graph_.input(at, 0), 1));
    }
    const NodeId product = is_inverse ? only_user(at) : NodeId{};
    if (!is_op(graph_, product, "Mul") || other_operand(product, graph_.output(at)) != base)
      return {};
    nodes.insert(nodes.begin(), product);
    return product;
  }

  /// Takes the centring of `base` in, if nobody else reads it.
  bool add_centring(const Root& root, Norm& norm) const {
    const NodeId centre = made_by(root.base, "Sub");
    if (!centre.valid()) return false;
    const auto is_ours = [&](const Use& use) {
      return use.by_node() && (use.node() == root.square || use.node() == norm.end);
    };
    if (!std::ranges::all_of(graph_.uses(root.base), is_ours)) return false;
    const ValueId x = graph_.input(centre, 0);
    const NodeId mean = only_made_by(graph_.input(centre, 1), "ReduceMean");
    if (!mean.valid() || graph_.input(mean, 0) != x || first_axis(mean) != root.axis) return false;
    norm.op = "LayerNormalization";
    norm.x = x;
    norm.nodes.insert(norm.nodes.end(), {centre, mean});
    return true;
  }

  /// Is the value one line, as the norm's scale is?
  bool is_own(const Norm& norm, ValueId value) const {
    const SymbolicShape* shape = shape_of(value);
    if (shape == nullptr || shape->size() != norm.own.size()) return false;
    return std::ranges::equal(*shape, norm.own, [](const Dim& dim, int64_t size) {
      return dim.known() && dim.value == size;
    });
  }

  std::optional<Norm> find_line_norm(NodeId node) const {
    const bool is_power = is_op(graph_, node, "Pow") && is_number(graph_.input(node, 1), -0.5);
    if (!is_power && !is_op(graph_, node, "Sqrt")) return {};
    const std::optional<Root> root = match_root(graph_.input(node, 0));
    if (!root) return {};
    Norm norm;
    norm.op = "RMSNormalization";
    norm.x = root->base;
    norm.end = match_quotient(node, root->base, norm.nodes);
    // Here too a constant of one element may have more dims.
    if (!norm.end.valid() ||
        graph_.value(graph_.output(norm.end)).type.rank() != graph_.value(root->base).type.rank()) {
      return {};
    }
    const SymbolicShape& shape = *shape_of(root->base);
    for (size_t i = static_cast<size_t>(root->axis); i < shape.size(); ++i) {
      if (!shape[i].known()) return {};
      norm.own.push_back(shape[i].value);
    }
    norm.nodes.insert(norm.nodes.end(), {root->sum, root->mean, root->square});
    norm.attributes = {{"axis", root->axis - static_cast<int64_t>(shape.size())},
                       {"epsilon", static_cast<float>(root->epsilon)}};
    const bool is_centred = add_centring(*root, norm);
    if (!in_one_region(norm)) return {};
    const auto fits = [&](ValueId value) { return is_own(norm, value) ? value : ValueId{}; };
    take_operand(norm, "Mul", norm.scale, fits);
    if (is_centred) take_operand(norm, "Add", norm.bias, fits);
    return norm;
  }

  /// Takes in a product by the scale, or a sum with the bias, if it is all that reads the norm.
  template <class Fits>
  void take_operand(Norm& norm, std::string_view op, ValueId& operand, Fits&& fits) const {
    const NodeId user = only_user(norm.end);
    if (!is_op(graph_, user, op)) return;
    const ValueId value = other_operand(user, graph_.output(norm.end));
    if (!value.valid()) return;
    const ValueId own = fits(value);
    if (!own.valid()) return;
    operand = own;
    norm.end = user;
    norm.nodes.insert(norm.nodes.begin(), user);
  }

  bool in_one_region(const Norm& norm) const {
    const RegionId region = graph_.node(norm.end).region;
    return std::ranges::all_of(norm.nodes,
                               [&](NodeId node) { return graph_.node(node).region == region; });
  }

  // --- GroupNormalization ---

  bool is_filled_with(ValueId value, double wanted) const {
    const Tensor* tensor = value.valid() ? graph_.constant(value) : nullptr;
    if (tensor == nullptr || tensor->dtype() != DType::kF32) return false;
    return std::ranges::all_of(tensor->data<float>(), [&](float element) {
      return static_cast<double>(element) == wanted;
    });
  }

  /// Groups of whole channels: (N, C, …) as (N, groups, …).
  std::optional<int64_t> groups_of(ValueId x, ValueId view) const {
    const SymbolicShape *from = shape_of(x), *to = shape_of(view);
    if (from == nullptr || to == nullptr || from->size() < 2 || to->size() < 3) return {};
    const Dim &channels = (*from)[1], &groups = (*to)[1];
    if (!(*from)[0].same_as((*to)[0]) || !channels.known() || !groups.known()) return {};
    if (groups.value < 1 || channels.value < 1 || channels.value % groups.value != 0) return {};
    return groups.value;
  }

  static bool same_shape(const SymbolicShape& a, const SymbolicShape& b) {
    return std::ranges::equal(a, b, [](const Dim& x, const Dim& y) { return x.same_as(y); });
  }

  std::optional<Norm> find_group_norm(NodeId node) const {
    if (!is_op(graph_, node, "InstanceNormalization")) return {};
    const NodeId view = only_made_by(graph_.input(node, 0), "Reshape");
    if (!view.valid() || !is_filled_with(graph_.input(node, 1), 1) ||
        !is_filled_with(graph_.input(node, 2), 0)) {
      return {};
    }
    Norm norm;
    norm.op = "GroupNormalization";
    norm.x = graph_.input(view, 0);
    const std::optional<int64_t> groups = groups_of(norm.x, graph_.output(view));
    norm.end = groups ? only_user(node) : NodeId{};
    if (!is_op(graph_, norm.end, "Reshape") || graph_.input(norm.end, 0) != graph_.output(node))
      return {};
    const SymbolicShape &x = *shape_of(norm.x), *back = shape_of(graph_.output(norm.end));
    if (back == nullptr || !same_shape(x, *back)) return {};
    norm.own = {x[1].value};
    norm.attributes = {{"epsilon", graph_.node(node).attributes.get_float("epsilon", 1e-5f)},
                       {"num_groups", *groups}};
    norm.nodes = {norm.end, node, view};
    if (!in_one_region(norm)) return {};
    const auto fits = [&](ValueId value) { return per_channel(value, x) ? value : ValueId{}; };
    take_operand(norm, "Mul", norm.scale, fits);
    take_operand(norm, "Add", norm.bias, fits);
    return norm;
  }

  /// (C, 1, …), with as many dims behind C as x has, and perhaps ones before it.
  bool per_channel(ValueId value, const SymbolicShape& x) const {
    const SymbolicShape* shape = shape_of(value);
    if (shape == nullptr || shape->size() + 1 < x.size() || shape->size() > x.size()) return false;
    const size_t channel = shape->size() - (x.size() - 1);
    for (size_t i = 0; i < shape->size(); ++i) {
      const Dim& dim = (*shape)[i];
      if (!dim.known() || dim.value != (i == channel ? x[1].value : 1)) return false;
    }
    return true;
  }

  // --- the node ---

  /// The operand as a vector of `own`; ones or zeros where there is none.
  Expr own_operand(Builder& b, const Norm& norm, ValueId operand, float otherwise) const {
    if (!operand.valid()) return b.constant(Tensor::full(DType::kF32, norm.own, otherwise));
    if (is_own(norm, operand)) return b.value(operand);
    for (const char* op : {"Unsqueeze", "Reshape"}) {
      const NodeId view = made_by(operand, op);
      if (view.valid() && is_own(norm, graph_.input(view, 0)))
        return b.value(graph_.input(view, 0));
    }
    return b.reshape(b.value(operand), b.ints(norm.own));
  }

  void replace(const Norm& norm) {
    const Node& end = graph_.node(norm.end);
    Builder b(graph_, graph_.before(norm.end), infer_);
    b.set_role(end.role);
    b.set_origin(end.origin);
    const Expr x = b.value(norm.x), scale = own_operand(b, norm, norm.scale, 1);
    const bool wants_bias = norm.op == "GroupNormalization" || norm.bias.valid();
    Expr y;
    if (wants_bias) {
      y = b.op(norm.op, {x, scale, own_operand(b, norm, norm.bias, 0)}, norm.attributes);
    } else {
      y = b.op(norm.op, {x, scale}, norm.attributes);
    }
    graph_.node(b.last()).name = graph_.label(norm.end);
    graph_.node(b.last()).metadata = graph_.node(norm.end).metadata;
    const ValueId result = graph_.output(norm.end);
    graph_.value(y.id).type = graph_.value(result).type;
    take_place(graph_, result, y.id);
    for (const NodeId node : norm.nodes) {
      if (!graph_.has_uses(graph_.output(node))) graph_.remove(node);
    }
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool find_norms(Graph& graph, PassContext& context) {
  return NormFinder(graph, context.infer).run();
}

}  // namespace halfnote
