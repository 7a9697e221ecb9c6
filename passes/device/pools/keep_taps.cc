// keep_taps: a MaxPool notes which tap of each window is its maximum, a byte a window, and its
// gradient reads that in place of X; a Relu behind it is one with it, and its gradient is where no
// tap is noted.
//
//   q = MaxPool (x)   y = Relu (q)
//   e = ReluGrad (d, y)   g = MaxPoolGrad (e, x)
//     ──▶   y, taps = ai.halfnote.MaxPool <activation = "Relu"> (x)
//           g = MaxPoolTapsGrad (d, taps, shape of x)
//
// Exact: what is noted is what the gradient would find again, and a maximum that is not above 0
// gets no gradient either way. Leaves alone: windows of more taps than a byte tells apart, Indices,
// integers, sizes that are not known, a Relu whose operand others read too, a gradient that went
// through no ReluGrad where the pool has a Relu; bodies; a MaxPool without Relu or gradient.
#include "passes/device/pools/keep_taps.h"

#include <algorithm>
#include <limits>

#include "base/ops/taps.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ops/window.h"
#include "passes/device/norms/parts.h"

namespace halfnote {
namespace {

/// The windows of a pool or of its gradient.
struct Windows {
  Window window;
  bool ceil = false;

  static Windows of(const Graph& graph, NodeId node, ValueId x) {
    const Attributes& attributes = graph.node(node).attributes;
    return {window_of(attributes, *graph.value(x).type.shape),
            attributes.get_int("ceil_mode", 0) != 0};
  }
  bool are(const Windows& others) const {
    const Window &a = window, &b = others.window;
    return a.kernel == b.kernel && a.strides == b.strides && a.dilations == b.dilations &&
           a.pads == b.pads && ceil == others.ceil;
  }
  bool have_few_taps() const {
    int64_t taps = 1;
    for (const int64_t size : window.kernel) taps *= std::min(size, int64_t{kNoTap} + 1);
    return taps <= kNoTap;
  }
  /// Are the numbers such that sums of them are numbers too? Kernels refuse others.
  bool are_near() const {
    constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 1024;
    const auto all = [](const std::vector<int64_t>& numbers) {
      return std::ranges::all_of(numbers, [](int64_t n) { return n < kFar; });
    };
    return all(window.dilations) && all(window.strides) && all(window.pads);
  }
  /// Are they as many along each axis as the results have elements?
  bool make(const Shape& x, const Shape& y) const {
    for (size_t axis = 0; axis < window.rank(); ++axis) {
      if (!window.results(axis, Dim(x[axis + 2]), ceil).is(y[axis + 2])) return false;
    }
    return true;
  }
};

struct Pool {
  NodeId node, relu;  // the Relu may be missing
  std::vector<NodeId> gradients;
};

/// Is it what the Relu lets through? Where that lets nothing through no tap is noted, so another
/// gradient would lose its part; without a Relu any is.
bool is_masked_by(const Graph& graph, ValueId dy, NodeId relu) {
  if (!relu.valid()) return true;
  const NodeId mask = producer(graph, dy);
  return is_main_op(graph, mask, kHalfnoteDomain, "ReluGrad") &&
         graph.input(mask, 1) == graph.output(relu);
}

bool find_pool(const Graph& graph, NodeId node, Pool& pool) {
  if (!is_main_op(graph, node, "", "MaxPool") || graph.outputs(node).size() != 1) return false;
  const ValueId x = graph.input(node, 0), y = graph.output(node);
  const auto x_shape = known_shape(graph, x), y_shape = known_shape(graph, y);
  if (!x_shape || !y_shape || x_shape->size() < 3 || x_shape->size() != y_shape->size())
    return false;
  if (!is_float(graph.value(x).type.dtype)) return false;
  const Windows windows = Windows::of(graph, node, x);
  if (!windows.have_few_taps() || !windows.are_near() || !windows.make(*x_shape, *y_shape))
    return false;
  pool.node = node;
  if (const NodeId user = only_user(graph, y); is_main_op(graph, user, "", "Relu"))
    pool.relu = user;
  for (const Use& use : graph.uses(x)) {
    if (!use.by_node() || use.slot != 1) continue;
    const NodeId user = use.node();
    if (!is_main_op(graph, user, kHalfnoteDomain, "MaxPoolGrad") || !graph.is_before(node, user))
      continue;
    const ValueId dy = graph.input(user, 0);
    if (!is_masked_by(graph, dy, pool.relu)) continue;
    if (alike(graph, dy, y) && windows.are(Windows::of(graph, user, x)))
      pool.gradients.push_back(user);
  }
  return pool.relu.valid() || !pool.gradients.empty();
}

/// The gradient of the Relu that is one with the pool now: dY goes past it.
void pass_by_mask(Graph& graph, NodeId gradient, ValueId y) {
  const ValueId dy = graph.input(gradient, 0);
  const NodeId mask = producer(graph, dy);
  if (!is_main_op(graph, mask, kHalfnoteDomain, "ReluGrad") || graph.input(mask, 1) != y) return;
  const ValueId whole = graph.input(mask, 0);
  if (!alike(graph, whole, dy)) return;
  graph.set_input(gradient, 0, whole);
  if (graph.uses(dy).empty()) graph.remove(mask);
}

void rewrite(Graph& graph, const Pool& pool, PassContext& context) {
  const ValueId x = graph.input(pool.node, 0), y = graph.output(pool.node);
  graph.node(pool.node).domain = kHalfnoteDomain;
  graph.node(pool.node).attributes.erase("storage_order");
  if (pool.relu.valid()) {
    graph.node(pool.node).attributes.set("activation", std::string("Relu"));
    take_over(graph, graph.output(pool.relu), y);
  }
  if (pool.gradients.empty()) return;
  const std::string name = graph.unique_name(graph.value(y).name + ".taps");
  const ValueId taps = graph.add_node_output(pool.node, 1, name);
  context.infer(graph, pool.node);
  const Shape shape = *known_shape(graph, x);
  for (const NodeId gradient : pool.gradients) {
    if (pool.relu.valid()) pass_by_mask(graph, gradient, y);
    Builder b(graph, graph.before(gradient), context.infer);
    const ValueId size = b.ints({shape.begin(), shape.end()}).id;
    graph.node(gradient).op = "MaxPoolTapsGrad";
    graph.set_input(gradient, 1, taps);
    graph.add_node_input(gradient, size);
  }
}

}  // namespace

bool keep_taps(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    Pool pool;
    if (!find_pool(graph, node, pool)) continue;
    rewrite(graph, pool, context);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
