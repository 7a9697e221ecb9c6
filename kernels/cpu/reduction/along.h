// What the ops along one axis do, checked: for the kernels of every device. The data is seen as
// (outer, dim, inner).
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/order.h"

namespace halfnote::cpu {

struct Along {
  int64_t outer = 1, dim = 1, inner = 1;

  /// Lines along the axis; line i starts at start(i), its elements are `inner` apart.
  HN_HD int64_t lines() const { return outer * inner; }
  HN_HD int64_t start(int64_t line) const { return line / inner * dim * inner + line % inner; }
};

struct ArgPlan {
  Along along;
  math::Order order;  // the result is the first index in it
};

struct CumSumPlan {
  Along along;
  bool exclusive = false, reverse = false;
};

struct TopKPlan {
  Along along, picked;
  math::Order order;
};

// Each gives the reason why the operands have no kernel, or an empty string; Error(kModel) for
// shapes that do not fit.

std::string plan_arg(const KernelCall& call, bool largest, ArgPlan& plan);
std::string plan_cum_sum(const KernelCall& call, CumSumPlan& plan);
std::string plan_top_k(const KernelCall& call, TopKPlan& plan);

}  // namespace halfnote::cpu
