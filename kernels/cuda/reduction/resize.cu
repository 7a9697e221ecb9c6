// Resize and ResizeGrad: one axis after the other, a result a thread, each a weighted sum in f64 of
// a few elements. Where each result reads and with which weights is planned on the host (base/ops/
// resample.h) and stands in the table of the step.
#include "kernels/cpu/reduction/resize.h"

#include "kernels/cpu/reals.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/cuda/table_kernel.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::ResizePass;
using cpu::ResizePlan;

/// A tap of a result: its element along the axis, and the weight.
struct Tap {
  double weight;
  int64_t source;
};

/// The taps of an axis, in the table.
struct DevicePass {
  Divisor outputs, inner;
  int64_t inputs;
  const Tap* taps;
  const int64_t* starts;   // of each result's taps; one more at the end
  const uint8_t* outside;  // null: no result is outside of the operand
  double extrapolation;
};

template <class From, class To>
struct ResizeElement {
  const From* from;
  To* to;
  DevicePass pass;
  __device__ void operator()(int64_t i) const {
    const int64_t row = pass.inner.quotient(i), outer = pass.outputs.quotient(row);
    const int64_t at = row - outer * pass.outputs.value(), column = pass.inner.remainder(i);
    const From* x = from + outer * pass.inputs * pass.inner.value() + column;
    double sum = pass.outside != nullptr && pass.outside[at] != 0 ? pass.extrapolation : 0;
    for (int64_t k = pass.starts[at]; k < pass.starts[at + 1]; ++k) {
      const Tap tap = pass.taps[k];
      sum += tap.weight * load_number(x[tap.source * pass.inner.value()]);
    }
    to[i] = store_number<To>(static_cast<Math<To>>(sum));
  }
};

/// What a pass needs, and where that goes in the table.
struct PassTables {
  std::vector<Tap> taps;
  std::vector<int64_t> starts;
  std::vector<uint8_t> outside;
  size_t taps_offset = 0, starts_offset = 0, outside_offset = 0;
  Divisor outputs, inner;
  int64_t inputs = 0, results = 0;
  double extrapolation = 0;

  PassTables(const ResizePlan& plan, const ResizePass& pass, cpu::WorkspacePlan& table)
      : starts(pass.taps.starts),
        outside(pass.taps.outside),
        outputs(pass.taps.outputs()),
        inner(pass.inner),
        inputs(pass.taps.inputs),
        results(pass.results()),
        extrapolation(plan.extrapolation) {
    for (size_t k = 0; k < pass.taps.sources.size(); ++k)
      taps.push_back({pass.taps.weights[k], pass.taps.sources[k]});
    taps_offset = table.add(taps.size() * sizeof(Tap));
    starts_offset = table.add(starts.size() * sizeof(int64_t));
    outside_offset = table.add(outside.size());
  }
  void write(std::byte* to) const {
    std::ranges::copy(taps, reinterpret_cast<Tap*>(to + taps_offset));
    std::ranges::copy(starts, reinterpret_cast<int64_t*>(to + starts_offset));
    std::ranges::copy(outside, reinterpret_cast<uint8_t*>(to + outside_offset));
  }
  DevicePass at(const std::byte* table) const {
    const auto* marks = reinterpret_cast<const uint8_t*>(table + outside_offset);
    return {outputs,
            inner,
            inputs,
            reinterpret_cast<const Tap*>(table + taps_offset),
            reinterpret_cast<const int64_t*>(table + starts_offset),
            outside.empty() ? nullptr : marks,
            extrapolation};
  }
};

/// All that one resize needs, whatever the element type.
struct DeviceResize {
  std::vector<PassTables> passes;
  size_t between[2] = {0, 0};
  int64_t size = 0;
};

template <class T>
void run_resize(const DeviceResize& resize, const KernelBuffers& buffers) {
  using M = Math<T>;
  Stream& stream = stream_of(buffers);
  const T* from = buffers.in<T>(0);
  T* to = buffers.out<T>(0);
  const size_t count = resize.passes.size();
  if (count == 0) stream.copy(to, from, static_cast<size_t>(resize.size) * sizeof(T));
  const auto between = [&](size_t i) { return cpu::part<M>(buffers, resize.between[i % 2]); };
  for (size_t i = 0; i < count; ++i) {
    const PassTables& tables = resize.passes[i];
    const DevicePass pass = tables.at(buffers.table);
    const bool first = i == 0, last = i + 1 == count;
    if (first && last) {
      for_each(stream, tables.results, ResizeElement<T, T>{from, to, pass});
    } else if (first) {
      for_each(stream, tables.results, ResizeElement<T, M>{from, between(i), pass});
    } else if (last) {
      for_each(stream, tables.results, ResizeElement<M, T>{between(i - 1), to, pass});
    } else {
      for_each(stream, tables.results, ResizeElement<M, M>{between(i - 1), between(i), pass});
    }
  }
}

template <std::string (*kPlan)(const KernelCall&, ResizePlan&)>
Prepared prepare(const KernelCall& call) {
  ResizePlan plan;
  if (std::string why = kPlan(call, plan); !why.empty()) return Prepared::no(why);
  if (is_channels_last(call.inputs[0]) || is_channels_last(call.outputs[0])) {
    for (ResizePass& pass : plan.passes) {
      pass.outer /= call.inputs[0].shape[1];
      pass.inner *= call.inputs[0].shape[1];
    }
  }
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    cpu::WorkspacePlan workspace, table;
    const auto resize = std::make_shared<DeviceResize>();
    for (const size_t i : {0, 1})
      resize->between[i] = workspace.add_elements<Math<T>>(plan.between(i));
    for (const ResizePass& pass : plan.passes) resize->passes.emplace_back(plan, pass, table);
    resize->size = plan.size;
    return make_table_kernel(
        table.size(), workspace.size(),
        [resize](const KernelBuffers& buffers) { run_resize<T>(*resize, buffers); },
        [resize](const KernelBuffers&, std::byte* to) {
          for (const PassTables& pass : resize->passes) pass.write(to);
        });
  });
}

/// Images and channels stay as they are.
template <std::string (*kPlan)(const KernelCall&, ResizePlan&)>
BlockedOperands resized(const KernelCall& call) {
  const uint32_t input = fits_channels_last(call.inputs[0]) ? 1 : 0;
  const uint32_t output = fits_channels_last(call.outputs[0]) ? 1 : 0;
  ResizePlan plan;
  if (input + output == 0 || !kPlan(call, plan).empty()) return {};
  for (const ResizePass& pass : plan.passes) {
    if (pass.axis < 2) return {};
  }
  return {input, output, true, false};
}

}  // namespace

/// The plain rows see how the operands lie.
std::vector<BlockedRow> channels_last_resizes() {
  constexpr std::string_view kPlain = "own.resize", kName = "channels_last.resize";
  return {
      {{"", "Resize", kName, prepare<cpu::plan_resize>}, kPlain, resized<cpu::plan_resize>},
      {{"ai.halfnote", "ResizeGrad", kName, prepare<cpu::plan_resize_grad>},
       kPlain,
       resized<cpu::plan_resize_grad>},
  };
}

std::vector<KernelRow> resize_rows() {
  return {
      {"", "Resize", "own.resize", prepare<cpu::plan_resize>},
      {"ai.halfnote", "ResizeGrad", "own.resize", prepare<cpu::plan_resize_grad>},
  };
}

}  // namespace halfnote::HN_CUDA
