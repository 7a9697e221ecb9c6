// regroup_dims: a Transpose between two views of its dims moves the dims themselves.
//
//   a = Reshape (x: [s, b, h·d], [s, b·h, d])         y = Reshape (x, [s, b, h, d])
//   t = Transpose <perm = [1, 0, 2]> (a)       ──▶    z = Transpose <perm = [1, 2, 0, 3]> (y)
//   z = Reshape (t, [b, h, s, d])
//
// What follows then sees heads where they are. Exact. Leaves alone: dims that are not known or 1,
// views that somebody else reads, and those after which dims would still have to be joined.
#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

using Groups = std::vector<Shape>;  // the factors of each dim

/// Cuts dims of one shape into the largest factors that those of the other consist of as well;
/// nothing where they do not fit.
std::optional<Shape> common_factors(const Shape& a, const Shape& b) {
  Shape factors;
  size_t i = 0, j = 0;
  int64_t left = 1, right = 1;  // what is left of the dims under way; 1: take the next ones
  while (true) {
    while (left == 1 && i < a.size()) left = a[i++];
    while (right == 1 && j < b.size()) right = b[j++];
    if (left == 1 && right == 1) return factors;
    const int64_t factor = std::min(left, right);
    if (factor <= 1 || left % factor != 0 || right % factor != 0) return std::nullopt;
    factors.push_back(factor);
    left /= factor;
    right /= factor;
  }
}

/// `factors` by the dims of `shape` that they make up, in order.
std::optional<Groups> grouped(const Shape& factors, const Shape& shape) {
  Groups groups;
  size_t next = 0;
  for (const int64_t dim : shape) {
    Shape group;
    int64_t product = 1;
    while (product < dim && next < factors.size()) {
      group.push_back(factors[next]);
      product *= factors[next++];
    }
    if (product != dim) return std::nullopt;
    groups.push_back(std::move(group));
  }
  return next == factors.size() ? std::optional(groups) : std::nullopt;
}

Shape joined(const Groups& groups) {
  Shape all;
  for (const Shape& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

class Regrouper {
 public:
  Regrouper(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.nodes()) {
      if (is_main_op(node, "Reshape")) changed |= rewrite(node);
    }
    return changed;
  }

 private:
  bool is_main_op(NodeId node, std::string_view op) const {
    return is_op(graph_, node, op) && graph_.node(node).region == graph_.main();
  }

  /// The node that makes the value for its only reader.
  NodeId only_for(ValueId value, std::string_view op) const {
    const NodeId node = producer(graph_, value);
    return is_main_op(node, op) && only_reader(graph_, value).valid() ? node : NodeId{};
  }

  bool rewrite(NodeId last) {
    const NodeId transpose = only_for(graph_.input(last, 0), "Transpose");
    if (!transpose.valid()) return false;
    const NodeId first = only_for(graph_.input(transpose, 0), "Reshape");
    if (!first.valid()) return false;
    const auto from = known_shape(graph_, graph_.input(first, 0)),
               middle = known_shape(graph_, graph_.output(first)),
               turned = known_shape(graph_, graph_.output(transpose)),
               to = known_shape(graph_, graph_.output(last));
    const auto perm = graph_.node(transpose).attributes.get_ints("perm");
    if (!from || !middle || !turned || !to || perm.size() != middle->size()) return false;
    if (element_count(*to) == 0) return false;
    // The dims that are moved, cut so that the last view joins none.
    const auto behind = common_factors(*turned, *to);
    if (!behind || *behind != *to) return false;
    const auto moved = grouped(*behind, *turned);
    if (!moved) return false;
    Groups dims(perm.size());
    std::vector<int64_t> order, begins(perm.size(), 0);
    for (size_t i = 0; i < perm.size(); ++i) dims[static_cast<size_t>(perm[i])] = (*moved)[i];
    for (size_t i = 1; i < dims.size(); ++i)
      begins[i] = begins[i - 1] + static_cast<int64_t>(dims[i - 1].size());
    for (size_t i = 0; i < perm.size(); ++i) {
      for (size_t f = 0; f < (*moved)[i].size(); ++f)
        order.push_back(begins[static_cast<size_t>(perm[i])] + static_cast<int64_t>(f));
    }
    place(last, graph_.input(first, 0), joined(dims), order);
    return true;
  }

  void place(NodeId last, ValueId source, const Shape& dims, const std::vector<int64_t>& order) {
    Builder b(graph_, graph_.before(last), infer_);
    b.set_role(graph_.node(last).role);
    b.set_origin(graph_.label(last));
    b.set_prefix(graph_.label(last) + "/");
    const Expr view = b.reshape(b.value(source), b.ints({dims.begin(), dims.end()}));
    const Expr made = b.transpose(view, order);
    graph_.node(producer(graph_, made.id)).name = graph_.node(last).name;
    take_place(graph_, graph_.output(last), made.id);
    graph_.remove(last);
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool regroup_dims(Graph& graph, PassContext& context) {
  return Regrouper(graph, context.infer).run();
}

}  // namespace halfnote
