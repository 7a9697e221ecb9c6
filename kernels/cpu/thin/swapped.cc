// The gradients of convolutions of few filters with stride 1, as other convolutions whose many
// channels are where oneDNN takes them sixteen at a time, with the kernel turned around:
//
//   dX = Conv(dY, W')    W'(C, F, k) = W(F, C, K − 1 − k), padded by what is left of K − 1
//
//   dW(F, C, k) = dW'(C, F, K − 1 − k)    of the convolution that leads from dY to X
//
// The inner convolutions are prepared like any others, so their layouts are those of oneDNN.
#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/thin/rows.h"

namespace halfnote::cpu::thin {

namespace {

constexpr std::string_view kName = "onednn.conv_swapped";

/// Multiply-adds/ns of one core of an Intel Xeon in f32, oneDNN / so, plain and with X in channel
/// blocks (halfnote-bench-convs):
///   16 -> 3 channels, 9×9, on 72×72    dX 15 / 78, 16 / 89    dW 14 / 35
///   64 -> 3, 7×7, on 64×64             dX 15 / 73, 16 / 91    dW 14 / 61, 15 / 74
///   64 -> 3, 3×3, on 64×64             dX 13 / 40, 15 / 84    dW 12 / 40, 15 / 78
///   32 -> 1, 3×3, on 16×16             dX  5 / 27,  6 / 54    dW  5 / 29,  5 / 60
std::string refusal(const KernelCall& call, const ConvPlan& plan) {
  constexpr int64_t kFewFilters = 4, kManyChannels = 12, kFewTaps = 4;
  constexpr ConvPlan::Dims kOnes{1, 1, 1};
  if (plan.groups != 1 || plan.stride != kOnes) return "several groups, or a stride";
  if (plan.filters > kFewFilters || plan.channels < kManyChannels) return "many filters";
  if (plan.kernel_size() < kFewTaps) return "a kernel of few taps";
  if (plan.x_size() == 0 || plan.y_size() == 0) return "an operand without elements";
  for (size_t d = 0; d < 3; ++d) {
    const int64_t span = (plan.kernel[d] - 1) * plan.dilation[d];
    if (plan.pad_begin[d] > span || plan.pad_end[d] > span) return "pads beyond the kernel";
  }
  if (call.inputs[0].dtype != call.inputs[1].dtype) return "operands of different types";
  return {};
}

Attributes attributes_for(const ConvPlan& plan) {
  std::vector<int64_t> dilations, begin, end, kernel;
  for (size_t d = 3 - plan.spatial; d < 3; ++d) {
    const int64_t span = (plan.kernel[d] - 1) * plan.dilation[d];
    dilations.push_back(plan.dilation[d]);
    kernel.push_back(plan.kernel[d]);
    begin.push_back(span - plan.pad_begin[d]);
    end.push_back(span - plan.pad_end[d]);
  }
  begin.insert(begin.end(), end.begin(), end.end());
  return {{"strides", std::vector<int64_t>(plan.spatial, 1)},
          {"dilations", dilations},
          {"kernel_shape", kernel},
          {"pads", begin},
          {"group", int64_t{1}}};
}

Shape swapped_shape(Shape shape) {
  std::swap(shape[0], shape[1]);
  return shape;
}

/// (A, B, k) to (B, A, K − 1 − k).
template <class T>
void swap_weights(const T* from, int64_t a, int64_t b, int64_t taps, T* to) {
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      for (int64_t k = 0; k < taps; ++k)
        to[(j * a + i) * taps + taps - 1 - k] = from[(i * b + j) * taps + k];
    }
  }
}

/// A kernel of oneDNN for the inner call. Its attributes need not outlive the call.
Prepared inner_kernel(const KernelCall& call) {
  std::string refused;
  for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op)) {
    if (!row->name.starts_with("onednn.conv") || row->name == kName) continue;
    Prepared prepared = row->prepare(call);
    if (prepared) return prepared;
    refused += prepared.refusal + "; ";
  }
  return Prepared::no("no inner kernel: " + refused);
}

Prepared prepare_input(const KernelCall& call) {
  const ConvPlan plan = plan_conv_grad_input(call);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  const Attributes attributes = attributes_for(plan);
  Operand w = call.inputs[1];
  w.shape = swapped_shape(w.shape);
  w.constant = nullptr;
  KernelCall inner{.domain = "", .op = "Conv", .attributes = &attributes};
  inner.threads = call.threads;
  inner.inputs = {call.inputs[0], w};
  inner.outputs = {call.outputs[0]};
  Prepared kernel = inner_kernel(inner);
  if (!kernel) return kernel;
  const size_t room = aligned(kernel.kernel->workspace_bytes());
  const size_t bytes = static_cast<size_t>(w.size()) * size_of(w.dtype);
  std::shared_ptr<const Kernel> conv = std::move(kernel.kernel);
  return for_element_size(w.dtype, [&]<class T>() {
    return make_kernel(
        [=](const KernelBuffers& buffers) {
          T* turned = part<T>(buffers, room);
          swap_weights(buffers.in<T>(1), plan.filters, plan.channels, plan.kernel_size(), turned);
          const std::array inputs{buffers.inputs[0], reinterpret_cast<const std::byte*>(turned)};
          conv->run({inputs, buffers.outputs, buffers.workspace});
        },
        room + bytes);
  });
}

Prepared prepare_weight(const KernelCall& call) {
  const ConvPlan plan = plan_conv_grad_weight(call);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  Attributes attributes = attributes_for(plan);
  attributes.set("out_dtype", static_cast<int64_t>(call.outputs[0].dtype));
  Operand dw = call.outputs[0];
  dw.shape = swapped_shape(dw.shape);
  KernelCall inner{.domain = call.domain, .op = call.op, .attributes = &attributes};
  inner.threads = call.threads;
  inner.inputs = {call.inputs[1], call.inputs[0]};
  inner.outputs = {dw};
  Prepared kernel = inner_kernel(inner);
  if (!kernel) return kernel;
  const size_t room = aligned(kernel.kernel->workspace_bytes());
  const size_t bytes = static_cast<size_t>(dw.size()) * size_of(dw.dtype);
  std::shared_ptr<const Kernel> conv = std::move(kernel.kernel);
  return for_element_size(dw.dtype, [&]<class T>() {
    return make_kernel(
        [=](const KernelBuffers& buffers) {
          T* turned = part<T>(buffers, room);
          const std::array inputs{buffers.inputs[1], buffers.inputs[0]};
          const std::array outputs{reinterpret_cast<std::byte*>(turned)};
          conv->run({inputs, outputs, buffers.workspace});
          swap_weights(turned, plan.channels, plan.filters, plan.kernel_size(), buffers.out<T>(0));
        },
        room + bytes);
  });
}

}  // namespace

std::vector<KernelRow> swapped_rows() {
  return {
      {"ai.halfnote", "ConvGradInput", kName, prepare_input},
      {"ai.halfnote", "ConvGradWeight", kName, prepare_weight},
  };
}

}  // namespace halfnote::cpu::thin

namespace halfnote::cpu::blocked {

namespace {

/// dX as it comes.
BlockedOperands swapped_input(const KernelCall& call) {
  BlockedOperands found;
  if (fit(call, 0, 0b1)) found.outputs = 0b1;
  found.preferred = found.outputs != 0;
  return found;
}

/// X as it comes.
BlockedOperands swapped_weight(const KernelCall& call) {
  BlockedOperands found;
  if (fit(call, 0b10, 0)) found.inputs = 0b10;
  found.preferred = found.inputs != 0;
  return found;
}

}  // namespace

std::vector<BlockedRow> swapped_rows() {
  std::vector<BlockedRow> rows;
  for (const KernelRow& plain : thin::swapped_rows()) {
    const auto operands = plain.op == "ConvGradInput" ? swapped_input : swapped_weight;
    rows.push_back(
        {{plain.domain, plain.op, "blocked.conv_swapped", plain.prepare}, plain.name, operands});
  }
  return rows;
}

}  // namespace halfnote::cpu::blocked
