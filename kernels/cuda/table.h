// The kernel table of CUDA, compiled once for the device, once for the emulation; and the GPU.
#pragma once

#include <memory>

#include "kernels/device.h"
#include "kernels/kernel.h"
#include "kernels/layout.h"

namespace halfnote::cuda {
/// Own kernels and library calls. In a build without CUDA it does not exist.
const KernelTable& kernel_table();
/// Channels last, and its kernels (channels_last/).
const RegionLayout& channels_last_regions();
/// GPU `ordinal`. Throws Error(kDevice) with what to do where there is none, or no driver for it.
std::unique_ptr<Device> open_cuda_device(int ordinal);
}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {
/// The same kernels under the emulation, library calls answered by the CPU's reference kernels.
const KernelTable& kernel_table();
const RegionLayout& channels_last_regions();
}  // namespace halfnote::cuda_emulated
