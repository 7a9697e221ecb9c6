// Attention of a library, behind one narrow class: cuDNN's on a GPU, plain loops under the
// emulation. Both take only what the library's rules allow (sdpa_rules.cc).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/device.h"

namespace halfnote::libraries {

/// An operand (batch, heads, rows, size), and the elements from one to the next along each dim.
struct SdpaTensor {
  std::array<int64_t, 4> dims{}, strides{};

  friend bool operator==(const SdpaTensor&, const SdpaTensor&) = default;
};

/// Y = D(P)·V, P = softmax(scale·Q·Kᵀ + bias) along the keys; or its gradients, for which the
/// gradient of each of q, k, v and y lies as that does. Sums are in f32. K and V may have fewer
/// heads than Q: head h of the scores reads head h / (heads of Q / heads of K) of them, and their
/// gradients are sums over those that do.
struct SdpaProblem {
  bool gradient = false;
  bool statistics = true;           // does a forward call give them?
  DType dtype = DType::kUndefined;  // of operands and results
  SdpaTensor q, k, v, y;
  float scale = 1;
  bool causal = false;            // key j is hidden from query i < j
  std::array<int64_t, 4> bias{};  // dims of f32 terms, packed, each the scores' or 1; 0: none
  bool bias_gradient = false;     // a gradient gives that of every score too, before the scale
  float kept = 0;                 // the factor of what a dropout keeps; 0: no dropout

  bool has_bias() const { return bias[0] != 0; }
  bool drops() const { return kept != 0; }
  friend bool operator==(const SdpaProblem&, const SdpaProblem&) = default;
};

struct SdpaOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* y = nullptr;            // read by a gradient
  float* statistics = nullptr;  // (batch, heads, rows): log Σ exp of the scores; likewise
  const void* dy = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const float* bias = nullptr;
  void* dbias = nullptr;  // (batch, heads, queries, keys) of the dtype, packed: nothing is summed
  const void* kept = nullptr;  // (batch, heads, queries, keys) of the dtype, packed: 0 or 1
  void* workspace = nullptr;
};

/// An attention that the library has planned.
class Sdpa {
 public:
  virtual ~Sdpa() = default;
  virtual size_t workspace_bytes() const = 0;
  virtual void run(Stream& stream, const SdpaOperands& operands) const = 0;
};

/// Sizes of heads that the library takes are multiples of the first, up to the second.
inline constexpr int64_t kSdpaHeadStep = 8, kSdpaMostHead = 256;
/// A plan that wants more workspace is passed over. Gradients with the same bits on every run take
/// the matrix of the gradients of all scores, in 16 bits.
inline constexpr int64_t kSdpaMostWorkspace = int64_t{2} << 30;

/// The rule of cuDNN's documentation that the problem breaks; empty if it keeps all: 16-bit
/// operands, heads of a multiple of 8 elements up to 256 (the gradient up to 128 but on sm_90),
/// shapes that belong together, rows that begin at 16 bytes, terms that are broadcast along whole
/// dims, scores that 32 bits can count where they or their gradients are in memory. And what it was
/// seen to get wrong: gradients beside a term that is one for all queries, or behind a dropout of
/// queries and keys that are no multiples of 64.
std::string illegal_attention(const SdpaProblem& problem);
/// The same of the addresses: all there that are asked for, and aligned.
std::string illegal_operands(const SdpaProblem& problem, const SdpaOperands& operands,
                             size_t workspace_bytes);

}  // namespace halfnote::libraries

namespace halfnote::cuda {

/// For tests, in a build with CUDA: what cuDNN plans for a GPU that is not there, described by
/// `device` as cuDNN writes it (JSON), with a driver that answers without one.
struct PaperPlan {
  std::string refusal;  // empty: it has a plan, whose kernels it has compiled
  std::string engine;
  size_t workspace_bytes = 0;
};
PaperPlan plan_on_paper(const libraries::SdpaProblem& problem, const std::string& device);

}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {

std::shared_ptr<const libraries::Sdpa> plan_emulated(const libraries::SdpaProblem& problem,
                                                     std::string& refusal);
/// For tests: from now on every problem is put there when it runs or is captured; null: nowhere.
void record_attentions(std::vector<libraries::SdpaProblem>* problems);

}  // namespace halfnote::cuda_emulated
