// How much a step computes, for reports.
#pragma once

#include "compiler/ir/graph.h"
#include "kernels/kernel.h"

namespace halfnote {

/// Of contractions, by the usual count of 2·M·N·K; 0 of others.
double flops_of(const Node& node, const KernelCall& call);

}  // namespace halfnote
