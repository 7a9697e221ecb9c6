// Attention by the library, for 16-bit operands. It knows one term, in f32, and a mask of what a
// dropout keeps: both are laid out in the workspace. Of a row of terms that are all low the largest
// is taken away: the probabilities stay the same, and the one f32 that the library keeps of a row,
// log Σ exp, has room for the logarithm. Rows of which every key is hidden are ours: a score as low
// as that leaves nothing of the product beside it, and of −∞ the library says nothing. Gradients
// are rounded to 16 bits, whatever type is asked for:
// for those in f32 the library has the graph of its non-deterministic gradient.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "kernels/cpu/reals.h"
#include "kernels/cuda/channels_last/transpose.h"
#include "kernels/cuda/contraction/attention/hidden_rows.h"
#include "kernels/cuda/libraries/dnn.h"
#include "kernels/cuda/normalization/held.h"

namespace halfnote::HN_CUDA {

namespace {

using libraries::Sdpa;
using libraries::SdpaOperands;
using libraries::SdpaProblem;
using libraries::SdpaTensor;

/// Batches, heads, queries and keys of the scores.
using ScoreDims = std::array<int64_t, 4>;

/// From here down the terms of a row leave too little of a logarithm beside them in f32.
constexpr float kLowTerms = -1e4f;

/// The terms as one, of which a dim is 1 where no term goes along it; what is taken away from each
/// of its rows.
struct JoinTerms {
  DeviceAttention p;
  Divisor heads_of_call, heads, rows;
  int64_t lines, keys;
  bool of_batch;
  float hidden_from;
  float *to, *taken;

  /// The batch of the call that a head of the terms is.
  __device__ int64_t batch_of(int64_t head) const {
    const int64_t batch = heads.quotient(head), h = head - batch * heads.value();
    return (of_batch ? batch : 0) * heads_of_call.value() + h;
  }
  /// Key j of row i.
  __device__ float term(const ScoresOfBatch<float>& of, int64_t i, int64_t j) const {
    float sum = 0;
    HN_UNROLL
    for (int t = 0; t < kMostTerms; ++t) {
      if (t >= p.terms) break;
      const DeviceTerm& term = p.term[t];
      if (term.mask == nullptr) {
        sum += term.values.load<float>(of.place(t, i, j));
      } else if (!term.mask[of.place(t, i, j)]) {
        sum = term.hidden;
      }
    }
    return sum;
  }
};

struct LargerOf {
  template <class M>
  __device__ static M merge(M a, M b) {
    return a > b ? a : b;
  }
};

/// A row for kLanes threads. A row of hidden keys alone stays as it is.
template <unsigned kLanes>
__global__ void __launch_bounds__(kBlock) join_terms(const __grid_constant__ JoinTerms join) {
  constexpr unsigned kRows = kBlock / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  for (int64_t line = int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes; line < join.lines;
       line += int64_t{gridDim.x} * kRows) {
    float* const to = join.to + line * join.keys;
    const int64_t head = join.rows.quotient(line), i = line - head * join.rows.value();
    const ScoresOfBatch<float> of(join.p, join.batch_of(head));
    float largest = -INFINITY;
    for (int64_t j = lane; j < join.keys; j += kLanes) {
      to[j] = join.term(of, i, j);
      largest = LargerOf::merge(to[j], largest);
    }
    largest = merge_line<LargerOf, kLanes>(largest);
    const float away = largest <= kLowTerms && largest > join.hidden_from ? largest : 0;
    if (lane == 0) join.taken[line] = away;
    if (away == 0) continue;
    for (int64_t j = lane; j < join.keys; j += kLanes) to[j] -= away;
  }
}

/// Up to this number of keys a warp has a row.
constexpr int64_t kKeysOfWarp = 512;

/// Elements 4·at to 4·at + 3 of what the dropout keeps.
template <class T>
struct DrawKept {
  DeviceDropout dropout;
  int64_t count;
  T* to;

  __device__ void operator()(int64_t at) const {
    const auto words = math::dropout_words(static_cast<uint64_t>(*dropout.seed),
                                           static_cast<uint64_t>(*dropout.step), dropout.node,
                                           static_cast<uint64_t>(at));
    Packed<T, 4> kept;
    HN_UNROLL
    for (int k = 0; k < 4; ++k)
      kept.of[k] = store_number<T>(words.word[k] >= dropout.threshold ? 1.0f : 0.0f);
    if (4 * at + 4 <= count) return store_packed(to + 4 * at, kept);
    HN_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (4 * at + k < count) to[4 * at + k] = kept.of[k];
    }
  }
};

/// A block a head.
__global__ void __launch_bounds__(kBlock)
    find_hidden_rows(const __grid_constant__ HiddenRows hidden, int64_t heads) {
  for (int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
    int32_t first = 0, behind = 0;  // counted from the last row back, and from the first one
    for (int64_t i = threadIdx.x; i < hidden.rows; i += kBlock) {
      const int64_t row = head * hidden.rows + i;
      hidden.find(row, i);
      if (!hidden.is_hidden(row)) continue;
      first = LargerOf::merge(first, static_cast<int32_t>(hidden.rows - i));
      behind = LargerOf::merge(behind, static_cast<int32_t>(i + 1));
    }
    first = merge_block<LargerOf, kBlock>(first);
    behind = merge_block<LargerOf, kBlock>(behind);
    if (threadIdx.x != 0) continue;
    hidden.begin[head] = static_cast<int32_t>(hidden.rows) - first;
    hidden.end[head] = behind;
  }
}

/// What Attention promises of a row, MAX and SUM: the library has given the logarithm of all. Of a
/// row whose terms are low, SUM has it.
struct SettleRows {
  HiddenRows hidden;  // without sums: there is no term
  float *most, *sum;
  __device__ void operator()(int64_t row) const {
    sum[row] = 1;
    if (hidden.sum == nullptr) return;
    if (hidden.is_hidden(row)) {
      most[row] = hidden.most[row];
      sum[row] = hidden.sum[row];
    } else if (const float taken = hidden.taken_from(row); taken != 0) {
      const float all = most[row];
      const float part = all > 80 ? 80.0f : all < -80 ? -80.0f : all;  // exp() of it is a number
      most[row] = taken + (all - part);
      sum[row] = math::exp(part);
    }
  }
};

/// The logarithm of Σ exp of a row's scores, as the library has these; so much of a hidden one that
/// nothing is left of it.
struct JoinStatistics {
  HiddenRows hidden;
  const float *most, *sum;
  float* to;
  __device__ void operator()(int64_t row) const {
    const bool ours = hidden.sum != nullptr && hidden.is_hidden(row);
    const float taken = hidden.sum == nullptr ? 0 : hidden.taken_from(row);
    to[row] = ours ? INFINITY : most[row] - taken + math::log(sum[row]);
  }
};

template <class T>
struct Widen {
  const T* from;
  float* to;
  __device__ void operator()(int64_t i) const { to[i] = load_number(from[i]); }
};

SdpaTensor tensor_of(const RowLayout& layout, const ScoreDims& scores) {
  SdpaTensor t;
  const int64_t heads = scores[1] / layout.group;
  t.dims = {scores[0], heads, layout.rows, layout.size};
  const bool rows_first = layout.heads == heads;
  const int64_t head = rows_first ? layout.size : layout.rows * layout.size;
  t.strides = {rows_first ? layout.rows * layout.step() : heads * head, head, layout.step(), 1};
  return t;
}

/// Where the first element of Q, K or V lies in its operand.
int64_t begin_of(const RowLayout& layout) { return layout.at(0, 0); }

/// The dims of the terms as one, which a gradient wants with all rows.
ScoreDims joined(const AttentionPlan& plan, const ScoreDims& scores, bool gradient) {
  ScoreDims dims = {1, 1, gradient ? scores[2] : 1, scores[3]};
  for (const cpu::attention::Term& term : plan.terms) {
    for (size_t d = 0; d < term.strides.size(); ++d) {
      const size_t to = d + 1 == term.strides.size() ? 1 : 0;
      if (term.strides[d] != 0) dims[to] = scores[to];
    }
    if (term.row != 0) dims[2] = scores[2];
  }
  return dims;
}

int64_t size_of_dims(const ScoreDims& dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }

/// From which number down a term hides a key. A bool term puts it in the place of the score: exp()
/// of it has to be 0. A float term is added: as good as nothing may be left of the product beside
/// it. -1e8 as 16 bits have it: log Σ exp of a row of such scores is lost in f32, and with it P.
float hidden_from(const AttentionPlan& plan) {
  const auto hides = [](const cpu::attention::Term& term) { return term.hides(); };
  return std::ranges::all_of(plan.terms, hides) ? -1e4f : -9.9e7f;
}

std::string unfit_for_library(const AttentionPlan& plan) {
  if (!is_16bit_float(plan.dtype)) return "operands that are not 16-bit floats";
  if (plan.dropout && !(plan.dropout->factor > 0)) return "a dropout of everything";
  for (const cpu::attention::Term& term : plan.terms) {
    if (term.hides() && !(term.hidden <= hidden_from(plan))) return "a mask that does not hide";
  }
  return {};
}

struct LibraryAttention {
  PlannedAttention planned;
  SdpaProblem problem;
  std::shared_ptr<const Sdpa> sdpa;
  ScoreDims scores{};
  RowLayout k;                       // as the library sees it
  std::optional<TermGradient> term;  // whose gradient is asked for
  TermSlices slices;
  size_t bias = 0, hidden = 0, kept = 0, statistics = 0, room = 0;  // in the workspace
  size_t taken = 0;                                                 // from each row of the bias
  size_t means = 0;                                                 // of hidden rows, see there
  size_t keys = 0, slopes = 0;  // a K that is turned, gradients of all scores
  size_t parts = 0;             // of the gradient of the term
  /// Gradients that the library cannot write where they belong: of another type, or nobody's.
  struct Copy {
    bool made = false, wanted = false;
    DType dtype = DType::kUndefined;  // of what is wanted
    size_t room = 0;
    int64_t count = 0;
  };
  std::array<Copy, 3> copies;

  bool is_turned() const { return planned.plan.attributes.trans_k; }
  int64_t rows() const { return scores[0] * scores[1] * scores[2]; }

  /// Bias and mask where the library reads them.
  template <class T>
  void prepare(const KernelBuffers& buffers, SdpaOperands& operands) const {
    const DeviceAttention p = planned.on_device(buffers);
    Stream& stream = stream_of(buffers);
    if (problem.has_bias()) {
      auto* to = cpu::part<float>(buffers, bias);
      const ScoreDims& dims = problem.bias;
      const int64_t lines = dims[0] * dims[1] * dims[2];
      const JoinTerms join{p,
                           Divisor(scores[1]),
                           Divisor(dims[1]),
                           Divisor(dims[2]),
                           lines,
                           dims[3],
                           dims[0] > 1,
                           hidden_from(planned.plan),
                           to,
                           cpu::part<float>(buffers, taken)};
      if (dims[3] <= kKeysOfWarp) {
        constexpr unsigned kLines = kBlock / 32;
        launch(stream, join_terms<32>, blocks((lines + kLines - 1) / kLines), kBlock, 0, join);
      } else {
        launch(stream, join_terms<kBlock>, blocks(lines), kBlock, 0, join);
      }
      operands.bias = to;
    }
    if (!problem.drops()) return;
    const int64_t count = size_of_dims(scores);
    auto* mask = cpu::part<T>(buffers, kept);
    for_each(stream, (count + 3) / 4, DrawKept<T>{p.dropout, count, mask});
    operands.kept = mask;
  }

  /// Looks for them, once the terms are joined.
  HiddenRows find_hidden(const KernelBuffers& buffers, const SdpaOperands& operands) const {
    HiddenRows found;
    if (!problem.has_bias()) return found;
    const ScoreDims& dims = problem.bias;
    const auto step = [&](size_t d) {
      int64_t elements = dims[d] == 1 ? 0 : 1;
      for (size_t inner = d + 1; inner < 4; ++inner) elements *= dims[inner];
      return elements;
    };
    found.bias = {operands.bias, Divisor(scores[2]), Divisor(scores[1]), step(0), step(1), step(2)};
    found.rows = scores[2];
    found.keys = scores[3];
    found.causal = problem.causal;
    found.nan_is_zero = planned.plan.attributes.nan_is_zero;
    found.from = hidden_from(planned.plan);
    found.taken = cpu::part<float>(buffers, taken);
    found.most = cpu::part<float>(buffers, hidden);
    found.sum = found.most + rows();
    found.begin = reinterpret_cast<int32_t*>(found.sum + rows());
    found.end = found.begin + heads();
    launch(stream_of(buffers), find_hidden_rows, blocks(heads()), kBlock, 0, found, heads());
    return found;
  }
  int64_t heads() const { return scores[0] * scores[1]; }
  static unsigned blocks(int64_t wanted) {
    return static_cast<unsigned>(std::min(wanted, kMaxBlocks));
  }
  template <class T>
  Kept<T> kept_of(const SdpaOperands& operands) const {
    return {static_cast<const T*>(operands.kept), problem.drops() ? problem.kept : 1.0f};
  }

  template <class T>
  void forward(const KernelBuffers& buffers) const {
    SdpaOperands operands;
    place<T>(buffers, 0, operands);
    operands.y = buffers.outputs[0];
    if (problem.statistics) operands.statistics = buffers.out<float>(1);
    prepare<T>(buffers, operands);
    const HiddenRows found = find_hidden(buffers, operands);
    sdpa->run(stream_of(buffers), operands);
    const AttentionPlan& plan = planned.plan;
    if (problem.has_bias()) {
      launch(stream_of(buffers), write_hidden_rows<T>, dim3(blocks(heads()), kBlocksOfHead), kBlock,
             0, found, heads(), kept_of<T>(operands), plan.v, buffers.in<T>(2), plan.y,
             buffers.out<T>(0));
    }
    if (problem.statistics) {
      for_each(stream_of(buffers), rows(),
               SettleRows{found, buffers.out<float>(1), buffers.out<float>(2)});
    }
  }

  template <class T>
  void gradient(const KernelBuffers& buffers) const {
    using namespace cpu::attention;
    SdpaOperands operands;
    place<T>(buffers, kGradQ, operands);
    operands.y = const_cast<std::byte*>(buffers.inputs[kGradResult]);
    operands.dy = buffers.inputs[kGradY];
    operands.statistics = cpu::part<float>(buffers, statistics);
    prepare<T>(buffers, operands);
    const HiddenRows found = find_hidden(buffers, operands);
    for_each(stream_of(buffers), rows(),
             JoinStatistics{found, buffers.in<float>(kGradMost), buffers.in<float>(kGradSum),
                            operands.statistics});
    const AttentionPlan& plan = planned.plan;
    void** const to[] = {&operands.dq, &operands.dk, &operands.dv};
    const RowLayout* const layouts[] = {&plan.q, &k, &plan.v};
    T* first[3];
    for (size_t i = 0; i < 3; ++i) {
      first[i] = copies[i].made ? cpu::part<T>(buffers, copies[i].room)
                                : buffers.out<T>(plan.gradient_of(i));
      *to[i] = first[i] + begin_of(*layouts[i]);
    }
    if (term) operands.dbias = cpu::part<T>(buffers, slopes);
    sdpa->run(stream_of(buffers), operands);
    if (problem.has_bias()) {
      const int64_t of_v = heads() / plan.v.group;
      launch(stream_of(buffers), add_hidden_rows<T>, dim3(blocks(of_v), kBlocksOfHead), kBlock, 0,
             found, of_v, plan.v.group, kept_of<T>(operands), plan.y, buffers.in<T>(kGradY), plan.v,
             first[2]);
      add_hidden_products<T>(buffers, slopes_of<T>(buffers, operands, found), first);
    }
    if (term) sum_term_gradient<T>(buffers, operands, found);
    widen<T>(buffers);
  }
  template <class T>
  HiddenSlopes<T> slopes_of(const KernelBuffers& buffers, const SdpaOperands& operands,
                            const HiddenRows& found) const {
    using namespace cpu::attention;
    return {planned.on_device(buffers),
            found,
            kept_of<T>(operands),
            buffers.in<T>(kGradV),
            buffers.in<T>(kGradResult),
            buffers.in<T>(kGradY),
            cpu::part<float>(buffers, means)};
  }
  /// To dQ and dK, which begin at `gradients`.
  template <class T>
  void add_hidden_products(const KernelBuffers& buffers, const HiddenSlopes<T>& from,
                           T* const* gradients) const {
    using namespace cpu::attention;
    const AttentionPlan& plan = planned.plan;
    for_each(stream_of(buffers), rows(), FindMeans<T>{from});
    const T* of_k = is_turned() ? cpu::part<T>(buffers, keys) : buffers.in<T>(kGradK);
    launch(stream_of(buffers), add_hidden_to_queries<T>, dim3(blocks(heads()), kBlocksOfHead),
           kBlock, 0, from, heads(), k, of_k, plan.q, gradients[0]);
    const int64_t own = heads() / k.group;
    launch(stream_of(buffers), add_hidden_to_keys<T>, dim3(blocks(own), kBlocksOfHead), kBlock, 0,
           from, own, k.group, plan.q, buffers.in<T>(kGradQ), k, gradients[1]);
  }
  /// Of the gradients of all scores.
  template <class T>
  void sum_term_gradient(const KernelBuffers& buffers, const SdpaOperands& operands,
                         const HiddenRows& found) const {
    using namespace cpu::attention;
    const int64_t of_batch = scores[2] * scores[3], elements = term_elements();
    TermSlices in = slices;
    if (in.count > 1) in.parts = cpu::part<float>(buffers, parts);
    const SumTermGradient<T> sum{slopes_of<T>(buffers, operands, found),
                                 *term,
                                 static_cast<const T*>(operands.dbias),
                                 Divisor(of_batch),
                                 Divisor(scores[3]),
                                 in,
                                 buffers.out<float>(planned.plan.differentiated()->gradient)};
    for_each(stream_of(buffers), in.count * elements, sum);
    if (in.count > 1) for_each(stream_of(buffers), elements, FoldTermGradient<T>{sum});
  }
  int64_t term_elements() const { return term->groups.count * scores[2] * scores[3]; }
  void slice_term() {
    constexpr int64_t kThreads = kMultiprocessors * 2048, kLeast = 32;
    const int64_t members = std::max<int64_t>(term->members.count, 1);
    const int64_t wanted = kThreads / std::max<int64_t>(term_elements(), 1);
    const int64_t count = std::clamp<int64_t>(wanted, 1, (members + kLeast - 1) / kLeast);
    slices.each = (members + count - 1) / count;
    slices.count = (members + slices.each - 1) / slices.each;
    slices.elements = Divisor(std::max<int64_t>(term_elements(), 1));
  }
  /// K or its gradient from rows of keys to those of elements, or back.
  void turn_keys(Stream& stream, RealPointer from, RealOutput to, const RowLayout& lies) const {
    Transposition p;
    p.from = from;
    p.to = to;
    p.batches = p.filled = planned.plan.batches / lies.group;
    p.rows = p.to_line = lies.rows;
    p.columns = p.from_line = lies.size;
    transpose(stream, p);
  }
  template <class T>
  void widen(const KernelBuffers& buffers) const {
    for (size_t i = 0; i < 3; ++i) {
      if (!copies[i].wanted) continue;
      if (i == 1 && is_turned()) {
        turn_keys(stream_of(buffers), {cpu::part<T>(buffers, copies[i].room), problem.dtype},
                  {buffers.outputs[i], copies[i].dtype}, k);
        continue;
      }
      for_each(stream_of(buffers), copies[i].count,
               Widen<T>{cpu::part<T>(buffers, copies[i].room), buffers.out<float>(i)});
    }
  }

  int64_t bytes(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(problem.dtype));
  }

 private:
  template <class T>
  void place(const KernelBuffers& buffers, size_t first, SdpaOperands& operands) const {
    operands.q = buffers.inputs[first] + bytes(begin_of(planned.plan.q));
    operands.k = buffers.inputs[first + 1] + bytes(begin_of(planned.plan.k));
    if (is_turned()) {
      T* to = cpu::part<T>(buffers, keys);
      turn_keys(stream_of(buffers), {buffers.inputs[first + 1], problem.dtype}, {to, problem.dtype},
                planned.plan.k);
      operands.k = to;
    }
    operands.v = buffers.inputs[first + 2] + bytes(begin_of(planned.plan.v));
    const auto at = reinterpret_cast<uintptr_t>(buffers.workspace) + room;
    constexpr uintptr_t kAlign = 256;
    operands.workspace = reinterpret_cast<void*>((at + kAlign - 1) / kAlign * kAlign);
  }
};

/// The problem of a call, or why it is none for the library.
std::string problem_of(const KernelCall& call, bool gradient, LibraryAttention& made) {
  if (std::string why = plan_attention_on_device(call, gradient, made.planned); !why.empty())
    return why;
  const AttentionPlan& plan = made.planned.plan;
  if (std::string why = unfit_for_library(plan); !why.empty()) return why;
  const int64_t heads = plan.batch_dims.empty() ? 1 : plan.batch_dims.back();
  if (plan.batches == 0) return "no elements";
  made.scores = {plan.batches / heads, heads, plan.m, plan.n};
  SdpaProblem& p = made.problem;
  p.gradient = gradient;
  p.statistics = gradient || (call.has_output(1) && call.has_output(2));
  p.dtype = plan.dtype;
  p.q = tensor_of(plan.q, made.scores);
  made.k = plan.k;
  if (plan.attributes.trans_k) std::swap(made.k.rows, made.k.size);
  p.k = tensor_of(made.k, made.scores);
  p.v = tensor_of(plan.v, made.scores);
  p.y = tensor_of(plan.y, made.scores);
  p.scale = plan.attributes.scale;
  p.causal = plan.attributes.causal;
  if (!plan.terms.empty()) p.bias = joined(plan, made.scores, gradient);
  if (plan.dropout) p.kept = plan.dropout->factor;
  if (plan.differentiated() != nullptr) {
    p.bias_gradient = true;
    made.term.emplace();
    if (std::string why = plan_term_gradient(plan, *made.term); !why.empty()) return why;
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const bool of_term = made.term && i == plan.differentiated()->gradient;
    if (of_term) continue;  // f32, by a kernel of ours
    const DType type = call.outputs[i].dtype;
    const bool widened = gradient && type == DType::kF32 && !plan.attributes.packed;
    if (call.has_output(i) && (gradient || i == 0) && type != plan.dtype && !widened)
      return "a result of another type than Q";
  }
  return {};
}

void plan_copies(const KernelCall& call, LibraryAttention& made, cpu::WorkspacePlan& workspace) {
  const AttentionPlan& plan = made.planned.plan;
  const RowLayout* const layouts[] = {&plan.q, &plan.k, &plan.v};
  for (size_t i = 0; i < 3; ++i) {
    LibraryAttention::Copy& copy = made.copies[i];
    const size_t output = plan.gradient_of(i);
    const bool lies_so = !(i == 1 && made.is_turned());
    copy.wanted = call.has_output(output) && !(call.outputs[output].dtype == plan.dtype && lies_so);
    if (copy.wanted) copy.dtype = call.outputs[output].dtype;
    copy.made = copy.wanted || !call.has_output(output);
    if (!copy.made) continue;
    copy.count = plan.batches / layouts[i]->group * layouts[i]->rows * layouts[i]->size;
    copy.room = workspace.add_elements<Half>(copy.count);
  }
}

Prepared prepare_on_library(const KernelCall& call, bool gradient) {
  LibraryAttention made;
  std::string why = problem_of(call, gradient, made);
  if (why.empty()) made.sdpa = dnn().plan(made.problem, why);
  if (made.sdpa == nullptr) return Prepared::no(why);
  cpu::WorkspacePlan workspace;
  if (made.problem.has_bias()) {
    made.bias = workspace.add_elements<float>(size_of_dims(made.problem.bias));
    made.hidden = workspace.add_elements<float>(2 * (made.rows() + made.heads()));
    const ScoreDims& dims = made.problem.bias;
    made.taken = workspace.add_elements<float>(dims[0] * dims[1] * dims[2]);
    if (gradient) made.means = workspace.add_elements<float>(made.rows());
  }
  const RowLayout& k = made.k;
  if (made.is_turned())
    made.keys = workspace.add_elements<Half>(made.planned.plan.batches / k.group * k.rows * k.size);
  if (made.term) {
    made.slopes = workspace.add_elements<Half>(size_of_dims(made.scores));
    made.slice_term();
    if (made.slices.count > 1)
      made.parts = workspace.add_elements<float>(made.slices.count * made.term_elements());
  }
  if (made.problem.drops()) made.kept = workspace.add_elements<Half>(size_of_dims(made.scores));
  if (gradient) {
    made.statistics = workspace.add_elements<float>(made.rows());
    plan_copies(call, made, workspace);
  }
  made.room = workspace.add(made.sdpa->workspace_bytes() + 256);
  const size_t bytes = workspace.size();
  return for_float_type(made.problem.dtype, [&]<class T>() -> Prepared {
    if constexpr (sizeof(T) == 2) {
      if (gradient)
        return make_kernel([made](const KernelBuffers& b) { made.gradient<T>(b); }, bytes);
      return make_kernel([made](const KernelBuffers& b) { made.forward<T>(b); }, bytes);
    }
    return Prepared::no("operands that are not 16-bit floats");
  });
}

}  // namespace

Prepared prepare_library_attention(const KernelCall& call) {
  return prepare_on_library(call, false);
}
Prepared prepare_library_attention_gradient(const KernelCall& call) {
  return prepare_on_library(call, true);
}

}  // namespace halfnote::HN_CUDA
