#include "compiler/onnx/write/graph_text.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <onnx/onnx_pb.h>

#include "base/error.h"

namespace halfnote::proto {
namespace {

using google::protobuf::internal::WireFormatLite;

void append_header(std::string& to, int number, size_t size) {
  uint8_t header[16];
  uint8_t* end = google::protobuf::io::CodedOutputStream::WriteTagToArray(
      WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), header);
  end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(size, end);
  to.append(reinterpret_cast<const char*>(header), static_cast<size_t>(end - header));
}

/// protobuf writes no message of 2 GiB.
template <class Message>
void append_content(std::string& to, const Message& message) {
  if (message.AppendToString(&to)) return;
  throw Error(ErrorCode::kModel, "the model is too large to be written");
}

template <class Messages>
void append_all(std::string& to, int number, const Messages& messages) {
  for (const auto& message : messages) {
    append_header(to, number, message.ByteSizeLong());
    append_content(to, message);
  }
}

}  // namespace

void append_field(std::string& to, int number, std::string_view bytes) {
  append_header(to, number, bytes.size());
  to += bytes;
}

void GraphText::drain(onnx::GraphProto& from, int at_least) {
  if (from.node_size() < at_least) return;
  append_all(nodes_, onnx::GraphProto::kNodeFieldNumber, from.node());
  append_all(infos_, onnx::GraphProto::kValueInfoFieldNumber, from.value_info());
  from.clear_node();
  from.clear_value_info();
}

std::string GraphText::finish(onnx::GraphProto& rest) {
  drain(rest, 0);
  onnx::GraphProto tail;  // what stands behind value_info
  tail.mutable_quantization_annotation()->Swap(rest.mutable_quantization_annotation());
  tail.mutable_sparse_initializer()->Swap(rest.mutable_sparse_initializer());
  tail.mutable_metadata_props()->Swap(rest.mutable_metadata_props());
  std::string text = std::move(nodes_);
  text.reserve(text.size() + infos_.size() + rest.ByteSizeLong() + tail.ByteSizeLong());
  append_content(text, rest);
  text += infos_;
  infos_ = {};
  append_content(text, tail);
  rest.Clear();
  return text;
}

}  // namespace halfnote::proto
