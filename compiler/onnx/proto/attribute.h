// AttributeProto to Attribute and back. Subgraphs and tensors are left to the caller, who knows
// where they go.
#pragma once

#include <functional>
#include <string>

#include "base/attribute.h"
#include "compiler/onnx/proto/tensor.h"

namespace onnx {
class AttributeProto;
class GraphProto;
}  // namespace onnx

namespace halfnote::proto {

using ReadRegion = std::function<RegionId(const onnx::GraphProto&)>;
using WriteRegion = std::function<void(RegionId, onnx::GraphProto&)>;
using WriteTensor = std::function<void(const Tensor&, onnx::TensorProto&)>;

/// Throws Error(kModel) when the type is missing or does not fit the value. Sparse tensors become
/// dense. `region` is called for subgraphs; empty refuses them.
Attribute read_attribute(const onnx::AttributeProto& proto, TensorSource& source,
                         const ReadRegion& region);

void write_attribute(const std::string& name, const Attribute& attribute, const WriteTensor& tensor,
                     const WriteRegion& region, onnx::AttributeProto& to);

/// The attribute as ONNX text would name its type: `int`, `floats`, …
std::string_view attribute_type_name(int onnx_type);
/// AttributeProto.AttributeType of an attribute.
int attribute_type(const Attribute& attribute);

}  // namespace halfnote::proto
