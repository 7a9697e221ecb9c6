// SoftmaxCrossEntropyLoss, its gradient, both at once, and LogSoftmax, where the classes are the
// innermost dim: exponentials in vectors of f32, a line in pieces that stay in the first-level
// cache. The sum of a line is that of
// its pieces in f64, in order, the losses are added up in order: the same bits on any number of
// threads.
#include <array>
#include <cmath>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/loss/plan.h"
#include "kernels/cpu/pointwise/loops.h"

namespace halfnote::cpu::fast {

namespace {

using pointwise::Loops;
using pointwise::vector_loops;

/// Elements that are converted and processed at a time.
constexpr int64_t kPiece = 2048;
using Room = std::array<float, kPiece>;

/// Calls `body(x, at, count)` for the pieces of a line, in f32.
template <class T, class Body>
void for_pieces(const T* line, int64_t length, Body&& body) {
  Room room;
  for (int64_t at = 0; at < length; at += kPiece) {
    const int64_t count = std::min(kPiece, length - at);
    body(load_block(line + at, count, room.data()), at, count);
  }
}

/// Is a line so far away that f64 would lose the logarithm beside the largest?
bool is_far(const LogSumExp& sum) { return std::abs(sum.most) > 1e7; }

/// The logarithm of Σ exp(x) over one line, which is read once: each piece is summed against its
/// own maximum, and the sums are brought to the largest so far.
template <class T>
LogSumExp log_sum_exp(const Loops& loops, const T* line, int64_t length) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float most = kNone;
  double sum = 0;
  for_pieces(line, length, [&](const float* x, int64_t, int64_t count) {
    const float own = loops.maximum(x, count);
    if (own == kNone) {  // adds nothing, but may hold a NaN, which maximum() passes over
      sum += loops.sum_exponentials(x, count, 0);
      return;
    }
    const double added = loops.sum_exponentials(x, count, own);
    const float larger = own > most || own != own ? own : most;
    sum = sum * std::exp(static_cast<double>(most) - larger) +
          added * std::exp(static_cast<double>(own) - larger);
    most = larger;
  });
  return {static_cast<double>(most), std::log(sum)};
}

/// y = x − the logarithm.
void subtract(const Loops& loops, const float* x, int64_t count, const LogSumExp& from, float* y) {
  if (!is_far(from)) return loops.subtract(x, count, from.sum(), y);
  loops.subtract(x, count, from.most, y);
  loops.subtract(y, count, from.rest, y);
}

template <class T>
void write_log_prob(const Loops& loops, const T* line, int64_t length, const LogSumExp& log_sum,
                    T* to) {
  Room room;
  for_pieces(line, length, [&](const float* x, int64_t at, int64_t count) {
    float* result = result_block(to + at, room.data());
    subtract(loops, x, count, log_sum, result);
    store_block(result, count, to + at);
  });
}

/// What forward and backward refuse alike.
std::string refusal(const LossPlan& plan, const Operand& scores) {
  if (vector_loops() == nullptr) return "the CPU has neither AVX-512 nor AVX2 with FMA";
  if (plan.lines.stride != 1) return "the classes are not the innermost dim";
  return scores.size() == 0 ? "a tensor without elements" : "";
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const LossPlan& plan, size_t losses_offset,
                        size_t workspace) {
  const bool with_log_prob = call.has_output(1);
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const Loops& loops = *vector_loops();
    const double divisor = plan.prepare_weights(buffers);
    const auto* weights = part<double>(buffers, plan.weights_offset);
    auto* losses = part<double>(buffers, losses_offset);
    parallel_blocks(plan.lines.count, plan.lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t position = begin; position < end; ++position) {
        const int64_t start = plan.lines.start(position), length = plan.lines.length;
        const T* x = buffers.in<T>(0) + start;
        const LogSumExp log_sum = log_sum_exp(loops, x, length);
        const int64_t label = plan.label_at(buffers, position);
        losses[position] =
            plan.is_ignored(label) ? 0 : weights[position] * -log_sum.of(load(x[label]));
        if (with_log_prob) write_log_prob(loops, x, length, log_sum, buffers.out<T>(1) + start);
      }
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
  if (std::string why = refusal(planned.loss, call.inputs[0]); !why.empty())
    return Prepared::no(why);
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return forward_kernel<T>(call, planned.loss, planned.losses_offset, workspace.size());
  });
}

/// dX = (exp(log_prob) − [c = label])·factor over one line.
template <class T>
void gradient_line(const Loops& loops, const T* log_prob, int64_t length, int64_t label,
                   double factor, T* dx) {
  const double own =
      (static_cast<double>(std::exp(load(log_prob[label]))) - 1) * factor;  // before dX is written
  Room room;
  for_pieces(log_prob, length, [&](const float* x, int64_t at, int64_t count) {
    float* result = result_block(dx + at, room.data());
    loops.scaled_exponentials(x, count, static_cast<float>(factor), result);
    store_block(result, count, dx + at);
  });
  dx[label] = store<T>(static_cast<float>(own));
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const LossPlan& plan, size_t workspace) {
  const auto body = [=, upstream = plan_upstream(call, plan),
                     threads = call.threads](const KernelBuffers& buffers) {
    const Loops& loops = *vector_loops();
    const double divisor = plan.prepare_weights(buffers);
    parallel_blocks(plan.lines.count, plan.lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t position = begin; position < end; ++position) {
        const int64_t start = plan.lines.start(position), length = plan.lines.length;
        T* dx = buffers.out<T>(0) + start;
        const int64_t label = plan.label_at(buffers, position);
        if (plan.is_ignored(label)) {
          std::fill_n(dx, length, store<T>(0));
        } else {
          gradient_line(loops, buffers.in<T>(1) + start, length, label,
                        upstream.at(plan, buffers, divisor, position), dx);
        }
      }
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
  if (std::string why = refusal(plan, call.inputs[1]); !why.empty()) return Prepared::no(why);
  return for_small_float(call.inputs[1].dtype, [&]<class T>() {
    return gradient_kernel<T>(call, plan, workspace.size());
  });
}

/// From the scores of one line: what forward and gradient do behind each other, bit for bit, a
/// piece at a time, so that no log-probability goes to memory.
template <class T, class U>
void both_line(const Loops& loops, const T* x, int64_t length, int64_t label,
               const LogSumExp& log_sum, double factor, U* dx) {
  const auto own = static_cast<float>(log_sum.of(load(x[label])));
  Room room;
  for_pieces(x, length, [&](const float* piece, int64_t at, int64_t count) {
    float* result = result_block(dx + at, room.data());
    const auto scale = static_cast<float>(factor);
    if (is_far(log_sum)) {
      subtract(loops, piece, count, log_sum, result);
      loops.scaled_exponentials(result, count, scale, result);
    } else {
      loops.shifted_exponentials(piece, count, log_sum.sum(), scale, result);
    }
    store_block(result, count, dx + at);
  });
  dx[label] = store<U>(static_cast<float>((static_cast<double>(std::exp(own)) - 1) * factor));
}

template <class T, class U>
Prepared both_kernel(const KernelCall& call, const LossAndGradPlan& plan, size_t workspace) {
  const auto body = [=, type = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const Loops& loops = *vector_loops();
    const LossPlan& loss = plan.loss;
    const double divisor = loss.prepare_weights(buffers);
    const auto* weights = part<double>(buffers, loss.weights_offset);
    auto* losses = part<double>(buffers, plan.losses_offset);
    parallel_blocks(loss.lines.count, loss.lines.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t position = begin; position < end; ++position) {
        const int64_t start = loss.lines.start(position), length = loss.lines.length;
        const int64_t label = loss.label_at(buffers, position);
        U* dx = buffers.out<U>(1) + start;
        const bool ignored = loss.is_ignored(label);
        losses[position] = 0;
        if (ignored) std::fill_n(dx, length, store<U>(0));
        std::fill_n(dx + length, loss.lines.padding, store<U>(0));
        if (ignored) continue;
        const T* x = buffers.in<T>(0) + start;
        const LogSumExp log_sum = log_sum_exp(loops, x, length);
        losses[position] = weights[position] * -log_sum.of(load(x[label]));
        both_line(loops, x, length, label, log_sum,
                  plan.upstream.at(loss, buffers, divisor, position), dx);
      }
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
  if (std::string why = refusal(plan.loss, call.inputs[0]); !why.empty()) return Prepared::no(why);
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return for_small_float(call.outputs[1].dtype, [&]<class U>() {
      return both_kernel<T, U>(call, plan, workspace.size());
    });
  });
}

/// oneDNN's takes the logarithm of the sum in f32 by a short polynomial: all of a line is too high
/// by up to 1.3e-6, which is most of a loss that has nearly converged.
Prepared prepare_log_softmax(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Operand& x = call.inputs[0];
  if (call.outputs[0].dtype != x.dtype) return Prepared::no("X and Y of different types");
  if (vector_loops() == nullptr)
    return Prepared::no("the CPU has neither AVX-512 nor AVX2 with FMA");
  const Lines lines = lines_along(x.shape, attributes_of(call).get_int("axis", -1));
  if (lines.stride != 1) return Prepared::no("the classes are not the innermost dim");
  if (x.size() == 0) return Prepared::no("a tensor without elements");
  return for_small_float(x.dtype, [&]<class T>() {
    const auto body = [lines, threads = call.threads](const KernelBuffers& buffers) {
      const Loops& loops = *vector_loops();
      parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const T* from = buffers.in<T>(0) + lines.start(line);
          const LogSumExp log_sum = log_sum_exp(loops, from, lines.length);
          write_log_prob(loops, from, lines.length, log_sum, buffers.out<T>(0) + lines.start(line));
        }
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

}  // namespace

std::vector<KernelRow> log_softmax_rows() {
  return {{"", "LogSoftmax", "fast.log_softmax", prepare_log_softmax}};
}

std::vector<KernelRow> cross_entropy_rows() {
  return {
      {"ai.halfnote", "SoftmaxCrossEntropyLossWithGradient", "fast.cross_entropy", prepare_both},
      {"", "SoftmaxCrossEntropyLoss", "fast.cross_entropy", prepare_forward},
      {"ai.halfnote", "SoftmaxCrossEntropyLossGrad", "fast.cross_entropy", prepare_gradient},
  };
}

}  // namespace halfnote::cpu::fast
