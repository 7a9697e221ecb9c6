// An algorithm of cuBLASLt as data and as a name that a plan file keeps:
// `lt:66:tile20:stages36:split4:sum2:swizzle0:option0:inner0:cluster2`, its configuration as the
// library's numbers. The library makes the algorithm again from these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/cuda/libraries/lt_request.h"

namespace halfnote::libraries {

/// Names of the attributes CUBLASLT_ALGO_CONFIG_*, in the library's types.
struct LtAlgorithm {
  int32_t id = 0;
  uint32_t tile = 0, stages = 0;
  int32_t split_k = 1;
  uint32_t reduction = 0;  // how the parts of a split sum are added: cublasLtReductionScheme_t
  uint32_t swizzle = 0, option = 0;
  uint16_t inner_shape = 0, cluster_shape = 0;

  friend bool operator==(const LtAlgorithm&, const LtAlgorithm&) = default;
};

std::string name_of(const LtAlgorithm& algorithm);
/// Nothing if the name is none that name_of() gives.
std::optional<LtAlgorithm> lt_algorithm(std::string_view name);

/// CUBLASLT_REDUCTION_SCHEME_*: through the result's memory, one part after the other as they come;
/// and through the workspace, in a step of its own that adds in a fixed order.
inline constexpr uint32_t kLtSumInPlace = 1, kLtSumInComputeType = 2, kLtSumInOutputType = 4;

/// The reductions that keep what a MatmulProblem promises: the same bits on every run, and one
/// rounding at the end. Parts in the type of the result are f32 or f64 only where that is.
inline uint32_t allowed_reductions(const LtRequest& request) {
  return kLtSumInComputeType | (request.d.dtype == request.compute ? kLtSumInOutputType : 0);
}
/// Is a split sum of the algorithm, if it splits, reduced in one of these?
inline bool is_allowed(const LtAlgorithm& algorithm, const LtRequest& request) {
  return (algorithm.reduction & ~allowed_reductions(request)) == 0;
}

}  // namespace halfnote::libraries
