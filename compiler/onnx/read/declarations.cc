// The exporter lists the inputs of the program that it took, the parameters among them; says of an
// initializer that is one which it is; and of one that it computed, from which values:
//
//   graph       …graph_signature      p_fc_weight: PARAMETER target='fc.weight'
//   value_info  …InputSpec.kind       PARAMETER
//   value_info  …folded_from          ['fc.weight', 'val_3']
//
// What is computed from no parameter is a constant: positions, masks, a first state of zeros. A
// parameter that is neither there nor in anything is lost: merged with one that starts equal, a
// zero that was left out, or not used.
#include "compiler/onnx/read/declarations.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/onnx/metadata.h"

namespace halfnote::proto {
namespace {

/// PARAMETER, BUFFER, CONSTANT_TENSOR, USER_INPUT…
constexpr std::string_view kInputKindKey = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr std::string_view kSignatureKey = "pkg.torch.export.ExportedProgram.graph_signature";
constexpr std::string_view kFoldedFromKey = "pkg.onnxscript.optimizer.folded_from";

/// The texts in single quotes.
std::vector<std::string> quoted_texts(std::string_view text) {
  std::vector<std::string> found;
  for (size_t open = 0; (open = text.find('\'', open)) != std::string_view::npos;) {
    const size_t close = text.find('\'', open + 1);
    if (close == std::string_view::npos) break;
    found.emplace_back(text.substr(open + 1, close - open - 1));
    open = close + 1;
  }
  return found;
}

/// `p_fc_weight: PARAMETER target='fc.weight'`, a line each.
std::vector<std::string> parameters_of_signature(std::string_view text) {
  std::vector<std::string> found;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t kind = line.find(": PARAMETER target='");
    if (kind == std::string_view::npos) continue;
    const std::vector<std::string> target = quoted_texts(line.substr(kind));
    if (!target.empty()) found.push_back(target.front());
  }
  return found;
}

class Declared {
 public:
  explicit Declared(const onnx::GraphProto& graph) {
    for (const auto& tensor : graph.initializer()) tensors_.insert(tensor.name());
    for (const auto& entry : graph.metadata_props()) {
      if (entry.key() == kSignatureKey) signature_ = parameters_of_signature(entry.value());
    }
    known_.insert(signature_.begin(), signature_.end());
    for (const auto& info : graph.value_info()) read(info);
    for (const auto& info : graph.input()) read(info);
    if (!tells_sources_) return;  // a parameter may be in any tensor
    for (const std::string& name : signature_) {
      if (!tensors_.contains(name) && !used_.contains(name)) lost_.push_back(name);
    }
  }

  void write(Model& model) const {
    const std::pair<std::string_view, const std::vector<std::string>&> lists[] = {
        {kParametersKey, parameters_},
        {kBuffersKey, buffers_},
        {kFoldedKey, folded_},
        {kLostKey, lost_}};
    for (const auto& [key, list] : lists) {
      if (!list.empty()) model.metadata[std::string(key)] = join_names(list);
    }
  }

 private:
  template <class ValueInfo>
  void read(const ValueInfo& info) {
    if (!tensors_.contains(info.name())) return;
    for (const auto& entry : info.metadata_props()) {
      if (entry.key() == kInputKindKey) {
        if (entry.value() == "PARAMETER") parameters_.push_back(info.name());
        if (entry.value() == "BUFFER" || entry.value() == "CONSTANT_TENSOR")
          buffers_.push_back(info.name());
      }
      if (entry.key() == kFoldedFromKey && !signature_.empty()) {
        tells_sources_ = true;
        read_folded(info.name(), quoted_texts(entry.value()));
      }
    }
  }

  void read_folded(const std::string& name, const std::vector<std::string>& sources) {
    std::string parameters;
    for (const std::string& source : sources) {
      if (!known_.contains(source)) continue;
      used_.insert(source);
      parameters += (parameters.empty() ? "" : ", ") + source;
    }
    if (parameters.empty()) {
      buffers_.push_back(name);
      return;
    }
    folded_.push_back(name);
    folded_.push_back(parameters);
  }

  std::set<std::string_view> tensors_;
  std::vector<std::string> signature_;
  std::set<std::string> known_, used_;
  std::vector<std::string> parameters_, buffers_, folded_, lost_;
  bool tells_sources_ = false;
};

}  // namespace

void read_declarations(const onnx::GraphProto& graph, Model& model) {
  Declared(graph).write(model);
}

}  // namespace halfnote::proto
