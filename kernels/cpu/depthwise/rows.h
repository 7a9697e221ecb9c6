// The rows of depthwise convolutions.
#pragma once

#include "kernels/cpu/support.h"

namespace halfnote::cpu::depthwise {

inline constexpr std::string_view kName = "fast.depthwise";
inline constexpr std::string_view kOtherName = "fast.depthwise_of_any_form";

/// Which calls a row takes: those where it is faster than oneDNN (choice.h), or all that it can.
enum class Wanted { kWhereItPays, kAnywhere };

std::vector<KernelRow> input_rows();   // depthwise.cc: forward, gradient for the input
std::vector<KernelRow> weight_rows();  // weight.cc: gradient for the weights
/// The same for what oneDNN refuses.
std::vector<KernelRow> other_input_rows();
std::vector<KernelRow> other_weight_rows();

}  // namespace halfnote::cpu::depthwise
