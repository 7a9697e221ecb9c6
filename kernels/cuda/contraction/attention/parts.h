// What the kernels of Attention and AttentionGrad share on the device: the call as an argument, and
// what the terms, the causal mask and a dropout make of one score.
#pragma once

#include "kernels/cpu/contraction/attention/plan.h"
#include "kernels/cuda/support.h"
#include "kernels/math/philox.h"

namespace halfnote::HN_CUDA {

using cpu::attention::AttentionPlan;
using cpu::attention::RowLayout;

Prepared prepare_attention(const KernelCall& call);           // forward.cu
Prepared prepare_attention_gradient(const KernelCall& call);  // gradient.cu
Prepared prepare_library_attention(const KernelCall& call);   // library.cu
Prepared prepare_library_attention_gradient(const KernelCall& call);

inline constexpr int kMostTerms = 4;

/// An operand, whose type is known when the kernel runs: as much of the work is products, a kernel
/// a type is not worth its time to compile.
struct Elements {
  const void* data = nullptr;
  DType dtype = DType::kUndefined;

  template <class M>
  __device__ M load(int64_t at) const {
    if (dtype == DType::kF16) return load_number(static_cast<const Half*>(data)[at]);
    if (dtype == DType::kBF16) return load_number(static_cast<const BFloat16*>(data)[at]);
    return static_cast<const M*>(data)[at];
  }
  /// Is element `at` the first of kPack that are read at once? Of floats of up to 32 bits.
  template <int kPack>
  __device__ bool lies_in_packs(int64_t at) const {
    const int bytes = dtype == DType::kF32 ? 4 : 2;
    return (reinterpret_cast<uintptr_t>(data) + static_cast<uint64_t>(at) * bytes) %
               (kPack * bytes) ==
           0;
  }
};

struct DeviceTerm {
  RealPointer values;  // of a float term
  const bool* mask = nullptr;
  float hidden = 0;
  int64_t row = 0, column = 0;
};

struct DeviceDropout {
  const int64_t *seed = nullptr, *step = nullptr;  // null: no dropout
  uint64_t threshold = 0;
  uint32_t node = 0;
  float factor = 1;
};

/// An AttentionPlan as a kernel's argument.
struct DeviceAttention {
  int64_t batches = 0, m = 0, n = 0;
  int d = 0, e = 0, terms = 0;
  float scale = 1;
  bool causal = false, nan_is_zero = false, trans_k = false;
  RowLayout q, k, v, y;
  DeviceTerm term[kMostTerms];
  Strided<kMostTerms> of_batch;  // where each term begins
  DeviceDropout dropout;

  __device__ bool drops() const { return dropout.seed != nullptr; }
};

/// What does not depend on where the operands lie: filled in by on_device().
struct PlannedAttention {
  AttentionPlan plan;
  DeviceAttention argument;

  DeviceAttention on_device(const KernelBuffers& buffers) const;
};

/// Why the device has no kernel for the call, or an empty string.
std::string plan_attention_on_device(const KernelCall& call, bool gradient,
                                     PlannedAttention& planned);

/// A term whose gradient is asked for, and the batches that it is broadcast to.
struct TermGradient {
  int term = 0;
  Strided<1> groups, members;  // the first batch of a group; batches from there
};

/// Splits the batches by whether the differentiated term differs between them.
std::string plan_term_gradient(const AttentionPlan& plan, TermGradient& made);  // gradient.cu

/// One batch of an attention, as a block sees it.
template <class M>
struct ScoresOfBatch {
  const DeviceAttention& p;  // a kernel's argument
  int64_t batch;
  int64_t starts[kMostTerms];

  __device__ ScoresOfBatch(const DeviceAttention& all, int64_t of) : p(all), batch(of) {
    p.of_batch.offsets(batch, starts);
  }
  __device__ bool is_outside(int64_t i, int64_t j) const { return i >= p.m || j >= p.n; }
  __device__ int64_t place(int t, int64_t i, int64_t j) const {
    return starts[t] + i * p.term[t].row + j * p.term[t].column;
  }
  /// Where a term begins that is known when the kernel runs: `starts` are registers.
  __device__ int64_t start_of(int term) const {
    int64_t start = 0;
    HN_UNROLL
    for (int t = 0; t < kMostTerms; ++t) start = t == term ? starts[t] : start;
    return start;
  }
  /// The score of query i and key j from their product.
  __device__ M score(M product, int64_t i, int64_t j) const {
    if (is_outside(i, j) || (p.causal && j > i)) return -static_cast<M>(INFINITY);
    M s = product * static_cast<M>(p.scale);
    HN_UNROLL
    for (int t = 0; t < kMostTerms; ++t) {
      if (t >= p.terms) break;
      const DeviceTerm& term = p.term[t];
      if (term.mask == nullptr) {
        s += term.values.template load<M>(place(t, i, j));
      } else if (!term.mask[place(t, i, j)]) {
        s = static_cast<M>(term.hidden);
      }
    }
    return s;
  }
  /// Are the scores of a tile from this query and key on the products times the scale, and all of
  /// them there and kept?
  __device__ bool are_plain(int64_t query, int64_t key, int tile) const {
    return p.terms == 0 && !p.drops() && query + tile <= p.m && key + tile <= p.n &&
           (!p.causal || key + tile <= query + 1);
  }
  /// Does one of the terms from `first` on hide the score?
  __device__ bool is_hidden(int first, int64_t i, int64_t j) const {
    bool hidden = false;
    HN_UNROLL
    for (int t = 0; t < kMostTerms; ++t) {
      if (t < first || t >= p.terms || p.term[t].mask == nullptr) continue;
      hidden = hidden || !p.term[t].mask[place(t, i, j)];
    }
    return hidden;
  }
};

/// Which element of P that of a query and a key is.
__device__ inline uint64_t element_of(const DeviceAttention& p, int64_t batch, int64_t query,
                                      int64_t key) {
  return static_cast<uint64_t>((batch * p.m + query) * p.n + key);
}
/// A bit for each of four elements that a dropout keeps.
__device__ inline uint32_t kept_of_four(const DeviceDropout& dropout, uint64_t seed, uint64_t step,
                                        uint64_t group) {
  const auto words = math::dropout_words(seed, step, dropout.node, group);
  uint32_t bits = 0;
  HN_UNROLL
  for (int k = 0; k < 4; ++k) bits |= words.word[k] >= dropout.threshold ? 1u << k : 0u;
  return bits;
}

/// Which elements of a tile of P a dropout keeps: four bits for each group of random words that a
/// row of the tile meets. Element e is bit e % 4 of group e / 4.
template <int kTile>
struct KeptTile {
  static constexpr int kGroups = kTile / 4 + 1;
  uint8_t bits[kTile * kGroups];

  /// All threads of a block of `kThreads`; a barrier has to follow.
  template <int kThreads>
  __device__ void draw(const DeviceAttention& p, int64_t batch, int64_t query, int64_t key) {
    const auto seed = static_cast<uint64_t>(*p.dropout.seed);
    const auto step = static_cast<uint64_t>(*p.dropout.step);
    for (int at = static_cast<int>(threadIdx.x); at < kTile * kGroups; at += kThreads) {
      const uint64_t first = element_of(p, batch, query + at / kGroups, key);
      bits[at] = static_cast<uint8_t>(
          kept_of_four(p.dropout, seed, step, first / 4 + static_cast<uint64_t>(at % kGroups)));
    }
  }
  /// Is the element of row `row` and column `column` of the tile kept?
  __device__ bool keeps(const DeviceAttention& p, int64_t batch, int64_t query, int64_t key,
                        int row, int column) const {
    if (!p.drops()) return true;
    const int at = static_cast<int>(element_of(p, batch, query + row, key) % 4) + column;
    return (bits[row * kGroups + at / 4] >> at % 4 & 1) != 0;
  }
};

}  // namespace halfnote::HN_CUDA
