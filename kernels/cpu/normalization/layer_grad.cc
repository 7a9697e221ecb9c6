// LayerNormalizationGrad. With x̂ = (x − mean)·inv_std and g = dy·scale:
//   dX = inv_std·(g − mean(g) − x̂·mean(g·x̂)), line by line;
//   dScale = Σ dy·x̂ and dB = Σ dy over the lines, column by column, so that no result depends on
//   the threads.
#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

/// Columns that are summed together.
constexpr int64_t kColumns = 64;

struct GradPlan {
  Lines lines;
  DType scale, mean, inv_std;
  DType d_scale = DType::kUndefined, d_bias = DType::kUndefined;
  bool has_dx = false;
  size_t scale_room = 0;
  int threads = 1;
};

template <class T>
void input_gradient(const GradPlan& plan, const KernelBuffers& buffers) {
  using M = Math<T>;
  const M* scale = all_reals(buffers.inputs[2], plan.scale, plan.lines.length,
                             part<M>(buffers, plan.scale_room), 1);
  const auto count = static_cast<double>(plan.lines.length);
  parallel_blocks(
      plan.lines.count, plan.lines.grain(), plan.threads, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const T* dy = buffers.in<T>(0) + line * plan.lines.length;
          const T* x = buffers.in<T>(1) + line * plan.lines.length;
          T* dx = buffers.out<T>(0) + line * plan.lines.length;
          const double mean = read_real(buffers.inputs[3], plan.mean, line);
          const double inv_std = read_real(buffers.inputs[4], plan.inv_std, line);
          double sum = 0, product = 0;
          for (int64_t i = 0; i < plan.lines.length; ++i) {
            const double g = static_cast<double>(load(dy[i])) * scale[i];
            sum += g;
            product += g * ((load(x[i]) - mean) * inv_std);
          }
          sum /= count;
          product /= count;
          for (int64_t i = 0; i < plan.lines.length; ++i) {
            const double g = static_cast<double>(load(dy[i])) * scale[i];
            const double value = inv_std * (g - sum - (load(x[i]) - mean) * inv_std * product);
            dx[i] = store<T>(static_cast<M>(value));
          }
        }
      });
}

template <class T>
void parameter_gradients(const GradPlan& plan, const KernelBuffers& buffers) {
  parallel_blocks(plan.lines.length, kColumns, plan.threads, [&](int64_t begin, int64_t end) {
    std::array<double, kColumns> d_scale{}, d_bias{};
    for (int64_t line = 0; line < plan.lines.count; ++line) {
      const T* dy = buffers.in<T>(0) + line * plan.lines.length;
      const T* x = buffers.in<T>(1) + line * plan.lines.length;
      const double mean = read_real(buffers.inputs[3], plan.mean, line);
      const double inv_std = read_real(buffers.inputs[4], plan.inv_std, line);
      for (int64_t i = begin; i < end; ++i) {
        const double g = load(dy[i]);
        d_bias[static_cast<size_t>(i - begin)] += g;
        d_scale[static_cast<size_t>(i - begin)] += g * ((load(x[i]) - mean) * inv_std);
      }
    }
    if (plan.d_scale != DType::kUndefined) {
      store_reals(d_scale.data(), end - begin, plan.d_scale, buffers.outputs[1], begin);
    }
    if (plan.d_bias != DType::kUndefined) {
      store_reals(d_bias.data(), end - begin, plan.d_bias, buffers.outputs[2], begin);
    }
  });
}

Prepared prepare(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1)) throw model_error(call, "dY or X is missing");
  GradPlan plan;
  plan.lines = lines_from(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  require_size(call, 0, call.inputs[1].size());
  require_size(call, 2, plan.lines.length);
  require_size(call, 3, plan.lines.count);
  require_size(call, 4, plan.lines.count);
  if (std::string why = float_refusal(call); !why.empty()) return Prepared::no(why);
  const DType type = call.inputs[0].dtype;
  plan.has_dx = call.has_output(0);
  if (call.inputs[1].dtype != type || (plan.has_dx && call.outputs[0].dtype != type)) {
    return Prepared::no("dY, X and dX of different types");
  }
  plan.scale = call.inputs[2].dtype;
  plan.mean = call.inputs[3].dtype;
  plan.inv_std = call.inputs[4].dtype;
  if (call.has_output(1)) plan.d_scale = call.outputs[1].dtype;
  if (call.has_output(2)) plan.d_bias = call.outputs[2].dtype;
  plan.threads = call.threads;
  return for_float_type(type, [&]<class T>() {
    WorkspacePlan workspace;
    plan.scale_room = workspace.add_elements<Math<T>>(room_for_reals<Math<T>>(call.inputs[2]));
    const auto body = [plan](const KernelBuffers& buffers) {
      parameter_gradients<T>(plan, buffers);  // first, as dX may lie over dY or X
      if (plan.has_dx) input_gradient<T>(plan, buffers);
    };
    return make_kernel(body, workspace.size(),
                       [](size_t input, size_t output) { return input <= 1 && output == 0; });
  });
}

}  // namespace

std::vector<KernelRow> layer_grad_rows() {
  return {{"ai.halfnote", "LayerNormalizationGrad", "reference", prepare}};
}

}  // namespace halfnote::cpu
