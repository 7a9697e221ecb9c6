// What an exporter declares of the initializers that it writes.
#pragma once

#include "compiler/ir/model.h"

namespace onnx {
class GraphProto;
}  // namespace onnx

namespace halfnote::proto {

/// Sets kParametersKey, kBuffersKey, kConstantsKey, kFoldedKey and kLostKey in the metadata of the
/// model, as values have none of their own. An export of ours has the lists already.
void read_declarations(const onnx::GraphProto& graph, Model& model);

}  // namespace halfnote::proto
