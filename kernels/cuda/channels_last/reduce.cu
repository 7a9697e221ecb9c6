// Reductions of tensors that lie channels last: the plain kernels, on the shape as it lies, where
// their results lie alike either way. A sum to channels (the gradient of a bias) is long and its
// results are few: it has a walk of its own.
#include <algorithm>
#include <set>

#include "kernels/cpu/reduction/plan.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/table.h"

namespace halfnote::HN_CUDA {

namespace {

/// The axes; none where they cannot be read.
std::set<int64_t> axes_of(const KernelCall& call) {
  std::set<int64_t> axes;
  if (!call.op.starts_with("Global"))
    return cpu::read_reduce_axes(call, axes).empty() ? axes : std::set<int64_t>{};
  for (size_t d = 2; d < call.inputs[0].shape.size(); ++d) axes.insert(static_cast<int64_t>(d));
  return axes;
}

/// Nothing is kept beside the channels whose order to them would change.
BlockedOperands reduced(const KernelCall& call) {
  if (!fit_channels_last(call, 0b1, 0)) return {};
  const std::set<int64_t> axes = axes_of(call);
  const auto rank = static_cast<int64_t>(call.inputs[0].shape.size());
  bool all_pixels = true;
  for (int64_t d = 2; d < rank; ++d) all_pixels = all_pixels && axes.contains(d);
  if (axes.empty() || (!all_pixels && !axes.contains(1))) return {};
  return {.inputs = 0b1};
}

bool is_to_channels(const KernelCall& call) {
  const std::set<int64_t> axes = axes_of(call);
  return axes.size() + 1 == call.inputs[0].shape.size() && !axes.contains(1);
}

template <class T>
struct ChannelSums {
  struct Channel {};
  using Element = T;
  using Number = std::conditional_t<sizeof(T) == 2, float, double>;
  static constexpr int kOperands = 1, kSums = 1;
  const T* operands[kOperands];
  template <int V>
  __device__ void know(int64_t, Channel (&)[V]) const {}
  template <int V>
  __device__ void add(const Channel (&)[V], const RowOf<T, V, 1>& row, int64_t,
                      SumsOf<Number, kSums> (&sums)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) sums[v].of[0] += load_number(row[0].of[v]);
  }
};

struct WriteSum {
  static constexpr int kSums = 1;
  RealOutput y;
  __device__ void operator()(int64_t c, const SumsOf<double, kSums>& sum) const {
    y.write(c, static_cast<float>(sum.of[0]));  // as the plain row does
  }
};

Prepared prepare_channel_sums(const KernelCall& call) {
  if (!is_channels_last(call.inputs[0]) || !is_to_channels(call))
    return Prepared::no("no sum to channels");
  const DType from = call.inputs[0].dtype, to = call.outputs[0].dtype;
  if (to != DType::kF32 && !is_16bit_float(to)) return Prepared::no("no result of this type");
  const int64_t channels = call.inputs[0].shape[1];
  const auto typed = [&]<class T>() {
    const ChannelWalk walk = walk_for_sums<T>(call.inputs[0].size() / channels, channels);
    const auto body = [walk, to](const KernelBuffers& buffers) {
      std::byte* parts = buffers.workspace;
      run_sums<T>(stream_of(buffers), ChannelSums<T>{{buffers.in<T>(0)}}, walk, parts);
      finish_channels(stream_of(buffers), WriteSum{{buffers.outputs[0], to}}, walk, parts);
    };
    return make_kernel(body, room_for_sums(walk, 1));
  };
  if (from == DType::kF32) return typed.template operator()<float>();
  if (from == DType::kF16) return typed.template operator()<Half>();
  if (from == DType::kBF16) return typed.template operator()<BFloat16>();
  return Prepared::no("no operand of this type");
}

}  // namespace

std::vector<BlockedRow> channels_last_sums() {
  constexpr std::string_view kPlain = "own.reduce";
  std::vector<BlockedRow> rows = {
      {{"", "ReduceSum", "channels_last.sum", prepare_channel_sums}, kPlain, reduced},
      {{"ai.halfnote", "ReduceSum", "channels_last.sum", prepare_channel_sums}, kPlain, reduced},
  };
  // The plain rows see how the operand lies.
  for (const KernelRow& plain : kernel_table().rows()) {
    if (plain.name != kPlain) continue;
    rows.push_back(
        {{plain.domain, plain.op, "channels_last.reduce", plain.prepare}, kPlain, reduced});
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
