// MelWeightMatrix, an element a thread. Its five numbers are read when it runs: they may be those
// of a graph that computes them.
#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/signal/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr size_t kMelNumbers = 5;

/// A number of a type that is known when the kernel runs.
struct AnyNumber {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;

  __device__ double load() const {
    switch (dtype) {
      case DType::kI8:
        return *static_cast<const int8_t*>(data);
      case DType::kU8:
        return *static_cast<const uint8_t*>(data);
      case DType::kI16:
        return *static_cast<const int16_t*>(data);
      case DType::kU16:
        return *static_cast<const uint16_t*>(data);
      case DType::kI32:
        return *static_cast<const int32_t*>(data);
      case DType::kU32:
        return *static_cast<const uint32_t*>(data);
      case DType::kI64:
        return static_cast<double>(*static_cast<const int64_t*>(data));
      case DType::kU64:
        return static_cast<double>(*static_cast<const uint64_t*>(data));
      default:
        return RealPointer{data, dtype}.load<double>(0);
    }
  }
};

bool is_any_number(DType dtype) { return is_whole(dtype) || cpu::is_real(dtype); }

/// The triangles of the mel scale; (dft_length / 2 + 1, num_mel_bins).
struct MelWeight {
  AnyNumber length, rate, lowest, highest;
  Divisor columns;
  RealOutput to;

  __device__ static double mel(double hertz) { return 2595 * log10(1 + hertz / 700); }
  __device__ int64_t bin(int64_t i, double low, double step) const {
    const double hertz = 700 * (math::pow(10.0, (static_cast<double>(i) * step + low) / 2595) - 1);
    return static_cast<int64_t>(math::floor((length.load() + 1) * hertz / rate.load()));
  }
  __device__ void operator()(int64_t at) const {
    const int64_t i = columns.quotient(at), j = at - i * columns.value();
    const double low = mel(lowest.load());
    const double step = (mel(highest.load()) - low) / static_cast<double>(columns.value() + 2);
    const int64_t left = bin(j, low, step), top = bin(j + 1, low, step),
                  right = bin(j + 2, low, step);
    double weight = i == top ? 1 : 0;
    if (i >= left && i < top)
      weight = static_cast<double>(i - left) / static_cast<double>(top - left);
    if (i > top && i < right)
      weight = static_cast<double>(right - i) / static_cast<double>(right - top);
    to.write(at, weight);
  }
};

Prepared prepare_mel(const KernelCall& call) {
  for (size_t i = 0; i < kMelNumbers; ++i) {
    const bool number = call.has_input(i) && call.inputs[i].size() == 1;
    if (!number || !is_any_number(call.inputs[i].dtype))
      return Prepared::no("five numbers are needed");
  }
  if (!call.has_output(0) || call.outputs[0].shape.size() != 2)
    return Prepared::no("the output is no matrix");
  const DType type = call.outputs[0].dtype;
  if (!cpu::is_real(type)) return Prepared::no("weights that are no floats");
  std::array<DType, kMelNumbers> types{};
  for (size_t i = 0; i < kMelNumbers; ++i) types[i] = call.inputs[i].dtype;
  const int64_t count = call.outputs[0].size(), columns = call.outputs[0].shape[1];
  return make_kernel([=](const KernelBuffers& buffers) {
    if (count == 0) return;
    const auto number = [&](size_t i) { return AnyNumber{buffers.inputs[i], types[i]}; };
    for_each(stream_of(buffers), count,
             MelWeight{number(1),
                       number(2),
                       number(3),
                       number(4),
                       Divisor(columns),
                       {buffers.outputs[0], type}});
  });
}

}  // namespace

KernelRow mel_row() { return {"", "MelWeightMatrix", "own.mel", prepare_mel}; }

}  // namespace halfnote::HN_CUDA
