// Small values that the host reads while the stream goes on (Stream::publish).
#pragma once

#include <span>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

namespace halfnote::HN_CUDA {

/// Stream::publish() for either kind of stream.
void publish(Stream& stream, std::span<const SmallValue> values, uint64_t* mailbox);

}  // namespace halfnote::HN_CUDA
