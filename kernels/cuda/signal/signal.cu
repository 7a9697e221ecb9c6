// DFT and STFT. A block takes a line: its transforms of one element each become transforms of all
// elements factor by factor (4, 2, then odd primes), in f64, back and forth between two buffers in
// shared memory, or in the workspace if the line is too long. The order of every sum depends on the
// length alone.
#include <cstring>

#include "kernels/cpu/reals.h"
#include "kernels/cpu/signal/fourier.h"
#include "kernels/cpu/signal/plan.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/signal/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::DftPlan;
using cpu::StftPlan;

constexpr int64_t kMostShared = 98 * 1024 + 512;  // bytes of a block on every GPU from sm_80 on
constexpr int64_t kMostRoom = int64_t{1} << 22;   // elements of long lines under way
constexpr int kMostFactors = 24;                  // of kLongestTransform

struct alignas(16) Number {
  double re = 0, im = 0;
};
static_assert(sizeof(Number) == sizeof(cpu::Complex));

__device__ Number read_number(const RealPointer& from, int64_t at, int64_t parts) {
  return {from[at], parts == 2 ? from[at + 1] : 0};
}

/// Lines of a tensor, as `plan` says.
struct DftLines {
  DftPlan plan;
  RealPointer from;
  RealOutput to;

  __device__ Number read(int64_t line, int64_t i) const {
    const bool mirrored = i >= plan.known();
    const int64_t source = mirrored ? plan.length - i : i;
    if (source >= plan.from.dim) return {};
    const Number x = read_number(from, plan.from.at(line, source), plan.from.parts);
    return {x.re, mirrored ? -x.im : x.im};
  }
  __device__ void write(int64_t line, int64_t k, const Number& y) const {
    const int64_t at = plan.to.at(line, k);
    to.write(at, y.re);
    if (plan.to.parts == 2) to.write(at + 1, y.im);
  }
};

/// Frames of signals under a window, which may be absent.
struct StftLines {
  StftPlan plan;
  RealPointer from, window;
  RealOutput to;

  __device__ Number read(int64_t frame, int64_t i) const {
    const Number x = read_number(from, (plan.first(frame) + i) * plan.parts, plan.parts);
    const double weight = window.data == nullptr ? 1 : window[i];
    return {weight * x.re, weight * x.im};
  }
  __device__ void write(int64_t frame, int64_t k, const Number& y) const {
    const int64_t at = (frame * plan.bins + k) * 2;
    to.write(at, y.re);
    to.write(at + 1, y.im);
  }
};

/// How a line is taken apart.
struct Transform {
  int32_t length = 1, bins = 1;
  int64_t lines = 0;
  bool inverse = false;
  int32_t factor_count = 0;
  int32_t factors[kMostFactors] = {};
  const Number* roots = nullptr;
  Number* room = nullptr;  // two lines for each block; null: in shared memory

  /// Element `at` of `joined * factor` long transforms, which follow from those of `joined`. All
  /// transforms of a length stand side by side: element j of the one that starts at k is
  /// x[j * (length / joined) + k].
  __device__ Number join(const Number* x, int32_t at, int32_t joined, int32_t factor) const {
    const int32_t apart = length / (joined * factor);
    const int32_t j = at / apart, k = at - j * apart;
    const Number* from = x + (j % joined) * (apart * factor) + k;
    const int32_t turn = j * apart;
    Number sum;
    for (int32_t r = 0, root = 0; r < factor; ++r) {
      const Number a = from[r * apart], w = roots[root];
      sum.re += a.re * w.re - a.im * w.im;
      sum.im += a.re * w.im + a.im * w.re;
      root += turn;
      if (root >= length) root -= length;
    }
    return sum;
  }
};

template <class Lines>
__global__ void __launch_bounds__(kBlock)
    transform_lines(const __grid_constant__ Lines lines, const __grid_constant__ Transform how) {
  HN_DYNAMIC_SHARED(Number, shared);
  const auto length = static_cast<unsigned>(how.length);
  Number* x = how.room == nullptr ? shared : how.room + int64_t{blockIdx.x} * 2 * length;
  Number* y = x + length;
  for (int64_t line = blockIdx.x; line < how.lines; line += gridDim.x) {
    for (unsigned i = threadIdx.x; i < length; i += blockDim.x) x[i] = lines.read(line, i);
    __syncthreads();
    int32_t joined = 1;
    for (int32_t level = 0; level < how.factor_count; ++level) {
      const int32_t factor = how.factors[level];
      for (unsigned i = threadIdx.x; i < length; i += blockDim.x)
        y[i] = how.join(x, static_cast<int32_t>(i), joined, factor);
      __syncthreads();
      Number* const done = y;
      y = x;
      x = done;
      joined *= factor;
    }
    const auto bins = static_cast<unsigned>(how.bins);
    const double scale = how.inverse ? how.length : 1;
    for (unsigned k = threadIdx.x; k < bins; k += blockDim.x)
      lines.write(line, k, {x[k].re / scale, x[k].im / scale});
    __syncthreads();  // before the next line is read
  }
}

/// The roots lie in a table: they are too many for arguments.
class TransformKernel : public Kernel {
 public:
  TransformKernel(int64_t length, int64_t bins, int64_t lines, bool inverse) {
    how_.length = static_cast<int32_t>(length);
    how_.bins = static_cast<int32_t>(bins);
    how_.lines = lines;
    how_.inverse = inverse;
    for (const int64_t factor : cpu::factors_of(length))
      how_.factors[how_.factor_count++] = static_cast<int32_t>(factor);
    bytes_ = 2 * length * static_cast<int64_t>(sizeof(Number));
    in_shared_ = bytes_ <= kMostShared;
    const int64_t most = in_shared_ ? kMaxBlocks : std::max<int64_t>(1, kMostRoom / length);
    blocks_ = std::min({lines, most, kMaxBlocks});
  }
  size_t workspace_bytes() const override {
    return in_shared_ ? 0 : static_cast<size_t>(blocks_ * bytes_);
  }
  size_t table_bytes() const override { return static_cast<size_t>(bytes_ / 2); }
  void write_table(const KernelBuffers&, std::byte* to) const override {
    const std::vector<cpu::Complex> roots = cpu::roots_of_unity(how_.length, how_.inverse);
    std::memcpy(to, roots.data(), table_bytes());
  }

 protected:
  template <class Lines>
  void launch_lines(const KernelBuffers& buffers, const Lines& lines) const {
    Transform how = how_;
    how.roots = reinterpret_cast<const Number*>(buffers.table);
    how.room = in_shared_ ? nullptr : reinterpret_cast<Number*>(buffers.workspace);
    const auto threads = static_cast<unsigned>((std::min<int64_t>(how.length, kBlock) + 31) / 32);
    launch(stream_of(buffers), transform_lines<Lines>, static_cast<unsigned>(blocks_), threads * 32,
           in_shared_ ? static_cast<size_t>(bytes_) : 0, lines, how);
  }

 private:
  Transform how_;
  int64_t bytes_ = 0, blocks_ = 0;
  bool in_shared_ = true;
};

class DftKernel final : public TransformKernel {
 public:
  explicit DftKernel(const DftPlan& plan)
      : TransformKernel(plan.length, plan.bins, plan.lines, plan.inverse), plan_(plan) {}
  void run(const KernelBuffers& buffers) const override {
    launch_lines(
        buffers,
        DftLines{plan_, {buffers.inputs[0], plan_.type}, {buffers.outputs[0], plan_.result}});
  }

 private:
  DftPlan plan_;
};

class StftKernel final : public TransformKernel {
 public:
  explicit StftKernel(const StftPlan& plan)
      : TransformKernel(plan.length, plan.bins, plan.batch * plan.frames, false), plan_(plan) {}
  void run(const KernelBuffers& buffers) const override {
    launch_lines(buffers, StftLines{plan_,
                                    {buffers.inputs[0], plan_.type},
                                    {plan_.windowed ? buffers.inputs[2] : nullptr, plan_.type},
                                    {buffers.outputs[0], plan_.type}});
  }

 private:
  StftPlan plan_;
};

/// A kernel of class K for a plan of class P.
template <class K, class P, std::string (*kPlan)(const KernelCall&, P&)>
Prepared prepare_transform(const KernelCall& call) {
  P plan;
  if (std::string why = kPlan(call, plan); !why.empty()) return Prepared::no(why);
  if (plan.length > cpu::kLongestTransform) {
    return Prepared::no("transforms of more than " + std::to_string(cpu::kLongestTransform) +
                        " elements");
  }
  return Prepared::yes(std::make_unique<K>(plan));
}

}  // namespace

std::vector<KernelRow> signal_kernels() {
  return {
      {"", "DFT", "own.fourier", prepare_transform<DftKernel, DftPlan, cpu::plan_dft>},
      mel_row(),
      {"", "STFT", "own.fourier", prepare_transform<StftKernel, StftPlan, cpu::plan_stft>},
  };
}

}  // namespace halfnote::HN_CUDA
