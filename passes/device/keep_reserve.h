// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "base/dtype.h"
#include "base/ops/recurrence.h"
#include "passes/pass.h"

namespace halfnote {

/// What a recurrent op computes, by which a device says how much it keeps.
struct RecurrentSize {
  Recurrence recurrence;
  int64_t steps = 0, batch = 0, inputs = 0, hidden = 0;
  DType dtype = DType::kUndefined;
};

/// Lets recurrent ops keep for their gradient what their kernel wants, in as many bytes as `bytes`
/// says (0: gates, as before); keep_reserve.cc says how.
bool keep_reserve(Graph& graph, PassContext& context, int64_t (*bytes)(const RecurrentSize&));

}  // namespace halfnote
