// LayerNormalization, RMSNormalization and their gradients on f32, f16 and bf16, a line (all dims
// from `axis` on) at a time, in pieces that stay in the first-level cache. oneDNN's own layer
// normalization is passed over: it reads no f16, wants statistics and parameters in f32 next to
// bf16 data, and sums by the number of threads; ours gives the same bits on any number.
//
// Forward: the moments of pieces are merged in double (Chan's formula); a result of f32 is rounded
// once, one of 16 bits comes from f32.
// Gradient: that for X line by line; those for scale and bias by columns, a few lines in f32, their
// sums in double. A line that is no longer than a piece is read once for all three.
// RMSNormalization is the same with a mean of 0, and a gradient that takes 1/σ again from X.
#include <array>
#include <cmath>

#include "kernels/cpu/fast/norm_parts.h"
#include "kernels/cpu/fast/parts.h"

namespace halfnote::cpu::fast {

namespace {

/// Columns of a parallel block of the parameters' gradients, and lines that are summed in f32.
constexpr int64_t kColumns = 64;
constexpr int64_t kLinesInF32 = 32;

/// 1/σ of a line around 0; its last piece is left in `room` likewise.
template <class T>
double inverse_rms(const T* x, int64_t length, double epsilon, Room& room) {
  double sum = 0, squares = 0;
  for_pieces(length, [&](int64_t start, int64_t size) {
    const float* piece = load_block(x + start, size, room.data());
    vector_math().gradient_sums(piece, piece, size, 0, &sum, &squares);
  });
  if (!std::isfinite(squares)) {  // squares of finite numbers may be too large for f32
    squares = 0;
    for_pieces(length, [&](int64_t start, int64_t size) {
      const float* piece = load_block(x + start, size, room.data());
      for (int64_t i = 0; i < size; ++i) squares += static_cast<double>(piece[i]) * piece[i];
    });
  }
  return 1 / std::sqrt(squares / static_cast<double>(length) + epsilon);
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const Lines& lines) {
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  WorkspacePlan workspace;
  const Vector scale(call.inputs[1], workspace);
  const Vector bias = call.has_input(2) ? Vector(call.inputs[2], workspace) : Vector();
  const auto body = [=, mean_type = output_type(call, 1), inv_std_type = output_type(call, 2),
                     threads = call.threads](const KernelBuffers& buffers) {
    const float *factors = scale.read(buffers, 1), *shifts = bias.read(buffers, 2);
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      Room room;
      for (int64_t line = begin; line < end; ++line) {
        const T* x = buffers.in<T>(0) + line * lines.length;
        const Moments moments = contiguous_moments(x, lines.length, room);
        const double inv_std = 1 / std::sqrt(moments.variance + epsilon);
        if (mean_type != DType::kUndefined)
          write_real(moments.mean, buffers.outputs[1], mean_type, line);
        if (inv_std_type != DType::kUndefined)
          write_real(inv_std, buffers.outputs[2], inv_std_type, line);
        write_line(x, lines.length, moments.mean, inv_std, factors, shifts, room,
                   buffers.out<T>(0) + line * lines.length);
      }
    });
  };
  return make_kernel(body, workspace.size(),
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

template <class T>
Prepared rms_kernel(const KernelCall& call, const Lines& lines) {
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  WorkspacePlan workspace;
  const Vector scale(call.inputs[1], workspace);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    const float* factors = scale.read(buffers, 1);
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      Room room;
      for (int64_t line = begin; line < end; ++line) {
        const T* x = buffers.in<T>(0) + line * lines.length;
        const double inverse = inverse_rms(x, lines.length, epsilon, room);
        write_line(x, lines.length, 0, inverse, factors, nullptr, room,
                   buffers.out<T>(0) + line * lines.length);
      }
    });
  };
  return make_kernel(body, workspace.size(),
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

/// Mean and 1/σ of each line.
struct Statistics {
  const float* means = nullptr;  // null: 0
  const float* inv_stds = nullptr;

  float mean(int64_t line) const { return means == nullptr ? 0 : means[line]; }
};

struct Gradient {
  Lines lines;
  Vector scale, mean, inv_std;
  DType d_scale = DType::kUndefined, d_bias = DType::kUndefined;
  bool has_dx = false;
  int threads = 1;
  size_t parts = 0;  // workspace: sums for scale and bias of each kLinesInF32 lines, of short lines
  bool is_rms = false;
  double epsilon = 0;   // of RMSNormalization
  size_t inv_stds = 0;  // and its 1/σ, in the workspace

  bool wants_parameters() const {
    return d_scale != DType::kUndefined || d_bias != DType::kUndefined;
  }
  bool short_lines() const { return lines.length <= kPiece; }
  int64_t groups() const { return (lines.count + kLinesInF32 - 1) / kLinesInF32; }
};

/// dX = inv_std·(g − mean(g) − x̂·mean(g·x̂)) with g = dY·scale and x̂ = (x − mean)·inv_std.
template <class T>
void input_gradient(const Gradient& p, const KernelBuffers& buffers, const float* scale,
                    const Statistics& of) {
  const VectorMath& math = vector_math();
  const auto count = static_cast<double>(p.lines.length);
  parallel_blocks(p.lines.count, p.lines.grain(), p.threads, [&](int64_t begin, int64_t end) {
    Room dy_room, x_room, g;
    for (int64_t line = begin; line < end; ++line) {
      const T* dy = buffers.in<T>(0) + line * p.lines.length;
      const T* x = buffers.in<T>(1) + line * p.lines.length;
      T* dx = buffers.out<T>(0) + line * p.lines.length;
      double sum = 0, product = 0;
      for_pieces(p.lines.length, [&](int64_t at, int64_t size) {
        math.multiply(load_block(dy + at, size, dy_room.data()), scale + at, size, g.data());
        math.gradient_sums(g.data(), load_block(x + at, size, x_room.data()), size, of.mean(line),
                           &sum, &product);
      });
      const double factor = of.inv_stds[line];
      const auto offset = p.is_rms ? 0 : static_cast<float>(sum / count);
      const auto slope = static_cast<float>(product / count * factor * factor);
      for_pieces(p.lines.length, [&](int64_t at, int64_t size) {
        math.multiply(load_block(dy + at, size, dy_room.data()), scale + at, size, g.data());
        float* result = result_block(dx + at, dy_room.data());
        math.normalize_gradient(g.data(), load_block(x + at, size, x_room.data()), size,
                                of.mean(line), of.inv_stds[line], offset, slope, result);
        store_block(result, size, dx + at);
      });
    }
  });
}

template <class T>
void parameter_gradients(const Gradient& p, const KernelBuffers& buffers, const Statistics& of) {
  using Sums = std::array<float, kColumns>;
  parallel_blocks(p.lines.length, kColumns, p.threads, [&](int64_t begin, int64_t end) {
    std::array<double, kColumns> d_scale{}, d_bias{};
    Sums dy_room, x_room;
    const int64_t columns = end - begin;
    for (int64_t first = 0; first < p.lines.count; first += kLinesInF32) {
      Sums scale_part{}, bias_part{};
      for (int64_t line = first; line < std::min(p.lines.count, first + kLinesInF32); ++line) {
        const int64_t at = line * p.lines.length + begin;
        vector_math().add_line_gradient(load_block(buffers.in<T>(0) + at, columns, dy_room.data()),
                                        load_block(buffers.in<T>(1) + at, columns, x_room.data()),
                                        columns, of.mean(line), of.inv_stds[line],
                                        scale_part.data(), bias_part.data());
      }
      for (size_t i = 0; i < kColumns; ++i) {
        d_scale[i] += static_cast<double>(scale_part[i]);
        d_bias[i] += static_cast<double>(bias_part[i]);
      }
    }
    if (p.d_scale != DType::kUndefined)
      store_reals(d_scale.data(), columns, p.d_scale, buffers.outputs[1], begin);
    if (p.d_bias != DType::kUndefined)
      store_reals(d_bias.data(), columns, p.d_bias, buffers.outputs[2], begin);
  });
}

/// dX of a line that is no longer than a piece, and its share of the parameters' sums (may be
/// null).
template <class T>
void short_line_gradient(const Gradient& p, const T* dy_line, const T* x_line, const float* scale,
                         float mean, float inv_std, float* d_scale, float* d_bias, T* dx) {
  const int64_t length = p.lines.length;
  const VectorMath& math = vector_math();
  Room dy_room, x_room, g;
  const float* dy = load_block(dy_line, length, dy_room.data());
  const float* x = load_block(x_line, length, x_room.data());
  if (d_scale) math.add_line_gradient(dy, x, length, mean, inv_std, d_scale, d_bias);
  if (dx == nullptr) return;
  double sum = 0, product = 0;
  math.multiply(dy, scale, length, g.data());
  math.gradient_sums(g.data(), x, length, mean, &sum, &product);
  const auto count = static_cast<double>(length), factor = static_cast<double>(inv_std);
  float* result = result_block(dx, dy_room.data());
  const float offset = p.is_rms ? 0 : static_cast<float>(sum / count);
  math.normalize_gradient(g.data(), x, length, mean, inv_std, offset,
                          static_cast<float>(product / count * factor * factor), result);
  store_block(result, length, dx);
}

/// Writes the sums over all groups of lines.
void add_groups(const Gradient& p, const KernelBuffers& buffers) {
  const int64_t length = p.lines.length;
  const float* parts = part<float>(buffers, p.parts);
  parallel_blocks(length, kColumns, p.threads, [&](int64_t begin, int64_t end) {
    std::array<double, kColumns> d_scale{}, d_bias{};
    const auto columns = static_cast<size_t>(end - begin);
    for (int64_t group = 0; group < p.groups(); ++group) {
      const float* scale_part = parts + group * 2 * length + begin;
      const float* bias_part = scale_part + length;
      for (size_t i = 0; i < columns; ++i) {
        d_scale[i] += static_cast<double>(scale_part[i]);
        d_bias[i] += static_cast<double>(bias_part[i]);
      }
    }
    if (p.d_scale != DType::kUndefined)
      store_reals(d_scale.data(), end - begin, p.d_scale, buffers.outputs[1], begin);
    if (p.d_bias != DType::kUndefined)
      store_reals(d_bias.data(), end - begin, p.d_bias, buffers.outputs[2], begin);
  });
}

/// All gradients of short lines, with the bits of parameter_gradients() and input_gradient().
template <class T>
void short_gradients(const Gradient& p, const KernelBuffers& buffers, const float* scale,
                     const Statistics& of) {
  const int64_t length = p.lines.length;
  parallel_blocks(p.lines.count, kLinesInF32, p.threads, [&](int64_t begin, int64_t end) {
    float *d_scale = nullptr, *d_bias = nullptr;
    if (p.wants_parameters()) {
      d_scale = part<float>(buffers, p.parts) + begin / kLinesInF32 * 2 * length;
      d_bias = d_scale + length;
      std::fill_n(d_scale, 2 * length, 0.0f);
    }
    Room room;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at = line * length;
      const T* x = buffers.in<T>(1) + at;
      const float inv_std = p.is_rms ? static_cast<float>(inverse_rms(x, length, p.epsilon, room))
                                     : of.inv_stds[line];
      short_line_gradient(p, buffers.in<T>(0) + at, x, scale, of.mean(line), inv_std, d_scale,
                          d_bias, p.has_dx ? buffers.out<T>(0) + at : nullptr);
    }
  });
  if (p.wants_parameters()) add_groups(p, buffers);
}

/// Where 1/σ of long lines is, computed first.
template <class T>
const float* find_inverses(const Gradient& p, const KernelBuffers& buffers) {
  float* inverses = part<float>(buffers, p.inv_stds);
  parallel_blocks(p.lines.count, p.lines.grain(), p.threads, [&](int64_t begin, int64_t end) {
    Room room;
    for (int64_t line = begin; line < end; ++line) {
      const T* x = buffers.in<T>(1) + line * p.lines.length;
      inverses[line] = static_cast<float>(inverse_rms(x, p.lines.length, p.epsilon, room));
    }
  });
  return inverses;
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const Lines& lines) {
  WorkspacePlan workspace;
  Gradient plan;
  plan.lines = lines;
  plan.is_rms = call.op == "RMSNormalizationGrad";
  plan.scale = Vector(call.inputs[2], workspace);
  if (plan.is_rms) {
    plan.epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
    if (!plan.short_lines()) plan.inv_stds = workspace.add_elements<float>(lines.count);
  } else {
    plan.mean = Vector(call.inputs[3], workspace);
    plan.inv_std = Vector(call.inputs[4], workspace);
  }
  plan.d_scale = output_type(call, 1);
  plan.d_bias = output_type(call, 2);
  plan.has_dx = call.has_output(0);
  plan.threads = call.threads;
  if (plan.short_lines() && plan.wants_parameters())
    plan.parts = workspace.add_elements<float>(plan.groups() * 2 * lines.length);
  const auto body = [plan](const KernelBuffers& buffers) {
    Statistics of;
    if (!plan.is_rms) of = {plan.mean.read(buffers, 3), plan.inv_std.read(buffers, 4)};
    const float* scale = plan.has_dx ? plan.scale.read(buffers, 2) : nullptr;
    if (plan.short_lines()) return short_gradients<T>(plan, buffers, scale, of);
    if (plan.is_rms) of.inv_stds = find_inverses<T>(plan, buffers);
    // First, as dX may lie over dY or X.
    if (plan.wants_parameters()) parameter_gradients<T>(plan, buffers, of);
    if (plan.has_dx) input_gradient<T>(plan, buffers, scale, of);
  };
  return make_kernel(body, workspace.size(),
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

/// `x` is the index of X; parameters from `first` on are vectors in any float but f64.
std::string refusal(const KernelCall& call, size_t x, size_t first) {
  const DType type = call.inputs[x].dtype;
  if (call.inputs[0].dtype != type || (call.has_output(0) && call.outputs[0].dtype != type))
    return "operands of different types";
  if (call.inputs[x].size() == 0) return "a tensor without elements";
  for (size_t i = first; i < call.inputs.size(); ++i) {
    if (call.has_input(i) && call.inputs[i].dtype == DType::kF64) return "a parameter of type f64";
  }
  return {};
}

template <bool is_rms>
Prepared prepare_forward(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0))
    return Prepared::no("X, scale or Y is missing");
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  if (std::string why = refusal(call, 0, 1); !why.empty()) return Prepared::no(why);
  const Lines lines = lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    // As many elements may also be spread over the lines, so the shape must be that of a line.
    const Shape &own = call.inputs[i].shape, &x = call.inputs[0].shape;
    const bool fits = own.size() <= x.size() && call.inputs[i].size() == lines.length &&
                      std::equal(own.rbegin(), own.rend(), x.rbegin());
    if (call.has_input(i) && !fits) return Prepared::no("a parameter that is broadcast");
  }
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return is_rms ? rms_kernel<T>(call, lines) : forward_kernel<T>(call, lines);
  });
}

template <bool is_rms>
Prepared prepare_gradient(const KernelCall& call) {
  for (size_t i = 0; i < (is_rms ? 3 : 5); ++i) {
    if (!call.has_input(i)) return Prepared::no("an operand is missing");
  }
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  if (std::string why = refusal(call, 1, 2); !why.empty()) return Prepared::no(why);
  if (has_more(call, is_rms ? kRmsGradMore : kLayerGradMore))
    return Prepared::no("a sum of gradients in the normalization");
  const Lines lines = lines_from(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  require_size(call, 0, call.inputs[1].size());
  require_size(call, 2, lines.length);
  if (!is_rms) {
    require_size(call, 3, lines.count);
    require_size(call, 4, lines.count);
  }
  return for_small_float(call.inputs[1].dtype,
                         [&]<class T>() { return gradient_kernel<T>(call, lines); });
}

}  // namespace

std::vector<KernelRow> layer_norm_rows() {
  return {
      {"", "LayerNormalization", "fast.layer_norm", prepare_forward<false>},
      {"ai.halfnote", "LayerNormalizationGrad", "fast.layer_norm", prepare_gradient<false>},
      {"", "RMSNormalization", "fast.rms_norm", prepare_forward<true>},
      {"ai.halfnote", "RMSNormalizationGrad", "fast.rms_norm", prepare_gradient<true>},
  };
}

}  // namespace halfnote::cpu::fast
