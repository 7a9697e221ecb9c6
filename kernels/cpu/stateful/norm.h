// What the kernels of GlobalNorm share: its operands, and the walk over all gradients that sums
// their squares and looks for what is not finite in one pass over memory.
#pragma once

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/support.h"

namespace halfnote::cpu {

/// Inputs: gradients, each in its own type, then with `scaled` a factor of all of them. Outputs:
/// the norm, and if there is a second one, whether all gradients are finite before they are scaled.
struct NormOperands {
  struct Gradient {
    DType dtype = DType::kUndefined;
    int64_t count = 0;
  };
  std::vector<Gradient> gradients;
  bool scaled = false, wide_result = false, judges = false;
  int64_t blocks = 0;
  std::string refusal;

  const std::byte* factor_in(const KernelBuffers& buffers) const {
    return scaled ? buffers.inputs[gradients.size()] : nullptr;
  }
  size_t workspace() const { return static_cast<size_t>(blocks) * sizeof(double); }
};

NormOperands norm_operands(const KernelCall& call);

/// `block(k, data, count, &sum)` for each block of gradient k: gives its sum of squares and says
/// whether an element is an infinity or a NaN. The sums are added up in order, so that the result
/// does not depend on the number of threads.
template <class Block>
void judge_gradients(const NormOperands& operands, const KernelBuffers& buffers, int threads,
                     const Block& block) {
  auto* partials = reinterpret_cast<double*>(buffers.workspace);
  std::atomic<bool> special = false;
  int64_t first = 0;
  for (size_t k = 0; k < operands.gradients.size(); ++k) {
    const auto& [dtype, count] = operands.gradients[k];
    const size_t size = size_of(dtype);
    const std::byte* data = buffers.inputs[k];
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      double* sum = partials + first + begin / kElementGrain;
      if (block(k, data + static_cast<size_t>(begin) * size, end - begin, sum))
        special.store(true, std::memory_order_relaxed);
    });
    first += (count + kElementGrain - 1) / kElementGrain;
  }
  double sum = 0;
  for (int64_t i = 0; i < operands.blocks; ++i) sum += partials[i];
  if (operands.wide_result) {
    *buffers.out<double>(0) = std::sqrt(sum);
  } else {
    *buffers.out<float>(0) = static_cast<float>(std::sqrt(sum));
  }
  if (operands.judges) *buffers.out<bool>(1) = !special;
}

}  // namespace halfnote::cpu
