// What PyTorch's newer exporter writes of the initializers of a graph.
#pragma once

#include "compiler/ir/model.h"

namespace onnx {
class GraphProto;
}

namespace halfnote::proto {

/// Makes metadata of the model of what the exporter declares (kParametersKey, kBuffersKey,
/// kFoldedKey, kLostKey): values have none of their own. An export of ours has the lists already.
void read_declarations(const onnx::GraphProto& graph, Model& model);

}  // namespace halfnote::proto
