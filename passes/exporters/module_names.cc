// name_modules: nodes and parameters that an exporter only counts get the names of their modules.
//
//   [node_MatMul_39] y = MatMul (x, val_40)      # name_scopes: ['', 'net', 'net.q', 'linear']
//     ──▶   [net.q/MatMul_39] y = MatMul (x, val_40)      val_40 is shown as net.q.weight
//
// Exact: names only. A node is renamed where its name is `node_…`, `n5` or none, and its metadata
// (PyTorch's `pkg.torch.onnx.name_scopes`) names a module; the file's name stays in its metadata,
// and rules match it too. Initializers keep their names, which bind weights and checkpoints; those
// that are counted (`val_163`, `onnx::MatMul_12`) get a second one, which is shown and matched by
// patterns: that of the module of their reader, and `weight` or `bias` where the slot says so. The
// module is read from the metadata, or from a node's name as PyTorch's older exporter writes it
// (`/encoder/layer.0/dense/MatMul`). Leaves alone: names that somebody chose, training models.
#include "passes/exporters/module_names.h"

#include <re2/re2.h>

#include <algorithm>
#include <set>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/onnx/metadata.h"
#include "passes/passes.h"

namespace halfnote {

namespace {

constexpr int kMaxNameSteps = 4;  // movement between a parameter and its reader

/// The words of a Python list of strings.
std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] != '\'' && list[i] != '"') continue;
    const size_t end = list.find(list[i], i + 1);
    if (end == std::string_view::npos) break;
    words.emplace_back(list.substr(i + 1, end - i - 1));
    i = end;
  }
  return words;
}

/// PyTorch's word for a node of no module: the size of a symbolic dim.
constexpr std::string_view kNoModule = "_empty_nn_module_stack_from_metadata_hook";

/// The last word is the operator's; the module stands before it.
std::string module_of_scopes(std::string_view list) {
  const std::vector<std::string> words = words_of(list);
  if (words.size() < 2 || words[words.size() - 2] == kNoModule) return "";
  return words[words.size() - 2];
}

/// `/features/features.0/conv/Conv` is of `features.0.conv`: a child of a list repeats its name.
std::string module_of_path(std::string_view name) {
  if (!name.starts_with("/")) return "";
  std::vector<std::string> parts;
  for (size_t at = 1; at < name.size();) {
    const size_t end = name.find('/', at);
    if (end == std::string_view::npos) break;  // the operator
    std::string part(name.substr(at, end - at));
    const bool repeats = !parts.empty() && part.starts_with(parts.back() + ".");
    if (repeats) parts.pop_back();
    parts.push_back(std::move(part));
    at = end + 1;
  }
  std::string module;
  for (const std::string& part : parts) module += (module.empty() ? "" : ".") + part;
  return module;
}

/// What a parameter is to the node that reads it.
std::string_view role_of(const Node& node, uint32_t slot) {
  const std::string_view op = node.op;
  const bool weighted = op == "Gemm" || op == "Conv" || op == "ConvTranspose" ||
                        op == "LayerNormalization" || op == "BatchNormalization" ||
                        op == "GroupNormalization" || op == "RMSNormalization";
  if (op == "MatMul") return "weight";
  if (op == "Gather" && slot == 0) return "weight";
  if (weighted && slot == 1) return "weight";
  return weighted && slot == 2 ? "bias" : "";
}

bool only_moves(const std::string& op) {
  return op == "Transpose" || op == "Cast" || op == "Reshape" || op == "Unsqueeze" ||
         op == "Squeeze" || op == "Identity";
}

class Naming {
 public:
  explicit Naming(Model& model) : model_(model), graph_(model.graph) {}

  bool run() {
    bool changed = false;
    for (NodeId id : graph_.all_nodes()) taken_nodes_.insert(graph_.node(id).name);
    for (NodeId id : graph_.all_nodes()) changed |= name_node(id);
    for (ValueId id : graph_.initializers()) taken_.insert(graph_.value(id).name);
    std::vector<std::string> names;
    for (ValueId id : graph_.initializers()) {
      const std::string& name = graph_.value(id).name;
      if (!is_float(graph_.value(id).type.dtype) || !is_counted_name(name)) continue;
      const std::string shown = name_parameter(id);
      if (shown.empty()) continue;
      names.push_back(name);
      names.push_back(shown);
    }
    if (names.empty()) return changed;
    std::string& listed = model_.metadata[std::string(kParameterNamesKey)];
    changed |= listed != join_names(names);
    listed = join_names(names);
    return changed;
  }

 private:
  bool name_node(NodeId id) {
    Node& node = graph_.node(id);
    static const RE2 kNumbered("n\\d+(_\\d+)?");
    const bool numbered = node.name.empty() || RE2::FullMatch(node.name, kNumbered);
    if (!numbered && !node.name.starts_with("node_")) return false;
    const std::string module = module_of_scopes(metadata_of(node, kScopesKey));
    if (module.empty()) return false;
    const std::string base = module + "/" + (numbered ? node.op.str() : node.name.substr(5));
    std::string name = base;
    for (int i = 1; !taken_nodes_.insert(name).second; ++i) name = base + "_" + std::to_string(i);
    if (!node.name.empty()) node.metadata.emplace_back(std::string(kSourceNameKey), node.name);
    node.name = name;
    return true;
  }

  /// The name to show for a parameter; empty where its reader says nothing.
  std::string name_parameter(ValueId id) {
    ValueId at = id;
    for (int step = 0; step <= kMaxNameSteps; ++step) {
      const auto uses = graph_.uses(at);
      const auto use =
          std::find_if(uses.begin(), uses.end(), [](const Use& u) { return u.by_node(); });
      if (use == uses.end()) return "";
      const Node& reader = graph_.node(use->node());
      if (only_moves(reader.op) && use->slot == 0 && step < kMaxNameSteps) {
        at = graph_.output(use->node());
        continue;
      }
      const std::string module = module_of(reader);
      if (module.empty()) return "";
      const std::string role(role_of(reader, use->slot));
      const std::string name = module + "." + role;
      if (!role.empty() && taken_.insert(name).second) return name;
      const std::string own = module + "/" + graph_.value(id).name;
      return taken_.insert(own).second ? own : "";
    }
    return "";
  }

  Model& model_;
  Graph& graph_;
  std::set<std::string> taken_nodes_, taken_;
};

}  // namespace

bool is_counted_name(std::string_view name) {
  static const RE2 kCounted(
      "(val|const_fold_opt_|_param_constant|_tensor_constant|_v)_?\\d+|_to_copy(_\\d+)?|\\d+|"
      "onnx::\\w+_\\d+");
  return RE2::FullMatch(re2::StringPiece(name.data(), name.size()), kCounted);
}

std::string_view metadata_of(const Node& node, std::string_view key) {
  for (const auto& [name, value] : node.metadata) {
    if (name == key) return value;
  }
  return {};
}

std::string module_of(const Node& node) {
  const std::string_view scopes = metadata_of(node, kScopesKey);
  return scopes.empty() ? module_of_path(node.name) : module_of_scopes(scopes);
}

bool is_of_class(const Node& node, std::string_view class_name) {
  constexpr std::string_view kClassesKey = "pkg.torch.onnx.class_hierarchy";
  const std::string_view classes = metadata_of(node, kClassesKey);
  return classes.find("." + std::string(class_name) + "'") != std::string_view::npos;
}

std::string_view source_name(const Node& node) { return metadata_of(node, kSourceNameKey); }

ParameterNames::ParameterNames(const Model& model) {
  const auto found = model.metadata.find(std::string(kParameterNamesKey));
  if (found == model.metadata.end()) return;
  const std::vector<std::string> names = split_names(found->second);
  for (size_t i = 0; i + 1 < names.size(); i += 2) shown_.emplace(names[i], names[i + 1]);
}

std::string ParameterNames::shown(const std::string& name) const {
  const auto found = shown_.find(name);
  return found == shown_.end() ? name : found->second + " (" + name + ")";
}

bool ParameterNames::matches(const std::string& name, const RE2& pattern) const {
  if (RE2::FullMatch(name, pattern)) return true;
  const auto found = shown_.find(name);
  return found != shown_.end() && RE2::FullMatch(found->second, pattern);
}

bool name_modules(Model& model, PassContext&) {
  if (model.is_training()) return false;
  return Naming(model).run();
}

}  // namespace halfnote
