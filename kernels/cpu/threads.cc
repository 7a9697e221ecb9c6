#include "kernels/cpu/threads.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <exception>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace halfnote::cpu {
namespace {

/// Starts so many threads of the size that OpenMP's have, all at one time, and ends them.
void try_threads(int count) {
  std::latch all_asked(1);
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(count));
  std::exception_ptr error;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&all_asked] { all_asked.wait(); });
  } catch (...) {
    error = std::current_exception();
  }
  all_asked.count_down();
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace

void start_threads(int threads) {
  const int count = std::min(threads, omp_get_thread_limit());
  if (count <= 1) return;
  try {
    try_threads(count - 1);
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kMemory, fmt::format("cannot start {} threads", count))
        .hint(fmt::format("{}; --threads N takes fewer", error.code().message()));
  }
  int started = 0;
#pragma omp parallel num_threads(count) reduction(+ : started)
  started += 1;
  static_cast<void>(started);
}

}  // namespace halfnote::cpu
