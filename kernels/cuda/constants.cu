// Tables as arguments of kernels.
#include "kernels/cuda/constants.h"

#include <algorithm>
#include <cstring>

namespace halfnote::HN_CUDA {

namespace {

constexpr size_t kPartBytes = 3072;  // of a launch: every GPU takes 4 KiB of arguments
constexpr unsigned kPartBlock = 256;

struct Part {
  unsigned bytes = 0;
  unsigned char data[kPartBytes] = {};
};

__global__ void __launch_bounds__(kPartBlock) write_part(Part part, unsigned char* to) {
  for (unsigned i = threadIdx.x; i < part.bytes; i += kPartBlock) to[i] = part.data[i];
}

}  // namespace

void write_constants(Stream& stream, void* to, std::span<const std::byte> bytes) {
  auto* target = static_cast<unsigned char*>(to);
  for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
    Part part;
    part.bytes = static_cast<unsigned>(std::min(kPartBytes, bytes.size() - at));
    std::memcpy(part.data, bytes.data() + at, part.bytes);
    launch(stream, write_part, 1, kPartBlock, 0, part, target + at);
  }
}

}  // namespace halfnote::HN_CUDA
