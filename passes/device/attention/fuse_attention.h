// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "base/dtype.h"
#include "passes/pass.h"

namespace halfnote {

/// The sizes of an attention, by which a device decides.
struct AttentionSize {
  int64_t batches = 0;  // of all batch dims
  int64_t queries = 0, keys = 0, key_size = 0, value_size = 0;
  size_t terms = 0;  // of the scores
  DType dtype = DType::kUndefined;
  bool causal = false, dropout = false, has_gradient = false;
  bool has_term_gradient = false;
};

/// Makes one node of attention, and one of its gradient, where `pays` says so; fuse_attention.cc
/// says how.
bool fuse_attention(Graph& graph, PassContext& context, bool (*pays)(const AttentionSize&));

}  // namespace halfnote
