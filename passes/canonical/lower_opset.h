// Back from op-set 23: the inverse of lift_opset.
#pragma once

#include <cstdint>

#include "compiler/ir/model.h"

namespace halfnote {

/// Writes a model of op-set 23, of ONNX's own operators and without functions, in op-set `wanted`,
/// or in the oldest above it where every node is valid and means the same; never below 13. The
/// results stay bit for bit. Types must be inferred. Returns the op-set.
int64_t lower_opset(Model& model, int64_t wanted);

/// Notes the op-set of a model before it is lifted, for `source_opset` of what is made from it.
void note_source_opset(Model& model);
int64_t source_opset(const Model& model);  // 23 where nothing is noted

}  // namespace halfnote
