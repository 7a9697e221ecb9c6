// Merges the dims of an index space.
#include "kernels/cpu/runs.h"

#include "base/error.h"

namespace halfnote::cpu {

namespace {

/// Does every tensor walk through dim `d` and the last merged dim as through one?
bool mergeable(const Runs& plan, const std::vector<Shape>& strides, int64_t dim, size_t d) {
  for (size_t k = 0; k < strides.size(); ++k) {
    if (plan.strides[k].back() != strides[k][d] * dim) return false;
  }
  return true;
}

}  // namespace

Runs plan_runs(const Shape& dims, const std::vector<Shape>& strides) {
  Runs plan;
  plan.count = element_count(dims);
  plan.strides.resize(strides.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    if (!plan.dims.empty() && mergeable(plan, strides, dims[d], d)) {
      plan.dims.back() *= dims[d];
      for (size_t k = 0; k < strides.size(); ++k) plan.strides[k].back() = strides[k][d];
      continue;
    }
    plan.dims.push_back(dims[d]);
    for (size_t k = 0; k < strides.size(); ++k) plan.strides[k].push_back(strides[k][d]);
  }
  if (plan.dims.size() > Runs::kMaxDims) {
    throw Error(ErrorCode::kModel, "rank too large")
        .expected("at most " + std::to_string(Runs::kMaxDims), std::to_string(plan.dims.size()));
  }
  if (plan.dims.empty()) {
    plan.dims.push_back(1);
    for (Shape& of_tensor : plan.strides) of_tensor.push_back(1);
  }
  return plan;
}

}  // namespace halfnote::cpu
