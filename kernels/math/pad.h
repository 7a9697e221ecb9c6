// Where the elements around a padded tensor come from, written once for the CPU and for CUDA.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote::math {

enum class PadMode : int32_t { kConstant, kEdge, kReflect, kWrap };

/// The index in [0, size), size ≥ 1, that index `at` of a dim, outside of it too, reads from; not
/// for kConstant.
HN_HD inline int64_t pad_source(PadMode mode, int64_t at, int64_t size) {
  if (size == 1) return 0;
  if (mode == PadMode::kEdge) return at < 0 ? 0 : at < size ? at : size - 1;
  const int64_t period = mode == PadMode::kWrap ? size : 2 * (size - 1);
  const int64_t inside = (at % period + period) % period;
  return inside < size ? inside : period - inside;
}

}  // namespace halfnote::math
