// RMSNormalizationGrad and GroupNormalizationGrad: statistics are taken again from X, in double.
//
//   RMS:    dX = r·(g − x̂·mean(g·x̂)), g = dY·scale;               dScale = Σ dY·x̂
//   groups: dX = r·(g − mean(g) − x̂·mean(g·x̂));                   dScale = Σ dY·x̂, dB = Σ dY
//
// Parameter gradients are summed in one order, whatever the number of threads: rows in a workspace,
// then column by column.
#include <array>
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

/// Where parameter gradients go.
struct Sums {
  DType scale = DType::kUndefined, bias = DType::kUndefined;

  explicit Sums(const KernelCall& call) {
    if (call.has_output(1)) scale = call.outputs[1].dtype;
    if (call.has_output(2)) bias = call.outputs[2].dtype;
  }
  bool any() const { return scale != DType::kUndefined || bias != DType::kUndefined; }
  void write(const KernelBuffers& buffers, int64_t index, double d_scale, double d_bias) const {
    if (scale != DType::kUndefined) write_real(d_scale, buffers.outputs[1], scale, index);
    if (bias != DType::kUndefined) write_real(d_bias, buffers.outputs[2], bias, index);
  }
};

bool over_operands(size_t input, size_t output) {
  return output == 0 && (input <= 1 || input == kRmsGradMore || input == kRmsGradMore + 1);
}

// --- RMSNormalizationGrad ---

/// Columns that are summed together.
constexpr int64_t kColumns = 64;

struct RmsPlan {
  Lines lines;
  double epsilon;
  DType scale;
  size_t inverse;  // of every line, in the workspace
  bool has_dx;
  int threads;
};

template <class T>
void rms_lines(const RmsPlan& plan, const KernelBuffers& buffers, int64_t begin, int64_t end) {
  const auto count = static_cast<double>(plan.lines.length);
  const GradOperand<T> dy(buffers, kRmsGradMore);
  const GradResult<T> dx(buffers, kRmsGradMore + 1);
  for (int64_t line = begin; line < end; ++line) {
    const int64_t first = line * plan.lines.length;
    const T* x = buffers.in<T>(1) + first;
    const double inverse = part<double>(buffers, plan.inverse)[line];
    double product = 0;
    for (int64_t i = 0; i < plan.lines.length; ++i) {
      const double g = dy[first + i] * read_real(buffers.inputs[2], plan.scale, i);
      product += g * load(x[i]) * inverse;
    }
    product /= count;
    for (int64_t i = 0; i < plan.lines.length; ++i) {
      const double g = dy[first + i] * read_real(buffers.inputs[2], plan.scale, i);
      dx.write(first + i, inverse * (g - load(x[i]) * inverse * product));
    }
  }
}

template <class T>
void rms_inverses(const RmsPlan& plan, const KernelBuffers& buffers, int64_t begin, int64_t end) {
  for (int64_t line = begin; line < end; ++line) {
    const T* x = buffers.in<T>(1) + line * plan.lines.length;
    double squares = 0;
    for (int64_t i = 0; i < plan.lines.length; ++i) {
      squares += static_cast<double>(load(x[i])) * load(x[i]);
    }
    part<double>(buffers, plan.inverse)[line] =
        1 / std::sqrt(squares / static_cast<double>(plan.lines.length) + plan.epsilon);
  }
}

template <class T>
void rms_columns(const RmsPlan& plan, const Sums& sums, const KernelBuffers& buffers, int64_t begin,
                 int64_t end) {
  std::array<double, kColumns> d_scale{};
  const GradOperand<T> dy(buffers, kRmsGradMore);
  for (int64_t line = 0; line < plan.lines.count; ++line) {
    const int64_t first = line * plan.lines.length;
    const T* x = buffers.in<T>(1) + line * plan.lines.length;
    const double inverse = part<double>(buffers, plan.inverse)[line];
    for (int64_t i = begin; i < end; ++i) {
      d_scale[static_cast<size_t>(i - begin)] +=
          static_cast<double>(dy[first + i]) * load(x[i]) * inverse;
    }
  }
  for (int64_t i = begin; i < end; ++i) {
    sums.write(buffers, i, d_scale[static_cast<size_t>(i - begin)], 0);
  }
}

Prepared prepare_rms(const KernelCall& call) {
  Lines lines;
  if (std::string why = plan_rms_norm_grad(call, lines); !why.empty()) return Prepared::no(why);
  WorkspacePlan workspace;
  const RmsPlan plan{lines,
                     attributes_of(call).get_float("epsilon", 1e-5f),
                     call.inputs[2].dtype,
                     workspace.add_elements<double>(lines.count),
                     call.has_output(0),
                     call.threads};
  const Sums sums(call);
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto body = [plan, sums](const KernelBuffers& buffers) {
      const int64_t grain = plan.lines.grain();
      parallel_blocks(plan.lines.count, grain, plan.threads, [&](int64_t begin, int64_t end) {
        rms_inverses<T>(plan, buffers, begin, end);
      });
      if (sums.any()) {  // first, as dX may lie over dY or X
        parallel_blocks(plan.lines.length, kColumns, plan.threads, [&](int64_t begin, int64_t end) {
          rms_columns<T>(plan, sums, buffers, begin, end);
        });
      }
      if (!plan.has_dx) return;
      parallel_blocks(plan.lines.count, grain, plan.threads,
                      [&](int64_t begin, int64_t end) { rms_lines<T>(plan, buffers, begin, end); });
    };
    return make_kernel(body, workspace.size(), over_operands);
  });
}

// --- GroupNormalizationGrad ---

struct GroupPlan : Groups {
  DType scale;
  size_t d_scale, d_bias;  // (N, C) sums in the workspace
  bool has_dx;
  int threads;
};

/// One group of one image: its rows of the parameter sums, then dX.
template <class T>
void group_gradient(const GroupPlan& plan, const KernelBuffers& buffers, int64_t group) {
  const int64_t size = plan.per_group() * plan.plane, first = group * size;
  const T *dy = buffers.in<T>(0) + first, *x = buffers.in<T>(1) + first;
  const Moments moments = moments_of(size, [x](int64_t i) { return load(x[i]); });
  const double inverse = 1 / std::sqrt(moments.variance + plan.epsilon);
  double sum = 0, product = 0;
  for (int64_t i = 0; i < plan.per_group(); ++i) {
    double d_bias = 0, d_scale = 0;
    for (int64_t j = i * plan.plane; j < (i + 1) * plan.plane; ++j) {
      d_bias += load(dy[j]);
      d_scale += load(dy[j]) * ((load(x[j]) - moments.mean) * inverse);
    }
    const int64_t channel = group % plan.groups * plan.per_group() + i;
    const double scale = read_real(buffers.inputs[2], plan.scale, channel);
    sum += d_bias * scale;
    product += d_scale * scale;
    const int64_t row = group * plan.per_group() + i;  // n·C + channel
    part<double>(buffers, plan.d_scale)[row] = d_scale;
    part<double>(buffers, plan.d_bias)[row] = d_bias;
  }
  if (!plan.has_dx) return;
  sum /= static_cast<double>(size);
  product /= static_cast<double>(size);
  T* dx = buffers.out<T>(0) + first;
  for (int64_t i = 0; i < plan.per_group(); ++i) {
    const int64_t channel = group % plan.groups * plan.per_group() + i;
    const double scale = read_real(buffers.inputs[2], plan.scale, channel);
    for (int64_t j = i * plan.plane; j < (i + 1) * plan.plane; ++j) {
      const double centred = load(dy[j]) * scale - sum;
      const double normalized = (load(x[j]) - moments.mean) * inverse;
      dx[j] = store<T>(static_cast<Math<T>>(inverse * (centred - normalized * product)));
    }
  }
}

void sum_over_batch(const GroupPlan& plan, const Sums& sums, const KernelBuffers& buffers) {
  for (int64_t channel = 0; channel < plan.channels; ++channel) {
    double d_scale = 0, d_bias = 0;
    for (int64_t n = 0; n < plan.batch; ++n) {
      d_scale += part<double>(buffers, plan.d_scale)[n * plan.channels + channel];
      d_bias += part<double>(buffers, plan.d_bias)[n * plan.channels + channel];
    }
    sums.write(buffers, channel, d_scale, d_bias);
  }
}

Prepared prepare_group(const KernelCall& call) {
  Groups groups;
  if (std::string why = plan_group_norm_grad(call, groups); !why.empty()) return Prepared::no(why);
  WorkspacePlan workspace;
  const GroupPlan plan{groups,
                       call.inputs[2].dtype,
                       workspace.add_elements<double>(groups.batch * groups.channels),
                       workspace.add_elements<double>(groups.batch * groups.channels),
                       call.has_output(0),
                       call.threads};
  const Sums sums(call);
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto body = [plan, sums](const KernelBuffers& buffers) {
      parallel_blocks(plan.count(), 1, plan.threads,
                      [&](int64_t group, int64_t) { group_gradient<T>(plan, buffers, group); });
      if (sums.any()) sum_over_batch(plan, sums, buffers);
    };
    return make_kernel(body, workspace.size(), over_operands);
  });
}

}  // namespace

std::string plan_rms_norm_grad(const KernelCall& call, Lines& lines) {
  if (std::string why = grad_refusal(call); !why.empty()) return why;
  lines = lines_from(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  require_size(call, 2, lines.length);
  return more_refusal(call, kRmsGradMore);
}

std::string plan_group_norm_grad(const KernelCall& call, Groups& plan) {
  if (std::string why = grad_refusal(call); !why.empty()) return why;
  plan = plan_groups(call, 1);
  require_size(call, 2, plan.channels);
  return {};
}

std::vector<KernelRow> group_grad_rows() {
  return {
      {"ai.halfnote", "GroupNormalizationGrad", "reference", prepare_group},
      {"ai.halfnote", "RMSNormalizationGrad", "reference", prepare_rms},
  };
}

}  // namespace halfnote::cpu
