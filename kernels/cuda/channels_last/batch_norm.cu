// BatchNormalization channels last: the formulas of the plain form (normalization/batch.h) on
// another walk. x is read twice. Elements of 16 bits are computed with in f32, and a thread's sums
// of them are f32.
#include "kernels/cuda/channels_last/norms.h"
#include "kernels/cuda/channels_last/rows.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::BatchNormPlan;

/// The first row of all.
template <class T>
struct FirstRow {
  const T* x;
  template <int V>
  __device__ void read(int64_t c, NormMath<T> (&pivots)[V]) const {
    const auto first = load_packed<V>(x + c);
    HN_UNROLL
    for (int v = 0; v < V; ++v) pivots[v] = load_number(first.of[v]);
  }
};
template <class T>
using BatchMoments = MomentSums<T, FirstRow<T>>;

template <class T>
struct FinishMoments {
  static constexpr int kSums = 2;
  const T* x;
  NormOperands o;
  BatchNormPlan plan;
  int64_t channels;
  double count;
  NormLines<T> lines;  // behind them those of the residual
  __device__ void operator()(int64_t c, const SumsOf<double, kSums>& sums) const {
    lines.write(c, o.finish<T>(plan, c, load_number(x[c]), sums.of[0], sums.of[1], count));
    if (plan.adds_line) lines.write(channels + c, o.of_residual<T>(c));
  }
};

template <class T, Added kAdded>
void run_normalize(const KernelBuffers& buffers, const BatchNormPlan& plan,
                   const NormLines<T>& lines) {
  Normalize<T, kAdded> body;
  body.operands[0] = buffers.in<T>(0);
  if constexpr (kAdded != Added::kNothing) body.operands[1] = buffers.in<T>(cpu::kNormResidual);
  body.y = buffers.out<T>(0);
  body.signs_of_y = plan.keeps_signs ? buffers.out<uint8_t>(cpu::kNormSigns) : nullptr;
  body.lines = lines;
  body.channels = plan.channels.channels;
  body.relu = plan.relu;
  run_elements<T>(stream_of(buffers), body,
                  walk_for_elements<T>(plan.channels.per_channel(), body.channels));
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const BatchNormPlan& plan) {
  const int64_t rows = plan.channels.per_channel(), channels = plan.channels.channels;
  const ChannelWalk sums = walk_for_sums<T>(rows, channels);
  const int64_t line_count = (plan.adds_line ? 2 : 1) * channels;
  const size_t lines_at = plan.of_batch ? room_for_sums(sums, BatchMoments<T>::kSums) : 0;
  const auto body = [=, types = OperandTypes(call)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T* x = buffers.in<T>(0);
    const NormLines<T> lines(buffers.workspace + lines_at, line_count);
    if (plan.of_batch) run_sums<T>(stream, BatchMoments<T>{{x}, {x}}, sums, buffers.workspace);
    const NormOperands o(types, plan, buffers);
    finish_channels(stream,
                    FinishMoments<T>{x, o, plan, channels, static_cast<double>(rows), lines}, sums,
                    buffers.workspace, plan.of_batch);
    if (buffers.out<T>(0) == nullptr) return;
    if (plan.adds_line) return run_normalize<T, Added::kNormalized>(buffers, plan, lines);
    if (plan.adds) return run_normalize<T, Added::kResidual>(buffers, plan, lines);
    run_normalize<T, Added::kNothing>(buffers, plan, lines);
  };
  return make_kernel(body, lines_at + NormLines<T>::bytes(line_count), cpu::batch_norm_in_place);
}

Prepared prepare_forward(const KernelCall& call) {
  BatchNormPlan plan;
  if (std::string why = cpu::plan_batch_norm(call, plan); !why.empty()) return Prepared::no(why);
  return for_region_type(call.inputs[0].dtype,
                         [&]<class T>() { return forward_kernel<T>(call, plan); });
}

BlockedOperands x_and_y(const KernelCall& call) {
  if (!is_region_type(call.inputs[0].dtype)) return {};
  if (call.has_output(cpu::kNormSigns) && !has_bytes_of_signs(call)) return {};
  return all_channels_last(call, inputs_there(call, {0, cpu::kNormResidual}),
                           outputs_there(call, {0}));
}

}  // namespace

std::vector<BlockedRow> channels_last_batch_norm() {
  constexpr std::string_view kPlain = "own.batch_norm", kName = "channels_last.batch_norm";
  return {
      {{"", "BatchNormalization", kName, prepare_forward}, kPlain, x_and_y},
      {{"ai.halfnote", "BatchNormalization", kName, prepare_forward}, kPlain, x_and_y},
  };
}

}  // namespace halfnote::HN_CUDA
