#include "runtime/core/steps/branches.h"

#include <algorithm>
#include <optional>

#include "base/system/environment.h"

namespace halfnote {

std::vector<BranchStep> branch_steps(const Graph& graph, const PlannedSteps& planned,
                                     const std::vector<bool>& is_view,
                                     const std::vector<int>& buffer_of) {
  const auto is_next_state = [&](ValueId value) {
    if (!value.valid() || value.index >= graph.value_count()) return false;
    return std::ranges::any_of(graph.uses(value),
                               [](const Use& use) { return use.kind == UseKind::kStateNext; });
  };
  // What follows from states alone: counters of steps and of random draws are no indices.
  std::vector<bool> counts(graph.value_count(), false);
  for (const State& state : graph.states()) counts[state.current.index] = true;
  const auto is_fed = [&](ValueId value) {
    return value.valid() && value.index < graph.value_count() && !counts[value.index] &&
           graph.constant(value) == nullptr;
  };
  const auto is_index = [&](ValueId value) {
    return is_fed(value) && is_integer(graph.value(value).type.dtype);
  };
  // Beside the main line one workspace is for all of them.
  constexpr size_t kLargeWorkspace = size_t{64} << 20;
  std::vector<BranchStep> steps(planned.steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    BranchStep& step = steps[i];
    step.runs = !is_view[i];
    const ProgramStep& planned_step = planned.steps[i];
    step.stays = planned_step.row == nullptr || planned_step.row->alone ||
                 std::ranges::any_of(planned.reads[i], is_index) ||
                 (step.runs && planned_step.kernel->workspace_bytes() > kLargeWorkspace);
    if (std::ranges::none_of(planned.reads[i], is_fed)) {
      for (const ValueId value : planned.writes[i])
        if (value.valid() && value.index < graph.value_count()) counts[value.index] = true;
    }
    step.changes_states = std::ranges::any_of(planned.writes[i], is_next_state);
    for (const ValueId value : planned.reads[i])
      if (value.valid()) step.reads.push_back(buffer_of[value.index]);
    for (const ValueId value : planned.writes[i])
      if (value.valid()) step.writes.push_back(buffer_of[value.index]);
  }
  return steps;
}

namespace {

bool wants_branches(const std::vector<BranchStep>& steps,
                    const std::vector<BranchBuffer>& buffers) {
  // A GPU as an H200 has moved so much in a tenth of a millisecond.
  constexpr size_t kFewBytes = size_t{1} << 29;
  const auto wish = word_of_environment("HALFNOTE_BRANCHES", {"always", "never"});
  if (!wish.empty()) return wish == "always";
  size_t bytes = 0;
  for (const BranchStep& step : steps) {
    if (!step.runs) continue;
    for (const int b : step.reads) bytes += buffers[static_cast<size_t>(b)].bytes;
    for (const int b : step.writes) bytes += buffers[static_cast<size_t>(b)].bytes;
  }
  return bytes < kFewBytes;
}

/// How many steps wait for one another behind a step, the longest way, and of the main line those
/// with more behind them than all that come before them, the nearest last.
class Ways {
 public:
  explicit Ways(size_t buffers) : behind_(buffers, 0) {}
  int behind(const BranchStep& step) const {
    int most = 0;
    for (const int b : step.writes) most = std::max(most, behind_[static_cast<size_t>(b)]);
    return most;
  }
  /// Is there a step of the main line, before `join`, behind which the way is as long?
  bool has_as_long(int behind, int join) const {
    const auto as_long = [behind](const Longest& main) { return main.behind >= behind; };
    const auto found = std::ranges::partition_point(longest_, as_long);
    return found != longest_.begin() && std::prev(found)->step < join;
  }
  void add(int step, const BranchStep& what, bool on_main) {
    const int way = behind(what);
    for (const int b : what.reads) {
      int& most = behind_[static_cast<size_t>(b)];
      most = std::max(most, way + 1);
    }
    if (!on_main) return;
    while (!longest_.empty() && longest_.back().behind <= way) longest_.pop_back();
    longest_.push_back({step, way});
  }

 private:
  struct Longest {
    int step = 0, behind = 0;
  };
  std::vector<int> behind_;  // of who writes the buffer
  std::vector<Longest> longest_;
};

/// For each step the one that it joins, or 0, by going from the last one to the first. What others
/// wait for longest stays: it is what the main line is for.
std::vector<int> find_joins(const std::vector<BranchStep>& steps,
                            const std::vector<BranchBuffer>& buffers) {
  const int end = static_cast<int>(steps.size());
  std::vector<int> joins(steps.size(), 0);
  std::vector<int> needed;  // of each buffer: before which step; behind the end: nobody reads it
  for (const BranchBuffer& buffer : buffers) needed.push_back(buffer.kept ? end : end + 1);
  int changed = end;  // the first step behind that changes a state
  Ways ways(buffers.size());
  for (int i = end; i-- > 0;) {
    const auto at = static_cast<size_t>(i);
    const BranchStep& step = steps[at];
    if (!step.runs) continue;
    int join = changed;
    for (const int b : step.writes) join = std::min(join, needed[static_cast<size_t>(b)]);
    const bool leaves = !step.stays && !step.changes_states && join > i &&
                        ways.has_as_long(ways.behind(step), join);
    if (leaves) joins[at] = join;
    ways.add(i, step, !leaves);
    for (const int b : step.reads) {
      int& first = needed[static_cast<size_t>(b)];
      first = std::min(first, leaves ? join : i);
    }
    if (step.changes_states) changed = i;
  }
  return joins;
}

}  // namespace

Branches::Branches(const std::vector<BranchStep>& steps, const std::vector<BranchBuffer>& buffers) {
  if (!wants_branches(steps, buffers)) return;
  joins_ = find_joins(steps, buffers);
  held_.resize(steps.size() + 1);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (joins_[i] == 0) continue;
    std::vector<int>& held = held_[static_cast<size_t>(joins_[i])];
    held.insert(held.end(), steps[i].reads.begin(), steps[i].reads.end());
    held.insert(held.end(), steps[i].writes.begin(), steps[i].writes.end());
  }
}

int Branches::last_join() const { return joins_.empty() ? 0 : *std::ranges::max_element(joins_); }

size_t Branches::most_workspace(const Program& program) const {
  size_t most = 0;
  for (size_t i = 0; i < joins_.size(); ++i) {
    if (joins_[i] > 0) most = std::max(most, program.steps[i].kernel->workspace_bytes());
  }
  return most;
}

const std::vector<int>& Branches::held(int step) const {
  static const std::vector<int> none;
  return held_.empty() ? none : held_[static_cast<size_t>(step)];
}

void Branches::tell(Program& program, const std::vector<bool>& is_view) const {
  std::vector<size_t> place = {0};  // among the steps that run
  for (const bool view : is_view) place.push_back(place.back() + (view ? 0 : 1));
  for (size_t i = 0; i < joins_.size(); ++i) {
    if (joins_[i] > 0) program.steps[i].joins_before = place[static_cast<size_t>(joins_[i])];
  }
}

}  // namespace halfnote
