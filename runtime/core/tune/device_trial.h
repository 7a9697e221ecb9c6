// Times of kernels on a device, for tuning: the ways to one result, each a row of kernels, run by
// turns on made-up operands.
//
// A way is captured as often as fits a millisecond or two and launched as a graph, which is how a
// step runs: what the host takes to launch a kernel does not count. The repetitions walk through
// several sets of operands, together larger than a GPU's cache, as far as there is room. Nothing
// else may be captured meanwhile; all memory is given back at the end.
#pragma once

#include <vector>

#include "kernels/device.h"

namespace halfnote {

/// A kernel and the values that it reads and writes, by their numbers in a list; -1: absent.
struct TrialStep {
  const Kernel* kernel = nullptr;
  std::vector<int> inputs, outputs;
};
using TrialWay = std::vector<TrialStep>;

/// The shortest times in seconds, one a way. A way that is several times slower than the fastest
/// is run only a few times. Values are made up but for constants. Throws Error(kMemory) where the
/// device has no room for them, Error(kData) for kernels that refuse such data.
std::vector<double> time_on_device(Device& device, const std::vector<Operand>& values,
                                   const std::vector<TrialWay>& ways);

}  // namespace halfnote
