// A thread has 8 channels (16 bytes) of some neighbouring positions of the result, a block the same
// channels of many; the filters of its channels lie in shared memory as f32.
#include "kernels/cuda/contraction/conv_depthwise.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/columns.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::ConvPlan;
using libraries::ConvLayout;
using libraries::Convolution;
using libraries::ConvOperands;
using libraries::ConvProblem;
using libraries::ConvResult;

/// Of a block: few, as each has a window of numbers in registers.
constexpr unsigned kDepthwiseThreads = 128;
constexpr int kVector = 8;                  // channels of a thread
constexpr int kHalf = kVector / 2;          // floats that are read at once
constexpr int kMostLanes = 8;               // threads that stand for the channels of a position
constexpr int kAcross = 4;                  // positions of a thread along the width
constexpr int64_t kDown = 4;                // and rows, whose windows share most of what they read
constexpr int64_t kMostTapsOfFilter = 160;  // those of a block are 40 KiB of shared memory

/// The result of a convolution of images, and what it reads: for the gradient of x they are x and
/// y.
struct DepthwiseImages {
  int64_t batch = 0, vectors = 0;    // of kVector channels
  int64_t from[2] = {}, to[2] = {};  // height and width of what is read and written
  int64_t kernel[2] = {}, stride[2] = {}, dilation[2] = {}, pad[2] = {};
  int lanes = 1;         // vectors of a block
  bool turned = false;   // the last tap meets the first position
  Divisor across, down;  // strips of a row, of a column
  Divisor apart[2];      // by the strides

  HN_HD int64_t taps() const { return kernel[0] * kernel[1]; }
  HN_HD int64_t strips() const { return batch * down.value() * across.value(); }
  HN_HD int64_t channels() const { return vectors * kVector; }
  HN_HD int width() const { return lanes * kVector; }  // channels of a block
  /// Where a row of an image of so many rows and columns begins.
  HN_HD int64_t line(const int64_t (&dims)[2], int64_t n, int64_t row) const {
    return (n * dims[0] + row) * dims[1] * channels();
  }
};

/// What a thread of a block is there for.
struct DepthwiseThread {
  int lane = 0, member = 0, members = 1;  // its vector in the block; which strip, of how many
  int64_t vector = 0;

  __device__ DepthwiseThread(int lanes, int64_t vectors)
      : lane(static_cast<int>(threadIdx.x) % lanes),
        member(static_cast<int>(threadIdx.x) / lanes),
        members(static_cast<int>(kDepthwiseThreads) / lanes),
        vector(int64_t{blockIdx.y} * lanes + lane) {
    if (vector >= vectors) member = members;
  }
  __device__ bool is_idle() const { return member >= members; }
  __device__ int64_t channel() const { return vector * kVector; }
};

/// The filters of a block's channels to shared memory, tap by tap; gives those of the thread's. Of
/// a tap the first halves of all vectors come first: neighbours then read neighbouring banks.
template <class T>
__device__ const float* load_filters(const DepthwiseImages& p, const T* w, float* filters,
                                     const DepthwiseThread& thread) {
  const int width = p.width(), taps = static_cast<int>(p.taps());
  const int64_t first = int64_t{blockIdx.y} * width;
  for (int i = static_cast<int>(threadIdx.x); i < taps * width; i += kDepthwiseThreads) {
    const int tap = i / width, c = i - tap * width;
    const int64_t channel = first + c;
    const int read = p.turned ? taps - 1 - tap : tap;
    const int vector = c / kVector, half = c % kVector / kHalf;
    const int to = tap * width + half * width / 2 + vector * kHalf + c % kHalf;
    filters[to] = channel < p.channels() ? load_number(w[channel * taps + read]) : 0.0f;
  }
  __syncthreads();
  return filters + thread.lane * kHalf;
}

/// Those of a tap, from where load_filters() gave.
__device__ __forceinline__ void load_tap(const DepthwiseImages& p, const float* own, int64_t tap,
                                         float (&to)[kVector]) {
  const float* at = own + tap * p.width();
  HN_UNROLL
  for (int v = 0; v < kVector; ++v) to[v] = at[v / kHalf * (p.width() / 2) + v % kHalf];
}

template <class T>
__device__ __forceinline__ void load_vector(const T* from, float (&to)[kVector]) {
  const auto pack = load_packed<kVector>(from);
  HN_UNROLL
  for (int v = 0; v < kVector; ++v) to[v] = load_number(pack.of[v]);
}

__device__ __forceinline__ void add_products(const float (&filter)[kVector],
                                             const float (&x)[kVector], float (&sum)[kVector]) {
  HN_UNROLL
  for (int v = 0; v < kVector; ++v) sum[v] = multiply_add(filter[v], x[v], sum[v]);
}

/// Neighbours of one row, as sums and when they are written.
template <class T>
struct DepthwiseSums {
  float of[kAcross][kVector];

  __device__ DepthwiseSums(const T* bias, int64_t channel) {
    float first[kVector] = {};
    if (bias != nullptr) load_vector(bias + channel, first);
    HN_UNROLL
    for (int a = 0; a < kAcross; ++a) {
      HN_UNROLL
      for (int v = 0; v < kVector; ++v) of[a][v] = first[v];
    }
  }
  __device__ void write(const DepthwiseImages& p, T* line, int64_t first) const {
    HN_UNROLL
    for (int a = 0; a < kAcross; ++a) {
      const int64_t at = first + a;
      if (at < p.to[1]) store_packed(line + at * p.channels(), pack_of<T>(of[a]));
    }
  }
};

/// Calls `body(image, row, first column)` for each row of the strips of a thread.
template <class Body>
__device__ void each_row(const DepthwiseImages& p, const DepthwiseThread& thread,
                         const Body& body) {
  if (thread.is_idle()) return;
  for (int64_t strip = int64_t{blockIdx.x} * thread.members + thread.member; strip < p.strips();
       strip += int64_t{gridDim.x} * thread.members) {
    const int64_t rows = p.across.quotient(strip), n = p.down.quotient(rows);
    const int64_t column = (strip - rows * p.across.value()) * kAcross;
    const int64_t first = (rows - n * p.down.value()) * kDown;
    for (int64_t row = first; row < first + kDown && row < p.to[0]; ++row) body(n, row, column);
  }
}

/// Windows kWidth wide, kStride apart: neighbours share what they read.
template <class T, int kWidth, int kStride>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_windows(const __grid_constant__ DepthwiseImages p, const T* x, const T* w,
                      const T* bias, T* y) {
  HN_DYNAMIC_SHARED(float, filters);
  const DepthwiseThread thread(p.lanes, p.vectors);
  const float* own = load_filters(p, w, filters, thread);
  each_row(p, thread, [&](int64_t n, int64_t row, int64_t column) {
    constexpr int kRead = (kAcross - 1) * kStride + kWidth;
    DepthwiseSums<T> sums(bias, thread.channel());
    const int64_t left = column * kStride - p.pad[1];
    for (int64_t k = 0; k < p.kernel[0]; ++k) {
      const int64_t from = row * p.stride[0] + k * p.dilation[0] - p.pad[0];
      if (from < 0 || from >= p.from[0]) continue;
      const T* line = x + p.line(p.from, n, from) + thread.channel();
      float window[kRead][kVector];
      HN_UNROLL
      for (int i = 0; i < kRead; ++i) {
        const int64_t at = left + i;
        if (at >= 0 && at < p.from[1]) {
          load_vector(line + at * p.channels(), window[i]);
        } else {
          HN_UNROLL
          for (int v = 0; v < kVector; ++v) window[i][v] = 0;
        }
      }
      HN_UNROLL
      for (int tap = 0; tap < kWidth; ++tap) {
        float filter[kVector];
        load_tap(p, own, k * kWidth + tap, filter);
        HN_UNROLL
        for (int a = 0; a < kAcross; ++a)
          add_products(filter, window[a * kStride + tap], sums.of[a]);
      }
    }
    sums.write(p, y + p.line(p.to, n, row) + thread.channel(), column);
  });
}

/// Which position a tap reads; -1: none. `kSpread`: positions of what is read are `stride` apart in
/// the result, as for the gradient of x.
template <bool kSpread>
__device__ __forceinline__ int64_t position_read(const DepthwiseImages& p, int d, int64_t to,
                                                 int64_t tap) {
  int64_t at = to * p.stride[d] + tap * p.dilation[d] - p.pad[d];
  if constexpr (kSpread) {
    at = to + p.pad[d] - tap * p.dilation[d];
    if (at < 0) return -1;
    const auto place = static_cast<uint32_t>(at);
    at = p.apart[d].small_quotient(place);
    if (static_cast<uint32_t>(at * p.stride[d]) != place) return -1;
  }
  return at >= 0 && at < p.from[d] ? at : -1;
}

/// Windows of any size, stride and dilation.
template <class T, bool kSpread>
__global__ void __launch_bounds__(kDepthwiseThreads)
    depthwise_taps(const __grid_constant__ DepthwiseImages p, const T* x, const T* w, const T* bias,
                   T* y) {
  HN_DYNAMIC_SHARED(float, filters);
  const DepthwiseThread thread(p.lanes, p.vectors);
  const float* own = load_filters(p, w, filters, thread);
  each_row(p, thread, [&](int64_t n, int64_t row, int64_t column) {
    DepthwiseSums<T> sums(bias, thread.channel());
    for (int64_t k = 0; k < p.kernel[0]; ++k) {
      const int64_t from = position_read<kSpread>(p, 0, row, k);
      if (from < 0) continue;
      const T* line = x + p.line(p.from, n, from) + thread.channel();
      for (int64_t tap = 0; tap < p.kernel[1]; ++tap) {
        float filter[kVector];
        load_tap(p, own, k * p.kernel[1] + tap, filter);
        HN_UNROLL
        for (int a = 0; a < kAcross; ++a) {
          const int64_t at = position_read<kSpread>(p, 1, column + a, tap);
          if (at < 0) continue;
          float read[kVector];
          load_vector(line + at * p.channels(), read);
          add_products(filter, read, sums.of[a]);
        }
      }
    }
    sums.write(p, y + p.line(p.to, n, row) + thread.channel(), column);
  });
}

/// The gradient of the filters: rows of y that a block has, for whose sums there is a part of the
/// workspace. A warp of the block has a row of the filters' taps.
struct DepthwiseFilters {
  DepthwiseImages p;  // from x to y
  int64_t rows = 0;   // of y, of all images
  int64_t blocks = 0, rows_of_block = 0;
  Divisor height;  // of y
};

template <class T, int kWidth, int kStride>
__global__ void __launch_bounds__(kBlock)
    depthwise_filters(const __grid_constant__ DepthwiseFilters all, const T* x, const T* dy,
                      float* parts) {
  const DepthwiseImages& p = all.p;
  constexpr int kRead = (kAcross - 1) * kStride + kWidth;
  const int k = static_cast<int>(threadIdx.x) / 32, in_warp = static_cast<int>(threadIdx.x) % 32;
  const int members = 32 / p.lanes, member = in_warp / p.lanes, lane = in_warp % p.lanes;
  const int64_t vector = int64_t{blockIdx.y} * p.lanes + lane, channel = vector * kVector;
  const int64_t across = (p.to[1] + kAcross - 1) / kAcross;
  float sums[kWidth][kVector] = {};
  const int64_t begin = int64_t{blockIdx.x} * all.rows_of_block;
  const int64_t end =
      vector < p.vectors && member < members
          ? (begin + all.rows_of_block < all.rows ? begin + all.rows_of_block : all.rows)
          : begin;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t n = all.height.quotient(row);
    const int64_t from = (row - n * p.to[0]) * p.stride[0] + k * p.dilation[0] - p.pad[0];
    if (from < 0 || from >= p.from[0]) continue;
    const T* line = x + (n * p.from[0] + from) * p.from[1] * p.channels() + channel;
    const T* slopes = dy + row * p.to[1] * p.channels() + channel;
    for (int64_t strip = member; strip < across; strip += members) {
      const int64_t column = strip * kAcross, left = column * kStride - p.pad[1];
      float slope[kAcross][kVector], window[kRead][kVector];
      HN_UNROLL
      for (int a = 0; a < kAcross; ++a) {
        HN_UNROLL
        for (int v = 0; v < kVector; ++v) slope[a][v] = 0;
        if (column + a < p.to[1]) load_vector(slopes + (column + a) * p.channels(), slope[a]);
      }
      HN_UNROLL
      for (int i = 0; i < kRead; ++i) {
        HN_UNROLL
        for (int v = 0; v < kVector; ++v) window[i][v] = 0;
        const int64_t at = left + i;
        if (at >= 0 && at < p.from[1]) load_vector(line + at * p.channels(), window[i]);
      }
      HN_UNROLL
      for (int tap = 0; tap < kWidth; ++tap) {
        HN_UNROLL
        for (int a = 0; a < kAcross; ++a)
          add_products(slope[a], window[a * kStride + tap], sums[tap]);
      }
    }
  }
  // Of a warp, member by member.
  HN_UNROLL
  for (int tap = 0; tap < kWidth; ++tap) {
    HN_UNROLL
    for (int v = 0; v < kVector; ++v) {
      float sum = __shfl_sync(0xffffffffu, sums[tap][v], lane);
      for (int m = 1; m < members; ++m)
        sum += __shfl_sync(0xffffffffu, sums[tap][v], m * p.lanes + lane);
      sums[tap][v] = sum;
    }
  }
  if (member != 0 || vector >= p.vectors) return;
  const int64_t taps = p.kernel[0] * kWidth;
  float* to = parts + (int64_t{blockIdx.x} * p.channels() + channel) * taps + k * kWidth;
  HN_UNROLL
  for (int v = 0; v < kVector; ++v) {
    HN_UNROLL
    for (int tap = 0; tap < kWidth; ++tap) to[v * taps + tap] = sums[tap][v];
  }
}

/// The parts of all blocks.
struct SumFilters : AddedParts {
  const float* parts;
  int64_t elements;
  RealOutput dw;
  SumFilters(const float* of_blocks, int64_t count, const RealOutput& to)
      : parts(of_blocks), elements(count), dw(to) {}
  __device__ double part(int64_t block, int64_t element) const {
    return parts[block * elements + element];
  }
  __device__ void finish(int64_t element, double sum) const { dw.write(element, sum); }
};

/// For f16 or bf16.
template <class Body>
void for_16bit_type(DType dtype, const Body& body) {
  if (dtype == DType::kF16) {
    body.template operator()<Half>();
  } else {
    body.template operator()<BFloat16>();
  }
}

/// Calls `body` with the width and the stride of windows that have kernels of their own; says
/// whether they have.
template <class Body>
bool for_windows(const DepthwiseImages& p, const Body& body) {
  const auto of_stride = [&]<int kWidth>() {
    if (p.stride[1] == 1) {
      body.template operator()<kWidth, 1>();
    } else {
      body.template operator()<kWidth, 2>();
    }
    return true;
  };
  if (p.dilation[1] != 1 || p.stride[1] > 2) return false;
  if (p.kernel[1] == 3) return of_stride.template operator()<3>();
  if (p.kernel[1] == 5) return of_stride.template operator()<5>();
  return p.kernel[1] == 7 && of_stride.template operator()<7>();
}

DepthwiseImages images_of(const ConvProblem& problem) {
  const ConvPlan& plan = problem.plan;
  const bool back = problem.wanted == ConvResult::kX;
  DepthwiseImages p;
  p.batch = plan.batch;
  p.vectors = plan.channels / kVector;
  for (size_t d = 0; d < 2; ++d) {
    p.from[d] = back ? plan.out[d + 1] : plan.in[d + 1];
    p.to[d] = back ? plan.in[d + 1] : plan.out[d + 1];
    p.kernel[d] = plan.kernel[d + 1];
    p.stride[d] = plan.stride[d + 1];
    p.apart[d] = Divisor(p.stride[d]);
    p.dilation[d] = plan.dilation[d + 1];
    p.pad[d] = plan.pad_begin[d + 1];
  }
  if (back && p.stride[0] == 1 && p.stride[1] == 1) {
    // Read from the last tap on, it is a convolution.
    p.turned = true;
    for (size_t d = 0; d < 2; ++d) p.pad[d] = (p.kernel[d] - 1) * p.dilation[d] - p.pad[d];
  }
  const int64_t chunks = (p.vectors + kMostLanes - 1) / kMostLanes;
  p.lanes = static_cast<int>((p.vectors + chunks - 1) / std::max<int64_t>(chunks, 1));
  p.across = Divisor(std::max<int64_t>((p.to[1] + kAcross - 1) / kAcross, 1));
  p.down = Divisor(std::max<int64_t>((p.to[0] + kDown - 1) / kDown, 1));
  return p;
}

unsigned channel_blocks(const DepthwiseImages& p) {
  return static_cast<unsigned>((p.vectors + p.lanes - 1) / p.lanes);
}

class DepthwiseConvolution final : public Convolution {
 public:
  explicit DepthwiseConvolution(const ConvProblem& problem)
      : problem_(problem), images_(images_of(problem)) {
    if (problem.wanted != ConvResult::kW) return;
    filters_.p = images_;
    filters_.rows = images_.batch * images_.to[0];
    const int64_t wanted =
        std::clamp<int64_t>(kMultiprocessors * 4 / channel_blocks(images_), 1, 128);
    filters_.rows_of_block = std::max<int64_t>((filters_.rows + wanted - 1) / wanted, 1);
    filters_.blocks = (filters_.rows + filters_.rows_of_block - 1) / filters_.rows_of_block;
    filters_.height = Divisor(std::max<int64_t>(images_.to[0], 1));
  }

  size_t workspace_bytes() const override {
    return static_cast<size_t>(filters_.blocks * elements()) * sizeof(float);
  }
  void run(Stream& stream, const ConvOperands& operands) const override {
    for_16bit_type(problem_.operands, [&]<class T>() {
      if (problem_.wanted == ConvResult::kW) return run_filters<T>(stream, operands);
      run_images<T>(stream, operands);
    });
  }

 private:
  int64_t elements() const { return problem_.plan.channels * images_.taps(); }

  template <class T>
  void run_images(Stream& stream, const ConvOperands& operands) const {
    const bool back = problem_.wanted == ConvResult::kX;
    const auto* from = static_cast<const T*>(back ? operands.y : operands.x);
    auto* to = static_cast<T*>(back ? operands.x : operands.y);
    const auto* w = static_cast<const T*>(operands.w);
    const auto* bias = static_cast<const T*>(operands.bias);
    const DepthwiseImages& p = images_;
    const int64_t members = kDepthwiseThreads / p.lanes,
                  blocks = (p.strips() + members - 1) / members;
    const dim3 grid(static_cast<unsigned>(std::min(blocks, kMaxBlocks)), channel_blocks(p));
    const size_t shared = static_cast<size_t>(p.taps() * p.lanes * kVector) * sizeof(float);
    const auto go = [&](auto kernel) {
      launch(stream, kernel, grid, kDepthwiseThreads, shared, p, from, w, bias, to);
    };
    if (back && !p.turned) return go(depthwise_taps<T, true>);
    const bool done = for_windows(
        p, [&]<int kWidth, int kStride>() { go(depthwise_windows<T, kWidth, kStride>); });
    if (!done) go(depthwise_taps<T, false>);
  }
  template <class T>
  void run_filters(Stream& stream, const ConvOperands& operands) const {
    const auto* x = static_cast<const T*>(operands.x);
    const auto* dy = static_cast<const T*>(operands.y);
    auto* parts = static_cast<float*>(operands.workspace);
    const DepthwiseImages& p = images_;
    const dim3 grid(static_cast<unsigned>(filters_.blocks), channel_blocks(p));
    const auto threads = static_cast<unsigned>(32 * p.kernel[0]);
    for_windows(p, [&]<int kWidth, int kStride>() {
      launch(stream, depthwise_filters<T, kWidth, kStride>, grid, threads, 0, filters_, x, dy,
             parts);
    });
    merge_columns(stream, SumFilters(parts, elements(), {operands.w, problem_.result}), elements(),
                  filters_.blocks);
  }

  ConvProblem problem_;
  DepthwiseImages images_;
  DepthwiseFilters filters_;
};

/// The kernels divide places in 32 bits.
bool has_small_places(const ConvPlan& p) {
  constexpr int64_t kMost = int64_t{1} << 29;
  for (size_t d = 1; d < 3; ++d) {
    if (std::max({p.in[d], p.pad_begin[d], p.stride[d]}) > kMost) return false;
  }
  return true;
}

}  // namespace

bool is_depthwise(const ConvProblem& problem) {
  const ConvPlan& p = problem.plan;
  const bool one_dim_less =
      p.in[0] == 1 && p.out[0] == 1 && p.kernel[0] == 1 && p.stride[0] == 1 && p.pad_begin[0] == 0;
  const bool each_its_own = p.groups == p.channels && p.groups == p.filters;
  if (problem.layout != ConvLayout::kChannelsLast || !is_16bit_float(problem.operands) ||
      !one_dim_less || !each_its_own || p.channels % kVector != 0 || p.channels == 0 ||
      p.x_size() == 0 || p.y_size() == 0 || p.kernel_size() > kMostTapsOfFilter ||
      !has_small_places(p) || p.channels / kVector > int64_t{65535} * kMostLanes) {
    return false;
  }
  if (problem.wanted != ConvResult::kW) return problem.result == problem.operands;
  const bool fits = problem.result == problem.operands || problem.result == DType::kF32;
  return fits && p.kernel[1] <= 7 &&
         for_windows(images_of(problem), []<int kWidth, int kStride>() {});
}

std::shared_ptr<const Convolution> plan_depthwise(const ConvProblem& problem) {
  if (!is_depthwise(problem))
    libraries::refuse_algorithm("the convolution", kDepthwise, "it is not depthwise");
  return std::make_shared<DepthwiseConvolution>(problem);
}

}  // namespace halfnote::HN_CUDA
