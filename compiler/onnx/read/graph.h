// GraphProto and FunctionProto to the IR.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/model.h"
#include "compiler/onnx/proto/tensor.h"

namespace onnx {
class FunctionProto;
class GraphProto;
}  // namespace onnx

namespace halfnote::proto {

/// Initializers that a training step shares with the inference graph: same bytes, added in front of
/// its own.
using SharedInitializers = std::vector<std::pair<std::string, Tensor>>;

/// Reads a main graph. Nodes are put in order; an input that is also an initializer becomes the
/// initializer; Constant nodes get a tensor attribute `value`; names inside subgraphs are made
/// unique over the whole graph. Throws Error that names the node for everything that is not a valid
/// graph.
void read_graph(const onnx::GraphProto& proto, TensorSource& source, Graph& graph,
                const SharedInitializers& shared = {});

Function read_function(const onnx::FunctionProto& proto, TensorSource& source);

/// "" and "ai.onnx" are the same domain.
std::string normalized_domain(const std::string& domain);

}  // namespace halfnote::proto
