// Finding the schema of a node.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "compiler/ir/graph.h"

namespace onnx {
class OpSchema;
}  // namespace onnx

namespace halfnote::proto {

/// The schema valid in `opset`, which counts for the default domain; other domains are taken at
/// their newest. Null when there is none, or when the op is deprecated there.
const onnx::OpSchema* find_schema(std::string_view domain, std::string_view op, int64_t opset);

/// As `find_schema`; throws Error(kUnsupported).
const onnx::OpSchema& require_schema(const Node& node, int64_t opset);

/// Which node an error is about.
Place place_of(const Graph& graph, NodeId node);

}  // namespace halfnote::proto
