// A graph on its way to bytes. A GraphProto of 100,000 nodes takes several times the room of its
// bytes, so nodes and value_infos are serialized a few hundred at a time, as they are made.
#pragma once

#include <string>
#include <string_view>

namespace onnx {
class GraphProto;
}  // namespace onnx

namespace halfnote::proto {

class GraphText {
 public:
  /// Nodes that wait in the message before they are serialized.
  static constexpr int kChunk = 256;

  /// Takes nodes and value_infos out of `from` if it holds that many nodes.
  void drain(onnx::GraphProto& from, int at_least);
  /// The whole graph, in protobuf's order of fields: what was drained, and what `rest` still holds
  /// (it is emptied).
  std::string finish(onnx::GraphProto& rest);

 private:
  std::string nodes_, infos_;
};

/// Appends a length-delimited field, whose content is `bytes`.
void append_field(std::string& to, int number, std::string_view bytes);

}  // namespace halfnote::proto
