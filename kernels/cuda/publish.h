// Small values that the host reads while the stream goes on: Stream::publish() for either kind of
// stream. Included by the host's side of the device too, so it knows nothing of CUDA.
#pragma once

#include <span>

#include "kernels/device.h"

namespace halfnote::cuda {
void publish(Stream& stream, std::span<const SmallValue> values, uint64_t* mailbox);
}

namespace halfnote::cuda_emulated {
void publish(Stream& stream, std::span<const SmallValue> values, uint64_t* mailbox);
}
