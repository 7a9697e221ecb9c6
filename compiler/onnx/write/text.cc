#include "compiler/onnx/write/text.h"

#include <onnx/onnx_pb.h>

#include <numeric>
#include <utility>

#include "base/error.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/proto/wire_format.h"

namespace halfnote::proto {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

void append_content(std::string& to, const google::protobuf::MessageLite& message) {
  if (message.AppendToString(&to)) return;
  throw Error(ErrorCode::kModel, "the model is too large to be written");
}

std::string& Text::tail() {
  if (pieces_.empty()) pieces_.emplace_back();
  if (pieces_.back().size() < kPiece) return pieces_.back();
  pieces_.emplace_back().reserve(kPiece + kPiece / 8);  // a long text: not copied while it grows
  return pieces_.back();
}

void Text::take(Text&& other) {
  for (std::string& piece : other.pieces_) pieces_.push_back(std::move(piece));
  other.pieces_.clear();
}

void Text::take_field(int number, Text&& content) {
  append_length(tail(), number, content.size());
  take(std::move(content));
}

std::string& Text::join() {
  if (pieces_.size() == 1) return pieces_.front();
  std::string all;
  all.reserve(size());
  for (std::string& piece : pieces_) {
    all += piece;
    piece = {};
  }
  pieces_.clear();
  return pieces_.emplace_back(std::move(all));
}

size_t Text::size() const {
  return std::accumulate(pieces_.begin(), pieces_.end(), size_t{0},
                         [](size_t sum, const std::string& piece) { return sum + piece.size(); });
}

void NodeText::input(std::string_view name) {
  append_field(to_, onnx::NodeProto::kInputFieldNumber, name);
}
void NodeText::output(std::string_view name) {
  append_field(to_, onnx::NodeProto::kOutputFieldNumber, name);
}
void NodeText::name(std::string_view name) {
  append_field(to_, onnx::NodeProto::kNameFieldNumber, name);
}
void NodeText::op_type(std::string_view op) {
  append_field(to_, onnx::NodeProto::kOpTypeFieldNumber, op);
}
void NodeText::attribute(const std::function<void(onnx::AttributeProto&)>& write) {
  onnx::AttributeProto proto;
  write(proto);
  append_length(to_, onnx::NodeProto::kAttributeFieldNumber, proto.ByteSizeLong());
  append_content(to_, proto);
}
void NodeText::domain(std::string_view domain) {
  append_field(to_, onnx::NodeProto::kDomainFieldNumber, domain);
}
void NodeText::overload(std::string_view overload) {
  append_field(to_, onnx::NodeProto::kOverloadFieldNumber, overload);
}
void NodeText::entry(std::string_view key, std::string_view value) {
  append_entry(to_, onnx::NodeProto::kMetadataPropsFieldNumber, key, value);
}

void append_value_info(std::string& to, std::string_view name, const ValueType& type,
                       std::string_view key, std::string_view value) {
  append_field(to, onnx::ValueInfoProto::kNameFieldNumber, name);
  if (type.kind != TypeKind::kUnknown) {
    append_field(to, onnx::ValueInfoProto::kTypeFieldNumber, type_bytes(type));
  }
  if (!key.empty()) {
    append_entry(to, onnx::ValueInfoProto::kMetadataPropsFieldNumber, key, value);
  }
}

void append_entry(std::string& to, int number, std::string_view key, std::string_view value) {
  constexpr int kKey = onnx::StringStringEntryProto::kKeyFieldNumber;
  constexpr int kValue = onnx::StringStringEntryProto::kValueFieldNumber;
  append_length(to, number, field_size(kKey, key.size()) + field_size(kValue, value.size()));
  append_field(to, kKey, key);
  append_field(to, kValue, value);
}

void GraphText::add_node(std::string_view bytes) {
  append_field(nodes_.tail(), onnx::GraphProto::kNodeFieldNumber, bytes);
}

void GraphText::add_initializer(std::string_view bytes) {
  append_field(initializers_.tail(), onnx::GraphProto::kInitializerFieldNumber, bytes);
}

void GraphText::add_output(std::string_view bytes) {
  append_field(outputs_.tail(), onnx::GraphProto::kOutputFieldNumber, bytes);
}

void GraphText::add_info(std::string_view bytes) {
  append_field(infos_.tail(), onnx::GraphProto::kValueInfoFieldNumber, bytes);
}

Text GraphText::finish(onnx::GraphProto& rest) {
  onnx::GraphProto infos, end;  // what stands among the value_infos, and behind them
  infos.mutable_value_info()->Swap(rest.mutable_value_info());
  end.mutable_quantization_annotation()->Swap(rest.mutable_quantization_annotation());
  end.mutable_sparse_initializer()->Swap(rest.mutable_sparse_initializer());
  end.mutable_metadata_props()->Swap(rest.mutable_metadata_props());
  Text text = std::exchange(nodes_, {});
  if (rest.has_name()) append_field(text.tail(), onnx::GraphProto::kNameFieldNumber, rest.name());
  rest.clear_name();
  text.take(std::exchange(initializers_, {}));
  append_content(text.tail(), rest);
  text.take(std::exchange(outputs_, {}));
  append_content(text.tail(), infos);
  text.take(std::exchange(infos_, {}));
  append_content(text.tail(), end);
  rest.Clear();
  return text;
}

}  // namespace halfnote::proto
