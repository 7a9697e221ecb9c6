// pad_to_8: dims of 16-bit contractions up to multiples of 8, where tensor cores run at full speed.
//
//   y = MatMul(a: bf16[32,30], b: bf16[30,10])
//     ──▶   a1 = Pad(a, to [32,32])   b1 = Pad(b, to [32,16])
//           y1 = MatMul(a1, b1)       y  = Slice(y1, to [32,10])
//
// Exact: the padding is zero on both sides of every product, so sums gain only zeros, and what grew
// is sliced off again; nothing but the contraction sees a padded lane. Initializers keep their
// shape: Pad(weight) stands in the graph. GEMM M, N and K, and the channels of convolutions with
// one group, are padded. Leaves alone: symbolic dims (`run` pads them when it binds them), f32
// contractions, grouped convolutions, vectors, dims of 1 (a dot product gains nothing), --no-pad.
#include <array>

#include "passes/padding/remove_padding.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr int64_t kMultiple = 8;

int64_t padded(const Dim& dim) {
  if (!dim.known() || dim.value <= 1) return dim.value;
  return (dim.value + kMultiple - 1) / kMultiple * kMultiple;
}

/// One operand or result of a contraction: which of its dims (from the front) may grow.
struct PaddedSlot {
  size_t slot = 0;
  std::array<int, 2> dims{-1, -1};  // negative: none; counted from the end where `from_end`
  bool from_end = false;
};

/// How one kind of contraction is padded. Dims of operands that must agree grow alike, since each
/// grows to the next multiple of its own size.
struct PadRule {
  std::string_view domain, op;
  std::array<PaddedSlot, 3> inputs;
  size_t input_count = 0;
  std::array<int, 2> result_dims{-1, -1};
  bool from_end = false;
  bool convolution = false;
  int shape_input = -1;  // i64 operand that names a shape whose dim 1 grows
};

constexpr PaddedSlot matrix(size_t slot) { return {slot, {1, 2}, true}; }
constexpr PaddedSlot front(size_t slot, int first, int second = -1) {
  return {slot, {first, second}, false};
}

constexpr PadRule kRules[] = {
    {"", "MatMul", {matrix(0), matrix(1)}, 2, {1, 2}, true},
    {"ai.halfnote", "MatMul", {matrix(0), matrix(1)}, 2, {1, 2}, true},
    {"", "Gemm", {matrix(0), matrix(1), {2, {1, 2}, true}}, 3, {1, 2}, true},
    {"ai.halfnote", "Gemm", {matrix(0), matrix(1), {2, {1, 2}, true}}, 3, {1, 2}, true},
    {"", "Conv", {front(0, 1), front(1, 0, 1), front(2, 0)}, 3, {1, -1}, false, true},
    {"ai.halfnote", "ConvGradInput", {front(0, 1), front(1, 0, 1)}, 2, {1, -1}, false, true, 2},
    {"ai.halfnote", "ConvGradWeight", {front(0, 1), front(1, 1)}, 2, {0, 1}, false, true},
};

const PadRule* find_rule(const Node& node) {
  for (const PadRule& rule : kRules) {
    if (rule.op == node.op && rule.domain == node.domain) return &rule;
  }
  return nullptr;
}

class Padder {
 public:
  Padder(Graph& graph, PassContext& context)
      : graph_(graph), b_(graph, graph.end(), context.infer), infer_(context.infer) {}

  bool run() {
    bool changed = false;
    for (NodeId node : graph_.nodes()) changed |= visit(node);
    return changed;
  }

 private:
  /// The shape a value grows to; its own if nothing grows.
  SymbolicShape grown(const SymbolicShape& shape, const std::array<int, 2>& dims,
                      bool from_end) const {
    SymbolicShape result = shape;
    for (int dim : dims) {
      if (dim < 0 || static_cast<size_t>(dim) > shape.size() - (from_end ? 0 : 1)) continue;
      const size_t at =
          from_end ? shape.size() - static_cast<size_t>(dim) : static_cast<size_t>(dim);
      result[at] = Dim(result[at]).known() ? Dim(padded(result[at])) : result[at];
    }
    return result;
  }

  bool applies(NodeId id, const PadRule& rule) const {
    const ValueType& first = graph_.value(graph_.input(id, 0)).type;
    if (!is_16bit_float(first.dtype)) return false;
    if (rule.convolution && graph_.node(id).attributes.get_int("group", 1) != 1) return false;
    for (size_t i = 0; i < rule.input_count; ++i) {
      const ValueId input = graph_.input(id, rule.inputs[i].slot);
      if (!input.valid()) continue;
      const ValueType& type = graph_.value(input).type;
      const bool bias = rule.inputs[i].slot == 2;
      if (!type.shape || type.shape->empty() || (!bias && type.shape->size() < 2)) return false;
    }
    return graph_.value(graph_.output(id)).type.shape.has_value();
  }

  bool visit(NodeId id) {
    const PadRule* rule = find_rule(graph_.node(id));
    if (rule == nullptr || !applies(id, *rule)) return false;
    bool any = false;
    for (size_t i = 0; i < rule->input_count; ++i) {
      const PaddedSlot& slot = rule->inputs[i];
      const ValueId input = graph_.input(id, slot.slot);
      if (!input.valid()) continue;
      const SymbolicShape& shape = *graph_.value(input).type.shape;
      any |= grown(shape, slot.dims, slot.from_end) != shape;
    }
    if (!any) return false;
    b_.set_insert_point(graph_.before(id));
    b_.set_role(graph_.node(id).role);
    b_.set_origin(graph_.node(id).name);
    for (size_t i = 0; i < rule->input_count; ++i) pad_input(id, rule->inputs[i]);
    if (rule->shape_input >= 0) pad_shape(id, static_cast<size_t>(rule->shape_input));
    slice_result(id, *rule);
    return true;
  }

  void mark(const char* what) {
    Node& node = graph_.node(b_.last());
    node.metadata.emplace_back(kPaddingMark, what);
    node.precision.reason = "padding to multiples of 8";
  }

  void pad_input(NodeId id, const PaddedSlot& slot) {
    const ValueId input = graph_.input(id, slot.slot);
    if (!input.valid()) return;
    const SymbolicShape shape = *graph_.value(input).type.shape;
    const SymbolicShape goal = grown(shape, slot.dims, slot.from_end);
    if (goal == shape) return;
    std::vector<int64_t> pads(2 * shape.size(), 0);
    for (size_t i = 0; i < shape.size(); ++i) {
      if (!(goal[i] == shape[i])) pads[shape.size() + i] = goal[i].value - shape[i].value;
    }
    const Expr wide = b_.op("Pad", {b_.value(input), b_.ints(pads)});
    mark("pad");
    graph_.set_input(id, slot.slot, wide.id);
  }

  /// ConvGradInput names the shape of X: its channels grow too.
  void pad_shape(NodeId id, size_t slot) {
    const ValueType& result = graph_.value(graph_.output(id)).type;
    std::vector<int64_t> extra(result.shape->size(), 0);
    const Dim& channels = (*result.shape)[1];
    if (!channels.known() || padded(channels) == channels.value) return;
    extra[1] = padded(channels) - channels.value;
    const Expr shape = b_.value(graph_.input(id, slot)) + b_.ints(extra);
    mark("shape");
    graph_.set_input(id, slot, shape.id);
  }

  void slice_result(NodeId id, const PadRule& rule) {
    const ValueId result = graph_.output(id);
    const SymbolicShape shape = *graph_.value(result).type.shape;
    const SymbolicShape goal = grown(shape, rule.result_dims, rule.from_end);
    if (goal == shape) return;
    graph_.value(result).type = {};
    infer_(graph_, id);
    // Inference may not see through a shape operand that is computed.
    graph_.value(result).type.shape = goal;
    std::vector<int64_t> starts, ends, axes;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (goal[i] == shape[i]) continue;
      starts.push_back(0);
      ends.push_back(shape[i].value);
      axes.push_back(static_cast<int64_t>(i));
    }
    b_.set_insert_point(graph_.after(id));
    const Expr slice =
        b_.op("Slice", {b_.value(result), b_.ints(starts), b_.ints(ends), b_.ints(axes)});
    mark("slice");
    const NodeId made = b_.last();
    const std::string name = graph_.value(result).name;
    graph_.replace_uses_if(result, slice.id, [&](const Use& use) { return use.node() != made; });
    graph_.rename(result, graph_.unique_name(name + ".padded"));
    graph_.rename(slice.id, name);
    graph_.value(slice.id).scale_power = graph_.value(result).scale_power;
  }

  Graph& graph_;
  Builder b_;
  InferNode infer_;
};

}  // namespace

bool pad_to_8(Graph& graph, PassContext& context) {
  if (!context.options.policy.pad || context.options.policy.dtype == DType::kF32) return false;
  return Padder(graph, context).run();
}

}  // namespace halfnote
