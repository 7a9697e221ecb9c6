// The recurrent kernels on the library (library.cu), and what our own ones ask of them.
#pragma once

#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

Prepared prepare_library_recurrent(const KernelCall& call);
Prepared prepare_library_recurrent_gradient(const KernelCall& call);

/// Does the library take the call, or its gradient? It says the same of both, so that whoever wrote
/// a reserve reads it.
bool library_takes(const KernelCall& call, const cpu::RecurrentPlan& plan, bool gradient);

inline constexpr const char* kReserveOfLibrary =
    "the library keeps this reserve (HALFNOTE_RECURRENT=own in the environment keeps gates)";

}  // namespace halfnote::HN_CUDA
