// LayerNormalization and RMSNormalization: each line (all dims from `axis` on) is normalized,
// scaled and shifted in math precision and rounded once.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

/// Scale or B: an element for each position of a line, or one for all.
void require_line_parameter(const KernelCall& call, size_t input, int64_t length) {
  if (call.has_input(input) && call.inputs[input].size() == 1) return;
  require_size(call, input, length);
}

/// A parameter in math precision; element i is at i·step.
template <class M>
struct LineParameter {
  DType dtype = DType::kUndefined;
  int64_t size = 0;
  size_t room = 0;

  LineParameter() = default;
  LineParameter(const Operand& operand, WorkspacePlan& workspace)
      : dtype(operand.dtype),
        size(operand.size()),
        room(workspace.add_elements<M>(room_for_reals<M>(operand))) {}
  int64_t step() const { return size == 1 ? 0 : 1; }
  const M* read(const KernelBuffers& buffers, size_t input) const {
    return all_reals(buffers.inputs[input], dtype, size, part<M>(buffers, room), 1);
  }
};

template <class T>
Prepared layer_kernel(const KernelCall& call, const Lines& lines) {
  using M = Math<T>;
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  WorkspacePlan workspace;
  const LineParameter<M> scale(call.inputs[1], workspace);
  const bool has_bias = call.has_input(2);
  const LineParameter<M> bias =
      has_bias ? LineParameter<M>(call.inputs[2], workspace) : LineParameter<M>();
  const auto type = [&](size_t output) {
    return call.has_output(output) ? call.outputs[output].dtype : DType::kUndefined;
  };
  const auto body = [=, mean_type = type(1), inv_std_type = type(2),
                     threads = call.threads](const KernelBuffers& buffers) {
    const M* factors = scale.read(buffers, 1);
    const M* shifts = has_bias ? bias.read(buffers, 2) : nullptr;
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* x = buffers.in<T>(0) + line * lines.length;
        const Moments moments = moments_of(lines.length, [x](int64_t i) { return load(x[i]); });
        const double inv_std = 1 / std::sqrt(moments.variance + epsilon);
        if (mean_type != DType::kUndefined)
          write_real(moments.mean, buffers.outputs[1], mean_type, line);
        if (inv_std_type != DType::kUndefined)
          write_real(inv_std, buffers.outputs[2], inv_std_type, line);
        const auto mean = static_cast<M>(moments.mean), slope = static_cast<M>(inv_std);
        T* y = buffers.out<T>(0) + line * lines.length;
        for (int64_t i = 0; i < lines.length; ++i) {
          M value = (load(x[i]) - mean) * slope * factors[i * scale.step()];
          if (shifts) value += shifts[i * bias.step()];
          y[i] = store<T>(value);
        }
      }
    });
  };
  return make_kernel(body, workspace.size());
}

Prepared prepare_layer(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  const Lines lines = lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  require_line_parameter(call, 1, lines.length);
  if (call.has_input(2)) require_line_parameter(call, 2, lines.length);
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return layer_kernel<T>(call, lines); });
}

/// Y has the type of the scale, which may differ from that of X.
template <class T>
Prepared rms_kernel(const KernelCall& call, const Lines& lines) {
  using M = Math<T>;
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  WorkspacePlan workspace;
  const LineParameter<M> scale(call.inputs[1], workspace);
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const M* factors = scale.read(buffers, 1);
    parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* x = buffers.in<T>(0) + line * lines.length;
        double squares = 0;
        for (int64_t i = 0; i < lines.length; ++i) {
          const double value = load(x[i]);
          squares += value * value;
        }
        const auto slope =
            static_cast<M>(1 / std::sqrt(squares / static_cast<double>(lines.length) + epsilon));
        for (int64_t i = 0; i < lines.length; ++i) {
          write_real(load(x[i]) * slope * factors[i * scale.step()], buffers.outputs[0], type,
                     line * lines.length + i);
        }
      }
    });
  };
  return make_kernel(body, workspace.size());
}

Prepared prepare_rms(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  const Lines lines = lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  require_line_parameter(call, 1, lines.length);
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return rms_kernel<T>(call, lines); });
}

}  // namespace

std::vector<KernelRow> layer_norm_rows() {
  return {
      {"", "LayerNormalization", "reference", prepare_layer},
      {"", "RMSNormalization", "reference", prepare_rms},
  };
}

}  // namespace halfnote::cpu
