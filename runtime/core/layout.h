// Which values of a program are kept in the layout of the device's regions (kernels/layout.h:
// channel blocks, or channels last; "blocked" here), and where reorders go.
//
// Convolutions take blocks as they lie and would otherwise reorder inside; elementwise ops, batch
// normalizations and pools do as well on blocks as on plain tensors, if all their tensors are
// blocked. So values that such ops tie together form a region, and a region is blocked as a whole
// if that spares more bytes of reordering inside of kernels than it costs at its borders. All
// other kernels, results and states see plain tensors: where one reads a blocked value, or a
// blocked region reads a plain one, a reorder step makes the copy, once for all readers.
#pragma once

#include <span>
#include <vector>

#include "compiler/ir/graph.h"
#include "kernels/layout.h"
#include "runtime/core/plan.h"

namespace halfnote {

/// A step as far as layouts matter.
struct LayoutStep {
  std::span<const ValueId> reads, writes;  // `reads` may go on behind the operands of the kernel
  BlockedOperands blocked;                 // what the blocked form of its kernel takes
  int original = -1;  // the step that this one repeats: it lies and runs as that one does
};

/// A copy of a value in another layout.
struct LayoutCopy {
  ValueId of;
  Layout layout;
};

/// What is known of a value.
struct LayoutValue {
  size_t bytes = 0;
  bool stays_plain = false;  // a result or a state: it is written plain
  ValueId original = {};     // of a step that is repeated: what this is again
};

/// Fills in what the graph says of the steps and the values: which stay plain, what repeats what.
/// `steps` are those of `nodes`, in their order.
void ask_graph(const Graph& graph, std::span<const NodeId> nodes, std::span<LayoutStep> steps,
               std::span<LayoutValue> values);

/// For each value: is its region blocked? Clears the operands of `steps` that are written plain
/// because their value stays so, or because they only go together with one that does. Steps that
/// repeat others change nothing of the answer.
std::vector<bool> choose_blocked(std::span<LayoutStep> steps, std::span<const LayoutValue> values);

/// Which operands of a step are blocked, in the order of the operands.
struct StepLayouts {
  std::vector<bool> reads, writes;
  bool any() const;
};
/// Those that `mask` names and whose regions are blocked.
std::vector<bool> blocked_operands(std::span<const ValueId> values, uint32_t mask,
                                   const std::vector<bool>& regions);
/// Gives the blocked operands of a call their layout.
void set_layouts(std::vector<Operand>& operands, const std::vector<bool>& blocked,
                 const Layout& layout);

/// The blocked forms of a step's kernel, and the operands that they take.
struct BlockedForm {
  std::span<const BlockedRow* const> rows;
  BlockedOperands operands;
};

/// A blocked kernel, and the row that it comes from; no kernel if all of them refuse.
struct BlockedChoice {
  const KernelRow* row = nullptr;
  std::unique_ptr<Kernel> kernel;
};
/// The first form that takes a call whose operands lie as they are to.
BlockedChoice choose_blocked_kernel(const BlockedForm& form, const KernelCall& call);

/// What became of it in a program. Reorders are steps without a node.
struct LayoutCounts {
  size_t blocked_steps = 0, reorders = 0;
  bool channels_last = false;  // not in channel blocks
};
LayoutCounts count_layouts(const Program& program);

}  // namespace halfnote
