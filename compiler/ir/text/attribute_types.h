// The kinds of attributes with ONNX's numbers and names (AttributeProto.AttributeType). Internal to
// compiler/ir/text.
#pragma once

#include <array>
#include <string_view>

#include "base/attribute.h"

namespace halfnote::text {

enum class AttributeType : int {
  kUndefined = 0,
  kFloat = 1,
  kInt = 2,
  kString = 3,
  kTensor = 4,
  kGraph = 5,
  kFloats = 6,
  kInts = 7,
  kStrings = 8,
  kTensors = 9,
  kGraphs = 10,
  kSparseTensor = 11,
  kSparseTensors = 12,
  kTypeProto = 13,
  kTypeProtos = 14,
};

inline constexpr std::array<std::string_view, 15> kAttributeTypeNames = {
    "",           "float",   "int",     "string", "tensor",        "graph",          "floats",
    "ints",       "strings", "tensors", "graphs", "sparse_tensor", "sparse_tensors", "type_proto",
    "type_protos"};

/// Empty for a number that is none.
inline std::string_view attribute_type_name(AttributeType type) {
  return kAttributeTypeNames[static_cast<size_t>(type)];
}
inline std::string_view attribute_type_name(int onnx_type) {
  if (onnx_type < 0 || onnx_type >= static_cast<int>(kAttributeTypeNames.size())) return "";
  return kAttributeTypeNames[static_cast<size_t>(onnx_type)];
}

/// The type that ONNX gives to what the attribute holds; in the order of the alternatives of
/// Attribute.
inline AttributeType attribute_type(const Attribute& attribute) {
  using enum AttributeType;
  constexpr std::array<AttributeType, std::variant_size_v<Attribute>> kTypes = {
      kInt,  kFloat,  kString,  kTensor,  kGraph,  kTypeProto,
      kInts, kFloats, kStrings, kTensors, kGraphs, kUndefined};
  return kTypes[attribute.index()];
}

/// The type of one element of a list type; kUndefined for others.
inline AttributeType element_type(AttributeType type) {
  using enum AttributeType;
  switch (type) {
    case kFloats:
      return kFloat;
    case kInts:
      return kInt;
    case kStrings:
      return kString;
    case kTensors:
      return kTensor;
    case kGraphs:
      return kGraph;
    case kSparseTensors:
      return kSparseTensor;
    case kTypeProtos:
      return kTypeProto;
    default:
      return kUndefined;
  }
}

}  // namespace halfnote::text
