// The order in which nodes of an ONNX graph can be read: producers before users.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onnx {
class GraphProto;
class NodeProto;
}  // namespace onnx

namespace halfnote::proto {

using NodeSpan = std::span<const onnx::NodeProto* const>;

/// The nodes as they stand if that is a valid order, else the valid order that keeps the most of it
/// (smallest index first). Values read inside subgraphs count. Throws Error(kModel) that names the
/// nodes of a cycle.
std::vector<int> topological_order(NodeSpan nodes);

/// Adds the names that a node reads from around it: its inputs, what its subgraphs capture, and
/// what a Gradient of ai.onnx.preview.training differentiates. They stand in the node.
void add_read_names(const onnx::NodeProto& node, std::vector<std::string_view>& names);

/// What a message calls a node: its name, or that of its first result.
std::string display_name(const onnx::NodeProto& node);

}  // namespace halfnote::proto
