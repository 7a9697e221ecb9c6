// The trained model as ONNX that any tool takes.
#pragma once

#include "compiler/ir/model.h"
#include "runtime/core/state_store.h"

namespace halfnote {

/// Makes the f32 form of a trained model: that of to_f32 (passes/precision/to_f32.h), in the op-set
/// of its source, without functions and metadata of ours but for what its initializers are
/// (kParametersKey, kBuffersKey, kConstantsKey), so that more training trains the same ones.
void make_plain(Model& model, const StateStore& states);

}  // namespace halfnote
