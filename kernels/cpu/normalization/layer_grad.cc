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
  const GradOperand<T> dy(buffers, kLayerGradMore);
  const GradResult<T> dx(buffers, kLayerGradMore + 1);
  parallel_blocks(plan.lines.count, plan.lines.grain(), plan.threads,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t line = begin; line < end; ++line) {
                      const int64_t first = line * plan.lines.length;
                      const T* x = buffers.in<T>(1) + first;
                      const double mean = read_real(buffers.inputs[3], plan.mean, line);
                      const double inv_std = read_real(buffers.inputs[4], plan.inv_std, line);
                      double sum = 0, product = 0;
                      for (int64_t i = 0; i < plan.lines.length; ++i) {
                        const double g = static_cast<double>(dy[first + i]) * scale[i];
                        sum += g;
                        product += g * ((load(x[i]) - mean) * inv_std);
                      }
                      sum /= count;
                      product /= count;
                      for (int64_t i = 0; i < plan.lines.length; ++i) {
                        const double g = static_cast<double>(dy[first + i]) * scale[i];
                        const double hat = (load(x[i]) - mean) * inv_std;
                        dx.write(first + i, inv_std * (g - sum - hat * product));
                      }
                    }
                  });
}

template <class T>
void parameter_gradients(const GradPlan& plan, const KernelBuffers& buffers) {
  const GradOperand<T> dy(buffers, kLayerGradMore);
  parallel_blocks(plan.lines.length, kColumns, plan.threads, [&](int64_t begin, int64_t end) {
    std::array<double, kColumns> d_scale{}, d_bias{};
    for (int64_t line = 0; line < plan.lines.count; ++line) {
      const int64_t first = line * plan.lines.length;
      const T* x = buffers.in<T>(1) + first;
      const double mean = read_real(buffers.inputs[3], plan.mean, line);
      const double inv_std = read_real(buffers.inputs[4], plan.inv_std, line);
      for (int64_t i = begin; i < end; ++i) {
        const double g = dy[first + i];
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
  GradPlan plan;
  if (std::string why = plan_layer_norm_grad(call, plan.lines); !why.empty())
    return Prepared::no(why);
  plan.has_dx = call.has_output(0);
  plan.scale = call.inputs[2].dtype;
  plan.mean = call.inputs[3].dtype;
  plan.inv_std = call.inputs[4].dtype;
  if (call.has_output(1)) plan.d_scale = call.outputs[1].dtype;
  if (call.has_output(2)) plan.d_bias = call.outputs[2].dtype;
  plan.threads = call.threads;
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    WorkspacePlan workspace;
    plan.scale_room = workspace.add_elements<Math<T>>(room_for_reals<Math<T>>(call.inputs[2]));
    const auto body = [plan](const KernelBuffers& buffers) {
      parameter_gradients<T>(plan, buffers);  // first, as dX may lie over dY or X
      if (plan.has_dx) input_gradient<T>(plan, buffers);
    };
    return make_kernel(body, workspace.size(), [](size_t input, size_t output) {
      return output == 0 && (input <= 1 || input == kLayerGradMore || input == kLayerGradMore + 1);
    });
  });
}

}  // namespace

std::string plan_layer_norm_grad(const KernelCall& call, Lines& lines) {
  if (std::string why = grad_refusal(call); !why.empty()) return why;
  lines = lines_from(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  require_size(call, 2, lines.length);
  require_size(call, 3, lines.count);
  require_size(call, 4, lines.count);
  return more_refusal(call, kLayerGradMore);
}

std::vector<KernelRow> layer_grad_rows() {
  return {{"ai.halfnote", "LayerNormalizationGrad", "reference", prepare}};
}

}  // namespace halfnote::cpu
