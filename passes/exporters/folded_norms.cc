#include "passes/exporters/folded_norms.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "passes/exporters/module_names.h"

namespace halfnote {

namespace {

constexpr std::string_view kRuleKey = "pkg.onnxscript.rewriter.rule_name";
constexpr size_t kMostNodes = 4;

bool is_conv_op(std::string_view op) { return op == "Conv" || op == "ConvTranspose"; }

/// FuseBatchNormIntoConv, …IntoConvTranspose, …IntoGemm, alone or in a list of rules.
bool names_rule(const Node& node) {
  return std::any_of(node.metadata.begin(), node.metadata.end(), [](const auto& entry) {
    return entry.first == kRuleKey && entry.second.find("FuseBatchNormInto") != std::string::npos;
  });
}

bool is_of_norm(const Node& node) {
  constexpr std::array kClasses = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"};
  return std::any_of(kClasses.begin(), kClasses.end(),
                     [&](const char* name) { return is_of_class(node, name); });
}

}  // namespace

bool is_folded_norm(const Node& node) {
  if (!node.domain.empty() || !(is_conv_op(node.op) || node.op == "Gemm")) return false;
  return names_rule(node) || is_of_norm(node);
}

bool names_folded_norm(const Graph& graph, NodeId node, size_t slot) {
  static const RE2 kFused("onnx::Conv(Transpose)?_\\d+|.*_fused_bn");
  if (!is_conv_op(graph.node(node).op)) return false;
  const std::string& name = graph.value(graph.input(node, slot)).name;
  if (RE2::FullMatch(name, kFused)) return true;
  const ValueId weight = graph.input(node, 1);
  return slot == 2 && weight.valid() && name == graph.value(weight).name + "_bias";
}

std::string folded_norms_text(const Graph& graph) {
  const auto named = [&](NodeId node, size_t slot) {
    const ValueId operand = graph.input(node, slot);
    return operand.valid() && graph.value(operand).kind == ValueKind::kInitializer &&
           names_folded_norm(graph, node, slot);
  };
  std::vector<std::string> names;
  for (NodeId id : graph.nodes()) {
    if (is_folded_norm(graph.node(id)) || named(id, 1) || named(id, 2)) {
      names.push_back(graph.label(id));
    }
  }
  if (names.empty()) return "";
  std::string text = std::to_string(names.size()) + (names.size() == 1 ? " node (" : " nodes (");
  for (size_t i = 0; i < std::min(names.size(), kMostNodes); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  text += names.size() > kMostNodes ? ", …)" : ")";
  return text + (names.size() == 1 ? " holds" : " hold") +
         " a BatchNormalization that the exporter folded into the weights";
}

}  // namespace halfnote
