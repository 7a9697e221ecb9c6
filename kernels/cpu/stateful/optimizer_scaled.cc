// The optimizers of ai.halfnote whose step size follows from norms of whole tensors: LAMB and
// Adafactor. Norms and means are summed in f64, block by block in order.
#include "kernels/cpu/stateful/optimizer_scaled.h"

#include <cmath>

#include "kernels/cpu/stateful/parts.h"
#include "kernels/math/optimizer.h"

namespace halfnote::cpu {

LambPlan lamb_plan(const KernelCall& call) {
  const Attributes& attributes = attributes_of(call);
  return {{attributes.get_float("beta1", 0.9f), attributes.get_float("beta2", 0.999f),
           attributes.get_float("epsilon", 1e-6f), attributes.get_float("weight_decay", 0), true},
          attributes.get_float("min_ratio", 0),
          attributes.get_float("max_ratio", 0),
          attributes.get_int("lamb_mode", 0) == 1};
}

namespace {

AdafactorPlan adafactor_plan(const KernelCall& call) {
  const Attributes& attributes = attributes_of(call);
  AdafactorPlan plan;
  plan.decay_rate = attributes.get_float("decay_rate", -0.8f);
  plan.epsilon = attributes.get_float("epsilon", 1e-30f);
  plan.epsilon_param = attributes.get_float("epsilon_param", 1e-3f);
  plan.clip = attributes.get_float("clip_threshold", 1);
  plan.decay = attributes.get_float("weight_decay", 0);
  plan.relative = attributes.get_int("relative_step", 1) != 0;
  plan.scaled = attributes.get_int("scale_parameter", 1) != 0;
  plan.factored = call.has_input(3);
  const Shape& shape = call.inputs[0].shape;
  if (!plan.factored || shape.size() < 2) return plan;
  plan.columns = shape.back();
  plan.rows = shape[shape.size() - 2];
  for (size_t i = 0; i + 2 < shape.size(); ++i) plan.matrices *= shape[i];
  return plan;
}

}  // namespace

std::string plan_adafactor(const KernelCall& call, AdafactorPlan& plan, Signature& signature) {
  if (call.inputs.empty()) return "an operand is missing";
  plan = adafactor_plan(call);
  if (plan.factored && call.inputs[0].shape.size() < 2) {
    return "row and column means of a parameter without columns";
  }
  signature = {2, true, plan.factored ? 0u : 2u};
  if (plan.factored) {
    signature.sizes = {plan.matrices * plan.rows, plan.matrices * plan.columns};
  }
  if (std::string why = unfit_state(call, signature); !why.empty()) return why;
  return plan.clip > 0 ? std::string() : "clip_threshold is not above 0";
}

namespace {

double square(double x) { return x * x; }

/// New moments and the two norms first, then the parameter.
template <class T>
void lamb(const LambPlan& plan, const KernelBuffers& buffers, int64_t count, int threads) {
  const auto lr = static_cast<double>(*buffers.in<T>(4));
  const auto step = static_cast<double>(*buffers.in<int64_t>(5));
  const math::LambStep<T> rule = math::lamb_step<T>(plan.adam, step, plan.rate_corrects);
  const T *param = buffers.in<T>(0), *grad = buffers.in<T>(1);
  const T *old_m = buffers.in<T>(2), *old_v = buffers.in<T>(3);
  T *to = buffers.out<T>(0), *new_m = buffers.out<T>(1), *new_v = buffers.out<T>(2);
  auto* partials = reinterpret_cast<double*>(buffers.workspace);
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T m = old_m[i], v = old_v[i];
      rule.moments(grad[i], m, v);
      new_m[i] = m;
      new_v[i] = v;
    }
  });
  const auto direction = [&](int64_t i) { return rule.direction(param[i], new_m[i], new_v[i]); };
  const double param_norm = std::sqrt(
      parallel_sum(count, threads, partials, [&](int64_t i) { return square(param[i]); }));
  const double norm = std::sqrt(
      parallel_sum(count, threads, partials, [&](int64_t i) { return square(direction(i)); }));
  const auto rate = static_cast<T>(
      lr * rule.rate * math::lamb_ratio(param_norm, norm, plan.min_ratio, plan.max_ratio));
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = param[i] - rate * direction(i);
  });
}

Prepared prepare_lamb(const KernelCall& call) {
  const Signature signature{2, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const LambPlan plan = lamb_plan(call);
  const auto workspace = static_cast<size_t>(sum_blocks(call.inputs[0].size())) * sizeof(double);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return whole_optimizer_kernel<T>(
        call, signature,
        [=](const KernelBuffers& buffers, int64_t count, int threads) {
          lamb<T>(plan, buffers, count, threads);
        },
        workspace);
  });
}

/// The means of the squared gradient along the rows and along the columns.
template <class T>
void move_means(const AdafactorPlan& plan, const math::AdafactorStep& rule,
                const KernelBuffers& buffers, int threads) {
  const T *grad = buffers.in<T>(1), *old_row = buffers.in<T>(2), *old_column = buffers.in<T>(3);
  T *row = buffers.out<T>(1), *column = buffers.out<T>(2);
  const auto eps = static_cast<T>(plan.epsilon);
  const int64_t grain = std::max<int64_t>(kElementGrain / std::max<int64_t>(plan.columns, 1), 1);
  parallel_blocks(plan.matrices * plan.rows, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < plan.columns; ++c) {
        sum += rule.square(grad[r * plan.columns + c], eps);
      }
      row[r] = rule.mean(old_row[r], sum, plan.columns);
    }
  });
  const int64_t width = std::max<int64_t>(kElementGrain / std::max<int64_t>(plan.rows, 1), 8);
  parallel_blocks(plan.matrices * plan.columns, width, threads, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const T* at = grad + k / plan.columns * plan.rows * plan.columns + k % plan.columns;
      double sum = 0;
      for (int64_t r = 0; r < plan.rows; ++r) {
        sum += rule.square(at[r * plan.columns], eps);
      }
      column[k] = rule.mean(old_column[k], sum, plan.rows);
    }
  });
}

/// The mean of the row means of each matrix.
template <class T>
void mean_rows(const AdafactorPlan& plan, const T* row, double* means) {
  for (int64_t k = 0; k < plan.matrices; ++k) {
    double sum = 0;
    for (int64_t r = 0; r < plan.rows; ++r) sum += row[k * plan.rows + r];
    means[k] = sum / static_cast<double>(plan.rows);
  }
}

template <class T>
void adafactor(const AdafactorPlan& plan, const KernelBuffers& buffers, int64_t count,
               int threads) {
  const auto lr = static_cast<double>(*buffers.in<T>(4));
  const auto step = static_cast<double>(*buffers.in<int64_t>(5));
  const math::AdafactorStep rule =
      math::adafactor_step(lr, step, plan.decay_rate, plan.relative, plan.decay);
  const T *param = buffers.in<T>(0), *grad = buffers.in<T>(1), *old = buffers.in<T>(2);
  T *to = buffers.out<T>(0), *moment = buffers.out<T>(1);
  auto* partials = reinterpret_cast<double*>(buffers.workspace);
  double* means = partials + sum_blocks(count);
  if (plan.factored) {
    move_means<T>(plan, rule, buffers, threads);
    mean_rows(plan, moment, means);
  } else {
    const auto eps = static_cast<T>(plan.epsilon);
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        moment[i] = rule.moved(old[i], rule.square(grad[i], eps));
      }
    });
  }
  const T* column = buffers.out<T>(2);
  const auto update = [&](int64_t i) {
    if (!plan.factored) return grad[i] / std::sqrt(moment[i]);
    const int64_t r = i / plan.columns, k = r / plan.rows;
    return rule.factored(grad[i], moment[r], means[k], column[k * plan.columns + i % plan.columns]);
  };
  const auto rms = [&](auto term) {
    const double sum = parallel_sum(count, threads, partials, term);
    return std::sqrt(sum / static_cast<double>(std::max<int64_t>(count, 1)));
  };
  const double param_rms = rms([&](int64_t i) { return square(param[i]); });
  const double update_rms = rms([&](int64_t i) { return square(update(i)); });
  const auto rate =
      static_cast<T>(rule.scale(param_rms, update_rms, plan.scaled, plan.epsilon_param, plan.clip));
  const auto keep = static_cast<T>(rule.keep);
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = param[i] * keep - rate * update(i);
  });
}

Prepared prepare_adafactor(const KernelCall& call) {
  AdafactorPlan plan;
  Signature signature;
  if (std::string why = plan_adafactor(call, plan, signature); !why.empty())
    return Prepared::no(why);
  const int64_t count = call.inputs[0].size();
  const auto workspace = static_cast<size_t>(sum_blocks(count) + plan.matrices) * sizeof(double);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return whole_optimizer_kernel<T>(
        call, signature,
        [=](const KernelBuffers& buffers, int64_t size, int threads) {
          adafactor<T>(plan, buffers, size, threads);
        },
        workspace);
  });
}

}  // namespace

std::vector<KernelRow> scaled_optimizer_rows() {
  return {
      {"ai.halfnote", "Adafactor", "reference", prepare_adafactor},
      {"ai.halfnote", "Lamb", "reference", prepare_lamb},
  };
}

}  // namespace halfnote::cpu
