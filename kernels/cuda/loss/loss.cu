// SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and their gradients. The weight of each
// position (0 where the label is ignored) and the losses stay in f64 in the workspace; sums run in
// a fixed order.
#include "kernels/cpu/loss/plan.h"

#include "kernels/cuda/families.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::Lines;
using cpu::LossPlan;
using cpu::model_error;
using cpu::part;

constexpr unsigned kLossBlock = 128;

/// A LossPlan as a kernel's argument.
struct DeviceLoss {
  Lines lines;
  bool mean, has_ignored;
  int64_t ignored;
  IndexPointer labels;
  RealPointer class_weights;  // null: all 1
  double* weights;            // of the positions
  double* divisor;
  DeviceFault* fault;

  __device__ bool counts(int64_t label) const { return !has_ignored || label != ignored; }
  __device__ int64_t start(int64_t position) const {
    return position / lines.stride * lines.length * lines.stride + position % lines.stride;
  }
};

struct WeighPosition {
  DeviceLoss loss;
  __device__ void operator()(int64_t position) const {
    const int64_t label = loss.labels.raw(position);
    double weight = 0;
    if (loss.counts(label)) {
      if (label < 0 || label >= loss.lines.length) {
        note_fault(loss.fault, DeviceFault::kLabel, label, loss.lines.length);
      } else {
        weight = loss.class_weights.data == nullptr ? 1 : loss.class_weights[label];
      }
    }
    loss.weights[position] = weight;
  }
};

/// One block: a sum in an order that depends on `count` alone.
__device__ double ordered_sum(const double* values, int64_t count) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlock) sum += values[i];
  return merge_block<AddNumbers, kBlock>(sum);
}

__global__ void __launch_bounds__(kBlock) find_divisor(DeviceLoss loss) {
  const double sum = loss.mean ? ordered_sum(loss.weights, loss.lines.count) : 1;
  if (threadIdx.x == 0) *loss.divisor = sum;
}

__global__ void __launch_bounds__(kBlock)
    sum_losses(DeviceLoss loss, const double* losses, RealOutput y) {
  const double sum = ordered_sum(losses, loss.lines.count);
  if (threadIdx.x == 0) y.write(0, sum / *loss.divisor);
}

struct WriteLoss {
  const double* losses;
  RealOutput y;
  __device__ void operator()(int64_t i) const { y.write(i, losses[i]); }
};

struct KeepLargerScore {
  __device__ static double merge(double a, double b) { return a > b ? a : b; }
};

template <class T>
__global__ void __launch_bounds__(kLossBlock)
    loss_lines(DeviceLoss loss, const T* scores, double* losses, T* log_prob) {
  const Lines lines = loss.lines;
  for (int64_t position = blockIdx.x; position < lines.count; position += gridDim.x) {
    const T* x = scores + loss.start(position);
    double largest = -INFINITY, sum = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLossBlock) {
      const double value = load_number(x[i * lines.stride]);
      largest = value > largest ? value : largest;
    }
    largest = merge_block<KeepLargerScore, kLossBlock>(largest);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLossBlock) {
      const auto distance = static_cast<Math<T>>(load_number(x[i * lines.stride]) - largest);
      sum += math::exp(distance);
    }
    const double log_sum = largest + math::log(merge_block<AddNumbers, kLossBlock>(sum));
    if (threadIdx.x == 0) {
      const int64_t label = loss.labels.raw(position);
      const double weight = loss.weights[position];
      const bool inside = label >= 0 && label < lines.length;
      losses[position] = !loss.counts(label) || !inside
                             ? 0
                             : weight * (log_sum - load_number(x[label * lines.stride]));
    }
    if (log_prob == nullptr) continue;
    T* to = log_prob + loss.start(position);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLossBlock) {
      const double value = load_number(x[i * lines.stride]) - log_sum;
      to[i * lines.stride] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

template <class T>
struct LossGradient {
  DeviceLoss loss;
  RealPointer upstream;
  bool per_position;
  const T* log_prob;
  T* dx;
  __device__ void operator()(int64_t i) const {
    // Position and class of element i.
    const int64_t stride = loss.lines.stride, block = loss.lines.length * stride;
    const int64_t position = i / block * stride + i % stride, category = i % block / stride;
    const int64_t label = loss.labels.raw(position);
    if (!loss.counts(label)) {
      dx[i] = store_number<T>(0);
      return;
    }
    const double factor =
        loss.weights[position] * upstream[per_position ? position : 0] / *loss.divisor;
    const double probability = math::exp(load_number(log_prob[i]));
    const double value = (category == label ? probability - 1 : probability) * factor;
    dx[i] = store_number<T>(static_cast<Math<T>>(value));
  }
};

template <class T>
struct LogLikelihood {
  DeviceLoss loss;
  const T* log_prob;
  double* losses;
  __device__ void operator()(int64_t position) const {
    const int64_t label = loss.labels.raw(position);
    const bool inside = label >= 0 && label < loss.lines.length;
    losses[position] = 0;
    if (!loss.counts(label) || !inside) return;
    const int64_t at = loss.start(position) + label * loss.lines.stride;
    losses[position] = -loss.weights[position] * load_number(log_prob[at]);
  }
};

template <class T>
struct LogLikelihoodGradient {
  DeviceLoss loss;
  RealPointer upstream;
  bool per_position;
  T* dx;
  __device__ void operator()(int64_t i) const {
    const int64_t stride = loss.lines.stride, block = loss.lines.length * stride;
    const int64_t position = i / block * stride + i % stride, category = i % block / stride;
    const int64_t label = loss.labels.raw(position);
    double value = 0;
    if (loss.counts(label) && category == label) {
      value = -loss.weights[position] * upstream[per_position ? position : 0] / *loss.divisor;
    }
    dx[i] = store_number<T>(static_cast<Math<T>>(value));
  }
};

/// The plan, and where its parts of the workspace are.
struct PlannedLoss {
  LossPlan plan;
  size_t divisor_offset = 0;

  DeviceLoss on_device(const KernelBuffers& buffers) const {
    DeviceLoss loss;
    loss.lines = plan.lines;
    loss.mean = plan.reduction == LossPlan::Reduction::kMean;
    loss.has_ignored = plan.ignored.has_value();
    loss.ignored = plan.ignored.value_or(0);
    loss.labels = {buffers.inputs[plan.label_input], plan.label == DType::kI64};
    if (plan.weight != DType::kUndefined) {
      loss.class_weights = {buffers.inputs[plan.weight_input], plan.weight};
    }
    loss.weights = part<double>(buffers, plan.weights_offset);
    loss.divisor = part<double>(buffers, divisor_offset);
    loss.fault = stream_of(buffers).fault();
    return loss;
  }
  void weigh(const KernelBuffers& buffers, const DeviceLoss& loss) const {
    for_each(stream_of(buffers), plan.lines.count, WeighPosition{loss});
    launch(stream_of(buffers), find_divisor, 1, kBlock, 0, loss);
  }
  /// Writes output 0, of type `type`, from the losses of all positions.
  void reduce(const KernelBuffers& buffers, const DeviceLoss& loss, const double* losses,
              DType type) const {
    const RealOutput y{buffers.outputs[0], type};
    if (plan.reduction == LossPlan::Reduction::kNone) {
      for_each(stream_of(buffers), loss.lines.count, WriteLoss{losses, y});
    } else {
      launch(stream_of(buffers), sum_losses, 1, kBlock, 0, loss, losses, y);
    }
  }
};

Prepared prepare_cross_entropy(const KernelCall& call) {
  if (!call.has_input(0)) throw model_error(call, "the scores are missing");
  cpu::WorkspacePlan workspace;
  PlannedLoss planned{cpu::plan_loss(call, call.inputs[0].shape, 1, 2, workspace)};
  cpu::check_loss_output(call, planned.plan);
  if (std::string why = cpu::loss_type_refusal(call, planned.plan); !why.empty())
    return Prepared::no(why);
  if (call.has_output(1) && call.outputs[1].dtype != call.inputs[0].dtype) {
    return Prepared::no("log_prob of another type than the scores");
  }
  planned.divisor_offset = workspace.add_elements<double>(1);
  const size_t losses_offset = workspace.add_elements<double>(planned.plan.lines.count);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [planned, losses_offset,
                       type = call.outputs[0].dtype](const KernelBuffers& buffers) {
      const DeviceLoss loss = planned.on_device(buffers);
      planned.weigh(buffers, loss);
      auto* losses = part<double>(buffers, losses_offset);
      const int64_t blocks = std::min<int64_t>(loss.lines.count, kMaxBlocks);
      launch(stream_of(buffers), loss_lines<T>, static_cast<unsigned>(blocks), kLossBlock, 0, loss,
             buffers.in<T>(0), losses, buffers.out<T>(1));
      planned.reduce(buffers, loss, losses, type);
    };
    return make_kernel(body, workspace.size());
  });
}

Prepared prepare_cross_entropy_grad(const KernelCall& call) {
  if (!call.has_input(1)) throw model_error(call, "the log-probabilities are missing");
  cpu::WorkspacePlan workspace;
  PlannedLoss planned{cpu::plan_loss(call, call.inputs[1].shape, 2, 3, workspace)};
  const cpu::Upstream upstream = cpu::plan_upstream(call, planned.plan);
  if (std::string why = cpu::loss_type_refusal(call, planned.plan); !why.empty())
    return Prepared::no(why);
  if (!cpu::is_real(call.inputs[0].dtype)) return Prepared::no("dL is no float");
  if (call.outputs[0].dtype != call.inputs[1].dtype)
    return Prepared::no("log_prob and dX of different types");
  planned.divisor_offset = workspace.add_elements<double>(1);
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto body = [planned, upstream,
                       count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const DeviceLoss loss = planned.on_device(buffers);
      planned.weigh(buffers, loss);
      for_each(stream_of(buffers), count,
               LossGradient<T>{loss,
                               {buffers.inputs[upstream.input], upstream.type},
                               upstream.per_position,
                               buffers.in<T>(1),
                               buffers.out<T>(0)});
    };
    return make_kernel(body, workspace.size());
  });
}

Prepared prepare_log_likelihood(const KernelCall& call) {
  if (!call.has_input(0)) throw model_error(call, "the log-probabilities are missing");
  cpu::WorkspacePlan workspace;
  PlannedLoss planned{cpu::plan_loss(call, call.inputs[0].shape, 1, 2, workspace)};
  cpu::check_loss_output(call, planned.plan);
  if (std::string why = cpu::loss_type_refusal(call, planned.plan); !why.empty())
    return Prepared::no(why);
  planned.divisor_offset = workspace.add_elements<double>(1);
  const size_t losses_offset = workspace.add_elements<double>(planned.plan.lines.count);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [planned, losses_offset,
                       type = call.outputs[0].dtype](const KernelBuffers& buffers) {
      const DeviceLoss loss = planned.on_device(buffers);
      planned.weigh(buffers, loss);
      auto* losses = part<double>(buffers, losses_offset);
      for_each(stream_of(buffers), loss.lines.count,
               LogLikelihood<T>{loss, buffers.in<T>(0), losses});
      planned.reduce(buffers, loss, losses, type);
    };
    return make_kernel(body, workspace.size());
  });
}

Prepared prepare_log_likelihood_grad(const KernelCall& call) {
  if (!call.has_output(0)) throw model_error(call, "dX is missing");
  cpu::WorkspacePlan workspace;
  PlannedLoss planned{cpu::plan_loss(call, call.outputs[0].shape, 1, 2, workspace)};
  const cpu::Upstream upstream = cpu::plan_upstream(call, planned.plan);
  if (std::string why = cpu::loss_type_refusal(call, planned.plan); !why.empty())
    return Prepared::no(why);
  if (!cpu::is_real(call.inputs[0].dtype)) return Prepared::no("dL is no float");
  planned.divisor_offset = workspace.add_elements<double>(1);
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [planned, upstream,
                       count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const DeviceLoss loss = planned.on_device(buffers);
      planned.weigh(buffers, loss);
      for_each(stream_of(buffers), count,
               LogLikelihoodGradient<T>{loss,
                                        {buffers.inputs[upstream.input], upstream.type},
                                        upstream.per_position,
                                        buffers.out<T>(0)});
    };
    return make_kernel(body, workspace.size());
  });
}

}  // namespace

std::vector<KernelRow> loss_kernels() {
  return {
      {"", "NegativeLogLikelihoodLoss", "own.log_likelihood", prepare_log_likelihood},
      {"", "SoftmaxCrossEntropyLoss", "own.cross_entropy", prepare_cross_entropy},
      {"ai.halfnote", "NegativeLogLikelihoodLossGrad", "own.log_likelihood",
       prepare_log_likelihood_grad},
      {"ai.halfnote", "SoftmaxCrossEntropyLossGrad", "own.cross_entropy",
       prepare_cross_entropy_grad},
  };
}

}  // namespace halfnote::HN_CUDA
