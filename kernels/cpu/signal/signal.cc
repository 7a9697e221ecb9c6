// DFT, STFT and MelWeightMatrix. The reference's transforms are the plain sums, in f64: exact
// enough for any length. Those of DFT, which an STFT is written with, take the length apart.
#include <cmath>
#include <memory>
#include <numbers>
#include <variant>

#include "kernels/cpu/families.h"
#include "kernels/cpu/quantized/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/signal/fourier.h"

namespace halfnote::cpu {

namespace {

/// `bins` values of the transform of `x`, whose missing elements are zero up to `length`.
void transform(const std::vector<Complex>& x, int64_t length, bool inverse, int64_t bins,
               std::vector<Complex>& y) {
  const double turn = (inverse ? 2 : -2) * std::numbers::pi / static_cast<double>(length);
  std::vector<Complex> roots;
  for (int64_t k = 0; k < length; ++k)
    roots.push_back(std::polar(1.0, turn * static_cast<double>(k)));
  y.assign(static_cast<size_t>(bins), 0);
  const auto used = std::min<int64_t>(length, static_cast<int64_t>(x.size()));
  for (int64_t k = 0; k < bins; ++k) {
    Complex sum = 0;
    for (int64_t i = 0; i < used; ++i)
      sum += x[static_cast<size_t>(i)] * roots[static_cast<size_t>(i * k % length)];
    y[static_cast<size_t>(k)] = inverse ? sum / static_cast<double>(length) : sum;
  }
}

/// A tensor of reals, or of pairs of real and imaginary parts, along one axis.
struct Line {
  int64_t dim = 1, inner = 1, parts = 1;  // inner: lines between two elements

  Line(const Shape& shape, size_t axis) : dim(shape[axis]), parts(shape.back()) {
    const std::span<const int64_t> dims(shape);
    inner = element_count(dims.subspan(axis + 1, shape.size() - axis - 2));
  }
  /// Where element `i` of line `line` starts.
  int64_t at(int64_t line, int64_t i) const {
    return ((line / inner * dim + i) * inner + line % inner) * parts;
  }
};

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

bool fits_parts(const Operand& operand) {
  return operand.shape.size() >= 2 && (operand.shape.back() == 1 || operand.shape.back() == 2);
}

struct DftPlan {
  Line from, to;
  DType type, result;
  int64_t length = 0, bins = 0, lines = 0;
  bool inverse = false, mirrored = false;  // mirrored: a one-sided spectrum comes in
};

/// Why there is none, or the plan.
std::variant<std::string, DftPlan> plan_dft(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const Operand &in = call.inputs[0], &out = call.outputs[0];
  if (!is_real(in.dtype) || !is_real(out.dtype)) return "no floats";
  if (!fits_parts(in) || !fits_parts(out)) return "the last dim is neither 1 nor 2";
  if (call.has_input(1) && !call.inputs[1].constant) return "the length is not known";
  if (call.has_input(2) && !call.inputs[2].constant) return "the axis is not known";
  const int64_t given = call.has_input(2) ? call.inputs[2].constant->at_as_int(0) : -2;
  const auto rank = static_cast<int64_t>(in.shape.size());
  const auto axis = static_cast<size_t>(normalize_axis(given, rank));
  if (axis + 1 == in.shape.size()) return "the axis is that of the parts";
  DftPlan plan{Line(in.shape, axis), Line(out.shape, axis), in.dtype, out.dtype};
  plan.inverse = attributes_of(call).get_int("inverse", 0) != 0;
  const bool one_sided = attributes_of(call).get_int("onesided", 0) != 0;
  plan.mirrored = plan.inverse && one_sided;
  plan.length = plan.mirrored ? 2 * (plan.from.dim - 1) : plan.from.dim;
  if (call.has_input(1)) plan.length = call.inputs[1].constant->at_as_int(0);
  plan.bins = one_sided && !plan.inverse ? plan.length / 2 + 1 : plan.length;
  if (plan.length < 1 || plan.to.dim != plan.bins) return "the output has another length";
  // Of the result: a signal of no elements has a transform too, of zeros.
  plan.lines = out.size() / std::max<int64_t>(1, plan.to.dim * plan.to.parts);
  return plan;
}

Prepared prepare_dft(const KernelCall& call) {
  const auto found = plan_dft(call);
  if (const auto* why = std::get_if<std::string>(&found)) return Prepared::no(*why);
  return make_kernel([plan = std::get<DftPlan>(found)](const KernelBuffers& buffers) {
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
  const int64_t known = plan.mirrored ? plan.length / 2 + 1 : plan.length;
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
  constexpr int64_t kLongest = int64_t{1} << 24;
  auto found = plan_dft(call);
  if (const auto* why = std::get_if<std::string>(&found)) return Prepared::no(*why);
  const DftPlan plan = std::get<DftPlan>(found);
  if (plan.length > kLongest) return Prepared::no("a long transform");
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

/// signal (batch, length, 1 or 2) -> (batch, frames, bins, 2)
Prepared prepare_stft(const KernelCall& call) {
  if (!call.has_input(1) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Operand &in = call.inputs[0], &out = call.outputs[0];
  if (!is_real(in.dtype) || out.dtype != in.dtype) return Prepared::no("no floats");
  if (in.shape.size() != 3 || out.shape.size() != 4 || !fits_parts(in) || out.shape[3] != 2) {
    return Prepared::no("the shapes are not those of signals");
  }
  if (!call.inputs[1].constant || (call.has_input(3) && !call.inputs[3].constant)) {
    return Prepared::no("step and length are not known before the first step");
  }
  const int64_t step = call.inputs[1].constant->at_as_int(0);
  const int64_t length = call.has_input(3)   ? call.inputs[3].constant->at_as_int(0)
                         : call.has_input(2) ? call.inputs[2].size()
                                             : in.shape[1];  // one frame
  const bool one_sided = attributes_of(call).get_int("onesided", 1) != 0;
  const int64_t bins = one_sided ? length / 2 + 1 : length;
  const bool windowed = call.has_input(2);
  if (windowed && call.inputs[2].size() != length) return Prepared::no("the window does not fit");
  const Shape signal = in.shape, result = out.shape;
  if (step < 1 || length < 1 || length > signal[1] || result[0] != signal[0] ||
      result[1] != (signal[1] - length) / step + 1 || result[2] != bins) {
    return Prepared::no("the output has another shape");
  }
  return make_kernel([=, type = in.dtype](const KernelBuffers& buffers) {
    std::vector<Complex> x, y;
    for (int64_t frame = 0; frame < result[0] * result[1]; ++frame) {
      const int64_t first = frame / result[1] * signal[1] + frame % result[1] * step;
      x.clear();
      for (int64_t i = 0; i < length; ++i) {
        const double weight = windowed ? read_real(buffers.inputs[2], type, i) : 1.0;
        x.push_back(weight *
                    read_complex(buffers.inputs[0], type, (first + i) * signal[2], signal[2]));
      }
      transform(x, length, false, bins, y);
      for (int64_t k = 0; k < bins; ++k)
        write_complex(y[static_cast<size_t>(k)], buffers.outputs[0], type, (frame * bins + k) * 2,
                      2);
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
