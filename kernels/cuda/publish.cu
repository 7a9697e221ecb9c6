#include "kernels/cuda/publish.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/launch.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr unsigned kMost = 32;  // values of a launch, a thread each
constexpr uint32_t kWord = 8;

struct Values {
  const unsigned char* from[kMost] = {};
  uint32_t bytes[kMost] = {};
  unsigned count = 0;
  bool last = false;  // of a mailbox
  DeviceFault* fault = nullptr;
};

/// In one load where it may be: a fault lies in the host's memory, which answers late.
__device__ uint64_t word_of(const unsigned char* from, uint32_t bytes) {
  if (bytes == kWord && reinterpret_cast<uintptr_t>(from) % kWord == 0)
    return *reinterpret_cast<const uint64_t*>(from);
  uint64_t word = 0;
  for (uint32_t k = 0; k < bytes; ++k) word |= static_cast<uint64_t>(from[k]) << (8 * k);
  return word;
}

/// What stands in the words must have come to the host before the count does: the fence of one
/// thread behind the barrier is one for what all have written. A fault that was published is over:
/// what the next run finds wrong is its own. What lies in the host's memory is read at the
/// beginning, all at once.
__global__ void __launch_bounds__(kMost)
    fill_mailbox(Values values, volatile uint64_t* words, volatile uint64_t* count) {
  const unsigned i = threadIdx.x;
  const bool counts = i == 0 && values.last;
  const uint64_t runs = counts ? *count + 1 : 0;
  const bool has_fault = counts && values.fault->kind != DeviceFault::kNone;
  if (i < values.count) words[i] = word_of(values.from[i], values.bytes[i]);
  __syncthreads();
  if (counts) {
    if (has_fault) *values.fault = {};
    __threadfence_system();
    *count = runs;
  }
}

}  // namespace

void publish(Stream& stream, std::span<const SmallValue> values, uint64_t* mailbox) {
  size_t done = 0;
  do {
    Values part;
    part.count = static_cast<unsigned>(std::min<size_t>(kMost, values.size() - done));
    for (unsigned i = 0; i < part.count; ++i) {
      const SmallValue& value = values[done + i];
      if (value.bytes > kWord) {
        throw Error(ErrorCode::kInternal, "a value is too large to be published")
            .expected("at most 8 bytes", std::to_string(value.bytes));
      }
      part.from[i] = reinterpret_cast<const unsigned char*>(value.from);
      part.bytes[i] = value.bytes;
    }
    part.last = done + part.count == values.size();
    part.fault = stream.fault().at;
    launch(stream, fill_mailbox, 1, kMost, 0, part, mailbox + 1 + done, mailbox);
    done += part.count;
  } while (done < values.size());
}

}  // namespace halfnote::HN_CUDA
