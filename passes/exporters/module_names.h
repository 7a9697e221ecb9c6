// Names of modules for what exporters number: nodes (`node_MatMul_39`) and parameters (`val_163`).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "compiler/ir/model.h"

namespace re2 {
class RE2;
}

namespace halfnote {

/// Of a node: where PyTorch's newer exporter writes its modules.
inline constexpr std::string_view kScopesKey = "pkg.torch.onnx.name_scopes";
/// Of a node: the name that it had in the file.
inline constexpr std::string_view kSourceNameKey = "halfnote.source_name";
/// Of the model: initializer, the name to show for it, …
inline constexpr std::string_view kParameterNamesKey = "halfnote.parameter_names";

/// What a node's metadata say under a key; empty if nothing.
std::string_view metadata_of(const Node& node, std::string_view key);
/// Is the name one that an exporter counts up, which tells nobody what stands there?
bool is_counted_name(std::string_view name);
/// The module that a node of an export belongs to, as PyTorch names it (`encoder.layer.0.dense`);
/// empty where the file does not say.
std::string module_of(const Node& node);
/// Did PyTorch's newer exporter write the node for a module of this class (`EmbeddingBag`)?
bool is_of_class(const Node& node, std::string_view class_name);
/// The name that the file gave a node; empty if it is the one it has.
std::string_view source_name(const Node& node);

/// What initializers are called for users. Files and checkpoints keep the names of the model.
class ParameterNames {
 public:
  explicit ParameterNames(const Model& model);

  /// `encoder.layer.0.dense.weight (val_163)`, or the name itself.
  std::string shown(const std::string& name) const;
  /// Does the pattern hold for the whole name, or for the one that is shown?
  bool matches(const std::string& name, const re2::RE2& pattern) const;

 private:
  std::map<std::string, std::string> shown_;
};

}  // namespace halfnote
