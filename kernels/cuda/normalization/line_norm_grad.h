// LayerNormalizationGrad and RMSNormalizationGrad, plain and with the sums around them:
//
//   dX, … = LayerNormalizationGrad (dY, X, scale, mean, inv_std, dY2, dX2)
//
// is the gradient of dY + dY2, rounded to T, to which dX2 is added before dX is rounded. Lines that
// fit into registers (held.h) are read once, with sums in f32, in f64 for f64; longer ones go by a
// block of threads a line, and a thread a column.
#pragma once

#include "kernels/cuda/normalization/line_norm.h"

namespace halfnote::HN_CUDA {

/// dY and its second part as one, rounded to T; the second part may be null.
template <class T>
struct GradOperand {
  const T *dy, *more;
  __device__ Math<T> operator[](int64_t i) const {
    const Math<T> one = load_number(dy[i]);
    return more == nullptr ? one : load_number(store_number<T>(one + load_number(more[i])));
  }
};

/// dX, and what is added to it; both may be null.
template <class T>
struct GradResult {
  T* dx;
  const T* more;
  __device__ void write(int64_t i, double value) const {
    if (more != nullptr) value += static_cast<double>(load_number(more[i]));
    dx[i] = store_number<T>(static_cast<Math<T>>(value));
  }
};

/// What the gradient knows of the lines: a LayerNormalization saved it, for RMSNormalization it is
/// taken again from X.
struct SavedStatistics {
  RealPointer mean, inv_std;  // may have no data
  double epsilon;
};

/// dScale, and dB of a LayerNormalization.
template <LineNorm kNorm>
inline constexpr int kColumnSums = kNorm == LineNorm::kLayer ? 2 : 1;

// --- lines in registers --------------------------------------------------------------------------

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

/// Those of a line of X in registers.
template <LineNorm kNorm, class M, int V, int kPacks, unsigned kLanes, class Pack>
__device__ __forceinline__ Moments<M> saved_moments(const SavedStatistics& saved, int64_t line,
                                                    const Pack (&x)[kPacks], int64_t length) {
  if constexpr (kNorm == LineNorm::kLayer) {
    return {saved.mean.load<M>(line), saved.inv_std.load<M>(line)};
  } else {
    return moments_of_line<kNorm, M, V, kPacks, kLanes>(x, length, saved.epsilon);
  }
}

/// What is added to the line of dX that a thread writes: on its way to shared memory, a pack for
/// each of the thread's, while the sums of the line are taken. Loads to registers behind them would
/// each wait for the store before: it may lie where dX does.
template <class T, int V, int kPacks, unsigned kLanes>
struct AddedPacks {
  static constexpr bool kAhead = V * sizeof(T) == 16;

  __device__ static Packed<T, V>* room(int k) {
    using Room = Packed<T, V>[kPacks][kHeldBlock];
    HN_SHARED(Room, all);
    return &all[k][threadIdx.x];
  }
  __device__ static void set_off(const T* line, int64_t length) {
    if constexpr (kAhead) {
      for_packs<V, kPacks, kLanes>(length, [&](int k, int i) { copy_ahead(room(k), line + i); });
      end_copy_group();
    }
  }
  __device__ static void wait() {
    if constexpr (kAhead) wait_for_copies<0>();
  }
  /// Pack k, which begins at element i of the line.
  __device__ static Packed<T, V> get(const T* line, int k, int i) {
    if constexpr (kAhead) return *room(k);
    return load_packed<V>(line + i);
  }
};

/// One pass over dY and X: dX, and the sums of the columns over the lines of a block, in `parts`
/// as AddSlices wants them.
template <LineNorm kNorm, class T, class P, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock, sizeof(T) == 2 && V > 1 ? 2 : 1)
    norm_grad_held(GradOperand<T> dy, const T* x, const P* scale, SavedStatistics saved,
                   GradResult<T> to, Math<T>* parts, Lines lines) {
  using M = Math<T>;
  constexpr bool kLayer = kNorm == LineNorm::kLayer;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  const M count = static_cast<M>(lines.length);
  M d_scale[kHeld<M>] = {};
  [[maybe_unused]] M d_bias[kLayer ? kHeld<M> : 1] = {};
  using Added = AddedPacks<T, V, kPacks, kLanes>;
  for (int64_t line = blockIdx.x * kGroups + threadIdx.x / kLanes; line < lines.count;
       line += gridDim.x * kGroups) {
    const int64_t first = line * lines.length;
    if (to.more != nullptr) Added::set_off(to.more + first, lines.length);
    Packed<T, V> own_dy[kPacks], own_x[kPacks];
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      own_dy[k] = load_packed<V>(dy.dy + first + i);
      own_x[k] = load_packed<V>(x + first + i);
      if (dy.more != nullptr) add_pack<T, V>(own_dy[k], dy.more + first + i);
    });
    const Moments<M> of =
        saved_moments<kNorm, M, V, kPacks, kLanes>(saved, line, own_x, lines.length);
    M sum = 0, product = 0;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      const Packed<P, V> factors = load_packed<V>(scale + i);
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M g = load_number(own_dy[k].of[v]);
        const M hat = (load_number(own_x[k].of[v]) - of.mean) * of.inv_std;
        if constexpr (kLayer) d_bias[k * V + v] += g;
        d_scale[k * V + v] += g * hat;
        const M scaled = g * load_number(factors.of[v]);
        if constexpr (kLayer) sum += scaled;
        product += scaled * hat;
      }
    });
    if (to.dx == nullptr) continue;  // all threads of the grid
    if constexpr (kLayer) sum = sum_of_line<kLanes>(sum) / count;
    product = sum_of_line<kLanes>(product) / count;
    Added::wait();
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      if constexpr (sizeof(T) == 2) {
        forget_computed(own_dy[k]);
        forget_computed(own_x[k]);
      }
      const Packed<P, V> factors = load_packed<V>(scale + i);
      Packed<T, V> more = {};
      if (to.more != nullptr) more = Added::get(to.more + first, k, i);
      M values[V];
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M scaled = load_number(own_dy[k].of[v]) * load_number(factors.of[v]);
        const M hat = (load_number(own_x[k].of[v]) - of.mean) * of.inv_std;
        values[v] = of.inv_std * (scaled - sum - hat * product);
        if (to.more != nullptr) values[v] += load_number(more.of[v]);
      }
      store_packed(to.dx + first + i, pack_of<T>(values));
    });
  }
  M* const slice = parts + int64_t{blockIdx.x} * kColumnSums<kNorm> * lines.length;
  write_slice<V, kLanes>(d_scale, slice, lines.length);
  if constexpr (kLayer) write_slice<V, kLanes>(d_bias, slice + lines.length, lines.length);
}

/// The operands of a gradient, by their places.
template <LineNorm kNorm>
struct GradPlaces {
  DType scale, mean = DType::kUndefined, inv_std = DType::kUndefined, d_scale, d_bias;
  bool has_dx, has_dy2, has_dx2;
  double epsilon;

  explicit GradPlaces(const KernelCall& call)
      : scale(call.inputs[2].dtype),
        d_scale(type_of(call, 1)),
        d_bias(kNorm == LineNorm::kLayer ? type_of(call, 2) : DType::kUndefined),
        has_dx(call.has_output(0)),
        has_dy2(call.has_input(kMore)),
        has_dx2(call.has_input(kMore + 1)),
        epsilon(attributes_of(call).get_float("epsilon", 1e-5f)) {
    if (kNorm != LineNorm::kLayer) return;
    mean = call.inputs[3].dtype;
    inv_std = call.inputs[4].dtype;
  }
  template <class T>
  GradOperand<T> dy(const KernelBuffers& buffers) const {
    return {buffers.in<T>(0), has_dy2 ? buffers.in<T>(kMore) : nullptr};
  }
  template <class T>
  GradResult<T> result(const KernelBuffers& buffers) const {
    return {has_dx ? buffers.out<T>(0) : nullptr, has_dx2 ? buffers.in<T>(kMore + 1) : nullptr};
  }
  SavedStatistics saved(const KernelBuffers& buffers) const {
    if (kNorm != LineNorm::kLayer) return {{}, {}, epsilon};
    return {{buffers.inputs[3], mean}, {buffers.inputs[4], inv_std}, epsilon};
  }
  template <class M>
  void add(const KernelBuffers& buffers, const M* parts, int64_t slices, int64_t length) const {
    RealOutput of_bias;
    if (kNorm == LineNorm::kLayer) of_bias = {buffers.out<std::byte>(2), d_bias};
    add_slices(stream_of(buffers), parts, slices, length, kColumnSums<kNorm> * length,
               {buffers.out<std::byte>(1), d_scale}, of_bias);
  }
  /// Lines are read before, and elements where, dX is written.
  static bool in_place(size_t input, size_t output) {
    return output == 0 && (input <= 1 || input == kMore || input == kMore + 1);
  }

 private:
  static constexpr size_t kMore =
      kNorm == LineNorm::kLayer ? cpu::kLayerGradMore : cpu::kRmsGradMore;
};

template <LineNorm kNorm, class T, class P>
Prepared held_norm_grad(const Lines& lines, const GradPlaces<kNorm>& places) {
  using M = Math<T>;
  // Sums in f32 are of few lines, those of the blocks are added in f64.
  constexpr int64_t kMostRounds = 64;
  const HeldLines held = HeldLines::plan<M>(lines, kMostRounds);
  const auto body = [=](const KernelBuffers& buffers) {
    const GradOperand<T> dy = places.template dy<T>(buffers);
    const T* x = buffers.in<T>(1);
    const P* scale = buffers.in<P>(2);
    const GradResult<T> to = places.template result<T>(buffers);
    auto* parts = reinterpret_cast<M*>(buffers.workspace);
    const bool in_packs = lines.length % (16 / static_cast<int64_t>(sizeof(T))) == 0 &&
                          are_aligned<6>({dy.dy, dy.more, x, scale, to.dx, to.more});
    for_held<T>(held, in_packs, [&]<int V, unsigned kLanes>() {
      launch(stream_of(buffers), norm_grad_held<kNorm, T, P, V, kLanes>,
             static_cast<unsigned>(held.blocks), kHeldBlock, 0, dy, x, scale, places.saved(buffers),
             to, parts, lines);
    });
    places.add(buffers, static_cast<const M*>(parts), held.blocks, lines.length);
  };
  const int64_t sums = kColumnSums<kNorm> * held.blocks * lines.length;
  return make_kernel(body, static_cast<size_t>(sums) * sizeof(M), GradPlaces<kNorm>::in_place);
}

// --- lines read again ----------------------------------------------------------------------------

/// 1 / root of the mean square of each line.
template <class T>
__global__ void __launch_bounds__(kLineBlock)
    line_inverses(const T* x, double* inverses, Lines lines, double epsilon) {
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const T* own = x + line * lines.length;
    const auto of = moments_in_loops<LineNorm::kRms>(own, lines.length, epsilon);
    if (threadIdx.x == 0) inverses[line] = of.inv_std;
  }
}

template <LineNorm kNorm>
__device__ double saved_mean(const SavedStatistics& saved, int64_t line) {
  if constexpr (kNorm == LineNorm::kLayer) return saved.mean[line];
  return 0;
}

template <LineNorm kNorm, class T>
__global__ void __launch_bounds__(kLineBlock)
    norm_dx(GradOperand<T> dy, const T* x, RealPointer scale, SavedStatistics saved,
            GradResult<T> to, Lines lines) {
  const double count = static_cast<double>(lines.length);
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t first = line * lines.length;
    const double mean = saved_mean<kNorm>(saved, line), inv_std = saved.inv_std[line];
    double sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = dy[first + i] * scale[i];
      sum += g;
      product += g * ((load_number(x[first + i]) - mean) * inv_std);
    }
    if constexpr (kNorm == LineNorm::kLayer) sum = merge_block<AddNumbers, kLineBlock>(sum) / count;
    if constexpr (kNorm == LineNorm::kRms) sum = 0;
    product = merge_block<AddNumbers, kLineBlock>(product) / count;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = dy[first + i] * scale[i];
      const double hat = (load_number(x[first + i]) - mean) * inv_std;
      to.write(first + i, inv_std * (g - sum - hat * product));
    }
  }
}

/// dScale and dB have one element a column: rows are cut into slices, a thread sums a column of
/// one, and a second kernel adds the slices.
template <LineNorm kNorm, class T>
__global__ void __launch_bounds__(kLineBlock)
    norm_column_parts(GradOperand<T> dy, const T* x, SavedStatistics saved, double* parts,
                      Lines lines, int64_t slice) {
  const int64_t column = int64_t{blockIdx.x} * kLineBlock + threadIdx.x;
  if (column >= lines.length) return;
  const int64_t begin = int64_t{blockIdx.y} * slice;
  const int64_t end = begin + slice < lines.count ? begin + slice : lines.count;
  double scale = 0, bias = 0;
  for (int64_t line = begin; line < end; ++line) {
    const int64_t at = line * lines.length + column;
    const double g = dy[at];
    bias += g;
    scale += g * ((load_number(x[at]) - saved_mean<kNorm>(saved, line)) * saved.inv_std[line]);
  }
  double* own = parts + int64_t{blockIdx.y} * kColumnSums<kNorm> * lines.length + column;
  own[0] = scale;
  if constexpr (kNorm == LineNorm::kLayer) own[lines.length] = bias;
}

template <LineNorm kNorm, class T>
Prepared looped_norm_grad(const Lines& lines, const GradPlaces<kNorm>& places) {
  const int64_t slice = lines_of_slice(lines), grid_y = (lines.count + slice - 1) / slice;
  const auto body = [=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const GradOperand<T> dy = places.template dy<T>(buffers);
    const T* x = buffers.in<T>(1);
    SavedStatistics saved = places.saved(buffers);
    auto* parts = reinterpret_cast<double*>(buffers.workspace);
    if constexpr (kNorm == LineNorm::kRms) {
      double* inverses = parts;
      parts += lines.count;
      launch(stream, line_inverses<T>, line_blocks(lines.count), kLineBlock, 0, x, inverses, lines,
             places.epsilon);
      saved.inv_std = {inverses, DType::kF64};
    }
    // First, as dX may lie over what they are summed from.
    launch(stream, norm_column_parts<kNorm, T>,
           dim3(blocks_for(lines.length, kLineBlock), static_cast<unsigned>(grid_y)), kLineBlock, 0,
           dy, x, saved, parts, lines, slice);
    places.add(buffers, static_cast<const double*>(parts), grid_y, lines.length);
    if (!places.has_dx) return;
    launch(stream, norm_dx<kNorm, T>, line_blocks(lines.count), kLineBlock, 0, dy, x,
           RealPointer{buffers.inputs[2], places.scale}, saved, places.template result<T>(buffers),
           lines);
  };
  const int64_t inverses = kNorm == LineNorm::kRms ? lines.count : 0;
  const int64_t numbers = inverses + kColumnSums<kNorm> * grid_y * lines.length;
  return make_kernel(body, static_cast<size_t>(numbers) * sizeof(double),
                     GradPlaces<kNorm>::in_place);
}

// --- rows ----------------------------------------------------------------------------------------

template <LineNorm kNorm>
Prepared prepare_norm_grad(const KernelCall& call) {
  constexpr bool kLayer = kNorm == LineNorm::kLayer;
  Lines lines;
  std::string why =
      kLayer ? cpu::plan_layer_norm_grad(call, lines) : cpu::plan_rms_norm_grad(call, lines);
  if (!why.empty()) return Prepared::no(why);
  const GradPlaces<kNorm> places(call);
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    if (lines.length <= kBlockLine<Math<T>>) {
      Prepared held = for_scale_type<T>(
          places.scale, [&]<class P>() { return held_norm_grad<kNorm, T, P>(lines, places); });
      if (held) return held;
    }
    return looped_norm_grad<kNorm, T>(lines, places);
  });
}

}  // namespace halfnote::HN_CUDA
