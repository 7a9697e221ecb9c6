// Conversions are lazy: most inference functions look at a few attributes only.
#include "compiler/onnx/schema/node_proto.h"

#include <onnx/onnx_pb.h>

#include "compiler/onnx/proto/attribute.h"
#include "compiler/onnx/proto/tensor.h"

namespace halfnote::proto {

AttributeProtos::~AttributeProtos() = default;

const onnx::AttributeProto* AttributeProtos::get(const std::string& name) const {
  for (const auto& [key, proto] : converted_) {
    if (key == name) return proto.get();
  }
  const Attribute* attribute = attributes_.find(name);
  const bool absent =
      attribute == nullptr || std::holds_alternative<AttributeReference>(*attribute);
  auto proto = absent ? nullptr : std::make_unique<onnx::AttributeProto>();
  if (!absent) {
    write_attribute(
        name, *attribute, write_small_tensor, [](RegionId, onnx::GraphProto&) {}, *proto);
  }
  converted_.emplace_back(name, std::move(proto));
  return converted_.back().second.get();
}

void write_small_tensor(const Tensor& tensor, onnx::TensorProto& to) {
  if (tensor.byte_size() > kMaxConstantBytes) {
    write_tensor_header(tensor, "", to);
  } else {
    write_tensor(tensor, "", to);
  }
}

}  // namespace halfnote::proto
