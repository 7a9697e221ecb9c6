// Pools channels last: a thread has some channels side by side, neighbouring threads have
// neighbouring channels. Their gradients are those of plain tensors (reduction/pool_grad.cu).
#include <array>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/reduction/flat_maxima.h"
#include "kernels/cuda/reduction/kept_maxima.h"
#include "kernels/cuda/reduction/normalized_pool.h"
#include "kernels/cuda/reduction/pool_grad.h"
#include "kernels/cuda/reduction/window.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::PoolGeometry;

#if defined(__CUDA_ARCH__)
inline constexpr bool kOnGpu = true;
#else
inline constexpr bool kOnGpu = false;
#endif

/// On a GPU the larger one of either half, NaN where one is.
template <class T>
__device__ __forceinline__ uint32_t larger_of_two(uint32_t a, [[maybe_unused]] uint32_t b) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, Half>) {
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
  }
#endif
  return a;
}

template <class T, int V>
__device__ Packed<T, V> lowest() {
  Packed<T, V> pack;
  HN_UNROLL
  for (int v = 0; v < V; ++v) pack.of[v] = store_number<T>(-static_cast<Math<T>>(INFINITY));
  return pack;
}

/// Keeps of each element the larger one, and NaN.
template <class T, int V>
__device__ __forceinline__ void keep_larger(Packed<T, V>& most, const Packed<T, V>& others) {
  if constexpr (kOnGpu && sizeof(T) == 2 && V % 2 == 0) {
    uint32_t a[V / 2], b[V / 2];
    memcpy(a, &most, sizeof(a));
    memcpy(b, &others, sizeof(b));
    HN_UNROLL
    for (int w = 0; w < V / 2; ++w) a[w] = larger_of_two<T>(a[w], b[w]);
    memcpy(&most, a, sizeof(a));
  } else {
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      if (cpu::is_new_maximum(load_number(others.of[v]), load_number(most.of[v])))
        most.of[v] = others.of[v];
    }
  }
}

template <class T, int V>
struct LastMaxPool {
  PoolImages images;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<V>(i, images.out, images.out_dims);
    const T* from = x + images.first(at, images.in);
    Packed<T, V> most = lowest<T, V>();
    images.for_taps(at.at, from, [&](int64_t, const T* elements) {
      keep_larger(most, load_packed<V>(elements));
    });
    store_packed(y + i * V, most);
  }
};

/// The same with places of 32 bits.
template <class T, int V>
struct FlatMaxPool {
  FlatImages images;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    Packed<T, V> most = lowest<T, V>();
    images.for_window<V>(i, x, [&](int32_t, const Packed<T, V>& pack) { keep_larger(most, pack); });
    store_packed(y + i * V, most);
  }
};

template <bool kMax>
Prepared prepare_pool(const KernelCall& call) {
  PoolGeometry g;
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  if (std::string why = cpu::plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_region_type(call.inputs[0].dtype, [&]<class T>() {
    const bool flat =
        FlatImages::takes(without_idle_steps(g), call.inputs[0].size(), call.outputs[0].size());
    const auto body = [g, in, include_pad, flat,
                       count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      for_channels<T, 2>(in[1], {x, y}, [&]<int V>() {
        Stream& stream = stream_of(buffers);
        const PoolImages images(g, in[1], V);
        if constexpr (!kMax) {
          for_each(stream, count / V, AveragePool<T, V>{images, x, y, include_pad});
        } else if (flat) {
          const FlatImages of(without_idle_steps(g), in[1], V);
          for_each(stream, count / V, FlatMaxPool<T, V>{of, x, y});
        } else {
          for_each(stream, count / V, LastMaxPool<T, V>{images, x, y});
        }
      });
    };
    return make_kernel(body);
  });
}

template <PoolKind kKind>
Prepared prepare_gradient(const KernelCall& call) {
  PoolGeometry g;
  const Shape &in = call.outputs[0].shape, &out = call.inputs[0].shape;
  if (std::string why = cpu::plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  return prepare_pool_grad(call, g, in[1], kKind);
}

Prepared prepare_kept(const KernelCall& call) {
  cpu::KeptMaxPool pool;
  if (std::string why = cpu::plan_kept_max_pool(call, pool); !why.empty()) return Prepared::no(why);
  return prepare_kept_max_pool(call, pool, pool.channels);
}

Prepared prepare_kept_gradient(const KernelCall& call) {
  cpu::KeptMaxPool pool;
  if (std::string why = cpu::plan_kept_max_pool_grad(call, pool); !why.empty())
    return Prepared::no(why);
  return prepare_pool_grad(call, pool.g, pool.channels, PoolKind::kKeptMax);
}

Prepared prepare_normalized(const KernelCall& call) {
  cpu::KeptMaxPool pool;
  if (std::string why = cpu::plan_normalized_max_pool_grad(call, pool); !why.empty())
    return Prepared::no(why);
  return prepare_normalized_pool_grad(call, pool, pool.channels);
}

/// The large tensors, and the pooled one if it has more than one pixel.
BlockedOperands pooled(const KernelCall& call, bool is_gradient) {
  const Operand& large = is_gradient ? call.outputs[0] : call.inputs[0];
  const Operand& pooled = is_gradient ? call.inputs[0] : call.outputs[0];
  if (large.dtype != DType::kF32 && !is_16bit_float(large.dtype)) return {};
  if (!fits_channels_last(large) || pooled.shape.size() != large.shape.size()) return {};
  const uint32_t small = fits_channels_last(pooled) ? 1 : 0;
  // Taps lie one way in any case; ONNX's Indices count plain elements.
  const bool has_indices = call.domain.empty() && call.has_output(1);
  if (!is_gradient) return has_indices ? BlockedOperands{} : all_channels_last(call, 1, small);
  const bool finds_maxima = call.op == "MaxPoolGrad",
             normalized = call.op == "NormalizedMaxPoolGrad";
  const uint32_t x = finds_maxima ? 0b10 : normalized ? 0b100 : 0;
  PoolGeometry g;
  if (!cpu::plan_pool(call, large.shape, pooled.shape, g).empty()) return {};
  if (finds_maxima && !has_few_taps(g)) return {};
  return all_channels_last(call, small | x, 1);
}
BlockedOperands forward_operands(const KernelCall& call) { return pooled(call, false); }
BlockedOperands gradient_operands(const KernelCall& call) { return pooled(call, true); }

}  // namespace

std::vector<BlockedRow> channels_last_pools() {
  constexpr std::string_view kPlain = "own.pool", kName = "channels_last.pool";
  return {
      {{"", "AveragePool", kName, prepare_pool<false>}, kPlain, forward_operands},
      {{"", "MaxPool", kName, prepare_pool<true>}, kPlain, forward_operands},
      {{"ai.halfnote", "AveragePoolGrad", kName, prepare_gradient<PoolKind::kMean>},
       kPlain,
       gradient_operands},
      {{"ai.halfnote", "MaxPool", kName, prepare_kept}, kPlain, forward_operands},
      {{"ai.halfnote", "MaxPoolGrad", kName, prepare_gradient<PoolKind::kMax>},
       kPlain,
       gradient_operands},
      {{"ai.halfnote", "MaxPoolTapsGrad", kName, prepare_kept_gradient}, kPlain, gradient_operands},
      {{"ai.halfnote", "NormalizedMaxPoolGrad", kName, prepare_normalized},
       kPlain,
       gradient_operands},
  };
}

}  // namespace halfnote::HN_CUDA
