// The CUDA runtime behind the classes of kernels/device.h.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/device.h"

namespace halfnote::cuda {

/// Throws for a CUDA call that failed: Error(kMemory) out of memory, Error(kDevice) for what the
/// machine lacks, Error(kInternal) for what our kernels did; with the call, CUDA's name for it and
/// what to do.
void check(cudaError_t result, const char* call);

/// The launch behind launch(): sees to large shared memory, counts, checks.
void launch_kernel(Stream& stream, const void* kernel, dim3 grid, dim3 block, size_t shared,
                   void** arguments);

/// Bytes of shared memory that a block may have on the stream's device, if it asks for them.
int64_t most_shared(Stream& stream);

/// The stream as CUDA and its libraries know it.
cudaStream_t native(Stream& stream);

/// `cuBLASLt 13.1.0`, `cuDNN 9.19.0`; `no cuDNN` where it is not installed.
std::string blas_version();
std::string dnn_version();

}  // namespace halfnote::cuda
