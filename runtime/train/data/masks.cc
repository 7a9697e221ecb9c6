#include "runtime/train/data/masks.h"

#include <algorithm>
#include <set>

#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

class Ways {
 public:
  explicit Ways(const Graph& graph) : graph_(graph) {}

  /// Does each of them end in a softmax, and one at least?
  bool lead_to_softmax(ValueId value) {
    if (!seen_.insert(value.index).second) return true;
    const auto uses = graph_.uses(value);
    return std::ranges::all_of(uses, [&](const Use& use) { return is_harmless(use); });
  }
  bool found() const { return found_; }

 private:
  bool is_harmless(const Use& use) {
    if (!use.by_node() || graph_.node(use.node()).region != graph_.main()) return false;
    const Node& node = graph_.node(use.node());
    const bool standard = node.domain.empty();
    if (standard && (node.op == "Shape" || node.op == "Size")) return true;
    if (standard && (node.op == "Softmax" || node.op == "LogSoftmax")) return found_ = true;
    if (standard && node.op == "Attention" && use.slot == 3) return found_ = true;
    if (standard && node.op == "Sub" && use.slot != 0) return false;
    const OperatorRow* row = find_operator(node);
    const bool sum = standard && (node.op == "Add" || node.op == "Sub");
    const bool moves = row != nullptr && row->precision == PrecisionClass::kClear &&
                       (row->scale == ScaleRule::kSame || row->scale == ScaleRule::kFirst);
    if (!sum && !moves) return false;
    return std::ranges::all_of(graph_.outputs(use.node()), [&](ValueId output) {
      return output.valid() && lead_to_softmax(output);
    });
  }

  const Graph& graph_;
  std::set<uint32_t> seen_;
  bool found_ = false;
};

}  // namespace

bool is_mask_of_scores(const Graph& graph, ValueId input) {
  Ways ways(graph);
  return ways.lead_to_softmax(input) && ways.found();
}

}  // namespace halfnote
