// SoftmaxCrossEntropyLoss, its gradient, and both at once, where positions follow one another in
// memory and classes do not: (N, C, d…) with C along axis 1. A block of positions of all classes is
// read from memory once and stays in a cache while maxima, sums and results are made, a row of one
// class at a time. Sums over classes are f64, in order; losses are added up in order: the same bits
// on any number of threads.
#include <cmath>

#include "kernels/cpu/best_loops.h"
#include "kernels/cpu/loss/plan.h"
#include "kernels/cpu/planes/rows.h"

namespace halfnote::cpu::planes {

const Loops* loops() { return best_loops<kAvx512Loops, kAvx2Loops, Loops>(nullptr); }

int64_t block_size(const Lines& lines) {
  constexpr int64_t kElements = int64_t{1} << 15, kLeast = 64;
  const int64_t fitting = kElements / std::max<int64_t>(1, lines.length) / kLeast * kLeast;
  return std::clamp(fitting, kLeast, kPositions);
}

std::string lines_refusal(const Lines& lines, const Operand& operand) {
  constexpr int64_t kFewPositions = 8;
  if (loops() == nullptr) return "the CPU has neither AVX-512 nor AVX2 with FMA";
  if (operand.size() == 0) return "a tensor without elements";
  if (lines.stride == 1) return "the axis is the innermost dim";
  return lines.stride < kFewPositions ? "rows of few positions" : "";
}

namespace {

/// What the gradients of a block take.
struct Factors {
  Room<float> factor;
  Room<double> own;  // of the label: (p − 1)·factor
  Room<uint32_t> keep;

  /// `log_prob(i, label)` gives that of the label of position i.
  template <class LogProb>
  Factors(const LossPlan& plan, const Upstream& upstream, const KernelBuffers& buffers,
          double divisor, const Block& block, const LogProb& log_prob) {
    for (int64_t i = 0; i < block.count; ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t label = plan.label_at(buffers, block.line + i);
      keep[at] = plan.is_ignored(label) ? 0 : ~uint32_t{0};
      factor[at] = 0;
      if (keep[at] == 0) continue;
      const double exact = upstream.at(plan, buffers, divisor, block.line + i);
      factor[at] = static_cast<float>(exact);
      own[at] = (static_cast<double>(std::exp(log_prob(i, label))) - 1) * exact;
    }
  }

  template <class U>
  void write_own(const LossPlan& plan, const KernelBuffers& buffers, const Block& block,
                 U* dx) const {
    for (int64_t i = 0; i < block.count; ++i) {
      const auto at = static_cast<size_t>(i);
      if (keep[at] == 0) continue;
      const int64_t label = plan.label_at(buffers, block.line + i);
      dx[block.first + label * block.stride + i] = store<U>(static_cast<float>(own[at]));
    }
  }
};

template <class T>
void write_losses(const LossPlan& plan, const KernelBuffers& buffers, const Block& block,
                  const T* x, const LogSums& sums, const double* weights, double* losses) {
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t position = block.line + i, label = plan.label_at(buffers, position);
    losses[position] = 0;
    if (plan.is_ignored(label)) continue;
    const float score = load(x[block.first + label * block.stride + i]);
    losses[position] = weights[position] * -sums.of(score, static_cast<size_t>(i));
  }
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const LossPlan& plan, size_t losses_offset,
                        size_t workspace) {
  const bool with_log_prob = call.has_output(1);
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const double divisor = plan.prepare_weights(buffers);
    const auto* weights = part<double>(buffers, plan.weights_offset);
    auto* losses = part<double>(buffers, losses_offset);
    const T* x = buffers.in<T>(0);
    for_blocks(plan.lines, threads, [&](const Block& block) {
      const LogSums sums(x, block, plan.lines.length);
      write_losses(plan, buffers, block, x, sums, weights, losses);
      if (!with_log_prob) return;
      for_rows(x, block, plan.lines.length, [&](int64_t c, const float* row) {
        write_row(buffers.out<T>(1), block, c, [&](float* y) { sums.of_row(row, block.count, y); });
      });
    });
    write_loss(plan, buffers, type, losses, divisor);
  };
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input == 0 && output == 1; });
}

Prepared prepare_forward(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossForwardPlan planned = plan_loss_forward(call, workspace);
  if (std::string why = loss_forward_refusal(call, planned.loss); !why.empty())
    return Prepared::no(why);
  if (std::string why = lines_refusal(planned.loss.lines, call.inputs[0]); !why.empty())
    return Prepared::no(why);
  return fast::for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return forward_kernel<T>(call, planned.loss, planned.losses_offset, workspace.size());
  });
}

/// dX = (exp(log_prob) − [c = label])·factor.
template <class T>
Prepared gradient_kernel(const KernelCall& call, const LossPlan& plan, size_t workspace) {
  const auto body = [=, upstream = plan_upstream(call, plan),
                     threads = call.threads](const KernelBuffers& buffers) {
    const double divisor = plan.prepare_weights(buffers);
    const T* log_prob = buffers.in<T>(1);
    T* dx = buffers.out<T>(0);
    for_blocks(plan.lines, threads, [&](const Block& block) {
      const Factors f(plan, upstream, buffers, divisor, block, [&](int64_t i, int64_t label) {
        return load(log_prob[block.first + label * block.stride + i]);
      });
      for_rows(log_prob, block, plan.lines.length, [&](int64_t c, const float* row) {
        write_row(dx, block, c, [&](float* y) {
          loops()->scaled_exponentials(row, block.count, f.factor.data(), f.keep.data(), y);
        });
      });
      f.write_own(plan, buffers, block, dx);
    });
  };
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input == 1 && output == 0; });
}

Prepared prepare_gradient(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossPlan plan = plan_cross_entropy_grad(call, workspace);
  if (std::string why = cross_entropy_grad_refusal(call, plan); !why.empty())
    return Prepared::no(why);
  if (std::string why = lines_refusal(plan.lines, call.inputs[1]); !why.empty())
    return Prepared::no(why);
  return fast::for_small_float(call.inputs[1].dtype, [&]<class T>() {
    return gradient_kernel<T>(call, plan, workspace.size());
  });
}

/// What forward and gradient do behind each other, bit for bit.
template <class T, class U>
Prepared both_kernel(const KernelCall& call, const LossAndGradPlan& plan, size_t workspace) {
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const LossPlan& loss = plan.loss;
    const double divisor = loss.prepare_weights(buffers);
    auto* losses = part<double>(buffers, plan.losses_offset);
    const T* x = buffers.in<T>(0);
    U* dx = buffers.out<U>(1);
    for_blocks(loss.lines, threads, [&](const Block& block) {
      const LogSums sums(x, block, loss.lines.length);
      write_losses(loss, buffers, block, x, sums, part<double>(buffers, loss.weights_offset),
                   losses);
      const Factors f(loss, plan.upstream, buffers, divisor, block, [&](int64_t i, int64_t label) {
        const float score = load(x[block.first + label * block.stride + i]);
        return static_cast<float>(sums.of(score, static_cast<size_t>(i)));
      });
      for_rows(x, block, loss.lines.length, [&](int64_t c, const float* row) {
        write_row(dx, block, c, [&](float* y) {
          if (sums.far) {
            sums.of_row(row, block.count, y);
            loops()->scaled_exponentials(y, block.count, f.factor.data(), f.keep.data(), y);
          } else {
            loops()->shifted_exponentials(row, block.count, sums.first.data(), f.factor.data(),
                                          f.keep.data(), y);
          }
        });
      });
      f.write_own(loss, buffers, block, dx);
    });
    write_loss(loss, buffers, type, losses, divisor);
  };
  return make_kernel(body, workspace, [](size_t input, size_t output) {
    return input == 0 && output == 1 && sizeof(T) == sizeof(U);
  });
}

Prepared prepare_both(const KernelCall& call) {
  WorkspacePlan workspace;
  const LossAndGradPlan plan = plan_loss_and_grad(call, workspace);
  if (std::string why = loss_and_grad_refusal(call, plan.loss); !why.empty())
    return Prepared::no(why);
  if (std::string why = lines_refusal(plan.loss.lines, call.inputs[0]); !why.empty())
    return Prepared::no(why);
  if (plan.loss.lines.padding > 0) return Prepared::no("padding behind the classes");
  return fast::for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return fast::for_small_float(call.outputs[1].dtype, [&]<class U>() {
      return both_kernel<T, U>(call, plan, workspace.size());
    });
  });
}

}  // namespace

std::vector<KernelRow> cross_entropy_rows() {
  constexpr std::string_view kName = "fast.cross_entropy_planes";
  return {
      {"ai.halfnote", "SoftmaxCrossEntropyLossWithGradient", kName, prepare_both},
      {"", "SoftmaxCrossEntropyLoss", kName, prepare_forward},
      {"ai.halfnote", "SoftmaxCrossEntropyLossGrad", kName, prepare_gradient},
  };
}

}  // namespace halfnote::cpu::planes
