// CountCorrect: how many labels have the highest score, how many have one of the five highest, and
// how many count, in one walk. A thread or a warp takes a line and goes on until enough scores beat
// that of the label; a warp loads 16 bytes a lane where classes are innermost. Blocks leave their
// counts, which a second kernel adds up where there are several.
#include "kernels/cuda/loss/parts.h"
#include "kernels/cuda/packs.h"
#include "kernels/math/rank.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::CountPlan;
using math::kTopFive;

/// Up to so many classes a thread has a line of its own, and where so many lines lie side by side.
constexpr int64_t kThreadLine = 64, kThreadStride = 32;
constexpr int64_t kMostBlocks = 1024;
/// Scores of a lane, or packs of them, between two looks at what the others found.
constexpr int kScoresAtOnce = 8, kPacksAtOnce = 4;

struct Counts {
  int64_t* correct;  // null: not asked for
  int64_t* counted;
  int64_t* among;

  __device__ void write(int64_t at, int64_t right, int64_t all, int64_t near) const {
    if (correct != nullptr) correct[at] = right;
    if (counted != nullptr) counted[at] = all;
    if (among != nullptr) among[at] = near;
  }
};

struct CountedLines {
  Lines lines;
  bool has_ignored;
  int64_t ignored;
  IndexPointer labels;
  int64_t most;  // from so many scores above the label's on their number does not matter

  __device__ int64_t start(int64_t line) const {
    const int64_t width = lines.length + lines.padding;
    return line / lines.stride * width * lines.stride + line % lines.stride;
  }
};

/// The score of a label.
template <class M>
struct Wanted {
  M score;
  int64_t label;

  /// 1 where another score beats it.
  __device__ __forceinline__ int beaten(M other, int64_t c) const {
    return math::beats(other, c, score, label) ? 1 : 0;
  }
};

/// The sum of the numbers of all lanes that share a line.
template <unsigned kLanes>
__device__ int sum_of_lanes(int number) {
  for (int distance = kLanes / 2; distance > 0; distance /= 2)
    number += __shfl_xor_sync(0xffffffffu, number, distance);
  return number;
}

/// How many scores of a line beat the wanted one, at least; all of them if fewer than `most` do.
template <unsigned kLanes, class T>
__device__ int64_t rank_of(const T* line, const CountedLines& of, const Wanted<Math<T>>& wanted) {
  const int64_t lane = threadIdx.x % kLanes, stride = of.lines.stride;
  int64_t rank = 0;
  for (int64_t first = 0; first < of.lines.length; first += kLanes * kScoresAtOnce) {
    int beaten = 0;
    HN_UNROLL
    for (int k = 0; k < kScoresAtOnce; ++k) {
      const int64_t c = first + lane + k * int64_t{kLanes};
      if (c < of.lines.length) beaten += wanted.beaten(load_number(line[c * stride]), c);
    }
    rank += sum_of_lanes<kLanes>(beaten);
    if (rank >= of.most) break;
  }
  return rank;
}

/// The same for classes side by side, a warp a line: first what lies before and behind the packs
/// of V scores, fewer than 2·V, then the packs. Element 0 is at `start`, of which each Vth is
/// aligned.
template <int V, class T>
__device__ int64_t rank_in_packs(const T* line, int64_t start, const CountedLines& of,
                                 const Wanted<Math<T>>& wanted) {
  const int64_t lane = threadIdx.x % 32, length = of.lines.length;
  const int64_t gap = (V - start % V) % V, head = gap < length ? gap : length;
  const int64_t packs = (length - head) / V;
  const int64_t single = lane < head ? lane : lane + packs * V;
  int64_t rank =
      sum_of_lanes<32>(single < length ? wanted.beaten(load_number(line[single]), single) : 0);
  for (int64_t first = lane; first - lane < packs && rank < of.most; first += 32 * kPacksAtOnce) {
    Packed<T, V> own[kPacksAtOnce];
    HN_UNROLL
    for (int j = 0; j < kPacksAtOnce; ++j) {
      const int64_t p = first + j * 32;
      if (p < packs) own[j] = load_packed<V>(line + head + p * V);
    }
    int beaten = 0;
    HN_UNROLL
    for (int j = 0; j < kPacksAtOnce; ++j) {
      const int64_t p = first + j * 32;
      if (p >= packs) continue;
      HN_UNROLL
      for (int k = 0; k < V; ++k)
        beaten += wanted.beaten(load_number(own[j].of[k]), head + p * V + k);
    }
    rank += sum_of_lanes<32>(beaten);
  }
  return rank;
}

/// V: scores at once where classes are side by side; 1 if they are not, or not aligned.
template <unsigned kLanes, int V, class T>
__global__ void __launch_bounds__(kBlock)
    count_lines(CountedLines of, const T* scores, Counts counts) {
  int64_t right = 0, all = 0, near = 0;
  const int64_t threads = int64_t{gridDim.x} * kBlock;
  for (int64_t thread = int64_t{blockIdx.x} * kBlock + threadIdx.x;
       thread / kLanes < of.lines.count; thread += threads) {
    const int64_t line = thread / kLanes, label = of.labels.raw(line);
    if (of.has_ignored && label == of.ignored) continue;
    if (threadIdx.x % kLanes == 0) ++all;
    if (label < 0 || label >= of.lines.length) continue;
    const T* at = scores + of.start(line);
    const Wanted<Math<T>> wanted = {load_number(at[label * of.lines.stride]), label};
    if (wanted.score != wanted.score) continue;
    int64_t rank;
    if constexpr (V > 1) {
      rank = rank_in_packs<V>(at, of.start(line), of, wanted);
    } else {
      rank = rank_of<kLanes>(at, of, wanted);
    }
    if (threadIdx.x % kLanes != 0) continue;
    right += rank < 1 ? 1 : 0;
    near += rank < kTopFive ? 1 : 0;
  }
  right = merge_block<AddNumbers, kBlock>(right);
  all = merge_block<AddNumbers, kBlock>(all);
  near = merge_block<AddNumbers, kBlock>(near);
  if (threadIdx.x == 0) counts.write(blockIdx.x, right, all, near);
}

/// Adds up the counts of `blocks` blocks.
__global__ void __launch_bounds__(kBlock) add_counts(Counts parts, Counts counts, int64_t blocks) {
  int64_t right = 0, all = 0, near = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kBlock) {
    right += parts.correct[b];
    all += parts.counted[b];
    near += parts.among[b];
  }
  right = merge_block<AddNumbers, kBlock>(right);
  all = merge_block<AddNumbers, kBlock>(all);
  near = merge_block<AddNumbers, kBlock>(near);
  if (threadIdx.x == 0) counts.write(0, right, all, near);
}

template <class T>
struct CountCall {
  CountPlan plan;
  int64_t lanes = 32, blocks = 1;

  explicit CountCall(const CountPlan& planned) : plan(planned) {
    const Lines& lines = plan.loss.lines;
    if (lines.length <= kThreadLine || lines.stride >= kThreadStride) lanes = 1;
    const int64_t needed = (lines.count * lanes + kBlock - 1) / kBlock;
    blocks = std::clamp<int64_t>(needed, 1, kMostBlocks);
  }
  size_t workspace() const {
    return blocks == 1 ? 0 : static_cast<size_t>(3 * blocks) * sizeof(int64_t);
  }

  void run(const KernelBuffers& buffers) const {
    constexpr int kPack = 16 / sizeof(T);
    Stream& stream = stream_of(buffers);
    const CountedLines of = {plan.loss.lines,
                             plan.loss.ignored.has_value(),
                             plan.loss.ignored.value_or(0),
                             {buffers.inputs[1], plan.loss.label == DType::kI64},
                             plan.most()};
    const Counts counts = {plan.gives_correct ? buffers.out<int64_t>(0) : nullptr,
                           plan.gives_counted ? buffers.out<int64_t>(1) : nullptr,
                           plan.gives_among ? buffers.out<int64_t>(2) : nullptr};
    auto* room = reinterpret_cast<int64_t*>(buffers.workspace);
    const Counts parts = blocks == 1 ? counts : Counts{room, room + blocks, room + 2 * blocks};
    const bool in_packs = of.lines.stride == 1 && are_aligned<1>({buffers.inputs[0]});
    const auto kernel = lanes == 1 ? count_lines<1, 1, T>
                        : in_packs ? count_lines<32, kPack, T>
                                   : count_lines<32, 1, T>;
    launch(stream, kernel, static_cast<unsigned>(blocks), kBlock, 0, of, buffers.in<T>(0), parts);
    if (blocks > 1) launch(stream, add_counts, 1, kBlock, 0, parts, counts, blocks);
  }
};

Prepared prepare(const KernelCall& call) {
  CountPlan plan;
  if (std::string why = cpu::plan_count(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const CountCall<T> planned(plan);
    return make_kernel([planned](const KernelBuffers& buffers) { planned.run(buffers); },
                       planned.workspace());
  });
}

}  // namespace

std::vector<KernelRow> count_rows() {
  return {{"ai.halfnote", "CountCorrect", "own.count", prepare}};
}

}  // namespace halfnote::HN_CUDA
