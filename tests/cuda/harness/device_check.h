// Holds the CUDA kernels against what the CPU's gave for the same call: under the emulation, or on
// the GPU that HALFNOTE_TEST_DEVICE names (cuda, cuda:N).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "kernels/device.h"
#include "kernels/kernel.h"

namespace halfnote::test {

/// The name of the device that tests run on: cuda-emulated, unless the environment says otherwise.
std::string tested_device();
/// That device: one for all calls if it is a GPU, an own one if it is emulated.
std::shared_ptr<Device> open_tested_device();

/// Where tests/fixtures is: the tree that was built, or what HALFNOTE_TEST_SOURCES names.
std::string source_folder();

/// Why no kernel takes a call, row by row.
std::string refusals_of(const KernelChoice& choice);

/// Where the operands of a call are.
struct Placing {
  bool in_place = false;  // outputs lie over inputs where the kernel allows it
  size_t offset = 0;  // bytes behind an aligned address; an operand's element where it is longer
};

/// Runs a kernel that is prepared for a call with these operands; absent ones are undefined.
std::vector<Tensor> run_kernel(Device& device, const Kernel& kernel,
                               const std::vector<Operand>& outputs,
                               const std::vector<Tensor>& inputs, const Placing& placing = {});

/// Runs the call on the device; absent operands are undefined tensors. `in_place`: outputs lie
/// over inputs where the kernel allows it. Throws Error(kUnsupported) with the reasons if the
/// device has no kernel.
std::vector<Tensor> run_on_device(const KernelCall& call, const std::vector<Tensor>& inputs,
                                  bool in_place = false);

/// Expects the same up to rounding in the type, and `lost` of the largest element; of what is no
/// float the same bits.
void expect_near(const Tensor& got, const Tensor& wanted, const std::string& what, double lost = 0);

/// The orders of threads that a call is run in, as seeds of the emulation: three, the last one in
/// place. Where no sanitizer looks on, the emulation has the first and the last: the second one is
/// for the leg asan, which runs nearly all of these tests again.
std::span<const uint64_t> thread_orders();

/// If the device has a kernel for the call: expects `wanted` from it, up to rounding, and the same
/// bytes in all orders of threads.
void check_on_device(const KernelCall& call, const std::vector<Tensor>& inputs,
                     const std::vector<Tensor>& wanted);

}  // namespace halfnote::test
