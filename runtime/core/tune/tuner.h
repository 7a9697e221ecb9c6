// The choice of a call's kernel: the table's, a plan file's, or a measured one.
#pragma once

#include "runtime/core/tune/kernel_choices.h"

namespace halfnote {

/// Where kernels come from besides the order of the table.
struct KernelSource {
  std::string_view names;  // only rows whose name starts with this; empty: all
  KernelChoices* choices = nullptr;
  bool tune = false;         // measures calls that `choices` lacks, and adds them
  Device* device = nullptr;  // whose kernels they are; null: the CPU's
};

/// The kernel of a call. A kernel or an algorithm that the plan file names and that refuses the
/// call is an Error(kUsage): nothing falls back in silence.
KernelChoice choose_kernel(const KernelCall& call, const KernelSource& source);

/// Runs all rows that take the call, by turns, on made-up operands: the fastest first; of times
/// within 2 % of the shortest the one that the table has first. A fallback, as the reference is
/// one, is a candidate only where it is alone. Empty: there is nothing to choose.
///
/// On a device every algorithm of a row (KernelRow::algorithms) is a candidate of its own, and a
/// row that has another form for the layout of the device's regions runs in that form, where it
/// is preferred. Throws Error(kMemory) where the device has no room for the operands.
std::vector<MeasuredKernel> measure_kernels(const KernelCall& call, Device* device = nullptr);

/// A call among others: the numbers of the values that it reads and writes, -1 for an absent one.
/// Equal numbers are one buffer.
struct LinkedCall {
  KernelCall call;
  std::vector<int> inputs, outputs;
};

/// Are calls on the device faster, by more than 2 %, than others that make the same of the same
/// values? For passes that fuse only where that was measured to be faster. Equal numbers in both
/// lists are one value.
///
/// What `choices` knows under the key of both lists decides. Else, with `tune`, both are measured,
/// each call by its best kernel (which is measured too), and the answer is noted there; without it
/// the answer is no, and so it is on the CPU, without choices, and where a call has no kernel. An
/// answer that room on the device would not allow is no, and noted as unmeasured.
///
///   now:      MatMul(a, b) -> z      inputs {0, 1}, outputs {3}
///             Gelu(z) -> y           inputs {3},    outputs {2}
///   instead:  MatMulGelu(a, b) -> y  inputs {0, 1}, outputs {2}
bool exchange_pays(const std::vector<LinkedCall>& now, const std::vector<LinkedCall>& instead,
                   const KernelSource& source);

}  // namespace halfnote
