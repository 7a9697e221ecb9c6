// What nodes with bodies ask of a stream: Stream::copy_blocks(), copy_if() and note_fault_if() for
// either kind of stream. Included by the host's side of the device too, so it knows nothing of
// CUDA.
#pragma once

#include "kernels/device.h"

namespace halfnote::cuda {
void copy_blocks(Stream& stream, const BlockCopy& copy);
void copy_if(Stream& stream, const DeviceCondition& condition, void* to, const void* from,
             size_t bytes);
void note_fault_if(Stream& stream, const DeviceCondition& condition, const DeviceFault* noted);
}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {
void copy_blocks(Stream& stream, const BlockCopy& copy);
void copy_if(Stream& stream, const DeviceCondition& condition, void* to, const void* from,
             size_t bytes);
void note_fault_if(Stream& stream, const DeviceCondition& condition, const DeviceFault* noted);
}  // namespace halfnote::cuda_emulated
