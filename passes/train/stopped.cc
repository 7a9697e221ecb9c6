#include "passes/train/stopped.h"

#include <algorithm>
#include <set>

#include "compiler/ops/operator.h"
#include "passes/train/closed_ways.h"
#include "passes/train/gradient_path.h"

namespace halfnote {
void StoppedGradients::find_ways() {
  before_loss_.assign(graph_.value_count(), false);
  users_of_.resize(graph_.value_count());
  before_loss_[loss_.index] = true;
  const std::vector<bool> all(graph_.value_count(), true);
  const std::vector<NodeId> nodes = graph_.nodes();
  const std::vector<NodeId> between = nodes_between(graph_, nodes, all, {&loss_, 1});
  for (auto node = between.rbegin(); node != between.rend(); ++node) {
    for (ValueId output : graph_.outputs(*node)) {
      if (output.valid()) before_loss_[output.index] = true;
    }
    for (ValueId input : operands_of(graph_, *node)) {
      if (input.valid()) users_of_[input.index].push_back(*node);
    }
  }
}

std::string StoppedGradients::why_untrained(ValueId weight) {
  if (before_loss_.empty()) find_ways();
  std::vector<ValueId> open = {weight};
  std::set<ValueId> seen = {weight};
  std::string first;
  for (size_t i = 0; i < open.size(); ++i) {
    for (NodeId user : users_of_[open[i].index]) {
      bool stops = false;
      for (ValueId output : graph_.outputs(user)) {
        if (!output.valid() || !before_loss_[output.index]) continue;
        // A gradient comes this far, or none could come back over integers.
        if (backward_.gradient(output).valid() || !carries_floats(graph_.value(output).type)) {
          stops = true;
        } else if (seen.insert(output).second) {
          open.push_back(output);
        }
      }
      if (!stops) continue;
      const std::string why = why_stopped(graph_, user);
      all_.add(graph_, user, why);
      if (first.empty()) {
        const NodeInModel told = as_in_model(graph_, user);
        first = "no gradient passes " + told.name + " (" + told.op + "), " + why;
      }
    }
  }
  return first.empty() ? "the loss does not depend on this parameter" : first;
}

}  // namespace halfnote
