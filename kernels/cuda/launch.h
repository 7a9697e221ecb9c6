// The one place from which kernels are launched.
//
//   launch(stream_of(buffers), scale_rows<float>, blocks, 256, 0, x, y, rows);
#pragma once

#include <type_traits>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

#if defined(__CUDACC__)
#include "kernels/cuda/device/cuda_device.h"
#else
#include "kernels/cuda/device/emulated_device.h"
#endif

namespace halfnote::HN_CUDA {

/// Blocks of `threads` that cover `count` elements.
inline unsigned blocks_for(int64_t count, int64_t threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

#if defined(__CUDACC__)

/// Launches `kernel` over a grid; a grid without blocks launches nothing. `shared`: bytes of
/// dynamic shared memory a block.
template <class... Formal>
void launch(Stream& stream, void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared,
            std::type_identity_t<Formal>... values) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  void* pointers[] = {static_cast<void*>(&values)..., nullptr};
  launch_kernel(stream, reinterpret_cast<const void*>(kernel), grid, block, shared, pointers);
}

#else

/// Bytes of shared memory that a block may have, static and dynamic.
inline int64_t most_shared(Stream&) { return emulation::kMaxSharedBytes; }

template <class... Formal, class... Actual>
void launch(Stream& stream, void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared,
            Actual... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  static_assert((std::is_trivially_copyable_v<Formal> && ...), "as nvcc asks");
  const auto call = [kernel, ... values = static_cast<Formal>(arguments)] { kernel(values...); };
  const auto body = [](const void* erased) { (*static_cast<decltype(&call)>(erased))(); };
  static_cast<EmulatedStream&>(stream).enqueue_grid({grid, block, shared}, body, &call,
                                                    sizeof(call));
}

#endif

}  // namespace halfnote::HN_CUDA
