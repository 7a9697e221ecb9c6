#include "passes/unsupported.h"

#include "base/printable.h"
#include "compiler/ir/query.h"

namespace halfnote {
namespace {

constexpr size_t kMostNames = 50;

std::string joined(const std::vector<std::string>& names) {
  const size_t left_out = names.size() > kMostNames ? names.size() - kMostNames : 0;
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : ", ";
    if (left_out > 0 && i == kMostNames / 2) {
      text += "… " + std::to_string(left_out) + " more …, ";
      i += left_out;
    }
    text += names[i];
  }
  return text;
}

}  // namespace

void UnsupportedOps::add(const Graph& graph, NodeId node, int64_t opset, const std::string& why) {
  const std::string& name = graph.label(node);
  Nodes& nodes = rows_[{op_name(graph.node(node)), opset, why}];
  if (nodes.seen.insert(name).second) nodes.names.push_back(printable(name));
}

size_t UnsupportedOps::op_count() const {
  std::set<std::string> ops;
  for (const auto& [row, nodes] : rows_) ops.insert(std::get<0>(row));
  return ops.size();
}

std::string UnsupportedOps::list() const {
  std::string text;
  for (const auto& [row, nodes] : rows_) {
    const auto& [op, opset, why] = row;
    const std::vector<std::string>& names = nodes.names;
    text += (text.empty() ? "" : "; ") + printable(op) + " (op-set " + std::to_string(opset) +
            "; " + std::to_string(names.size()) + (names.size() == 1 ? " node; " : " nodes; ") +
            why + "): " + joined(names);
  }
  return text;
}

}  // namespace halfnote
