// A call on operands that lie channels last, written as one on plain operands (tests/cuda/call.h).
#pragma once

#include <cstdint>
#include <vector>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {

/// The bytes of a plain tensor as they lie channels last, or the other way.
Tensor turned(const Tensor& from, bool to_last);

/// The call with the operands that the masks and its blocked form name channels last; what comes
/// out is plain again. Nothing where no operand may be.
std::vector<Tensor> run_last(const Call& c, uint32_t input_mask, uint32_t output_mask,
                             bool in_place);

/// Expects that the call has a form channels last, and of it what the CPU's reference gives, under
/// each of the seeds of the order of the threads, those of thread_orders() where none is named;
/// under the third one in place.
void check_last(const Call& call, uint32_t inputs = ~0u, uint32_t outputs = ~0u,
                std::vector<uint64_t> seeds = {});

}  // namespace halfnote::cuda_emulated
