// CountCorrect: how many labels have the highest score, and how many count. A thread or a warp
// takes a line and goes on until a score beats that of the label; blocks leave their counts, which
// a second kernel adds up where there are several.
#include "kernels/cuda/loss/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::CountPlan;

/// Up to so many classes a thread has a line of its own.
constexpr int64_t kThreadLine = 64;
constexpr int64_t kMostBlocks = 1024;
/// Scores of a lane between two looks at what the others found.
constexpr int kScoresAtOnce = 8;

struct Counts {
  int64_t* correct;  // null: not asked for
  int64_t* counted;

  __device__ void write(int64_t at, int64_t right, int64_t all) const {
    if (correct != nullptr) correct[at] = right;
    if (counted != nullptr) counted[at] = all;
  }
};

struct CountedLines {
  Lines lines;
  bool has_ignored;
  int64_t ignored;
  IndexPointer labels;

  __device__ int64_t start(int64_t line) const {
    const int64_t width = lines.length + lines.padding;
    return line / lines.stride * width * lines.stride + line % lines.stride;
  }
};

/// Is no score of the line above that of the label, or as high in a class before it, or NaN?
template <unsigned kLanes, class T>
__device__ bool is_right(const T* line, const Lines& lines, int64_t label) {
  if (label < 0 || label >= lines.length) return false;
  const Math<T> wanted = load_number(line[label * lines.stride]);
  const int64_t lane = threadIdx.x % kLanes;
  for (int64_t first = lane; first - lane < lines.length; first += kLanes * kScoresAtOnce) {
    bool beaten = false;
    HN_UNROLL
    for (int k = 0; k < kScoresAtOnce; ++k) {
      const int64_t c = first + k * int64_t{kLanes};
      if (c >= lines.length) break;
      const Math<T> score = load_number(line[c * lines.stride]);
      beaten = beaten || !(score < wanted || (score == wanted && c >= label));
    }
    if constexpr (kLanes > 1) beaten = __any_sync(0xffffffffu, beaten) != 0;
    if (beaten) return false;
  }
  return true;
}

template <unsigned kLanes, class T>
__global__ void __launch_bounds__(kBlock)
    count_lines(CountedLines of, const T* scores, Counts counts) {
  int64_t right = 0, all = 0;
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  for (int64_t thread = int64_t{blockIdx.x} * kBlock + threadIdx.x;
       thread / kLanes < of.lines.count; thread += threads) {
    const int64_t line = thread / kLanes, label = of.labels.raw(line);
    if (of.has_ignored && label == of.ignored) continue;
    const bool is = is_right<kLanes>(scores + of.start(line), of.lines, label);
    if (threadIdx.x % kLanes != 0) continue;
    right += is ? 1 : 0;
    ++all;
  }
  right = merge_block<AddNumbers, kBlock>(right);
  all = merge_block<AddNumbers, kBlock>(all);
  if (threadIdx.x == 0) counts.write(blockIdx.x, right, all);
}

/// Adds up the counts of `blocks` blocks.
__global__ void __launch_bounds__(kBlock) add_counts(Counts parts, Counts counts, int64_t blocks) {
  int64_t right = 0, all = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kBlock) {
    right += parts.correct[b];
    all += parts.counted[b];
  }
  right = merge_block<AddNumbers, kBlock>(right);
  all = merge_block<AddNumbers, kBlock>(all);
  if (threadIdx.x == 0) counts.write(0, right, all);
}

template <class T>
Prepared count_kernel(const CountPlan& plan) {
  const cpu::LossPlan& loss = plan.loss;
  const int64_t lanes = loss.lines.length <= kThreadLine ? 1 : 32;
  const int64_t needed = (loss.lines.count * lanes + kBlock - 1) / kBlock;
  const int64_t blocks = std::clamp<int64_t>(needed, 1, kMostBlocks);
  const auto body = [=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const CountedLines of = {plan.loss.lines,
                             plan.loss.ignored.has_value(),
                             plan.loss.ignored.value_or(0),
                             {buffers.inputs[1], plan.loss.label == DType::kI64}};
    const Counts counts = {plan.gives_correct ? buffers.out<int64_t>(0) : nullptr,
                           plan.gives_counted ? buffers.out<int64_t>(1) : nullptr};
    auto* room = reinterpret_cast<int64_t*>(buffers.workspace);
    const Counts parts = blocks == 1 ? counts : Counts{room, room + blocks};
    launch(stream, lanes == 1 ? count_lines<1, T> : count_lines<32, T>,
           static_cast<unsigned>(blocks), kBlock, 0, of, buffers.in<T>(0), parts);
    if (blocks > 1) launch(stream, add_counts, 1, kBlock, 0, parts, counts, blocks);
  };
  return make_kernel(body, blocks == 1 ? 0 : static_cast<size_t>(2 * blocks) * sizeof(int64_t));
}

Prepared prepare(const KernelCall& call) {
  CountPlan plan;
  if (std::string why = cpu::plan_count(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() { return count_kernel<T>(plan); });
}

}  // namespace

std::vector<KernelRow> count_rows() {
  return {{"ai.halfnote", "CountCorrect", "own.count", prepare}};
}

}  // namespace halfnote::HN_CUDA
