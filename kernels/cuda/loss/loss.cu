// SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and their gradients.
#include "kernels/cuda/families.h"
#include "kernels/cuda/loss/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::model_error;
using cpu::part;

constexpr unsigned kLossBlock = 128;

struct WeighPosition {
  DeviceLoss loss;
  __device__ void operator()(int64_t position) const {
    const int64_t label = loss.labels.raw(position);
    double weight = 0;
    if (loss.counts(label)) {
      if (label < 0 || label >= loss.lines.length) {
        loss.note_bad(label, position);
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

/// So many labels a block reads in the time that another launch takes.
constexpr int64_t kFewPositions = 4096;

/// The weights and their sum, in the order of find_divisor.
__global__ void __launch_bounds__(kBlock) weigh_few(WeighPosition weigh) {
  const DeviceLoss& loss = weigh.loss;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < loss.lines.count; i += kBlock) {
    weigh(i);
    sum += loss.weights[i];
  }
  sum = merge_block<AddNumbers, kBlock>(sum);
  if (threadIdx.x == 0) *loss.divisor = loss.mean ? sum : 1;
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
    // Apart: beside a largest of -FLT_MAX f64 would lose the logarithm.
    const double rest = math::log(merge_block<AddNumbers, kLossBlock>(sum));
    if (threadIdx.x == 0) {
      const int64_t label = loss.labels.raw(position);
      losses[position] = 0;
      if (loss.counts(label) && loss.inside(label)) {
        losses[position] =
            loss.weights[position] * ((largest - load_number(x[label * lines.stride])) + rest);
      }
    }
    if (log_prob == nullptr) continue;
    T* to = log_prob + loss.start(position);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLossBlock) {
      const double value = (load_number(x[i * lines.stride]) - largest) - rest;
      to[i * lines.stride] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

template <class T>
struct LossGradient {
  DeviceLoss loss;
  DeviceUpstream upstream;
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
    const double factor = upstream.at(loss, position);
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
    losses[position] = 0;
    if (!loss.counts(label) || !loss.inside(label)) return;
    const int64_t at = loss.start(position) + label * loss.lines.stride;
    losses[position] = -loss.weights[position] * load_number(log_prob[at]);
  }
};

template <class T>
struct LogLikelihoodGradient {
  DeviceLoss loss;
  DeviceUpstream upstream;
  T* dx;
  __device__ void operator()(int64_t i) const {
    const int64_t stride = loss.lines.stride, block = loss.lines.length * stride;
    const int64_t position = i / block * stride + i % stride, category = i % block / stride;
    const int64_t label = loss.labels.raw(position);
    double value = 0;
    if (loss.counts(label) && category == label) value = -upstream.at(loss, position);
    dx[i] = store_number<T>(static_cast<Math<T>>(value));
  }
};

}  // namespace

DeviceLoss PlannedLoss::on_device(const KernelBuffers& buffers) const {
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

void PlannedLoss::weigh(const KernelBuffers& buffers, const DeviceLoss& loss) const {
  if (plan.lines.count <= kFewPositions)
    return launch(stream_of(buffers), weigh_few, 1, kBlock, 0, WeighPosition{loss});
  for_each(stream_of(buffers), plan.lines.count, WeighPosition{loss});
  launch(stream_of(buffers), find_divisor, 1, kBlock, 0, loss);
}

void PlannedLoss::reduce(const KernelBuffers& buffers, const DeviceLoss& loss, const double* losses,
                         DType type) const {
  const RealOutput y{buffers.outputs[0], type};
  if (plan.reduction == LossPlan::Reduction::kNone) {
    for_each(stream_of(buffers), loss.lines.count, WriteLoss{losses, y});
  } else {
    launch(stream_of(buffers), sum_losses, 1, kBlock, 0, loss, losses, y);
  }
}

namespace {

/// What the plans of the kernels below have in common.
struct LossCall {
  PlannedLoss planned;
  cpu::Upstream upstream;
  size_t losses_offset = 0, workspace = 0;
  std::string refusal;
};

LossCall plan_forward(const KernelCall& call, const char* what) {
  if (!call.has_input(0)) throw model_error(call, std::string(what) + " are missing");
  cpu::WorkspacePlan workspace;
  LossCall made{{cpu::plan_loss(call, call.inputs[0].shape, 1, 2, workspace)}, {}, 0, 0, {}};
  cpu::check_loss_output(call, made.planned.plan);
  made.refusal = cpu::loss_type_refusal(call, made.planned.plan);
  made.planned.divisor_offset = workspace.add_elements<double>(1);
  made.losses_offset = workspace.add_elements<double>(made.planned.plan.lines.count);
  made.workspace = workspace.size();
  return made;
}

LossCall plan_gradient(const KernelCall& call, const Shape& scores, size_t label_input) {
  cpu::WorkspacePlan workspace;
  LossCall made{
      {cpu::plan_loss(call, scores, label_input, label_input + 1, workspace)}, {}, 0, 0, {}};
  made.upstream = cpu::plan_upstream(call, made.planned.plan);
  made.refusal = cpu::loss_type_refusal(call, made.planned.plan);
  if (made.refusal.empty() && !cpu::is_real(call.inputs[0].dtype)) made.refusal = "dL is no float";
  made.planned.divisor_offset = workspace.add_elements<double>(1);
  made.workspace = workspace.size();
  return made;
}

Prepared prepare_cross_entropy(const KernelCall& call) {
  const LossCall made = plan_forward(call, "the scores");
  if (!made.refusal.empty()) return Prepared::no(made.refusal);
  if (call.has_output(1) && call.outputs[1].dtype != call.inputs[0].dtype) {
    return Prepared::no("log_prob of another type than the scores");
  }
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [made, type = call.outputs[0].dtype](const KernelBuffers& buffers) {
      const DeviceLoss loss = made.planned.on_device(buffers);
      made.planned.weigh(buffers, loss);
      auto* losses = part<double>(buffers, made.losses_offset);
      const int64_t blocks = std::min<int64_t>(loss.lines.count, kMaxBlocks);
      launch(stream_of(buffers), loss_lines<T>, static_cast<unsigned>(blocks), kLossBlock, 0, loss,
             buffers.in<T>(0), losses, buffers.out<T>(1));
      made.planned.reduce(buffers, loss, losses, type);
    };
    return make_kernel(body, made.workspace);
  });
}

Prepared prepare_cross_entropy_grad(const KernelCall& call) {
  if (!call.has_input(1)) throw model_error(call, "the log-probabilities are missing");
  const LossCall made = plan_gradient(call, call.inputs[1].shape, 2);
  if (!made.refusal.empty()) return Prepared::no(made.refusal);
  if (call.outputs[0].dtype != call.inputs[1].dtype)
    return Prepared::no("log_prob and dX of different types");
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto body = [made, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const DeviceLoss loss = made.planned.on_device(buffers);
      made.planned.weigh(buffers, loss);
      for_each(stream_of(buffers), count,
               LossGradient<T>{loss, on_device(made.upstream, buffers), buffers.in<T>(1),
                               buffers.out<T>(0)});
    };
    return make_kernel(body, made.workspace);
  });
}

Prepared prepare_log_likelihood(const KernelCall& call) {
  const LossCall made = plan_forward(call, "the log-probabilities");
  if (!made.refusal.empty()) return Prepared::no(made.refusal);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [made, type = call.outputs[0].dtype](const KernelBuffers& buffers) {
      const DeviceLoss loss = made.planned.on_device(buffers);
      made.planned.weigh(buffers, loss);
      auto* losses = part<double>(buffers, made.losses_offset);
      for_each(stream_of(buffers), loss.lines.count,
               LogLikelihood<T>{loss, buffers.in<T>(0), losses});
      made.planned.reduce(buffers, loss, losses, type);
    };
    return make_kernel(body, made.workspace);
  });
}

Prepared prepare_log_likelihood_grad(const KernelCall& call) {
  if (!call.has_output(0)) throw model_error(call, "dX is missing");
  const LossCall made = plan_gradient(call, call.outputs[0].shape, 1);
  if (!made.refusal.empty()) return Prepared::no(made.refusal);
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [made, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const DeviceLoss loss = made.planned.on_device(buffers);
      made.planned.weigh(buffers, loss);
      for_each(
          stream_of(buffers), count,
          LogLikelihoodGradient<T>{loss, on_device(made.upstream, buffers), buffers.out<T>(0)});
    };
    return make_kernel(body, made.workspace);
  });
}

}  // namespace

std::vector<KernelRow> loss_rows() {
  return {
      {"", "NegativeLogLikelihoodLoss", "own.log_likelihood", prepare_log_likelihood},
      {"", "SoftmaxCrossEntropyLoss", "own.cross_entropy", prepare_cross_entropy},
      {"ai.halfnote", "NegativeLogLikelihoodLossGrad", "own.log_likelihood",
       prepare_log_likelihood_grad},
      {"ai.halfnote", "SoftmaxCrossEntropyLossGrad", "own.cross_entropy",
       prepare_cross_entropy_grad},
  };
}

std::vector<KernelRow> loss_kernels() {
  std::vector<KernelRow> all = loss_rows();
  for (const KernelRow& row : loss_and_grad_rows()) all.push_back(row);
  for (const KernelRow& row : count_rows()) all.push_back(row);
  return all;
}

}  // namespace halfnote::HN_CUDA
