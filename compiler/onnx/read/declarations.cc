// PyTorch's newer exporter writes three things:
//
//   of a value      InputSpec.kind = PARAMETER           what the initializer is in PyTorch
//   of a value      folded_from = ['q.weight', 'val_3']  all that the optimizer computed it from
//   of the graph    p_q_weight: PARAMETER target='q.weight'    the signature: every parameter there
//                                                              was, also those that were folded
//
// So an initializer of neither kind is a weight in another form (transposed, 1 + w) if it was
// computed from a parameter, and a constant of the forward function if it was computed from none: a
// mask, a table of positions. One that does not tell what it comes from is a constant only where no
// parameter is missing: rewriting rules write tensors without a trace. One under a parameter's name
// is that parameter, also where a rule wrote it anew without its kind, as those do that fold a
// BatchNormalization into a weight. A parameter of the signature that is neither there nor in
// anything is lost: merged with one that starts equal, a zero that was left out, folded with the
// statistics of its module, or not used.
#include "compiler/onnx/read/declarations.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "compiler/onnx/metadata.h"

namespace halfnote::proto {
namespace {

/// PARAMETER, BUFFER, CONSTANT_TENSOR, USER_INPUT…
constexpr std::string_view kInputKindKey = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr std::string_view kFoldedFromKey = "pkg.onnxscript.optimizer.folded_from";
constexpr std::string_view kSignatureKey = "pkg.torch.export.ExportedProgram.graph_signature";

using NameList = std::vector<std::string>;

bool is_float_tensor(const onnx::TensorProto& tensor) {
  return tensor.data_type() == onnx::TensorProto::FLOAT ||
         tensor.data_type() == onnx::TensorProto::DOUBLE ||
         tensor.data_type() == onnx::TensorProto::FLOAT16 ||
         tensor.data_type() == onnx::TensorProto::BFLOAT16;
}

/// The names in Python's way to write a list of them: `['val_3', "it's"]`.
NameList names_in(std::string_view list) {
  NameList names;
  for (size_t i = 0; i < list.size(); ++i) {
    const char quote = list[i];
    if (quote != '\'' && quote != '"') continue;
    std::string name;
    for (++i; i < list.size() && list[i] != quote; ++i) {
      if (list[i] == '\\' && i + 1 < list.size()) ++i;
      name += list[i];
    }
    names.push_back(std::move(name));
  }
  return names;
}

/// The names of a kind (PARAMETER, BUFFER) that a signature lists, as PyTorch 2.8 and later write
/// it (one a line) or as those before did (`InputSpec(kind=<InputKind.PARAMETER: 2>, …, target='w',
/// …), InputSpec(…`).
NameList listed_as(std::string_view kind, std::string_view signature) {
  constexpr std::string_view kTarget = "target='";
  NameList names;
  for (size_t at = 0; (at = signature.find(kind, at)) != std::string_view::npos;) {
    at += kind.size();
    const size_t line = std::min(signature.find('\n', at), signature.find("Spec(", at));
    const size_t target = signature.find(kTarget, at);
    if (target == std::string_view::npos || target > line) continue;
    const size_t begin = target + kTarget.size();
    const size_t end = signature.find('\'', begin);
    if (end == std::string_view::npos) break;
    names.emplace_back(signature.substr(begin, end - begin));
    at = end;
  }
  return names;
}

/// `norm` of `norm.running_mean`; the whole name where it has no dot.
std::string_view module_of(std::string_view name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

class DeclarationReader {
 public:
  explicit DeclarationReader(const onnx::GraphProto& graph) : graph_(graph) {
    for (const auto& tensor : graph.initializer()) tensors_.insert(tensor.name());
    for (const auto& entry : graph.metadata_props()) {
      if (entry.key() != kSignatureKey) continue;
      signature_ = listed_as("PARAMETER", entry.value());
      list_statistics(listed_as("BUFFER", entry.value()));
    }
    listed_.insert(signature_.begin(), signature_.end());
    look_at(graph.value_info());
    look_at(graph.input());
    add_listed();
  }

  void write(Model& model) const {
    const auto list = [&](std::string_view key, const NameList& names) {
      if (!names.empty()) model.metadata[std::string(key)] = join_names(names);
    };
    list(kParametersKey, parameters_);
    list(kBuffersKey, buffers_);
    if (signature_.empty()) return;
    const NameList lost = parameters_without_trace();
    list(kConstantsKey, constants(lost.empty()));
    if (lost.empty()) model.metadata[std::string(kLostKey)] = "";  // all are there
    if (!origins_.empty()) {
      list(kFoldedKey, folded());
      list(kLostKey, lost);
      return;
    }
    // A parameter may be in any tensor, but for those of a module that lost its statistics too.
    NameList of_norms;
    std::copy_if(lost.begin(), lost.end(), std::back_inserter(of_norms),
                 [&](const auto& name) { return norms_.contains(std::string(module_of(name))); });
    list(kLostKey, of_norms);
  }

 private:
  /// Modules whose running mean is listed and not there.
  void list_statistics(const NameList& buffers) {
    for (const std::string& name : buffers) {
      if (!name.ends_with(".running_mean") || tensors_.contains(name)) continue;
      norms_.emplace(module_of(name));
    }
  }

  /// Initializers that have the name of a parameter, and no kind.
  void add_listed() {
    for (const auto& tensor : graph_.initializer()) {
      if (!listed_.contains(tensor.name())) continue;
      if (declared_.insert(tensor.name()).second) parameters_.push_back(tensor.name());
    }
  }

  template <class ValueInfos>
  void look_at(const ValueInfos& infos) {
    for (const auto& info : infos) {
      if (!tensors_.contains(info.name())) continue;
      for (const auto& entry : info.metadata_props()) {
        if (entry.key() == kFoldedFromKey) origins_[info.name()] = names_in(entry.value());
        if (entry.key() != kInputKindKey) continue;
        const bool parameter = entry.value() == "PARAMETER";
        const bool buffer = entry.value() == "BUFFER" || entry.value() == "CONSTANT_TENSOR";
        if (parameter) parameters_.push_back(info.name());
        if (buffer) buffers_.push_back(info.name());
        if (parameter || buffer) declared_.insert(info.name());
      }
    }
  }

  /// `complete`: no parameter is missing in the file.
  NameList constants(bool complete) const {
    NameList names;
    for (const auto& tensor : graph_.initializer()) {
      if (!is_float_tensor(tensor) || declared_.contains(tensor.name())) continue;
      const auto origin = origins_.find(tensor.name());
      const bool constant =
          origin == origins_.end() ? complete : parameters_among(origin->second).empty();
      if (constant) names.push_back(tensor.name());
    }
    return names;
  }

  /// Pairs: an initializer, and the parameters that it was computed from, with commas.
  NameList folded() const {
    NameList pairs;
    for (const auto& tensor : graph_.initializer()) {
      const auto origin = origins_.find(tensor.name());
      if (origin == origins_.end()) continue;
      std::string sources;
      for (const std::string& name : parameters_among(origin->second)) {
        sources += (sources.empty() ? "" : ", ") + name;
      }
      if (sources.empty()) continue;
      pairs.push_back(tensor.name());
      pairs.push_back(std::move(sources));
    }
    return pairs;
  }

  NameList parameters_among(const NameList& names) const {
    NameList found;
    for (const std::string& name : names) {
      if (listed_.contains(name)) found.push_back(name);
    }
    return found;
  }

  /// Parameters of the signature that are no initializer, nor told to be in one.
  NameList parameters_without_trace() const {
    std::set<std::string_view> there;
    for (const auto& [name, origin] : origins_) there.insert(origin.begin(), origin.end());
    NameList missing;
    for (const std::string& name : signature_) {
      if (!tensors_.contains(name) && !there.contains(name)) missing.push_back(name);
    }
    return missing;
  }

  const onnx::GraphProto& graph_;
  std::set<std::string_view> tensors_;
  NameList signature_;                                 // in its order
  std::set<std::string> listed_;                       // the same
  std::set<std::string> declared_;                     // by their kind, or a parameter's name
  std::set<std::string> norms_;                        // modules without their statistics
  std::unordered_map<std::string, NameList> origins_;  // of initializers
  NameList parameters_, buffers_;
};

}  // namespace

void read_declarations(const onnx::GraphProto& graph, Model& model) {
  DeclarationReader(graph).write(model);
}

}  // namespace halfnote::proto
