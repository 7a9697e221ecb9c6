// The cost table. Multiply-adds/ns of one core of an Intel Xeon with AVX-512 and without AMX,
// oneDNN / here (halfnote-bench-convs; bf16 is computed in f32 there):
//
//   channels @ pixels, kernel, stride  layout  type  forward      dX           dW
//   32 @ 16×16, 7×7, 1                 plain   f32   48.1 / 43.5  28.5 / 42.3   1.0 / 42.5
//                                      blocks  f32   73.5 / 54.3  35.6 / 54.1       / 42.8
//                                              bf16  55.1 / 48.6  30.9 / 47.1       / 45.1
//   96 @ 56×56, 7×7, 1                 plain   f32   28.3 / 40.4  26.7 / 40.1   1.5 / 33.4
//                                      blocks  bf16  30.5 / 45.6  29.0 / 45.3       / 40.0
//   240 @ 8×8, 5×5, 1                  plain   f32   32.7 / 28.5  21.4 / 28.8   1.1 / 26.0
//   240 @ 4×4, 5×5, 1                  plain   f32   35.0 / 17.0  22.1 / 16.6   0.6 / 14.3
//   32 @ 32×32, 3×3, 1                 plain   f32   10.2 / 13.1   9.6 / 12.6  10.8 / 16.5
//                                              bf16   7.3 / 10.8   7.1 / 10.7   7.6 / 13.4
//                                      blocks  f32   43.4 / 24.5  30.5 / 23.3  41.9 / 19.0
//                                              bf16  15.9 / 21.5  14.1 / 21.0  15.2 / 23.6
//   96 @ 112×112, 3×3, 2               plain   f32    2.3 /  7.2   2.2 /  6.3   2.4 /  7.4
//                                      blocks  f32   11.2 /  8.1   7.0 /  9.2  12.4 /  7.8
//                                              bf16   2.8 / 10.1   2.2 /  8.3   2.6 / 10.5
//   384 @ 4×4, 3×3, 1                  plain   f32   15.5 /  6.8  10.8 /  6.9  16.6 /  6.9
//   960 @ 2×2, 3×3, 1                  plain   f32    9.9 /  2.8   7.9 /  2.7   0.1 /  2.8
//   two filters each, 64 @ 16×16, 3×3  plain   f32    2.2 / 16.5   1.9 / 19.2   1.7 / 19.2
//   96 @ 100, 15, 1                    plain   f32    1.3 / 25.4   0.9 / 25.3   1.4 / 28.5
#include "kernels/cpu/depthwise/choice.h"

#include "kernels/cpu/cpu_info.h"
#include "kernels/layout.h"

namespace halfnote::cpu::depthwise {

namespace {

/// Pixels of a result up to which our way to a tile takes longer than the tile.
constexpr int64_t kFewPixels = 16;
/// Pixels up to which the library's reorders stay in the caches.
constexpr int64_t kSomePixels = 1000;
constexpr int64_t kSmallKernel = 9;

/// Elsewhere it has but general loops, 1 multiply-add/ns.
bool library_has_a_kernel(const ConvPlan& plan, Direction direction) {
  constexpr ConvPlan::Dims kThree{1, 3, 3};
  if (plan.spatial != 2 || plan.filters != plan.channels) return false;
  if (direction != Direction::kGradWeight) return true;
  return plan.kernel == kThree && std::min(plan.out[1], plan.out[2]) >= 4;
}

bool any_blocked(const KernelCall& call) {
  return is_blocked(call.inputs[0]) || is_blocked(call.inputs[1]) || is_blocked(call.outputs[0]);
}

}  // namespace

std::string library_is_faster(const KernelCall& call, const ConvPlan& plan, Direction direction) {
  constexpr ConvPlan::Dims kOnes{1, 1, 1};
  if (!library_has_a_kernel(plan, direction)) return {};
  const DType type = call.inputs[0].dtype;
  if (type == DType::kBF16 && cpu_has_native_bf16()) return "oneDNN computes in bf16 on this CPU";
  if (plan.out_size() <= kFewPixels) return "oneDNN is faster on so few pixels";
  const bool f32_blocks = type == DType::kF32 && any_blocked(call);
  if (plan.kernel_size() > kSmallKernel) {
    const bool slower =
        direction == Direction::kForward && (f32_blocks || plan.out_size() < kSomePixels);
    return slower ? "oneDNN is faster in this form" : "";
  }
  const bool slower = f32_blocks && (direction != Direction::kGradInput || plan.stride == kOnes);
  return slower ? "oneDNN is faster on channel blocks" : "";
}

}  // namespace halfnote::cpu::depthwise
