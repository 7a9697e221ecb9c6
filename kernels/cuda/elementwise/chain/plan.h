// A call of ai.halfnote.Pointwise as a chain and its arguments.
#pragma once

#include <string>

#include "kernels/cuda/elementwise/chain/arguments.h"
#include "kernels/cuda/elementwise/chain/source.h"
#include "kernels/kernel.h"

namespace halfnote::chain {

/// A chain, and what is known of its arguments before the first step: all but addresses and groups.
struct Plan {
  Chain chain;
  Arguments arguments;
};

/// Sets `plan`; or gives the reason why no generated kernel can run the call. Throws Error(kModel)
/// for a program that is none, and for inputs that do not broadcast.
std::string plan_chain(const KernelCall& call, Plan& plan);

}  // namespace halfnote::chain
