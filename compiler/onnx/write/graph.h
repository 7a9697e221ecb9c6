// The IR to GraphProto and FunctionProto.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "compiler/ir/model.h"
#include "compiler/onnx/write/sink.h"
#include "compiler/onnx/write/text.h"

namespace onnx {
class FunctionProto;
class GraphProto;
}  // namespace onnx

namespace halfnote::proto {

/// How the values of one graph are called in the file.
struct Naming {
  std::unordered_map<ValueId, std::string> renamed;  // all others keep their name
  /// Inputs and initializers that another graph of the file holds already.
  std::unordered_set<ValueId> shared;

  const std::string& of(const Graph& graph, ValueId value) const;
};

/// Writes the main region and everything below, all types as value_info, with halfnote's metadata
/// of nodes, values and trainable initializers. `more_outputs` stand behind the graph's own, each
/// value once. Nodes and value_infos of the main region go to `text` as they are made, if given.
void write_graph(const Graph& graph, const Naming& naming, TensorSink& sink, onnx::GraphProto& to,
                 std::span<const ValueId> more_outputs = {}, GraphText* text = nullptr);

/// Writes these nodes of the main region alone, in their order. What they read of other nodes, and
/// initializers, become inputs; constants that `with_data` asks for become initializers.
void write_excerpt(const Graph& graph, std::span<const NodeId> nodes,
                   const std::function<bool(ValueId)>& with_data, TensorSink& sink,
                   onnx::GraphProto& to);

/// Initializers of the body become Constant nodes.
void write_function(const Function& function, TensorSink& sink, onnx::FunctionProto& to);

/// Adds an entry to a graph's metadata, which stays sorted by key.
void add_metadata(onnx::GraphProto& to, std::string_view key, const std::string& value);

}  // namespace halfnote::proto
