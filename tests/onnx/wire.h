// ONNX files written by hand, field by field, so that a test can also write what no library would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace halfnote::wire {

/// A protobuf message under construction.
class Message {
 public:
  Message& number(uint32_t field, uint64_t value) {
    varint(uint64_t{field} << 3);
    return varint(value);
  }
  Message& text(uint32_t field, std::string_view value) {
    varint(uint64_t{field} << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& f32(uint32_t field, float value) {
    varint(uint64_t{field} << 3 | 5);
    bytes_.append(reinterpret_cast<const char*>(&value), 4);
    return *this;
  }
  Message& message(uint32_t field, const Message& value) { return text(field, value.bytes_); }
  Message& raw(std::string_view value) {
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Message& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  std::string bytes_;
};

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class T>
std::string raw_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

/// A tensor without data.
inline Message tensor(std::string_view name, DType dtype, std::initializer_list<int64_t> dims) {
  Message message;
  for (int64_t dim : dims) message.number(1, static_cast<uint64_t>(dim));
  message.number(2, static_cast<uint64_t>(dtype));
  if (!name.empty()) message.text(8, name);
  return message;
}
inline Message raw_tensor(std::string_view name, DType dtype, std::initializer_list<int64_t> dims,
                          std::string_view raw) {
  return tensor(name, dtype, dims).text(9, raw);
}
using Entries = std::vector<std::pair<std::string, std::string>>;
inline Message entry(std::string_view key, std::string_view value) {
  return Message().text(1, key).text(2, value);
}
inline Message external_tensor(std::string_view name, DType dtype,
                               std::initializer_list<int64_t> dims, const Entries& entries) {
  Message message = tensor(name, dtype, dims).number(14, 1);
  for (const auto& [key, value] : entries) message.message(13, entry(key, value));
  return message;
}

struct DimOf {
  int64_t value = 0;
  std::string symbol;
  DimOf(int64_t number) : value(number) {}              // NOLINT: a number is a dim
  DimOf(const char* name) : value(-1), symbol(name) {}  // NOLINT: a name is a dim
};
inline Message type(DType dtype, std::initializer_list<DimOf> dims) {
  Message shape;
  for (const DimOf& dim : dims) {
    Message one;
    if (dim.symbol.empty()) {
      one.number(1, static_cast<uint64_t>(dim.value));
    } else {
      one.text(2, dim.symbol);
    }
    shape.message(1, one);
  }
  return Message().message(1, Message().number(1, static_cast<uint64_t>(dtype)).message(2, shape));
}
inline Message value_info(std::string_view name, DType dtype, std::initializer_list<DimOf> dims) {
  return Message().text(1, name).message(2, type(dtype, dims));
}

using Names = std::vector<std::string>;
inline Message node(std::string_view op, const Names& inputs, const Names& outputs,
                    std::string_view name = {}) {
  Message message;
  for (const std::string& input : inputs) message.text(1, input);
  for (const std::string& output : outputs) message.text(2, output);
  if (!name.empty()) message.text(3, name);
  return message.text(4, op);
}
inline Message int_attribute(std::string_view name, int64_t value) {
  return Message().text(1, name).number(3, static_cast<uint64_t>(value)).number(20, 2);
}
inline Message float_attribute(std::string_view name, float value) {
  return Message().text(1, name).f32(2, value).number(20, 1);
}
inline Message tensor_attribute(std::string_view name, const Message& value) {
  return Message().text(1, name).message(5, value).number(20, 4);
}
inline Message graph_attribute(std::string_view name, const Message& graph) {
  return Message().text(1, name).message(6, graph).number(20, 5);
}

// Field numbers of GraphProto.
inline constexpr uint32_t kNode = 1, kGraphName = 2, kInitializer = 5, kInput = 11, kOutput = 12,
                          kValueInfo = 13, kSparse = 15, kGraphMetadata = 16;
inline constexpr uint32_t kAttribute = 5;                      // of NodeProto
inline constexpr uint32_t kTrainingInfo = 20, kFunction = 25;  // of ModelProto

inline Message model_header(int64_t opset = 17, int64_t ir_version = 8) {
  return Message()
      .number(1, static_cast<uint64_t>(ir_version))
      .message(8, Message().text(1, "").number(2, static_cast<uint64_t>(opset)));
}
inline std::string model(const Message& graph, int64_t opset = 17, int64_t ir_version = 8) {
  return model_header(opset, ir_version).message(7, graph).bytes();
}

/// x: f32[2] -> y = Relu(x), the graph that most tests start from.
inline Message relu_graph() {
  return Message()
      .text(kGraphName, "g")
      .message(kNode, node("Relu", {"x"}, {"y"}, "relu"))
      .message(kInput, value_info("x", DType::kF32, {2}))
      .message(kOutput, value_info("y", DType::kF32, {2}));
}
/// y = Add(x, w) with the initializer `w`.
inline Message add_graph(const Message& w) {
  return Message()
      .text(kGraphName, "g")
      .message(kNode, node("Add", {"x", "w"}, {"y"}, "add"))
      .message(kInitializer, w)
      .message(kInput, value_info("x", DType::kF32, {2}))
      .message(kOutput, value_info("y", DType::kF32, {2}));
}

}  // namespace halfnote::wire
