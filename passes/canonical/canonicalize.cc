// canonicalize: one form for each thing, so that the rules of later passes need to know only one.
//
//   Op (…)  without a name            ──▶  [name of its first result] Op (…)
//   c = Constant <value>              ──▶  initializer c
//   y = Identity(x)                   ──▶  x
//   y = Dropout(x, 0)                 ──▶  x
//   y = Cast <to = type of x> (x)     ──▶  x
//   y = Cast <f32> (Cast <16 bit> (x: f32))  ──▶  x      in the backward pass
//   y = Transpose(Transpose(x))       ──▶  x, or one Transpose
//   y = Reshape(Reshape(x, _), s)     ──▶  Reshape(x, s)      where s has no zeros
//   y = Mul(x, 1), Div(x, 1), Sub(x, 0)  ──▶  x      where the shape of x stays
//   y = Slice(x, all of it), Pad(x, with nothing), Expand(x, its shape)  ──▶  x
//   a body that gives what it does not make  ──▶  … = Identity(x) in the body
//   y = Mul(x, Div(Cast(Less(RandomUniformLike, p)), p))  ──▶  Dropout(x, 1 - p, true)
//
// The last is Dropout(inplace=True) of PyTorch's newer exporter, which would stay random in
// evaluation. Exact, bit for bit (Add(x, 0) is left alone: it turns -0 into 0), but for what that
// drops (other elements, as many) and the gradient of a rounding that the model asks for: it is the
// identity, and in 16 bits it would underflow without a loss scale. Leaves alone: graph outputs
// that would lose their name; roundings of the forward pass.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "compiler/ir/query.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

class Canonicalizer {
 public:
  Canonicalizer(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (NodeId node : graph_.nodes()) changed |= visit(node);
    for (NodeId node : graph_.all_nodes()) {
      for (RegionId body : graph_.subgraphs(node)) changed |= pass_on(body);
    }
    return changed;
  }

 private:
  struct Rewrite {
    std::string_view op;
    bool (Canonicalizer::*apply)(NodeId);
  };

  bool visit(NodeId id) {
    static constexpr Rewrite kRewrites[] = {
        {"Constant", &Canonicalizer::constant},   {"Identity", &Canonicalizer::identity},
        {"Dropout", &Canonicalizer::dropout},     {"Cast", &Canonicalizer::cast},
        {"Transpose", &Canonicalizer::transpose}, {"Reshape", &Canonicalizer::reshape},
        {"Mul", &Canonicalizer::product},         {"Div", &Canonicalizer::times_one},
        {"Sub", &Canonicalizer::minus_zero},      {"Slice", &Canonicalizer::whole_slice},
        {"Pad", &Canonicalizer::empty_pad},       {"Expand", &Canonicalizer::same_shape},
    };
    bool named = false;
    if (graph_.node(id).name.empty() && !graph_.outputs(id).empty()) {
      graph_.node(id).name = graph_.value(first_output(id)).name;
      named = true;
    }
    if (!graph_.node(id).domain.empty()) return named;
    for (const Rewrite& rewrite : kRewrites) {
      if (graph_.node(id).op == rewrite.op) return (this->*rewrite.apply)(id) || named;
    }
    return named;
  }

  /// What a body gives but does not make goes through an Identity: ONNX wants it so.
  bool pass_on(RegionId body) {
    bool changed = false;
    const std::vector<ValueId> outputs(graph_.outputs(body).begin(), graph_.outputs(body).end());
    for (uint32_t i = 0; i < outputs.size(); ++i) {
      if (graph_.value(outputs[i]).region == body) continue;
      Builder b(graph_, graph_.end(body), infer_);
      const Expr copy = b.op("Identity", {b.value(outputs[i])});
      graph_.node(b.last()).name = graph_.value(copy.id).name;
      graph_.replace_use({UseKind::kRegionOutput, body.index, i}, copy.id);
      changed = true;
    }
    return changed;
  }

  ValueId first_output(NodeId id) const {
    for (ValueId output : graph_.outputs(id)) {
      if (output.valid()) return output;
    }
    return graph_.output(id);
  }

  /// Gives the uses of a node's first result to `by` and removes the node, if names of outputs
  /// allow.
  bool replace(NodeId id, ValueId by) {
    const ValueId result = graph_.output(id);
    for (const Use& use : graph_.uses(result)) {
      if (use.kind != UseKind::kRegionOutput) continue;
      // A body passes on what it does not make: as its output that is no valid ONNX.
      if (use.owner != graph_.value(by).region.index || !take_name(result, by)) return false;
    }
    graph_.replace_uses(result, by);
    graph_.remove(id);
    return true;
  }

  /// A graph output keeps its name: the value that takes its place must be able to bear it.
  bool take_name(ValueId result, ValueId by) {
    const Value& value = graph_.value(by);
    if (value.kind != ValueKind::kResult || value.region != graph_.main()) return false;
    for (const Use& use : graph_.uses(by)) {
      if (use.kind == UseKind::kRegionOutput) return false;
    }
    const std::string name = graph_.value(result).name;
    graph_.rename(result, graph_.unique_name(name + ".old"));
    graph_.rename(by, name);
    return true;
  }

  bool constant(NodeId id) {
    const Tensor* tensor = graph_.constant(graph_.output(id));
    if (tensor == nullptr || graph_.node(id).region != graph_.main()) return false;
    for (const Use& use : graph_.uses(graph_.output(id))) {
      if (use.kind == UseKind::kRegionOutput) return false;
    }
    const std::string name = graph_.value(graph_.output(id)).name;
    const Tensor value = *tensor;
    graph_.rename(graph_.output(id), graph_.unique_name(name + ".node"));
    graph_.replace_uses(graph_.output(id), graph_.add_initializer(name, value));
    graph_.remove(id);
    return true;
  }

  bool identity(NodeId id) { return replace(id, graph_.input(id, 0)); }

  bool dropout(NodeId id) {
    const Tensor* ratio = graph_.constant(graph_.input(id, 1));
    if (ratio == nullptr || ratio->at_as_double(0) != 0) return false;
    if (graph_.output(id, 1).valid() && graph_.has_uses(graph_.output(id, 1))) return false;
    return replace(id, graph_.input(id, 0));
  }

  bool cast(NodeId id) {
    const auto to = static_cast<DType>(graph_.node(id).attributes.get_int("to", 0));
    if (graph_.value(graph_.input(id, 0)).type.dtype == to) return replace(id, graph_.input(id, 0));
    return rounded_gradient(id, to);
  }

  /// Back from 16 bits to the f32 that the gradient came in. Before the precision passes only the
  /// gradient of a cast does that.
  bool rounded_gradient(NodeId id, DType to) {
    const ValueId middle = graph_.input(id, 0);
    const NodeId above = graph_.value(middle).producer;
    if (to != DType::kF32 || !is_16bit_float(graph_.value(middle).type.dtype)) return false;
    if (!above.valid() || !is_cast(graph_.node(above))) return false;
    if (graph_.node(id).role != Role::kBackward || graph_.node(above).role != Role::kBackward)
      return false;
    const ValueId source = graph_.input(above, 0);
    return graph_.value(source).type.dtype == DType::kF32 && replace(id, source);
  }

  std::vector<int64_t> permutation(NodeId id) const {
    const int rank = graph_.value(graph_.input(id, 0)).type.rank();
    std::vector<int64_t> reversed(static_cast<size_t>(std::max(rank, 0)));
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    return graph_.node(id).attributes.get_ints("perm", reversed);
  }

  bool transpose(NodeId id) {
    const ValueId from = graph_.input(id, 0);
    if (graph_.value(from).type.rank() < 0) return false;
    std::vector<int64_t> perm = permutation(id);
    const NodeId above = graph_.value(from).producer;
    const bool twice = above.valid() && graph_.node(above).op == "Transpose";
    ValueId source = from;
    if (twice) {
      const std::vector<int64_t> first = permutation(above);
      for (int64_t& axis : perm) axis = first[static_cast<size_t>(axis)];
      source = graph_.input(above, 0);
    }
    if (std::is_sorted(perm.begin(), perm.end())) return replace(id, source);
    if (!twice) return false;
    graph_.set_input(id, 0, source);
    graph_.node(id).attributes.set("perm", perm);
    return true;
  }

  bool reshape(NodeId id) {
    const NodeId above = graph_.value(graph_.input(id, 0)).producer;
    const ValueType& from = graph_.value(graph_.input(id, 0)).type;
    const ValueType& to = graph_.value(graph_.output(id)).type;
    if (from.has_concrete_shape() && from == to) return replace(id, graph_.input(id, 0));
    if (!above.valid() || !graph_.node(above).domain.empty() || graph_.node(above).op != "Reshape")
      return false;
    const Tensor* target = graph_.constant(graph_.input(id, 1));
    if (target == nullptr) return false;
    for (int64_t dim : target->to_ints()) {
      if (dim == 0) return false;
    }
    const ValueId source = graph_.input(above, 0);
    graph_.set_input(id, 0, source);
    if (graph_.value(source).type.has_concrete_shape() && graph_.value(source).type == to) {
      replace(id, source);
    }
    return true;
  }

  /// Is operand `index` a constant of this number that broadcasts without changing the other
  /// operand's shape?
  bool is_neutral(NodeId id, size_t index, double number) const {
    const Tensor* tensor = graph_.constant(graph_.input(id, index));
    if (tensor == nullptr || tensor->size() != 1 || tensor->at_as_double(0) != number) return false;
    const ValueType& other = graph_.value(graph_.input(id, 1 - index)).type;
    return other.rank() >= static_cast<int>(tensor->shape().size());
  }

  /// Does the first result have the shape of the first operand, whatever its symbols stand for?
  bool has_same_shape(NodeId id) const {
    const auto& x = graph_.value(graph_.input(id, 0)).type.shape;
    const auto& y = graph_.value(graph_.output(id)).type.shape;
    return x && y && *x == *y && std::ranges::all_of(*x, [](const Dim& dim) {
             return dim.known() || !dim.symbol.empty();
           });
  }
  /// Is an operand absent, or a constant of this number throughout?
  bool is_all(NodeId id, size_t operand, int64_t number) const {
    if (!graph_.input(id, operand).valid()) return true;
    const Tensor* constant = graph_.constant(graph_.input(id, operand));
    if (constant == nullptr || !is_integer(constant->dtype())) return false;
    for (int64_t i = 0; i < constant->size(); ++i) {
      if (constant->at_as_int(i) != number) return false;
    }
    return true;
  }

  /// As many elements as there are, from the first to the last.
  bool whole_slice(NodeId id) {
    constexpr size_t kSteps = 4;
    return has_same_shape(id) && is_all(id, kSteps, 1) && replace(id, graph_.input(id, 0));
  }
  bool empty_pad(NodeId id) {
    constexpr size_t kPads = 1;
    return graph_.input(id, kPads).valid() && is_all(id, kPads, 0) &&
           replace(id, graph_.input(id, 0));
  }
  bool same_shape(NodeId id) { return has_same_shape(id) && replace(id, graph_.input(id, 0)); }

  bool times_one(NodeId id) {
    if (is_neutral(id, 1, 1.0)) return replace(id, graph_.input(id, 0));
    if (graph_.node(id).op == "Mul" && is_neutral(id, 0, 1.0))
      return replace(id, graph_.input(id, 1));
    return false;
  }

  bool product(NodeId id) {
    return times_one(id) || written_out_dropout(id, 0) || written_out_dropout(id, 1);
  }

  /// The node that gives this value, if it is such an op of ONNX's and nobody else reads the value.
  NodeId sole(ValueId value, std::string_view op) const {
    if (!value.valid() || graph_.value(value).kind != ValueKind::kResult) return {};
    const NodeId node = graph_.value(value).producer;
    return is_op(graph_, node, op) && graph_.uses(value).size() == 1 ? node : NodeId{};
  }

  std::optional<double> number(ValueId value) const {
    const Tensor* tensor = graph_.constant(value);
    if (tensor == nullptr || tensor->size() != 1) return std::nullopt;
    return tensor->at_as_double(0);
  }

  /// Are both of one type, whatever the open dims are?
  bool same_type(ValueId a, ValueId b) const {
    const ValueType& type = graph_.value(a).type;
    if (!type.is_tensor() || !type.shape || type != graph_.value(b).type) return false;
    return std::all_of(type.shape->begin(), type.shape->end(),
                       [](const Dim& dim) { return dim.known() || !dim.symbol.empty(); });
  }

  /// Is it what a body gives? `replace` lets such a value be.
  bool leaves_a_body(ValueId value) const {
    const auto uses = graph_.uses(value);
    return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
      return use.kind == UseKind::kRegionOutput && use.owner != graph_.main().index;
    });
  }

  /// Operand `slot` times a mask of 0 and 1 / p, p the share that is kept.
  bool written_out_dropout(NodeId id, size_t slot) {
    const ValueId x = graph_.input(id, slot);
    const NodeId divide = sole(graph_.input(id, 1 - slot), "Div");
    const NodeId cast = divide.valid() ? sole(graph_.input(divide, 0), "Cast") : NodeId{};
    const NodeId less = cast.valid() ? sole(graph_.input(cast, 0), "Less") : NodeId{};
    const NodeId draw = less.valid() ? sole(graph_.input(less, 0), "RandomUniformLike") : NodeId{};
    if (!draw.valid()) return false;
    const Attributes& drawn = graph_.node(draw).attributes;
    const auto kept = number(graph_.input(less, 1)), scale = number(graph_.input(divide, 1));
    if (!kept || kept != scale || !(*kept > 0 && *kept < 1) || drawn.has("seed")) return false;
    if (drawn.get_float("low", 0) != 0 || drawn.get_float("high", 1) != 1) return false;
    const ValueId result = graph_.output(id);
    if (!same_type(x, result) || !same_type(x, graph_.output(draw)) || leaves_a_body(result)) {
      return false;
    }

    const std::string name = graph_.label(id);
    const auto constant = [&](const char* what, Tensor tensor) {
      return graph_.add_initializer(graph_.unique_name(name + what), std::move(tensor));
    };
    const ValueId ratio = constant("/ratio", Tensor::scalar<float>(static_cast<float>(1 - *kept)));
    const ValueId training = constant("/training", Tensor::scalar<bool>(true));
    NodeSpec spec{"Dropout", {x, ratio, training}};
    spec.name = name;
    const NodeId dropout =
        graph_.create(std::move(spec), std::vector<std::string>{graph_.unique_name(name + "/kept")},
                      graph_.before(id));
    graph_.node(dropout).metadata = graph_.node(id).metadata;
    graph_.value(graph_.output(dropout)).type = graph_.value(result).type;
    return replace(id, graph_.output(dropout));
  }

  bool minus_zero(NodeId id) {
    const Tensor* tensor = graph_.constant(graph_.input(id, 1));
    if (tensor == nullptr || !is_neutral(id, 1, 0.0)) return false;
    // x - (-0) turns -0 into 0.
    return !std::signbit(tensor->at_as_double(0)) && replace(id, graph_.input(id, 0));
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool canonicalize(Graph& graph, PassContext& context) {
  return Canonicalizer(graph, context.infer).run();
}

}  // namespace halfnote
