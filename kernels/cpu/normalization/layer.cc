// LayerNormalization and RMSNormalization: each line (all dims from `axis` on) is normalized,
// scaled and shifted in math precision and rounded once.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

/// A parameter in math precision, broadcast to X. A plain one has an element for each position of a
/// line, or one for all; any other goes by the offsets of its lines and positions.
template <class M>
struct LineParameter {
  DType dtype = DType::kUndefined;
  int64_t size = 0;
  size_t room = 0;
  bool is_plain = true;
  std::vector<int64_t> outer, inner;

  LineParameter() = default;
  /// `lead` dims of X number the lines.
  LineParameter(const Operand& operand, const Shape& x, size_t lead, WorkspacePlan& workspace)
      : dtype(operand.dtype),
        size(operand.size()),
        room(workspace.add_elements<M>(room_for_reals<M>(operand))) {
    const Shape own = aligned_to(operand.shape, x.size());
    const std::span<const int64_t> dims(own), line(x);
    is_plain = size == 1 ||
               (size == element_count(line.subspan(lead)) && element_count(dims.first(lead)) == 1);
    if (is_plain) return;
    outer = offsets(own, x, 0, lead);
    inner = offsets(own, x, lead, x.size());
  }
  int64_t step() const { return size == 1 ? 0 : 1; }
  int64_t offset(int64_t line, int64_t i) const {
    if (is_plain) return i * step();
    return outer[static_cast<size_t>(line)] + inner[static_cast<size_t>(i)];
  }
  const M* read(const KernelBuffers& buffers, size_t input) const {
    return all_reals(buffers.inputs[input], dtype, size, part<M>(buffers, room), 1);
  }

 private:
  static Shape aligned_to(const Shape& shape, size_t rank) {
    Shape aligned(rank - shape.size(), 1);
    aligned.insert(aligned.end(), shape.begin(), shape.end());
    return aligned;
  }
  /// Where the parameter's elements lie for all positions of dims [from, to) of X.
  static std::vector<int64_t> offsets(const Shape& own, const Shape& x, size_t from, size_t to) {
    const Shape strides = strides_of(own);
    const std::span<const int64_t> dims(x);
    std::vector<int64_t> all(static_cast<size_t>(element_count(dims.subspan(from, to - from))));
    for (size_t i = 0; i < all.size(); ++i) {
      auto rest = static_cast<int64_t>(i);
      for (size_t d = to; d-- > from; rest /= x[d]) {
        if (own[d] != 1) all[i] += rest % x[d] * strides[d];
      }
    }
    return all;
  }
};

/// Dims of X before `axis`.
size_t lead_of(const KernelCall& call) {
  const auto rank = static_cast<int64_t>(call.inputs[0].shape.size());
  if (rank == 0) return 0;
  return static_cast<size_t>(normalize_axis(attributes_of(call).get_int("axis", -1), rank));
}

/// Throws Error(kModel) unless a parameter broadcasts to X.
void require_broadcast(const KernelCall& call, size_t input) {
  if (!call.has_input(input)) {
    throw model_error(call, "input " + std::to_string(input) + " is missing");
  }
  const Shape &x = call.inputs[0].shape, &own = call.inputs[input].shape;
  bool fits = own.size() <= x.size();
  for (size_t i = 0; fits && i < own.size(); ++i) {
    fits = own[i] == 1 || own[i] == x[i + x.size() - own.size()];
  }
  if (fits) return;
  throw model_error(call, "input " + std::to_string(input) + " does not broadcast to X")
      .expected("a shape that broadcasts to " + to_string(x), to_string(own));
}

/// X, or its sum with a residual as it is rounded to T.
template <class T>
struct NormOperand {
  const T *x, *residual;
  T* sum;
  NormOperand(const KernelBuffers& buffers, size_t residual_at, size_t sum_at)
      : x(buffers.in<T>(0)), residual(buffers.in<T>(residual_at)), sum(buffers.out<T>(sum_at)) {}
  Math<T> operator[](int64_t i) const {
    return residual == nullptr ? load(x[i]) : load(store<T>(load(x[i]) + load(residual[i])));
  }
  /// Element i, for the last time.
  Math<T> take(int64_t i) const {
    const Math<T> value = (*this)[i];
    if (sum != nullptr) sum[i] = store<T>(value);
    return value;
  }
};

/// The sum is written over what it is of.
std::function<bool(size_t, size_t)> over_summands(const KernelCall& call, size_t residual,
                                                  size_t sum) {
  if (!call.has_input(residual)) return {};
  return [=](size_t input, size_t output) {
    return output == sum && (input == 0 || input == residual);
  };
}

template <class T>
Prepared layer_kernel(const KernelCall& call, const Lines& lines) {
  using M = Math<T>;
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  WorkspacePlan workspace;
  const Shape& x_shape = call.inputs[0].shape;
  const LineParameter<M> scale(call.inputs[1], x_shape, lead_of(call), workspace);
  const bool has_bias = call.has_input(2);
  const LineParameter<M> bias =
      has_bias ? LineParameter<M>(call.inputs[2], x_shape, lead_of(call), workspace)
               : LineParameter<M>();
  const bool is_plain = scale.is_plain && bias.is_plain;
  const auto type = [&](size_t output) {
    return call.has_output(output) ? call.outputs[output].dtype : DType::kUndefined;
  };
  const auto body = [=, mean_type = type(1), inv_std_type = type(2),
                     threads = call.threads](const KernelBuffers& buffers) {
    const M* factors = scale.read(buffers, 1);
    const M* shifts = has_bias ? bias.read(buffers, 2) : nullptr;
    const NormOperand<T> x(buffers, kLayerResidual, kLayerSum);
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t first = line * lines.length;
        const Moments moments = moments_of(lines.length, [&](int64_t i) { return x[first + i]; });
        const double inv_std = 1 / std::sqrt(moments.variance + epsilon);
        if (mean_type != DType::kUndefined)
          write_real(moments.mean, buffers.outputs[1], mean_type, line);
        if (inv_std_type != DType::kUndefined)
          write_real(inv_std, buffers.outputs[2], inv_std_type, line);
        const auto mean = static_cast<M>(moments.mean), slope = static_cast<M>(inv_std);
        T* y = buffers.out<T>(0) + first;
        for (int64_t i = 0; i < lines.length; ++i) {
          M value = (x.take(first + i) - mean) * slope;
          value *= factors[is_plain ? i * scale.step() : scale.offset(line, i)];
          if (shifts) value += shifts[is_plain ? i * bias.step() : bias.offset(line, i)];
          y[i] = store<T>(value);
        }
      }
    });
  };
  return make_kernel(body, workspace.size(), over_summands(call, kLayerResidual, kLayerSum));
}

std::string check_residual(const KernelCall& call, size_t residual, size_t sum) {
  return residual_refusal(call, call.has_input(residual) ? residual : 0,
                          call.has_output(sum) ? sum : 0);
}

Prepared prepare_layer(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  const Lines lines = lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  require_broadcast(call, 1);
  if (call.has_input(2)) require_broadcast(call, 2);
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  if (std::string why = check_residual(call, kLayerResidual, kLayerSum); !why.empty())
    return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return layer_kernel<T>(call, lines); });
}

/// Y has the type of the scale, which may differ from that of X.
template <class T>
Prepared rms_kernel(const KernelCall& call, const Lines& lines) {
  using M = Math<T>;
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  WorkspacePlan workspace;
  const LineParameter<M> scale(call.inputs[1], call.inputs[0].shape, lead_of(call), workspace);
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const M* factors = scale.read(buffers, 1);
    const NormOperand<T> x(buffers, kRmsResidual, kRmsSum);
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t first = line * lines.length;
        double squares = 0;
        for (int64_t i = 0; i < lines.length; ++i) {
          const double value = x[first + i];
          squares += value * value;
        }
        const auto slope =
            static_cast<M>(1 / std::sqrt(squares / static_cast<double>(lines.length) + epsilon));
        for (int64_t i = 0; i < lines.length; ++i) {
          write_real(x.take(first + i) * slope * factors[scale.offset(line, i)], buffers.outputs[0],
                     type, first + i);
        }
      }
    });
  };
  return make_kernel(body, workspace.size(), over_summands(call, kRmsResidual, kRmsSum));
}

Prepared prepare_rms(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  const Lines lines = lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  require_broadcast(call, 1);
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  if (std::string why = check_residual(call, kRmsResidual, kRmsSum); !why.empty())
    return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return rms_kernel<T>(call, lines); });
}

}  // namespace

std::vector<KernelRow> layer_norm_rows() {
  return {
      {"", "LayerNormalization", "reference", prepare_layer},
      {"", "RMSNormalization", "reference", prepare_rms},
      {"ai.halfnote", "LayerNormalization", "reference", prepare_layer},
      {"ai.halfnote", "RMSNormalization", "reference", prepare_rms},
  };
}

}  // namespace halfnote::cpu
