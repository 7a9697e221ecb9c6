// The parallel loop of all CPU kernels.
#include "kernels/cpu/support.h"

#include <exception>

namespace halfnote::cpu {

void run_blocks(int64_t count, int64_t grain, int threads,
                void (*call)(const void* body, int64_t begin, int64_t end), const void* body) {
  const int64_t blocks = grain > 0 ? (count + grain - 1) / grain : 0;
  if (blocks <= 1 || threads <= 1) {
    for (int64_t block = 0; block < blocks; ++block) {
      call(body, block * grain, std::min(count, (block + 1) * grain));
    }
    return;
  }
  std::exception_ptr error;
  int64_t error_block = blocks;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t block = 0; block < blocks; ++block) {
    try {
      call(body, block * grain, std::min(count, (block + 1) * grain));
    } catch (...) {
#pragma omp critical(halfnote_parallel_blocks)
      if (block < error_block) {
        error_block = block;
        error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace halfnote::cpu
