// DFT, STFT and MelWeightMatrix. The reference's transforms are the plain sums, in f64: exact
// enough for any length. Those of DFT, which an STFT is written with, take the length apart.
#include <cmath>
#include <memory>

#include "kernels/cpu/families.h"
#include "kernels/cpu/quantized/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/signal/fourier.h"
#include "kernels/cpu/signal/plan.h"

namespace halfnote::cpu {

namespace {

/// `bins` values of the transform of `x`, whose missing elements are zero up to `length`.
void transform(const std::vector<Complex>& x, int64_t length, bool inverse, int64_t bins,
               std::vector<Complex>& y) {
  const std::vector<Complex> roots = roots_of_unity(length, inverse);
  y.assign(static_cast<size_t>(bins), 0);
  const auto used = std::min<int64_t>(length, static_cast<int64_t>(x.size()));
  for (int64_t k = 0; k < bins; ++k) {
    Complex sum = 0;
    for (int64_t i = 0; i < used; ++i)
      sum += x[static_cast<size_t>(i)] * roots[static_cast<size_t>(i * k % length)];
    y[static_cast<size_t>(k)] = inverse ? sum / static_cast<double>(length) : sum;
  }
}

Complex read_complex(const std::byte* from, DType dtype, int64_t at, int64_t parts) {
  return {read_real(from, dtype, at), parts == 2 ? read_real(from, dtype, at + 1) : 0.0};
}

void write_complex(const Complex& value, std::byte* to, DType dtype, int64_t at, int64_t parts) {
  write_real(value.real(), to, dtype, at);
  if (parts == 2) write_real(value.imag(), to, dtype, at + 1);
}

/// Fills in the second half of a spectrum whose signal is real.
void mirror(std::vector<Complex>& x, int64_t length) {
  x.resize(static_cast<size_t>(length / 2 + 1));
  const auto known = static_cast<int64_t>(x.size());
  for (int64_t k = known; k < length; ++k)
    x.push_back(std::conj(x[static_cast<size_t>(length - k)]));
}

Prepared prepare_dft(const KernelCall& call) {
  DftPlan plan;
  if (std::string why = plan_dft(call, plan); !why.empty()) return Prepared::no(why);
  return make_kernel([plan](const KernelBuffers& buffers) {
    std::vector<Complex> x, y;
    for (int64_t line = 0; line < plan.lines; ++line) {
      x.clear();
      for (int64_t i = 0; i < plan.from.dim; ++i)
        x.push_back(
            read_complex(buffers.inputs[0], plan.type, plan.from.at(line, i), plan.from.parts));
      if (plan.mirrored) mirror(x, plan.length);
      transform(x, plan.length, plan.inverse, plan.bins, y);
      for (int64_t k = 0; k < plan.bins; ++k)
        write_complex(y[static_cast<size_t>(k)], buffers.outputs[0], plan.result,
                      plan.to.at(line, k), plan.to.parts);
    }
  });
}

/// Reads a line of `plan.length` elements, zeros where it is longer than what comes in. A line of
/// neighbours is converted as a whole; a complex number is two reals.
void read_line(const DftPlan& plan, const std::byte* from, int64_t line, Complex* x) {
  const int64_t known = plan.known();
  const int64_t given = std::min(known, plan.from.dim), parts = plan.from.parts;
  if (plan.from.inner == 1) {
    auto* reals = reinterpret_cast<double*>(x);
    load_reals(from, plan.type, plan.from.at(line, 0), given * parts, reals);
    for (int64_t i = given; parts == 1 && i-- > 0;) x[i] = reals[i];
  } else {
    for (int64_t i = 0; i < given; ++i)
      x[i] = read_complex(from, plan.type, plan.from.at(line, i), parts);
  }
  std::fill(x + given, x + plan.length, Complex(0));
  for (int64_t k = known; k < plan.length; ++k) x[k] = std::conj(x[plan.length - k]);
}

void write_line(const DftPlan& plan, Complex* y, int64_t line, std::byte* to) {
  if (plan.to.inner != 1) {
    for (int64_t k = 0; k < plan.bins; ++k)
      write_complex(y[k], to, plan.result, plan.to.at(line, k), plan.to.parts);
    return;
  }
  auto* reals = reinterpret_cast<double*>(y);
  for (int64_t k = 0; plan.to.parts == 1 && k < plan.bins; ++k) reals[k] = y[k].real();
  store_reals(reals, plan.bins * plan.to.parts, plan.result, to, plan.to.at(line, 0));
}

Prepared prepare_fast_dft(const KernelCall& call) {
  DftPlan plan;
  if (std::string why = plan_dft(call, plan); !why.empty()) return Prepared::no(why);
  if (plan.length > kLongestTransform) return Prepared::no("a long transform");
  const auto fourier = std::make_shared<const Fourier>(plan.length, plan.inverse);
  const int64_t slots = std::clamp<int64_t>(plan.lines, 1, call.threads);
  const int64_t room = 2 * plan.length + fourier->room();
  return make_kernel(
      [=](const KernelBuffers& buffers) {
        parallel_blocks(slots, 1, static_cast<int>(slots), [&](int64_t slot, int64_t) {
          Complex* x = part<Complex>(buffers, 0) + slot * room;
          Complex* y = x + plan.length;
          const int64_t end = (slot + 1) * plan.lines / slots;
          for (int64_t line = slot * plan.lines / slots; line < end; ++line) {
            read_line(plan, buffers.inputs[0], line, x);
            fourier->run(x, y, y + plan.length);
            write_line(plan, y, line, buffers.outputs[0]);
          }
        });
      },
      static_cast<size_t>(slots * room) * sizeof(Complex));
}

Prepared prepare_stft(const KernelCall& call) {
  StftPlan plan;
  if (std::string why = plan_stft(call, plan); !why.empty()) return Prepared::no(why);
  return make_kernel([plan](const KernelBuffers& buffers) {
    std::vector<Complex> x, y;
    for (int64_t frame = 0; frame < plan.batch * plan.frames; ++frame) {
      x.clear();
      for (int64_t i = 0; i < plan.length; ++i) {
        const double weight = plan.windowed ? read_real(buffers.inputs[2], plan.type, i) : 1.0;
        x.push_back(weight * read_complex(buffers.inputs[0], plan.type,
                                          (plan.first(frame) + i) * plan.parts, plan.parts));
      }
      transform(x, plan.length, false, plan.bins, y);
      for (int64_t k = 0; k < plan.bins; ++k)
        write_complex(y[static_cast<size_t>(k)], buffers.outputs[0], plan.type,
                      (frame * plan.bins + k) * 2, 2);
    }
  });
}

/// The triangles of the mel scale; (dft_length / 2 + 1, num_mel_bins).
Prepared prepare_mel(const KernelCall& call) {
  for (size_t i = 0; i < 5; ++i) {
    if (!call.has_input(i) || call.inputs[i].size() != 1 || !is_element(call.inputs[i].dtype)) {
      return Prepared::no("five numbers are needed");
    }
  }
  if (!call.has_output(0) || !is_element(call.outputs[0].dtype)) return Prepared::no("no numbers");
  if (call.outputs[0].shape.size() != 2) return Prepared::no("the output is no matrix");
  std::array<DType, 5> types{};
  for (size_t i = 0; i < 5; ++i) types[i] = call.inputs[i].dtype;
  const int64_t rows = call.outputs[0].shape[0], columns = call.outputs[0].shape[1];
  return make_kernel([=, type = call.outputs[0].dtype](const KernelBuffers& buffers) {
    std::array<double, 5> given{};  // mel bins, DFT length, sample rate, lowest, highest frequency
    for (size_t i = 0; i < 5; ++i) given[i] = read_element(buffers.inputs[i], types[i], 0);
    const auto to_mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
    const double low = to_mel(given[3]);
    const double step = (to_mel(given[4]) - low) / static_cast<double>(columns + 2);
    const auto bin = [&](int64_t i) {
      const double hertz = 700 * (std::pow(10, (static_cast<double>(i) * step + low) / 2595) - 1);
      return static_cast<int64_t>(std::floor((given[1] + 1) * hertz / given[2]));
    };
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t left = bin(j), top = bin(j + 1), right = bin(j + 2);
      for (int64_t i = 0; i < rows; ++i) {
        double weight = i == top ? 1 : 0;
        if (i >= left && i < top) weight = static_cast<double>(i - left) / (top - left);
        if (i > top && i < right) weight = static_cast<double>(right - i) / (right - top);
        write_quantized(weight, buffers.outputs[0], type, i * columns + j, Overflow::kSaturate);
      }
    }
  });
}

}  // namespace

std::vector<KernelRow> signal_kernels() {
  return {
      {"", "DFT", "fast.fourier", prepare_fast_dft},
      {"", "DFT", "reference", prepare_dft},
      {"", "MelWeightMatrix", "reference", prepare_mel},
      {"", "STFT", "reference", prepare_stft},
  };
}

}  // namespace halfnote::cpu
