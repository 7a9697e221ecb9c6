// What the code of a model said, and the file does not do: PyTorch's newer exporter tells of each
// node the call that it was made for.
#pragma once

#include "compiler/ir/model.h"
#include "passes/pass.h"

namespace halfnote {

/// Warns of gradients that the code cuts off (`detach`), of a label smoothing, of rows of an
/// embedding that it does not train (`padding_idx`) and of a divisor of an average pool: none of
/// them is in the nodes.
void warn_of_lost_settings(const Model& model, PassContext& context);

}  // namespace halfnote
