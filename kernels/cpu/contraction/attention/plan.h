// What a call of Attention or AttentionGrad of ai.halfnote computes, whatever kernel does it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/ops/attention.h"
#include "kernels/cpu/stateful/keep.h"
#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace halfnote::cpu::attention {

/// A term of the scores: element (i, j) of batch b is at starts[b] + i·row + j·column.
struct Term {
  size_t input = 0;
  DType dtype = DType::kUndefined;
  float hidden = 0;  // of a bool term
  int64_t row = 0, column = 0;
  std::vector<int64_t> starts;  // by batch
  Shape strides;                // by batch dim, which is what `starts` holds
  size_t gradient = 0;          // output of its gradient; 0: nobody asks for it

  bool hides() const { return dtype == DType::kBool; }
};

/// Where the rows of an operand, or of its gradient, lie: row i of batch b at at(b, i), `size`
/// elements that follow one another.
struct RowLayout {
  int64_t heads = 1;  // the last batch dim where the rows stand before it, else 1
  int64_t rows = 0, size = 0;
  int64_t parts = 1, part = 0;  // of a row of all heads: which it is of Q, K and V in one tensor
  int64_t group = 1;            // batches of the scores that follow one another and read the same

  HN_HD int64_t step() const { return parts * heads * size; }
  HN_HD int64_t at(int64_t batch, int64_t row) const {
    const int64_t own = batch / group;
    return (own / heads * rows + row) * step() + (part * heads + own % heads) * size;
  }
};

/// The dropout of the probabilities, and the operands that it reads.
struct ProbabilityDropout {
  uint32_t node = 0;
  uint64_t threshold = 0;
  float factor = 1;  // of what is kept
  size_t seed = 0, step = 0;

  /// Of the step that is run.
  KeepStream stream(const KernelBuffers& buffers) const {
    return {static_cast<uint64_t>(*buffers.in<int64_t>(seed)),
            static_cast<uint64_t>(*buffers.in<int64_t>(step)), node, threshold};
  }
};

struct AttentionPlan {
  Shape batch_dims;
  int64_t batches = 0;                 // of all batch dims
  int64_t m = 0, n = 0, d = 0, e = 0;  // queries, keys, size of a key, size of a value
  AttentionAttributes attributes;
  RowLayout q, k, v, y;  // K as it is stored: of D rows with transK
  std::vector<Term> terms;
  std::optional<ProbabilityDropout> dropout;
  DType dtype = DType::kUndefined;  // of the operands
  int threads = 1;
  /// Batches that add to the same gradient of a term, or of K and V, in order; else each alone.
  std::vector<std::vector<int64_t>> groups;

  /// The element of P that a dropout draws for.
  uint64_t element(int64_t batch, int64_t query, int64_t key) const {
    return static_cast<uint64_t>((batch * m + query) * n + key);
  }
  /// The result of AttentionGrad in which the gradient of Q, K or V lies (0, 1, 2).
  size_t gradient_of(size_t operand) const { return attributes.packed ? 0 : operand; }
  /// The term whose gradient is asked for; null if there is none.
  const Term* differentiated() const;
};

/// Where the operands of AttentionGrad stand.
inline constexpr size_t kGradY = 0, kGradQ = 1, kGradK = 2, kGradV = 3, kGradResult = 4,
                        kGradMost = 5, kGradSum = 6, kGradTerms = 7;

/// Reads a call of Attention (Q, K, V, terms…), or of AttentionGrad (dY, Q, K, V, Y, MAX, SUM,
/// terms…), either with seed and step of a dropout behind. Throws Error(kModel) if the shapes do
/// not fit; `refusal` says why no kernel takes the call.
AttentionPlan plan_attention(const KernelCall& call, bool gradient, std::string* refusal);

}  // namespace halfnote::cpu::attention
