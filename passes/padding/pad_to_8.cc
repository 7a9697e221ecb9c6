// pad_to_8: dims of 16-bit contractions up to multiples of 8, where tensor cores run at full speed.
//
//   y = MatMul(a: bf16[32,30], b: bf16[30,10])
//     ──▶   a1 = Pad(a, to [32,32])   b1 = Pad(b, to [32,16])
//           y1 = MatMul(a1, b1)       y  = Slice(y1, to [32,10])
//
// Exact: the padding is zero on both sides of every product, so sums gain only zeros, and what grew
// is sliced off again; nothing but the contraction sees a padded lane. Initializers keep their
// shape: Pad(weight) stands in the graph. GEMM M, N and K, and the channels of convolutions, are
// padded, those of grouped convolutions group by group:
//
//   x1 = Reshape(Pad(Reshape(x: [N,6,…], to [N,2,3,…]), to [N,2,8,…]), to [N,16,…])
//
// Leaves alone: symbolic dims and what must be equal to them in another operand (equal-dims has
// made numbers of those it could), f32 contractions, convolutions with one channel in or out a
// group (depthwise: there is no matrix product), recurrent ops, whose kernels lay out their weights
// themselves, vectors, dims of 1 (a dot product gains nothing), --no-pad. docs/precision.md has the
// argument for each form.
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "compiler/ops/operator.h"
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
  int grouped = -1;  // the one of them that holds the channels of all groups of a convolution
};

/// How one kind of contraction is padded. Dims of operands that must agree grow alike, since each
/// grows to the next multiple of its own size, and where one is open none does.
struct PadRule {
  std::string_view domain, op;
  std::array<PaddedSlot, 3> inputs;
  size_t input_count = 0;
  std::array<int, 2> result_dims{-1, -1};
  bool from_end = false;
  bool convolution = false;
  int result_grouped = -1;
  int shape_input = -1;  // i64 operand that names a shape whose dim 1 grows
};

constexpr PaddedSlot matrix(size_t slot) { return {slot, {1, 2}, true}; }
/// The channels of all groups are the first dim.
constexpr PaddedSlot front(size_t slot, int first, int second = -1) {
  return {slot, {first, second}, false, first};
}

constexpr PadRule kPadRules[] = {
    {"", "MatMul", {matrix(0), matrix(1)}, 2, {1, 2}, true},
    {"ai.halfnote", "MatMul", {matrix(0), matrix(1)}, 2, {1, 2}, true},
    {"", "Gemm", {matrix(0), matrix(1), {2, {1, 2}, true}}, 3, {1, 2}, true},
    {"ai.halfnote", "Gemm", {matrix(0), matrix(1), {2, {1, 2}, true}}, 3, {1, 2}, true},
    {"", "Conv", {front(0, 1), front(1, 0, 1), front(2, 0)}, 3, {1, -1}, false, true, 1},
    {"ai.halfnote", "ConvGradInput", {front(0, 1), front(1, 0, 1)}, 2, {1, -1}, false, true, 1, 2},
    {"ai.halfnote", "ConvGradWeight", {front(0, 1), front(1, 1)}, 2, {0, 1}, false, true, 0},
};

const PadRule* find_rule(const Node& node) {
  for (const PadRule& rule : kPadRules) {
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
  /// The shape a value grows to; its own if nothing grows. `grouped` grows in each of the groups.
  SymbolicShape grown(const SymbolicShape& shape, const PaddedSlot& slot) const {
    SymbolicShape result = shape;
    for (int dim : slot.dims) {
      if (dim < 0 || static_cast<size_t>(dim) > shape.size() - (slot.from_end ? 0 : 1)) continue;
      const size_t at =
          slot.from_end ? shape.size() - static_cast<size_t>(dim) : static_cast<size_t>(dim);
      const Dim size = result[at];
      if (!size.known()) continue;
      const int64_t parts = dim == slot.grouped ? groups_ : 1;
      result[at] = Dim(parts * padded(Dim(size.value / parts)));
    }
    return result;
  }

  static PaddedSlot result_slot(const PadRule& rule) {
    return {0, rule.result_dims, rule.from_end, rule.result_grouped};
  }

  bool applies(NodeId id, const PadRule& rule) const {
    const ValueType& first = graph_.value(graph_.input(id, 0)).type;
    if (!is_16bit_float(first.dtype)) return false;
    for (size_t i = 0; i < rule.input_count; ++i) {
      const ValueId input = graph_.input(id, rule.inputs[i].slot);
      if (!input.valid()) continue;
      const ValueType& type = graph_.value(input).type;
      const bool bias = rule.inputs[i].slot == 2;
      if (!type.shape || type.shape->empty() || (!bias && type.shape->size() < 2)) return false;
    }
    if (!graph_.value(graph_.output(id)).type.shape.has_value()) return false;
    if (has_open_partner(id, rule)) return false;
    return groups_ == 1 || (groups_ > 1 && groups_fit(id, rule));
  }

  /// Is a dim of an operand known, and one open that must be equal to it?
  bool has_open_partner(NodeId id, const PadRule& rule) const {
    const auto dim_of = [&](size_t input, size_t dim) -> const Dim& {
      return (*graph_.value(graph_.input(id, input)).type.shape)[dim];
    };
    const OperatorRow* row = find_operator(graph_.node(id));
    if (row == nullptr || row->equal_dims == nullptr) return false;
    for (const EqualDims& equal : row->equal_dims(graph_, id)) {
      const Dim& other = dim_of(equal.other, equal.other_dim);
      if (dim_of(equal.input, equal.dim).known() != other.known()) return true;
    }
    if (!rule.from_end || rule.input_count < 3 || !graph_.input(id, 2).valid()) return false;
    // C of a Gemm broadcasts to its result.
    const SymbolicShape& c = *graph_.value(graph_.input(id, 2)).type.shape;
    const SymbolicShape& result = *graph_.value(graph_.output(id)).type.shape;
    for (size_t i = 1; i <= std::min(c.size(), result.size()); ++i) {
      if (result[result.size() - i].known() && !c[c.size() - i].known()) return true;
    }
    return false;
  }

  /// Each group is a matrix product, and its channels can be taken apart: all sizes behind them are
  /// numbers.
  bool groups_fit(NodeId id, const PadRule& rule) const {
    for (size_t i = 0; i < rule.input_count; ++i) {
      const ValueId input = graph_.input(id, rule.inputs[i].slot);
      if (input.valid() && !group_fits(graph_.value(input).type, rule.inputs[i])) return false;
    }
    return group_fits(graph_.value(graph_.output(id)).type, result_slot(rule));
  }

  bool group_fits(const ValueType& type, const PaddedSlot& slot) const {
    const SymbolicShape& shape = *type.shape;
    for (size_t at = static_cast<size_t>(slot.grouped); at < shape.size(); ++at) {
      if (!shape[at].known()) return false;
    }
    const int64_t channels = shape[static_cast<size_t>(slot.grouped)].value;
    const bool one_of_two = slot.dims[1] >= 0 && shape[1].value <= 1;
    return channels % groups_ == 0 && channels / groups_ > 1 && !one_of_two;
  }

  bool visit(NodeId id) {
    const PadRule* rule = find_rule(graph_.node(id));
    if (rule == nullptr) return false;
    groups_ = rule->convolution ? graph_.node(id).attributes.get_int("group", 1) : 1;
    if (!applies(id, *rule)) return false;
    bool any = false;
    for (size_t i = 0; i < rule->input_count; ++i) {
      const PaddedSlot& slot = rule->inputs[i];
      const ValueId input = graph_.input(id, slot.slot);
      if (!input.valid()) continue;
      const SymbolicShape& shape = *graph_.value(input).type.shape;
      any |= grown(shape, slot) != shape;
    }
    if (!any) return false;
    b_.set_insert_point(graph_.before(id));
    b_.set_role(graph_.node(id).role);
    b_.set_origin(graph_.node(id).name);
    for (size_t i = 0; i < rule->input_count; ++i) pad_input(id, rule->inputs[i]);
    if (rule->shape_input >= 0) pad_shape(id, *rule);
    slice_result(id, *rule);
    return true;
  }

  void mark(const char* what) {
    Node& node = graph_.node(b_.last());
    node.metadata.emplace_back(kPaddingMark, what);
    node.precision.reason = "padding to multiples of 8";
  }

  /// `shape`, the grouped dim as two: groups, and channels of one. A leading 0 copies a dim.
  std::vector<int64_t> apart(const SymbolicShape& shape, size_t grouped) const {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i == grouped) sizes.push_back(groups_);
      sizes.push_back(i < grouped ? 0 : i == grouped ? shape[i].value / groups_ : shape[i].value);
    }
    return sizes;
  }

  std::vector<int64_t> together(const SymbolicShape& shape, size_t grouped) const {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < shape.size(); ++i) sizes.push_back(i < grouped ? 0 : shape[i].value);
    return sizes;
  }

  /// One initializer for all nodes that ask for the same numbers: of a large graph of small layers
  /// these would be most of what there is.
  Expr ints(const std::vector<int64_t>& numbers) {
    const auto [at, fresh] = ints_.try_emplace(numbers);
    if (fresh) at->second = b_.ints(numbers).id;
    return b_.value(at->second);
  }

  Expr reshape(Expr value, const std::vector<int64_t>& shape) {
    const Expr result = b_.op("Reshape", {value, ints(shape)});
    mark("reshape");
    return result;
  }

  /// The dim whose groups grow one by one; none (no such dim) if it does not grow, or as a whole.
  size_t taken_apart(const SymbolicShape& shape, const SymbolicShape& goal,
                     const PaddedSlot& slot) const {
    if (groups_ == 1 || slot.grouped < 0) return shape.size();
    const auto at = static_cast<size_t>(slot.grouped);
    return goal[at] == shape[at] ? shape.size() : at;
  }

  /// How much each dim grows at its end, with the grouped one in two.
  std::vector<int64_t> growth(const SymbolicShape& shape, const SymbolicShape& goal,
                              size_t grouped) const {
    std::vector<int64_t> more;
    for (size_t i = 0; i < shape.size(); ++i) {
      const int64_t extra = goal[i] == shape[i] ? 0 : goal[i].value - shape[i].value;
      if (i == grouped) more.push_back(0);
      more.push_back(i == grouped ? extra / groups_ : extra);
    }
    return more;
  }

  void pad_input(NodeId id, const PaddedSlot& slot) {
    const ValueId input = graph_.input(id, slot.slot);
    if (!input.valid()) return;
    const SymbolicShape shape = *graph_.value(input).type.shape;
    const SymbolicShape goal = grown(shape, slot);
    if (goal == shape) return;
    const size_t grouped = taken_apart(shape, goal, slot);
    const bool in_groups = grouped < shape.size();
    const std::vector<int64_t> more = growth(shape, goal, grouped);
    std::vector<int64_t> pads(more.size(), 0);
    pads.insert(pads.end(), more.begin(), more.end());
    Expr wide = b_.value(input);
    if (in_groups) wide = reshape(wide, apart(shape, grouped));
    wide = b_.op("Pad", {wide, ints(pads)});
    mark("pad");
    if (in_groups) wide = reshape(wide, together(goal, grouped));
    graph_.set_input(id, slot.slot, wide.id);
  }

  /// ConvGradInput names the shape of X: its channels grow too.
  void pad_shape(NodeId id, const PadRule& rule) {
    const SymbolicShape shape = *graph_.value(graph_.output(id)).type.shape;
    const SymbolicShape goal = grown(shape, result_slot(rule));
    if (goal == shape) return;
    const auto slot = static_cast<size_t>(rule.shape_input);
    const std::vector<int64_t> extra = growth(shape, goal, shape.size());
    const Expr sum = b_.value(graph_.input(id, slot)) + ints(extra);
    mark("shape");
    graph_.set_input(id, slot, sum.id);
  }

  void slice_result(NodeId id, const PadRule& rule) {
    const ValueId result = graph_.output(id);
    const SymbolicShape shape = *graph_.value(result).type.shape;
    const SymbolicShape goal = grown(shape, result_slot(rule));
    const ValueType before = graph_.value(result).type;
    graph_.value(result).type = {};
    infer_(graph_, id);
    if (goal == shape) {
      graph_.value(result).type = before;
      return;
    }
    // Inference may not see through a shape operand that is computed.
    graph_.value(result).type.shape = goal;
    b_.set_insert_point(graph_.after(id));
    std::vector<NodeId> made;
    const Expr whole = b_.value(result);
    const Expr cut = cut_off(whole, shape, goal, taken_apart(shape, goal, result_slot(rule)), made);
    const std::string name = graph_.value(result).name;
    graph_.replace_uses_if(result, cut.id, [&](const Use& use) {
      return std::find(made.begin(), made.end(), use.node()) == made.end();
    });
    graph_.rename(result, graph_.unique_name(name + ".padded"));
    graph_.rename(cut.id, name);
    graph_.value(cut.id).scale_power = graph_.value(result).scale_power;
  }

  /// Slices `whole` of shape `goal` to `shape`; adds the nodes to `made`.
  Expr cut_off(Expr whole, const SymbolicShape& shape, const SymbolicShape& goal, size_t grouped,
               std::vector<NodeId>& made) {
    const bool in_groups = grouped < shape.size();
    Expr cut = whole;
    if (in_groups) {
      cut = reshape(cut, apart(goal, grouped));
      made.push_back(b_.last());
    }
    const std::vector<int64_t> more = growth(shape, goal, grouped);
    std::vector<int64_t> starts, ends, axes;
    for (size_t i = 0; i < more.size(); ++i) {
      if (more[i] == 0) continue;
      const size_t dim = in_groups && i > grouped ? i - 1 : i;
      starts.push_back(0);
      ends.push_back(in_groups && dim == grouped ? shape[dim].value / groups_ : shape[dim].value);
      axes.push_back(static_cast<int64_t>(i));
    }
    cut = b_.op("Slice", {cut, ints(starts), ints(ends), ints(axes)});
    mark("slice");
    made.push_back(b_.last());
    if (!in_groups) return cut;
    cut = reshape(cut, together(shape, grouped));
    made.push_back(b_.last());
    return cut;
  }

  int64_t groups_ = 1;  // of the node at hand
  Graph& graph_;
  Builder b_;
  InferNode infer_;
  std::map<std::vector<int64_t>, ValueId> ints_;
};

}  // namespace

bool pad_to_8(Graph& graph, PassContext& context) {
  if (!context.options.policy.pad || context.options.policy.dtype == DType::kF32) return false;
  return Padder(graph, context).run();
}

}  // namespace halfnote
