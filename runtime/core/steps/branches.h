// Steps that a device may do beside the others: the captured graph of a short step has two lines
// then. Most of such a step waits for one small kernel after the other, and gradients of weights
// wait for nobody but the update.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/core/steps/group_steps.h"

namespace halfnote {

/// A step by the numbers of the buffers that it touches.
struct BranchStep {
  std::vector<int> reads, writes;
  bool runs = true;             // not so a view
  bool stays = false;           // on the main line
  bool changes_states = false;  // stays there, and joins all before it
};

/// The steps of a plan, by the buffers of their values. What may find something wrong with its data
/// (it reads indices or labels) stays: of two the first one is told. So does what may not run
/// beside others (KernelRow::alone), and what takes a large workspace.
std::vector<BranchStep> branch_steps(const Graph& graph, const PlannedSteps& planned,
                                     const std::vector<bool>& is_view,
                                     const std::vector<int>& buffer_of);

struct BranchBuffer {
  size_t bytes = 0;
  bool kept = false;  // read behind the last step
};

/// Which steps leave the main line: those for which others wait less long than for what is left on
/// it meanwhile. Such a step is done behind all that come before it, beside those on the main line
/// up to the one that it joins, and behind earlier ones like it. What it touches has to be left
/// alone until then.
class Branches {
 public:
  /// Nobody leaves.
  Branches() = default;
  /// Nor where all operands are so many bytes that the device waits for memory, and not for one
  /// kernel after the other; HALFNOTE_BRANCHES=always or never in the environment overrules that.
  /// Throws Error(kUsage) for another word.
  Branches(const std::vector<BranchStep>& steps, const std::vector<BranchBuffer>& buffers);

  /// The step before which this one has to be done, or 0 where it is on the main line; the number
  /// of steps: before the end.
  int join(int step) const { return joins_.empty() ? 0 : joins_[static_cast<size_t>(step)]; }
  /// Where the last of them join; 0: there are none.
  int last_join() const;
  /// The largest workspace among theirs.
  size_t most_workspace(const Program& program) const;
  /// Buffers that steps which join here touch.
  const std::vector<int>& held(int step) const;
  /// Tells the steps of a program, before those that are views leave it.
  void tell(Program& program, const std::vector<bool>& is_view) const;

 private:
  std::vector<int> joins_;
  std::vector<std::vector<int>> held_;  // by the step that they join
};

}  // namespace halfnote
