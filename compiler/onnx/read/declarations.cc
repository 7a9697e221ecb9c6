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
// parameter is missing: rewriting rules write tensors without a trace.
#include "compiler/onnx/read/declarations.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "compiler/onnx/metadata.h"

namespace halfnote::proto {
namespace {

/// PARAMETER, BUFFER, CONSTANT_TENSOR, USER_INPUT…
constexpr std::string_view kInputKindKey = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr std::string_view kFoldedFromKey = "pkg.onnxscript.optimizer.folded_from";
constexpr std::string_view kSignatureKey = "pkg.torch.export.ExportedProgram.graph_signature";

using OrderedNames = std::set<std::string, std::less<>>;

bool is_float_tensor(const onnx::TensorProto& tensor) {
  return tensor.data_type() == onnx::TensorProto::FLOAT ||
         tensor.data_type() == onnx::TensorProto::DOUBLE ||
         tensor.data_type() == onnx::TensorProto::FLOAT16 ||
         tensor.data_type() == onnx::TensorProto::BFLOAT16;
}

/// The names in Python's way to write a list of them: `['val_3', "it's"]`.
OrderedNames names_in(std::string_view list) {
  OrderedNames names;
  for (size_t i = 0; i < list.size(); ++i) {
    const char quote = list[i];
    if (quote != '\'' && quote != '"') continue;
    std::string name;
    for (++i; i < list.size() && list[i] != quote; ++i) {
      if (list[i] == '\\' && i + 1 < list.size()) ++i;
      name += list[i];
    }
    names.insert(std::move(name));
  }
  return names;
}

/// The parameters that a signature lists, as PyTorch 2.8 and later write it (one a line) or as
/// those before did (`InputSpec(kind=<InputKind.PARAMETER: 2>, …, target='w', …), InputSpec(…`).
OrderedNames parameters_of(std::string_view signature) {
  constexpr std::string_view kKind = "PARAMETER", kTarget = "target='";
  OrderedNames parameters;
  for (size_t at = 0; (at = signature.find(kKind, at)) != std::string_view::npos;) {
    at += kKind.size();
    const size_t line = std::min(signature.find('\n', at), signature.find("Spec(", at));
    const size_t target = signature.find(kTarget, at);
    if (target == std::string_view::npos || target > line) continue;
    const size_t begin = target + kTarget.size();
    const size_t end = signature.find('\'', begin);
    if (end == std::string_view::npos) break;
    parameters.emplace(signature.substr(begin, end - begin));
    at = end;
  }
  return parameters;
}

class DeclarationReader {
 public:
  explicit DeclarationReader(const onnx::GraphProto& graph) : graph_(graph) {
    for (const auto& tensor : graph.initializer()) tensors_.emplace(tensor.name(), &tensor);
    for (const auto& entry : graph.metadata_props()) {
      if (entry.key() == kSignatureKey) signature_ = parameters_of(entry.value());
    }
    look_at(graph.value_info());
    look_at(graph.input());
  }

  void write(Model& model) const {
    const auto list = [&](std::string_view key, const std::vector<std::string>& names) {
      if (!names.empty()) model.metadata[std::string(key)] = join_names(names);
    };
    list(kParametersKey, parameters_);
    list(kBuffersKey, buffers_);
    list(kConstantsKey, constants());
  }

 private:
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

  std::vector<std::string> constants() const {
    std::vector<std::string> names;
    if (signature_.empty()) return names;
    const bool complete = nothing_is_missing();
    for (const auto& tensor : graph_.initializer()) {
      if (!is_float_tensor(tensor) || declared_.contains(tensor.name())) continue;
      if (signature_.contains(tensor.name())) continue;
      const auto origin = origins_.find(tensor.name());
      const bool constant = origin == origins_.end() ? complete : !holds_parameter(origin->second);
      if (constant) names.push_back(tensor.name());
    }
    return names;
  }

  bool holds_parameter(const OrderedNames& names) const {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return signature_.contains(name); });
  }

  /// Is each parameter of the signature an initializer, or told to be in one?
  bool nothing_is_missing() const {
    OrderedNames there;
    for (const auto& [name, origin] : origins_) there.insert(origin.begin(), origin.end());
    return std::all_of(signature_.begin(), signature_.end(), [&](const std::string& name) {
      return tensors_.contains(name) || there.contains(name);
    });
  }

  const onnx::GraphProto& graph_;
  std::unordered_map<std::string, const onnx::TensorProto*> tensors_;
  OrderedNames signature_, declared_;
  std::unordered_map<std::string, OrderedNames> origins_;
  std::vector<std::string> parameters_, buffers_;
};

}  // namespace

void read_declarations(const onnx::GraphProto& graph, Model& model) {
  DeclarationReader(graph).write(model);
}

}  // namespace halfnote::proto
