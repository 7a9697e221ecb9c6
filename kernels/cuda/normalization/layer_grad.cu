// LayerNormalizationGrad: lines that fit into registers (held.h) in one pass over dY and X, with
// sums in f32, in f64 for f64; longer ones by a block of threads a line, and a thread a column.
#include "kernels/cuda/normalization/held.h"
#include "kernels/cuda/normalization/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::model_error;

struct LayerGradTypes {
  DType scale, mean, inv_std, d_scale, d_bias;
  bool has_dx;
};

/// Writes a block's sums of the columns: those of its warps are added in their order.
template <int V, unsigned kLanes, class M>
__device__ __forceinline__ void write_slice(const M (&sums)[kHeld<M>], M* to, int64_t length) {
  constexpr int kPacks = kHeld<M> / V;
  if constexpr (kLanes != 32) {
    for_packs<V, kPacks, kLanes>(length, [&](int k, int i) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) to[i + v] = sums[k * V + v];
    });
  } else {
    // Element v of pack k of lane l lies at (k·V + v)·32 + l, where no two lanes meet in a bank.
    HN_SHARED(M[kHeld<M> * 32], all);
    const unsigned lane = threadIdx.x % 32;
    __syncthreads();  // it may still be read for the other sums
    for (unsigned warp = 0; warp < kHeldBlock / 32; ++warp) {
      if (threadIdx.x / 32 == warp) {
        HN_UNROLL
        for (int j = 0; j < kHeld<M>; ++j) {
          const unsigned at = static_cast<unsigned>(j) * 32 + lane;
          all[at] = warp == 0 ? sums[j] : all[at] + sums[j];
        }
      }
      __syncthreads();
    }
    for (int column = static_cast<int>(threadIdx.x); column < length; column += kHeldBlock) {
      const int pack = column / V;
      to[column] = all[(pack / 32 * V + column % V) * 32 + pack % 32];
    }
  }
}

/// One pass over dY and X: dX, and the sums of the columns over the lines of a block, in `parts`
/// as AddSlices wants them.
template <class T, class P, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock, sizeof(T) == 2 && V > 1 ? 2 : 1)
    layer_grad_held(const T* dy, const T* x, const P* scale, RealPointer means,
                    RealPointer inv_stds, T* dx, Math<T>* parts, Lines lines) {
  using M = Math<T>;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  const M count = static_cast<M>(lines.length);
  M d_scale[kHeld<M>] = {}, d_bias[kHeld<M>] = {};
  for (int64_t line = blockIdx.x * kGroups + threadIdx.x / kLanes; line < lines.count;
       line += gridDim.x * kGroups) {
    const int64_t first = line * lines.length;
    Packed<T, V> own_dy[kPacks], own_x[kPacks];
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      own_dy[k] = load_packed<V>(dy + first + i);
      own_x[k] = load_packed<V>(x + first + i);
    });
    const M mean = means.load<M>(line), inv_std = inv_stds.load<M>(line);
    M sum = 0, product = 0;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      const Packed<P, V> factors = load_packed<V>(scale + i);
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M g = load_number(own_dy[k].of[v]);
        const M hat = (load_number(own_x[k].of[v]) - mean) * inv_std;
        d_bias[k * V + v] += g;
        d_scale[k * V + v] += g * hat;
        const M scaled = g * load_number(factors.of[v]);
        sum += scaled;
        product += scaled * hat;
      }
    });
    if (dx == nullptr) continue;  // all threads of the grid
    sum = sum_of_line<kLanes>(sum) / count;
    product = sum_of_line<kLanes>(product) / count;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      if constexpr (sizeof(T) == 2) {
        forget_computed(own_dy[k]);
        forget_computed(own_x[k]);
      }
      const Packed<P, V> factors = load_packed<V>(scale + i);
      Packed<T, V> to;
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M scaled = load_number(own_dy[k].of[v]) * load_number(factors.of[v]);
        const M hat = (load_number(own_x[k].of[v]) - mean) * inv_std;
        to.of[v] = store_number<T>(inv_std * (scaled - sum - hat * product));
      }
      store_packed(dx + first + i, to);
    });
  }
  M* const slice = parts + int64_t{blockIdx.x} * 2 * lines.length;
  write_slice<V, kLanes>(d_scale, slice, lines.length);
  write_slice<V, kLanes>(d_bias, slice + lines.length, lines.length);
}

template <class T, class P>
Prepared held_layer_grad(const Lines& lines, const LayerGradTypes& types) {
  using M = Math<T>;
  // Sums in f32 are of few lines, those of the blocks are added in f64.
  constexpr int64_t kMostRounds = 64;
  const HeldLines held = HeldLines::plan<M>(lines, kMostRounds);
  const auto body = [=](const KernelBuffers& buffers) {
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
    const P* scale = buffers.in<P>(2);
    T* dx = types.has_dx ? buffers.out<T>(0) : nullptr;
    auto* parts = reinterpret_cast<M*>(buffers.workspace);
    const bool in_packs = lines.length % (16 / static_cast<int64_t>(sizeof(T))) == 0 &&
                          are_aligned<4>({dy, x, scale, dx});
    for_held<T>(held, in_packs, [&]<int V, unsigned kLanes>() {
      launch(stream_of(buffers), layer_grad_held<T, P, V, kLanes>,
             static_cast<unsigned>(held.blocks), kHeldBlock, 0, dy, x, scale,
             RealPointer{buffers.inputs[3], types.mean},
             RealPointer{buffers.inputs[4], types.inv_std}, dx, parts, lines);
    });
    add_slices(stream_of(buffers), static_cast<const M*>(parts), held.blocks, lines.length,
               {buffers.out<std::byte>(1), types.d_scale},
               {buffers.out<std::byte>(2), types.d_bias});
  };
  return make_kernel(body, static_cast<size_t>(2 * held.blocks * lines.length) * sizeof(M),
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    layer_norm_dx(const T* dy, const T* x, RealPointer scale, RealPointer means,
                  RealPointer inv_stds, T* dx, Lines lines) {
  const double count = static_cast<double>(lines.length);
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t first = line * lines.length;
    const double mean = means[line], inv_std = inv_stds[line];
    double sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = load_number(dy[first + i]) * scale[i];
      sum += g;
      product += g * ((load_number(x[first + i]) - mean) * inv_std);
    }
    sum = merge_block<AddNumbers, kLineBlock>(sum) / count;
    product = merge_block<AddNumbers, kLineBlock>(product) / count;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = load_number(dy[first + i]) * scale[i];
      const double hat = (load_number(x[first + i]) - mean) * inv_std;
      dx[first + i] = store_number<T>(static_cast<Math<T>>(inv_std * (g - sum - hat * product)));
    }
  }
}

/// dScale and dB have one element a column: rows are cut into slices, a thread sums a column of
/// one, and a second kernel adds the slices.
template <class T>
__global__ void __launch_bounds__(kLineBlock)
    layer_norm_column_parts(const T* dy, const T* x, RealPointer means, RealPointer inv_stds,
                            double* parts, Lines lines, int64_t slice) {
  const int64_t column = int64_t{blockIdx.x} * kLineBlock + threadIdx.x;
  if (column >= lines.length) return;
  const int64_t begin = int64_t{blockIdx.y} * slice;
  const int64_t end = begin + slice < lines.count ? begin + slice : lines.count;
  double scale = 0, bias = 0;
  for (int64_t line = begin; line < end; ++line) {
    const double g = load_number(dy[line * lines.length + column]);
    bias += g;
    scale += g * ((load_number(x[line * lines.length + column]) - means[line]) * inv_stds[line]);
  }
  parts[(int64_t{blockIdx.y} * 2) * lines.length + column] = scale;
  parts[(int64_t{blockIdx.y} * 2 + 1) * lines.length + column] = bias;
}

template <class T>
Prepared looped_layer_grad(const Lines& lines, const LayerGradTypes& types) {
  const int64_t slice = lines_of_slice(lines), grid_y = (lines.count + slice - 1) / slice;
  const auto body = [=](const KernelBuffers& buffers) {
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
    const RealPointer mean{buffers.inputs[3], types.mean};
    const RealPointer inv_std{buffers.inputs[4], types.inv_std};
    auto* parts = reinterpret_cast<double*>(buffers.workspace);
    // First, as dX may lie over dY or X.
    launch(stream_of(buffers), layer_norm_column_parts<T>,
           dim3(blocks_for(lines.length, kLineBlock), static_cast<unsigned>(grid_y)), kLineBlock, 0,
           dy, x, mean, inv_std, parts, lines, slice);
    add_slices(stream_of(buffers), parts, grid_y, lines.length,
               {buffers.out<std::byte>(1), types.d_scale},
               {buffers.out<std::byte>(2), types.d_bias});
    if (!types.has_dx) return;
    launch(stream_of(buffers), layer_norm_dx<T>, line_blocks(lines.count), kLineBlock, 0, dy, x,
           RealPointer{buffers.inputs[2], types.scale}, mean, inv_std, buffers.out<T>(0), lines);
  };
  const auto workspace = static_cast<size_t>(2 * grid_y * lines.length) * sizeof(double);
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

Prepared prepare_layer_grad(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1)) throw model_error(call, "dY or X is missing");
  const Lines lines =
      cpu::lines_from(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  cpu::require_size(call, 0, call.inputs[1].size());
  cpu::require_size(call, 2, lines.length);
  cpu::require_size(call, 3, lines.count);
  cpu::require_size(call, 4, lines.count);
  if (std::string why = cpu::float_refusal(call); !why.empty()) return Prepared::no(why);
  const DType type = call.inputs[0].dtype;
  const bool has_dx = call.has_output(0);
  if (call.inputs[1].dtype != type || (has_dx && call.outputs[0].dtype != type)) {
    return Prepared::no("dY, X and dX of different types");
  }
  const LayerGradTypes types = {call.inputs[2].dtype, call.inputs[3].dtype, call.inputs[4].dtype,
                                type_of(call, 1),     type_of(call, 2),     has_dx};
  return for_float_type(type, [&]<class T>() {
    if (lines.length <= kBlockLine<Math<T>>) {
      Prepared held = for_scale_type<T>(
          types.scale, [&]<class P>() { return held_layer_grad<T, P>(lines, types); });
      if (held) return held;
    }
    return looped_layer_grad<T>(lines, types);
  });
}

}  // namespace

KernelRow layer_grad_row() {
  return {"ai.halfnote", "LayerNormalizationGrad", "own.layer_norm", prepare_layer_grad};
}

}  // namespace halfnote::HN_CUDA
