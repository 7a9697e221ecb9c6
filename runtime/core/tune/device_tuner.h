// The candidates of a call on a device, and their times.
#pragma once

#include "base/error.h"
#include "runtime/core/tune/kernel_choices.h"

namespace halfnote {

/// Times this close are the same: the table decides, and a fusion does not pay.
inline constexpr double kTimeTie = 1.02;

/// Every row, with every algorithm of its, that takes the call, in the order of the table; empty if
/// there is only one. Throws what time_on_device() does.
std::vector<MeasuredKernel> measure_on_device(const KernelCall& call, Device& device);

/// Does the error say that the call cannot be measured, and nothing worse? The device has no room
/// for another copy of the operands, or the kernels want other data than made-up ones.
inline bool is_no_time(const Error& error) {
  return error.code() == ErrorCode::kMemory || error.code() == ErrorCode::kData;
}

}  // namespace halfnote
