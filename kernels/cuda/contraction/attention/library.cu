// Attention by the library, for 16-bit operands. It knows one term, in f32, and a mask of what a
// dropout keeps: both are laid out in the workspace. Rows of which every key is hidden are not
// defined there: they are written behind it. Gradients are rounded to 16 bits, whatever type is
// asked for: those in f32 the library would add up by atomics.
#include <array>
#include <limits>

#include "kernels/cpu/reals.h"
#include "kernels/cuda/contraction/attention/parts.h"
#include "kernels/cuda/libraries/dnn.h"

namespace halfnote::HN_CUDA {

namespace {

using libraries::Sdpa;
using libraries::SdpaOperands;
using libraries::SdpaProblem;
using libraries::SdpaTensor;

/// Batches, heads, queries and keys of the scores.
using ScoreDims = std::array<int64_t, 4>;

/// The terms as one, of which a dim is 1 where no term goes along it.
struct JoinTerms {
  DeviceAttention p;
  Divisor heads_of_call, heads, rows, keys;
  bool of_batch;
  float* to;

  __device__ void operator()(int64_t at) const {
    const int64_t line = keys.quotient(at), j = at - line * keys.value();
    const int64_t head = rows.quotient(line), i = line - head * rows.value();
    const int64_t batch = heads.quotient(head), h = head - batch * heads.value();
    const ScoresOfBatch<float> of(p, (of_batch ? batch : 0) * heads_of_call.value() + h);
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
    to[at] = sum;
  }
};

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
    for (int k = 0; k < 4 && 4 * at + k < count; ++k) {
      to[4 * at + k] = store_number<T>(words.word[k] >= dropout.threshold ? 1.0f : 0.0f);
    }
  }
};

/// Where the bias of a row of the scores begins.
struct BiasOfRow {
  const float* data;
  Divisor queries, heads;
  int64_t batch_step, head_step, row_step;

  __device__ const float* operator()(int64_t row) const {
    const int64_t head = queries.quotient(row), i = row - head * queries.value();
    const int64_t batch = heads.quotient(head), h = head - batch * heads.value();
    return data + batch * batch_step + h * head_step + i * row_step;
  }
};

/// What Attention promises of a row: MAX and SUM, whose logarithms the library adds; and a row that
/// is −∞ throughout.
template <class T>
struct SettleRows {
  BiasOfRow bias;  // null: no row is hidden
  int64_t keys;
  bool causal, nan_is_zero;
  RowLayout layout;
  T* y;
  float *most, *sum;  // null: nobody asks

  __device__ bool is_hidden(int64_t row) const {
    if (bias.data == nullptr) return false;
    const float* first = bias(row);
    const int64_t i = bias.queries.remainder(row);
    const int64_t seen = causal && i + 1 < keys ? i + 1 : keys;
    for (int64_t j = 0; j < seen; ++j) {
      if (first[j] != -INFINITY) return false;
    }
    return true;
  }
  __device__ void operator()(int64_t row) const {
    const bool hidden = is_hidden(row);
    if (most != nullptr) {
      if (hidden) most[row] = -INFINITY;
      sum[row] = hidden ? static_cast<float>(NAN) : 1.0f;
    }
    if (!hidden) return;
    const int64_t head = bias.queries.quotient(row);
    T* to = y + layout.at(head, row - head * bias.queries.value());
    const T value = store_number<T>(nan_is_zero ? 0.0f : static_cast<float>(NAN));
    for (int64_t e = 0; e < layout.size; ++e) to[e] = value;
  }
};

/// The logarithm of Σ exp of a row's scores. A row of −∞ has probabilities of NaN, or of 0, which
/// any number gives.
struct JoinStatistics {
  const float *most, *sum;
  bool nan_is_zero;
  float* to;
  __device__ void operator()(int64_t row) const {
    const bool hidden = most[row] == -INFINITY && nan_is_zero;
    to[row] = hidden ? 0.0f : most[row] + math::log(sum[row]);
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
  t.dims = {scores[0], scores[1], layout.rows, layout.size};
  const bool rows_first = layout.heads == scores[1];
  const int64_t head = rows_first ? layout.size : layout.rows * layout.size;
  t.strides = {rows_first ? layout.rows * layout.step() : scores[1] * head, head, layout.step(), 1};
  return t;
}

/// Where the first element of Q, K or V lies in its operand.
int64_t begin_of(const RowLayout& layout) { return layout.at(0, 0); }

/// The dims of the terms as one.
ScoreDims joined(const AttentionPlan& plan, const ScoreDims& scores) {
  ScoreDims dims = {1, 1, 1, scores[3]};
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

/// A bool term puts a number where the library can only add one: so low that the score beside it is
/// lost in its rounding.
constexpr float kLowEnough = -1e9f;

std::string unfit_for_library(const AttentionPlan& plan) {
  if (!is_16bit_float(plan.dtype)) return "operands that are not 16-bit floats";
  if (plan.attributes.trans_k) return "a transposed K";
  if (plan.differentiated() != nullptr) return "the gradient of a term";
  for (const cpu::attention::Term& term : plan.terms) {
    if (term.hides() && !(term.hidden <= kLowEnough)) return "a mask that does not hide";
  }
  return {};
}

struct LibraryAttention {
  PlannedAttention planned;
  SdpaProblem problem;
  std::shared_ptr<const Sdpa> sdpa;
  ScoreDims scores{};
  size_t bias = 0, kept = 0, statistics = 0, room = 0;  // in the workspace
  /// Gradients that the library cannot write where they belong: of another type, or nobody's.
  struct Copy {
    bool made = false, wanted = false;
    size_t room = 0;
    int64_t count = 0;
  };
  std::array<Copy, 3> copies;

  int64_t rows() const { return scores[0] * scores[1] * scores[2]; }

  /// Bias and mask where the library reads them.
  void prepare(const KernelBuffers& buffers, SdpaOperands& operands) const {
    const DeviceAttention p = planned.on_device(buffers);
    Stream& stream = stream_of(buffers);
    if (problem.has_bias()) {
      auto* to = cpu::part<float>(buffers, bias);
      const ScoreDims& dims = problem.bias;
      for_each(stream, size_of_dims(dims),
               JoinTerms{p, Divisor(scores[1]), Divisor(dims[1]), Divisor(dims[2]),
                         Divisor(dims[3]), dims[0] > 1, to});
      operands.bias = to;
    }
    if (!problem.drops()) return;
    operands.kept = cpu::part<std::byte>(buffers, kept);
    if (problem.dtype == DType::kF16) {
      draw<Half>(stream, p, buffers);
    } else {
      draw<BFloat16>(stream, p, buffers);
    }
  }
  template <class T>
  void draw(Stream& stream, const DeviceAttention& p, const KernelBuffers& buffers) const {
    const int64_t count = size_of_dims(scores);
    for_each(stream, (count + 3) / 4, DrawKept<T>{p.dropout, count, cpu::part<T>(buffers, kept)});
  }
  template <class T>
  void settle(const KernelBuffers& buffers, const SdpaOperands& operands) const {
    const ScoreDims& dims = problem.bias;
    const auto step = [&](size_t d) {
      int64_t elements = dims[d] == 1 ? 0 : 1;
      for (size_t inner = d + 1; inner < 4; ++inner) elements *= dims[inner];
      return elements;
    };
    const BiasOfRow of_row = {
        operands.bias, Divisor(scores[2]), Divisor(scores[1]), step(0), step(1), step(2)};
    const bool asked = problem.statistics;
    for_each(
        stream_of(buffers), rows(),
        SettleRows<T>{of_row, scores[3], problem.causal, planned.plan.attributes.nan_is_zero,
                      planned.plan.y, buffers.out<T>(0), asked ? buffers.out<float>(1) : nullptr,
                      asked ? buffers.out<float>(2) : nullptr});
  }

  void forward(const KernelBuffers& buffers) const {
    SdpaOperands operands;
    place(buffers, 0, operands);
    operands.y = buffers.outputs[0];
    if (problem.statistics) operands.statistics = buffers.out<float>(1);
    prepare(buffers, operands);
    sdpa->run(stream_of(buffers), operands);
    if (problem.dtype == DType::kF16) {
      settle<Half>(buffers, operands);
    } else {
      settle<BFloat16>(buffers, operands);
    }
  }

  void gradient(const KernelBuffers& buffers) const {
    using namespace cpu::attention;
    SdpaOperands operands;
    place(buffers, kGradQ, operands);
    operands.y = const_cast<std::byte*>(buffers.inputs[kGradResult]);
    operands.dy = buffers.inputs[kGradY];
    operands.statistics = cpu::part<float>(buffers, statistics);
    for_each(stream_of(buffers), rows(),
             JoinStatistics{buffers.in<float>(kGradMost), buffers.in<float>(kGradSum),
                            planned.plan.attributes.nan_is_zero, operands.statistics});
    void** const to[] = {&operands.dq, &operands.dk, &operands.dv};
    const RowLayout* const layouts[] = {&planned.plan.q, &planned.plan.k, &planned.plan.v};
    for (size_t i = 0; i < 3; ++i) {
      std::byte* first = copies[i].made ? cpu::part<std::byte>(buffers, copies[i].room)
                                        : buffers.outputs[planned.plan.gradient_of(i)];
      *to[i] = first + bytes(begin_of(*layouts[i]));
    }
    prepare(buffers, operands);
    sdpa->run(stream_of(buffers), operands);
    if (problem.dtype == DType::kF16) {
      widen<Half>(buffers);
    } else {
      widen<BFloat16>(buffers);
    }
  }
  template <class T>
  void widen(const KernelBuffers& buffers) const {
    for (size_t i = 0; i < 3; ++i) {
      if (!copies[i].wanted) continue;
      for_each(stream_of(buffers), copies[i].count,
               Widen<T>{cpu::part<T>(buffers, copies[i].room), buffers.out<float>(i)});
    }
  }

  int64_t bytes(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(problem.dtype));
  }

 private:
  void place(const KernelBuffers& buffers, size_t first, SdpaOperands& operands) const {
    operands.q = buffers.inputs[first] + bytes(begin_of(planned.plan.q));
    operands.k = buffers.inputs[first + 1] + bytes(begin_of(planned.plan.k));
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
  p.k = tensor_of(plan.k, made.scores);
  p.v = tensor_of(plan.v, made.scores);
  p.y = tensor_of(plan.y, made.scores);
  p.scale = plan.attributes.scale;
  p.causal = plan.attributes.causal;
  if (!plan.terms.empty()) p.bias = joined(plan, made.scores);
  if (plan.dropout) p.kept = plan.dropout->factor;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
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
    copy.wanted = call.has_output(output) && call.outputs[output].dtype != plan.dtype;
    copy.made = copy.wanted || !call.has_output(output);
    if (!copy.made) continue;
    copy.count = plan.batches * layouts[i]->rows * layouts[i]->size;
    copy.room = workspace.add_elements<Half>(copy.count);
  }
}

Prepared prepare_on_library(const KernelCall& call, bool gradient) {
  LibraryAttention made;
  std::string why = problem_of(call, gradient, made);
  if (why.empty()) made.sdpa = dnn().plan(made.problem, why);
  if (made.sdpa == nullptr) return Prepared::no(why);
  cpu::WorkspacePlan workspace;
  if (made.problem.has_bias())
    made.bias = workspace.add_elements<float>(size_of_dims(made.problem.bias));
  if (made.problem.drops()) made.kept = workspace.add_elements<Half>(size_of_dims(made.scores));
  if (gradient) {
    made.statistics = workspace.add_elements<float>(made.rows());
    plan_copies(call, made, workspace);
  }
  made.room = workspace.add(made.sdpa->workspace_bytes() + 256);
  const size_t bytes = workspace.size();
  if (gradient) return make_kernel([made](const KernelBuffers& b) { made.gradient(b); }, bytes);
  return make_kernel([made](const KernelBuffers& b) { made.forward(b); }, bytes);
}

}  // namespace

Prepared prepare_library_attention(const KernelCall& call) {
  return prepare_on_library(call, false);
}
Prepared prepare_library_attention_gradient(const KernelCall& call) {
  return prepare_on_library(call, true);
}

}  // namespace halfnote::HN_CUDA
