// A model on its way to bytes. A GraphProto of 100,000 nodes takes several times the room of its
// bytes, and one string of them up to three times while it grows: nodes, initializers, outputs,
// value_infos and bindings become bytes as they are made, in pieces that are not copied again.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/type.h"

namespace google::protobuf {
class MessageLite;
}

namespace onnx {
class AttributeProto;
class GraphProto;
}  // namespace onnx

namespace halfnote::proto {

/// Bytes in pieces of about a megabyte.
class Text {
 public:
  /// Where the next bytes go; good for one message.
  std::string& tail();
  /// Puts the pieces of another text behind those of this one.
  void take(Text&& other);
  /// Likewise, as the content of a length-delimited field.
  void take_field(int number, Text&& content);
  /// Makes one piece of all.
  std::string& join();
  size_t size() const;
  const std::vector<std::string>& pieces() const { return pieces_; }

 private:
  std::vector<std::string> pieces_;
};

/// The bytes of a NodeProto. Fields are given in the order of their numbers, as protobuf writes
/// them: inputs, outputs, name, op_type, attributes, domain, overload, entries.
class NodeText {
 public:
  explicit NodeText(std::string& to) : to_(to) {}
  void input(std::string_view name);
  void output(std::string_view name);
  void name(std::string_view name);
  void op_type(std::string_view op);
  void attribute(const std::function<void(onnx::AttributeProto&)>& write);
  void domain(std::string_view domain);
  void overload(std::string_view overload);
  void entry(std::string_view key, std::string_view value);

 private:
  std::string& to_;
};

/// Appends the bytes of a message. Throws Error(kModel): protobuf writes none of 2 GiB.
void append_content(std::string& to, const google::protobuf::MessageLite& message);

/// Appends a ValueInfoProto; no metadata for an empty key.
void append_value_info(std::string& to, std::string_view name, const ValueType& type,
                       std::string_view key, std::string_view value);

/// Appends a StringStringEntryProto.
void append_entry(std::string& to, int number, std::string_view key, std::string_view value);

/// What a GraphProto has many of.
class GraphText {
 public:
  void add_node(std::string_view bytes);
  void add_initializer(std::string_view bytes);
  void add_output(std::string_view bytes);
  void add_info(std::string_view bytes);
  /// The whole graph, in protobuf's order of fields: what was added, and what `rest` holds (it is
  /// emptied).
  Text finish(onnx::GraphProto& rest);

 private:
  Text nodes_, initializers_, outputs_, infos_;
};

}  // namespace halfnote::proto
