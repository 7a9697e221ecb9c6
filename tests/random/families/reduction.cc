// Reductions, pooling, sums along an axis, the largest elements.
#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

void reduce(Growth& g) {
  static constexpr const char* kOps[] = {"ReduceSum",  "ReduceMean", "ReduceMax",
                                         "ReduceMin",  "ReduceL1",   "ReduceSumSquare",
                                         "ReduceMean", "ReduceSum",  "ReduceLogSumExp"};
  const Expr x = g.any();
  Ints axes;
  for (int d = 0; d < x.rank(); ++d) {
    if (g.chance(45)) axes.push_back(g.chance(50) ? d : d - x.rank());
  }
  std::vector<Expr> operands = {x};
  if (!axes.empty() || g.chance(30)) operands.push_back(g.ints(axes));
  const Expr reduced =
      g.op(g.one_of(kOps), operands,
           {{"keepdims", int64_t{g.chance(60)}}, {"noop_with_empty_axes", int64_t{g.chance(20)}}});
  g.keep(reduced);
}

/// What is away from 0, where the root and the product have gradients of a tame size.
void reduce_of_positive(Growth& g) {
  static constexpr const char* kOps[] = {"ReduceL2", "ReduceLogSum", "ReduceProd"};
  const Expr x = g.any(1);
  const Expr away = g.op("Add", {g.op("Abs", {x}), g.constant_of(Tensor::scalar(0.5f))});
  g.keep(g.op(g.one_of(kOps), {away, g.ints({g.pick(x.rank())})}, {{"keepdims", int64_t{1}}}));
}

/// x minus its mean, or over its sum: the forms that broadcast back.
void centered(Growth& g) {
  static constexpr const char* kOps[] = {"ReduceMean", "ReduceMax", "ReduceSum"};
  const Expr x = g.any(1);
  const Expr r = g.op(g.one_of(kOps), {x, g.ints({g.pick(x.rank())})}, {{"keepdims", int64_t{1}}});
  g.keep(g.op(g.chance(70) ? "Sub" : "Add", {x, r}));
}

void pool(Growth& g) {
  static constexpr const char* kOps[] = {"MaxPool", "AveragePool", "AveragePool", "MaxPool",
                                         "LpPool"};
  const Expr x = g.any(3, 4, 2048);
  const Shape s = g.shape(x);
  const std::string op = g.one_of(kOps);
  Ints kernel, strides, pads(2 * (s.size() - 2));
  for (size_t d = 2; d < s.size(); ++d) {
    kernel.push_back(1 +
                     g.pick(static_cast<int>(std::min<int64_t>(3, std::max<int64_t>(1, s[d])))));
    strides.push_back(1 + g.pick(2));
    pads[d - 2] = g.pick(static_cast<int>(kernel.back()));
    pads[d - 2 + s.size() - 2] = g.pick(static_cast<int>(kernel.back()));
  }
  Attributes attributes = {{"kernel_shape", kernel}, {"strides", strides}};
  if (op != "LpPool" && g.chance(60)) attributes.set("pads", pads);
  if (op != "LpPool" && g.chance(20)) attributes.set("ceil_mode", int64_t{1});
  if (op == "AveragePool" && g.chance(40)) attributes.set("count_include_pad", int64_t{1});
  Expr from = x;
  if (op == "LpPool") from = g.op("Add", {g.op("Abs", {x}), g.constant_of(Tensor::scalar(0.5f))});
  g.keep(g.op(op, {from}, attributes));
}

void global_pool(Growth& g) {
  static constexpr const char* kOps[] = {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"};
  const Expr x = g.any(3, 4);
  const std::string op = g.one_of(kOps);
  if (op != "GlobalLpPool") return g.keep(g.op(op, {x}));
  const Expr away = g.op("Add", {g.op("Abs", {x}), g.constant_of(Tensor::scalar(0.5f))});
  g.keep(g.op(op, {away}, {{"p", int64_t{g.between(1, 3)}}}));
}

void running_sum(Growth& g) {
  const Expr x = g.any(1);
  const Expr axis = g.constant_of(Tensor::scalar<int64_t>(g.pick(x.rank())));
  g.keep(g.op("CumSum", {x, axis},
              {{"exclusive", int64_t{g.chance(40)}}, {"reverse", int64_t{g.chance(40)}}}));
}

void largest(Growth& g) {
  const Expr x = g.any(1, 3);
  const int axis = g.pick(x.rank());
  const int64_t extent = g.shape(x)[static_cast<size_t>(axis)];
  const int64_t count =
      extent == 0 ? 0 : 1 + g.pick(static_cast<int>(std::min<int64_t>(3, extent)));
  const std::vector<Expr> found =
      g.ops("TopK", {x, g.ints({count})}, 2,
            {{"axis", int64_t{axis}}, {"largest", int64_t{g.chance(60)}}});
  g.keep(found[0]);
}

}  // namespace

void grow_reduction(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {reduce,   reduce, reduce,      reduce_of_positive,
                                                centered, pool,   pool,        global_pool,
                                                centered, pool,   running_sum, largest};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
