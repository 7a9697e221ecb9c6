// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Lets matrix products add the bias that is added to them; absorb_biases.cc says which.
bool absorb_biases(Graph& graph, PassContext& context);
/// The same in any float but f64, for GPUs: 16-bit products are rounded behind the bias.
bool absorb_biases_on_gpu(Graph& graph, PassContext& context);
/// Does the latter take this Add?
bool is_bias_of_product_on_gpu(const Graph& graph, NodeId add);

}  // namespace halfnote
