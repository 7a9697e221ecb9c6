// Attention and AttentionGrad of ai.halfnote, row by row in math precision: what the fast kernels
// are held against.
#include <cmath>
#include <limits>

#include "kernels/cpu/contraction/attention/fast.h"
#include "kernels/cpu/contraction/attention/plan.h"
#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/math/philox.h"

namespace halfnote::cpu::attention {
namespace {

/// A key's element: element `d` of key `j` in batch `b`.
int64_t key_at(const AttentionPlan& p, int64_t b, int64_t j, int64_t d) {
  return p.attributes.trans_k ? p.k.at(b, d) + j : p.k.at(b, j) + d;
}

bool is_hidden(const Term& term, const KernelBuffers& buffers, int64_t b, int64_t i, int64_t j) {
  const auto* mask = reinterpret_cast<const bool*>(buffers.inputs[term.input]);
  return !mask[term.starts[static_cast<size_t>(b)] + i * term.row + j * term.column];
}

/// The scores of query `i` of batch `b`; `q` is the input that Q is, K follows it.
template <class M>
void score_row(const AttentionPlan& p, const KernelBuffers& buffers, size_t q, int64_t b, int64_t i,
               std::vector<M>& scores) {
  const auto element = [&](size_t input, int64_t index) {
    return static_cast<M>(read_real(buffers.inputs[input], p.dtype, index));
  };
  for (int64_t j = 0; j < p.n; ++j) {
    M sum = 0;
    for (int64_t d = 0; d < p.d; ++d)
      sum += element(q, p.q.at(b, i) + d) * element(q + 1, key_at(p, b, j, d));
    sum *= static_cast<M>(p.attributes.scale);
    for (const Term& term : p.terms) {
      if (term.hides()) {
        if (is_hidden(term, buffers, b, i, j)) sum = static_cast<M>(term.hidden);
        continue;
      }
      const int64_t at = term.starts[static_cast<size_t>(b)] + i * term.row + j * term.column;
      sum += static_cast<M>(read_real(buffers.inputs[term.input], term.dtype, at));
    }
    if (p.attributes.causal && j > i) sum = -std::numeric_limits<M>::infinity();
    scores[static_cast<size_t>(j)] = sum;
  }
}

/// What makes probabilities of the scores of a row: exp(s − most)/sum.
template <class M>
struct RowSum {
  M most = -std::numeric_limits<M>::infinity(), sum = 0;
};

template <class M>
RowSum<M> sum_of(const std::vector<M>& scores) {
  RowSum<M> row;
  for (const M score : scores) row.most = score > row.most ? score : row.most;
  for (const M score : scores) row.sum += std::exp(score - row.most);
  return row;
}

template <class M>
void to_probabilities(std::vector<M>& scores, const RowSum<M>& row) {
  for (M& score : scores) score = std::exp(score - row.most) / row.sum;
}

/// D: what a dropout leaves of the row that query `i` of batch `b` has; x where there is none.
template <class M>
class RowDropout {
 public:
  RowDropout(const AttentionPlan& p, const KernelBuffers& buffers, int64_t b, int64_t i)
      : first_(p.element(b, i, 0)), drops_(p.dropout.has_value()) {
    if (!drops_) return;
    stream_ = p.dropout->stream(buffers);
    factor_ = static_cast<M>(p.dropout->factor);
  }

  M operator()(int64_t j, M x) const {
    if (!drops_) return x;
    const uint64_t element = first_ + static_cast<uint64_t>(j);
    const auto words = math::dropout_words(stream_.seed, stream_.step, stream_.node, element / 4);
    return words.word[element % 4] >= stream_.threshold ? x * factor_ : M{0};
  }

 private:
  uint64_t first_ = 0;
  bool drops_ = false;
  KeepStream stream_;
  M factor_ = 1;
};

template <class M>
Prepared forward_kernel(const AttentionPlan& plan, DType result, bool has_sums) {
  return make_kernel([=](const KernelBuffers& buffers) {
    parallel_blocks(plan.batches * plan.m, 1, plan.threads, [&](int64_t row, int64_t) {
      const int64_t b = row / plan.m, i = row % plan.m;
      std::vector<M> scores(static_cast<size_t>(plan.n)), y(static_cast<size_t>(plan.e));
      score_row<M>(plan, buffers, 0, b, i, scores);
      const RowSum<M> sums = sum_of(scores);
      to_probabilities(scores, sums);
      const RowDropout<M> drop(plan, buffers, b, i);
      for (int64_t j = 0; j < plan.n; ++j) {
        const M probability = drop(j, scores[static_cast<size_t>(j)]);
        if (plan.attributes.nan_is_zero && std::isnan(probability)) continue;
        for (int64_t e = 0; e < plan.e; ++e) {
          y[static_cast<size_t>(e)] +=
              probability *
              static_cast<M>(read_real(buffers.inputs[2], plan.dtype, plan.v.at(b, j) + e));
        }
      }
      store_reals(y.data(), plan.e, result, buffers.outputs[0], plan.y.at(b, i));
      if (has_sums) {
        buffers.out<M>(1)[row] = sums.most;
        buffers.out<M>(2)[row] = sums.sum;
      }
    });
  });
}

/// The gradients of one batch, and of the keys and values that it shares with its group, summed in
/// math precision.
template <class M>
struct Sums {
  std::vector<M> dq, dk, dv;
};

/// dS of the terms that stand behind a hiding one is 0 where that hides; the gradient of the
/// differentiated term is added at its place.
template <class M>
void through_terms(const AttentionPlan& p, const KernelBuffers& buffers, int64_t b, int64_t i,
                   std::vector<M>& slopes) {
  for (size_t t = p.terms.size(); t-- > 0;) {
    const Term& term = p.terms[t];
    for (int64_t j = 0; j < p.n; ++j) {
      M& slope = slopes[static_cast<size_t>(j)];
      if (term.hides() && is_hidden(term, buffers, b, i, j)) slope = 0;
      if (term.gradient == 0) continue;
      const int64_t at = term.starts[static_cast<size_t>(b)] + i * term.row + j;
      buffers.out<M>(term.gradient)[at] += slope;
    }
  }
}

template <class M>
void row_gradient(const AttentionPlan& p, const KernelBuffers& buffers, int64_t b, int64_t i,
                  Sums<M>& sums) {
  const auto element = [&](size_t input, int64_t index) {
    return static_cast<M>(read_real(buffers.inputs[input], p.dtype, index));
  };
  const int64_t row = b * p.m + i, q = p.q.at(b, i), y = p.y.at(b, i);
  std::vector<M> weights(static_cast<size_t>(p.n)), slopes(static_cast<size_t>(p.n));
  score_row<M>(p, buffers, kGradQ, b, i, weights);
  to_probabilities(weights, RowSum<M>{buffers.in<M>(kGradMost)[row], buffers.in<M>(kGradSum)[row]});
  M delta = 0;
  for (int64_t e = 0; e < p.e; ++e) delta += element(kGradY, y + e) * element(kGradResult, y + e);
  const RowDropout<M> drop(p, buffers, b, i);
  for (int64_t j = 0; j < p.n; ++j) {
    M& weight = weights[static_cast<size_t>(j)];
    M slope = 0;
    for (int64_t e = 0; e < p.e; ++e)
      slope += element(kGradY, y + e) * element(kGradV, p.v.at(b, j) + e);
    slopes[static_cast<size_t>(j)] = weight * (drop(j, slope) - delta);
    weight = drop(j, weight);
    if (p.attributes.nan_is_zero && std::isnan(weight)) weight = 0;
    for (int64_t e = 0; e < p.e; ++e)
      sums.dv[static_cast<size_t>(j * p.e + e)] += weight * element(kGradY, y + e);
  }
  through_terms(p, buffers, b, i, slopes);
  const auto scale = static_cast<M>(p.attributes.scale);
  for (int64_t j = 0; j < p.n; ++j) {
    const M slope = slopes[static_cast<size_t>(j)] * scale;
    for (int64_t d = 0; d < p.d; ++d) {
      const int64_t in_sums = p.attributes.trans_k ? d * p.n + j : j * p.d + d;
      sums.dq[static_cast<size_t>(i * p.d + d)] += slope * element(kGradK, key_at(p, b, j, d));
      sums.dk[static_cast<size_t>(in_sums)] += slope * element(kGradQ, q + d);
    }
  }
}

template <class M>
Prepared gradient_kernel(const AttentionPlan& plan, const std::vector<Operand>& outputs) {
  int64_t term_size = 0;
  if (const Term* term = plan.differentiated()) term_size = outputs[term->gradient].size();
  std::array<DType, 3> types{};
  for (size_t i = 0; i < 3 && i < outputs.size(); ++i) types[i] = outputs[i].dtype;
  return make_kernel([=](const KernelBuffers& buffers) {
    const Term* wanted = plan.differentiated();
    if (wanted) std::fill_n(buffers.out<M>(wanted->gradient), term_size, M{0});
    const auto count = static_cast<int64_t>(plan.groups.size());
    parallel_blocks(count, 1, plan.threads, [&](int64_t group, int64_t) {
      Sums<M> sums;
      for (const int64_t b : plan.groups[static_cast<size_t>(group)]) {
        sums.dq.assign(static_cast<size_t>(plan.m * plan.d), M{0});
        if (b % plan.k.group == 0) {
          sums.dk.assign(static_cast<size_t>(plan.n * plan.d), M{0});
          sums.dv.assign(static_cast<size_t>(plan.n * plan.e), M{0});
        }
        for (int64_t i = 0; i < plan.m; ++i) row_gradient(plan, buffers, b, i, sums);
        const std::vector<M>* all[] = {&sums.dq, &sums.dk, &sums.dv};
        const RowLayout* layouts[] = {&plan.q, &plan.k, &plan.v};
        for (size_t i = 0; i < 3; ++i) {
          const RowLayout& to = *layouts[i];
          const size_t result = plan.gradient_of(i);
          if ((b + 1) % to.group != 0) continue;  // others of its group add to it
          for (int64_t row = 0; types[result] != DType::kUndefined && row < to.rows; ++row) {
            store_reals(all[i]->data() + row * to.size, to.size, types[result],
                        buffers.outputs[result], to.at(b, row));
          }
        }
      }
    });
  });
}

Prepared prepare_reference(const KernelCall& call) {
  std::string why;
  const AttentionPlan plan = plan_attention(call, false, &why);
  if (!call.has_output(0)) why = "Y is missing";
  if (!why.empty()) return Prepared::no(why);
  return for_math_type(plan.dtype, [&]<class M>() {
    return forward_kernel<M>(plan, call.outputs[0].dtype, call.has_output(1) && call.has_output(2));
  });
}

Prepared prepare_reference_gradient(const KernelCall& call) {
  std::string why;
  const AttentionPlan plan = plan_attention(call, true, &why);
  if (!why.empty()) return Prepared::no(why);
  return for_math_type(plan.dtype,
                       [&]<class M>() { return gradient_kernel<M>(plan, call.outputs); });
}

}  // namespace
}  // namespace halfnote::cpu::attention

namespace halfnote::cpu {

std::vector<KernelRow> attention_rows() {
  return {
      {"ai.halfnote", "Attention", "fast.attention", attention::prepare_fast},
      {"ai.halfnote", "Attention", "reference", attention::prepare_reference},
      {"ai.halfnote", "AttentionGrad", "fast.attention", attention::prepare_fast_gradient},
      {"ai.halfnote", "AttentionGrad", "reference", attention::prepare_reference_gradient},
  };
}

}  // namespace halfnote::cpu
