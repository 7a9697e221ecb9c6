// The choice of a call's kernel: the table's, a plan file's, or a measured one.
#pragma once

#include "runtime/core/tune/kernel_choices.h"

namespace halfnote {

/// Where kernels come from besides the order of the table.
struct KernelSource {
  std::string_view names;  // only rows whose name starts with this; empty: all
  KernelChoices* choices = nullptr;
  bool tune = false;  // measures calls that `choices` lacks, and adds them
};

/// The kernel of a call. A kernel that the plan file names and that refuses the call is an
/// Error(kUsage): nothing falls back in silence.
KernelChoice choose_kernel(const KernelCall& call, const KernelSource& source);

/// Runs all rows that take the call, by turns, on made-up operands: the fastest first; of times
/// within 2 % of the shortest the one that the table has first. The reference is a candidate only
/// where it is alone. Empty: there is nothing to choose.
std::vector<MeasuredKernel> measure_kernels(const KernelCall& call);

}  // namespace halfnote
