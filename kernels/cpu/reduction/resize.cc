// Resize and ResizeGrad: one axis after the other, each result a weighted sum of a few elements
// (base/ops/resample.h). The gradient runs the same loops on the transposed weights.
#include "kernels/cpu/reduction/resize.h"

#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/parts.h"

namespace halfnote::cpu {

namespace {

template <class From, class To>
void apply(const ResizePass& pass, const From* from, To* to, double outside, int threads) {
  const int64_t rows = pass.outer * pass.taps.outputs();
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, pass.inner));
  parallel_blocks(rows, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto at = static_cast<size_t>(row % pass.taps.outputs());
      const From* x = from + row / pass.taps.outputs() * pass.taps.inputs * pass.inner;
      To* y = to + row * pass.inner;
      const auto first = static_cast<size_t>(pass.taps.starts[at]);
      const auto last = static_cast<size_t>(pass.taps.starts[at + 1]);
      const bool extrapolated = !pass.taps.outside.empty() && pass.taps.outside[at] != 0;
      for (int64_t i = 0; i < pass.inner; ++i) {
        double sum = extrapolated ? outside : 0;
        for (size_t k = first; k < last; ++k) {
          sum += pass.taps.weights[k] * load(x[pass.taps.sources[k] * pass.inner + i]);
        }
        y[i] = store<To>(static_cast<Math<To>>(sum));
      }
    }
  });
}

template <class T>
void run(const ResizePlan& plan, const size_t (&offsets)[2], const KernelBuffers& buffers,
         int threads) {
  using M = Math<T>;
  const T* from = buffers.in<T>(0);
  T* to = buffers.out<T>(0);
  const size_t count = plan.passes.size();
  if (count == 0) {
    std::copy_n(from, plan.size, to);
    return;
  }
  const auto between = [&](size_t i) { return part<M>(buffers, offsets[i % 2]); };
  for (size_t i = 0; i < count; ++i) {
    const ResizePass& pass = plan.passes[i];
    const bool first = i == 0, last = i + 1 == count;
    if (first && last) apply(pass, from, to, plan.extrapolation, threads);
    if (first && !last) apply(pass, from, between(i), plan.extrapolation, threads);
    if (!first && last) apply(pass, between(i - 1), to, plan.extrapolation, threads);
    if (!first && !last) apply(pass, between(i - 1), between(i), plan.extrapolation, threads);
  }
}

Prepared make_resize(const KernelCall& call, ResizePlan plan) {
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    WorkspacePlan workspace;
    const size_t first = workspace.add_elements<Math<T>>(plan.between(0));
    const size_t second = workspace.add_elements<Math<T>>(plan.between(1));
    return make_kernel(
        [=, plan = std::move(plan), threads = call.threads](const KernelBuffers& buffers) {
          run<T>(plan, {first, second}, buffers, threads);
        },
        workspace.size());
  });
}

/// The passes that take a tensor of shape `from` along these axes.
std::vector<ResizePass> passes_of(const Attributes& attributes, const std::vector<AxisResize>& axes,
                                  Shape from, bool backward) {
  std::vector<ResizePass> passes;
  for (const AxisResize& axis : axes) {
    ResizePass pass;
    pass.taps = resize_taps(attributes, axis);
    if (backward) pass.taps = transposed(pass.taps);
    const std::span<const int64_t> dims(from);
    pass.axis = axis.axis;
    pass.outer = element_count(dims.first(axis.axis));
    pass.inner = element_count(dims.subspan(axis.axis + 1));
    from[axis.axis] = pass.taps.outputs();
    passes.push_back(std::move(pass));
  }
  return passes;
}

std::vector<double> numbers_of(const Operand& operand) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < operand.constant->size(); ++i) {
    numbers.push_back(operand.constant->at_as_double(i));
  }
  return numbers;
}

std::string plan_passes(const KernelCall& call, const ResizeOperands& operands, const Shape& input,
                        const Shape& output, bool backward, ResizePlan& plan) {
  const Attributes& attributes = attributes_of(call);
  if (call.inputs[0].dtype != call.outputs[0].dtype) {
    return "operand and result of different types";
  }
  if (input.size() != output.size()) throw model_error(call, "operand and result differ in rank");
  const auto axes = resized_axes(attributes, operands, input, output);
  plan.passes = passes_of(attributes, axes, backward ? output : input, backward);
  plan.extrapolation = backward ? 0 : attributes.get_float("extrapolation_value", 0);
  plan.size = call.inputs[0].size();
  return {};
}

template <std::string (*kPlan)(const KernelCall&, ResizePlan&)>
Prepared prepare(const KernelCall& call) {
  ResizePlan plan;
  if (std::string why = kPlan(call, plan); !why.empty()) return Prepared::no(why);
  return make_resize(call, std::move(plan));
}

}  // namespace

int64_t ResizePlan::between(size_t buffer) const {
  int64_t largest = 0;
  for (size_t i = buffer; i + 1 < passes.size(); i += 2) {
    largest = std::max(largest, passes[i].results());
  }
  return largest;
}

std::string plan_resize(const KernelCall& call, ResizePlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    const bool used = call.inputs[i].present() && call.inputs[i].size() > 0;
    if (used && call.inputs[i].constant == nullptr) {
      return "roi, scales or sizes are computed by the model: constants are needed";
    }
  }
  const auto used = [&](size_t i) { return call.has_input(i) && call.inputs[i].size() > 0; };
  ResizeOperands operands;
  if (used(1)) operands.roi = numbers_of(call.inputs[1]);
  if (used(2)) operands.scales = numbers_of(call.inputs[2]);
  if (used(3)) operands.sizes = call.inputs[3].constant->to_ints();
  return plan_passes(call, operands, call.inputs[0].shape, call.outputs[0].shape, false, plan);
}

std::string plan_resize_grad(const KernelCall& call, ResizePlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "dY or dX is missing");
  const Attributes& attributes = attributes_of(call);
  ResizeOperands operands;
  for (const float x : attributes.get_floats("roi", {})) operands.roi.push_back(x);
  for (const float x : attributes.get_floats("scales", {})) operands.scales.push_back(x);
  operands.sizes = attributes.get_ints("sizes", {});
  return plan_passes(call, operands, call.outputs[0].shape, call.inputs[0].shape, true, plan);
}

std::vector<KernelRow> resize_rows() {
  return {
      {"", "Resize", "reference", prepare<plan_resize>},
      {"ai.halfnote", "ResizeGrad", "reference", prepare<plan_resize_grad>},
  };
}

}  // namespace halfnote::cpu
