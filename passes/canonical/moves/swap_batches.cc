// swap_batches: between transposes of its first two dims a region of the graph runs without them.
//
//   t = Transpose <perm = [1, 0, 2]> (x)            y = MatMul (x, w)
//   y = MatMul (t, w)                               r = Reshape (y, [b, s, h, d])
//   r = Reshape (y, [s, b, h, d])            ──▶    q = Transpose <perm = [0, 2, 1, 3]> (r)
//   q = Transpose <perm = [1, 2, 0, 3]> (r)
//
// PyTorch's MultiheadAttention computes with the sequence first, whatever its caller has. In such a
// region all nodes work on one row like on the other: products with a weight, elementwise nodes
// whose other operands are the same for all rows, Split and norms along later dims, views that keep
// both dims or join them. Each Transpose at its border takes the swap into its permutation, and
// goes where nothing is left. Exact. Leaves alone: regions that something else reads, a Dropout
// among that, which draws by position.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "compiler/ir/query.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr size_t kMostOfRegion = 1000;

constexpr std::string_view kElementwise[] = {
    "Abs",  "Add", "Cast", "Clip",      "Div",        "Elu",   "Erf",  "Exp",       "Gelu",
    "Log",  "Max", "Min",  "Mul",       "Neg",        "Pow",   "Relu", "LeakyRelu", "Sigmoid",
    "Sqrt", "Sub", "Tanh", "HardSwish", "Reciprocal", "Swish", "Mish", "Softplus",  "Identity"};
constexpr std::string_view kAlongLast[] = {"LayerNormalization", "RMSNormalization", "Softmax",
                                           "LogSoftmax"};

bool is_one_of(std::string_view op, std::span<const std::string_view> ops) {
  return std::ranges::find(ops, op) != ops.end();
}

/// How a value of the region holds its rows.
enum class Rows : uint8_t {
  kTwo,  // dims 0 and 1
  kOne,  // both in dim 0
};

size_t dims_of(Rows rows) { return rows == Rows::kTwo ? 2 : 1; }

/// A permutation that gives, or reads, a value whose first two dims have changed places.
std::vector<int64_t> giving_swapped(std::vector<int64_t> perm) {
  std::swap(perm[0], perm[1]);
  return perm;
}

std::vector<int64_t> reading_swapped(std::vector<int64_t> perm) {
  for (int64_t& dim : perm) dim = dim < 2 ? 1 - dim : dim;
  return perm;
}

/// The values around a Transpose that hold the same rows, as long as every node among them works on
/// each row alone.
class Region {
 public:
  /// `failed`: values of regions that did not end in transposes, which no region can take in.
  Region(const Graph& graph, const std::set<ValueId>& failed) : graph_(graph), failed_(failed) {}

  /// Does the region of this value, which holds rows in two dims, end in transposes alone?
  bool grow(ValueId seed) {
    const SymbolicShape& shape = *graph_.value(seed).type.shape;
    first_ = shape[0];
    second_ = shape[1];
    add(seed, Rows::kTwo);
    for (size_t i = 0; i < open_.size(); ++i) {
      const ValueId value = open_[i];
      if (open_.size() > kMostOfRegion || failed_.contains(value)) return false;
      if (!read_producer(value) || !read_uses(value)) return false;
    }
    return true;
  }

  const std::map<ValueId, Rows>& values() const { return rows_; }
  const std::vector<NodeId>& entries() const { return entries_; }
  const std::vector<NodeId>& exits() const { return exits_; }

 private:
  bool add(ValueId value, Rows rows) {
    const auto [found, added] = rows_.emplace(value, rows);
    if (added) open_.push_back(value);
    return found->second == rows;
  }

  bool is_transpose(NodeId node, size_t rank) const {
    return is_op(graph_, node, "Transpose") &&
           graph_.node(node).attributes.get_ints("perm").size() == rank && rank >= 2;
  }

  bool read_producer(ValueId value) {
    const NodeId node = producer(graph_, value);
    if (!node.valid() || graph_.node(node).region != graph_.main()) return false;
    const auto rank = static_cast<size_t>(graph_.value(value).type.rank());
    if (!is_transpose(node, rank)) return read_node(node, value);
    if (rows_.at(value) != Rows::kTwo) return false;
    entries_.push_back(node);
    return true;
  }

  bool read_uses(ValueId value) {
    for (const Use& use : graph_.uses(value)) {
      if (!use.by_node() || graph_.node(use.node()).region != graph_.main()) return false;
      const NodeId node = use.node();
      if (!is_transpose(node, static_cast<size_t>(graph_.value(value).type.rank()))) {
        const bool of_rows = use.slot == 0 || is_one_of(graph_.node(node).op.str(), kElementwise);
        if (!of_rows || !read_node(node, value) || !rows_.contains(graph_.output(node)))
          return false;
        continue;
      }
      if (rows_.at(value) != Rows::kTwo) return false;
      exits_.push_back(node);
    }
    return true;
  }

  /// Takes in all that the node reads and gives of these rows, one of which is `value`.
  bool read_node(NodeId node, ValueId value) {
    const std::string_view op = graph_.node(node).op.str();
    if (!graph_.node(node).domain.empty()) return false;
    for (const ValueId result : graph_.outputs(node)) {
      if (result.valid() && !graph_.value(result).type.shape) return false;
    }
    if (op == "Reshape") return read_reshape(node);
    const Rows rows = rows_.at(value);
    if (is_one_of(op, kElementwise)) return read_elementwise(node, rows);
    const ValueId x = graph_.input(node, 0);
    if (!graph_.value(x).type.shape) return false;
    if (op == "MatMul" || op == "Gemm") return read_product(node, rows) && add_all(node, rows);
    const int64_t axis = axis_of(node, op == "Split" ? 0 : -1);
    const bool along = op == "Split" || is_one_of(op, kAlongLast);
    return along && axis >= static_cast<int64_t>(dims_of(rows)) && shares_the_rest(node, rows) &&
           add_all(node, rows);
  }

  /// Are all operands behind the first the same for all rows?
  bool shares_the_rest(NodeId node, Rows rows) const {
    for (size_t i = 1; i < graph_.inputs(node).size(); ++i) {
      const ValueId x = graph_.input(node, i);
      if (x.valid() && !same_for_all(x, graph_.input(node, 0), rows)) return false;
    }
    return true;
  }

  int64_t axis_of(NodeId node, int64_t usual) const {
    const int64_t axis = graph_.node(node).attributes.get_int("axis", usual);
    return axis < 0 ? axis + graph_.value(graph_.input(node, 0)).type.rank() : axis;
  }

  /// The first operand and all results.
  bool add_all(NodeId node, Rows rows) {
    bool fits = holds(graph_.input(node, 0), rows) && add(graph_.input(node, 0), rows);
    for (const ValueId result : graph_.outputs(node)) {
      if (result.valid()) fits = fits && holds(result, rows) && add(result, rows);
    }
    return fits;
  }

  /// Has it these rows in front?
  bool holds(ValueId value, Rows rows) const {
    const ValueType& type = graph_.value(value).type;
    if (!type.shape || type.shape->size() < dims_of(rows)) return false;
    if (rows == Rows::kOne) return joined().known() && (*type.shape)[0].same_as(joined());
    return (*type.shape)[0].same_as(first_) && (*type.shape)[1].same_as(second_);
  }

  Dim joined() const {
    return first_.known() && second_.known() ? Dim(first_.value * second_.value) : Dim();
  }

  bool read_product(NodeId node, Rows rows) const {
    const SymbolicShape& a = *graph_.value(graph_.input(node, 0)).type.shape;
    const ValueType& b = graph_.value(graph_.input(node, 1)).type;
    if (a.size() <= dims_of(rows) || b.rank() != 2) return false;
    if (is_op(graph_, node, "MatMul")) return true;
    const ValueId c = graph_.input(node, 2);
    return rows == Rows::kOne && graph_.node(node).attributes.get_int("transA", 0) == 0 &&
           (!c.valid() || same_for_all(c, graph_.output(node), rows));
  }

  bool read_elementwise(NodeId node, Rows rows) {
    const ValueId result = graph_.output(node);
    if (!holds(result, rows) || !add(result, rows)) return false;
    for (const ValueId x : graph_.inputs(node)) {
      if (!x.valid() || same_for_all(x, result, rows)) continue;
      if (graph_.value(x).type.rank() != graph_.value(result).type.rank()) return false;
      if (!holds(x, rows) || !add(x, rows)) return false;
    }
    return true;
  }

  /// Is the operand broadcast over the rows?
  bool same_for_all(ValueId x, ValueId result, Rows rows) const {
    const ValueType &own = graph_.value(x).type, &whole = graph_.value(result).type;
    if (!own.shape || rows_.contains(x)) return false;
    const size_t missing = whole.shape->size() - std::min(own.shape->size(), whole.shape->size());
    for (size_t i = missing; i < dims_of(rows); ++i) {
      if (!(*own.shape)[i - missing].is(1)) return false;
    }
    return true;
  }

  /// A view that keeps both dims of the rows, or joins them, or takes them apart again.
  bool read_reshape(NodeId node) {
    for (const ValueId value : {graph_.input(node, 0), graph_.output(node)}) {
      const Rows rows = holds(value, Rows::kTwo) ? Rows::kTwo : Rows::kOne;
      if (!holds(value, rows) || !add(value, rows)) return false;
    }
    return true;
  }

  const Graph& graph_;
  const std::set<ValueId>& failed_;
  Dim first_, second_;
  std::map<ValueId, Rows> rows_;
  std::vector<ValueId> open_;
  std::vector<NodeId> entries_, exits_;
};

class BatchSwapper {
 public:
  BatchSwapper(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.nodes()) {
      if (!swaps_two(node)) continue;
      changed |= rewrite(graph_.output(node)) || rewrite(graph_.input(node, 0));
    }
    return changed;
  }

 private:
  bool swaps_two(NodeId node) const {
    if (!graph_.node(node).domain.empty() || graph_.node(node).op != "Transpose") return false;
    const auto perm = graph_.node(node).attributes.get_ints("perm");
    const ValueType& type = graph_.value(graph_.output(node)).type;
    if (perm.size() < 3 || !type.shape || graph_.node(node).region != graph_.main()) return false;
    return std::ranges::is_sorted(giving_swapped(perm));
  }

  bool rewrite(ValueId seed) {
    Region region(graph_, failed_);
    std::map<NodeId, Shape> targets;
    if (!region.grow(seed) || !find_targets(region, targets)) {
      for (const auto& [value, rows] : region.values()) failed_.insert(value);
      return false;
    }
    for (const auto& [value, rows] : region.values()) {
      SymbolicShape& shape = *graph_.value(value).type.shape;
      if (rows == Rows::kTwo) std::swap(shape[0], shape[1]);
    }
    for (const auto& [node, target] : targets) {
      Builder b(graph_, graph_.before(node), infer_);
      graph_.set_input(node, 1, b.ints({target.begin(), target.end()}).id);
      graph_.node(node).attributes.erase("allowzero");
    }
    for (const NodeId node : region.entries()) turn(node, giving_swapped(perm_of(node)));
    for (const NodeId node : region.exits()) turn(node, reading_swapped(perm_of(node)));
    return true;
  }

  /// What every Reshape of the region is to be given; false if too much is open.
  bool find_targets(const Region& region, std::map<NodeId, Shape>& targets) const {
    for (const auto& [value, rows] : region.values()) {
      const NodeId node = producer(graph_, value);
      if (graph_.node(node).op != "Reshape") continue;
      const auto target = target_of(node, rows);
      if (!target) return false;
      targets[node] = *target;
    }
    return true;
  }

  std::vector<int64_t> perm_of(NodeId node) const {
    return graph_.node(node).attributes.get_ints("perm");
  }

  void turn(NodeId node, const std::vector<int64_t>& perm) {
    graph_.node(node).attributes.set("perm", perm);
  }

  /// The same of one, for its rows the other way round.
  std::optional<Shape> target_of(NodeId reshape, Rows rows) const {
    const SymbolicShape& from = *graph_.value(graph_.input(reshape, 0)).type.shape;
    SymbolicShape to = *graph_.value(graph_.output(reshape)).type.shape;
    const bool two = rows == Rows::kTwo;
    const bool keeps = two && from.size() >= 2 && from[0].same_as(to[0]) && from[1].same_as(to[1]);
    if (two) std::swap(to[0], to[1]);
    Shape target;
    bool open = false;
    for (size_t i = 0; i < to.size(); ++i) {
      const bool copies = keeps && i < 2 && !to[i].known();
      if (to[i].is(0)) return std::nullopt;
      if (!to[i].known() && !copies && std::exchange(open, true)) return std::nullopt;
      target.push_back(to[i].known() ? to[i].value : copies ? 0 : -1);
    }
    return target;
  }

  Graph& graph_;
  const InferNode& infer_;
  std::set<ValueId> failed_;
};

}  // namespace

bool swap_batches(Graph& graph, PassContext& context) {
  return BatchSwapper(graph, context.infer).run();
}

}  // namespace halfnote
