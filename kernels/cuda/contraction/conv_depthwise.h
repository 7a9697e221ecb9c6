// Depthwise convolutions of ours, and their gradients: 16-bit elements channels last, of which each
// filter reads one channel. No tensor core helps them: they are bound by memory, and by f32
// arithmetic where windows are large.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libraries/dnn.h"

namespace halfnote::HN_CUDA {

/// The algorithm's name, beside those of the library's engines.
inline constexpr std::string_view kDepthwise = "own:depthwise";

/// Is the problem one of these kernels'? 16-bit operands, 8 channels and a multiple of it, a filter
/// a channel, one or two spatial dims; the gradient of the filters only of windows 3, 5 or 7 wide
/// and 7 high at most, without dilation along the width, with a stride of 1 or 2 there.
bool is_depthwise(const libraries::ConvProblem& problem);

/// The convolution by these kernels. Sums are in f32, those of the parts of a filter's gradient in
/// f64, in an order that depends on the problem alone; a bias is added before they are rounded.
/// Throws Error(kUsage) if it is none of theirs.
std::shared_ptr<const libraries::Convolution> plan_depthwise(const libraries::ConvProblem& problem);

}  // namespace halfnote::HN_CUDA
