// Runs a graph node by node on the CPU kernels, types inferred on the way: the slow and simple way
// to a value. Constant folding and the tests use it; training runs a Program (plan.h).
#pragma once

#include <string_view>
#include <vector>

#include "base/error.h"
#include "compiler/ir/graph.h"
#include "kernels/kernel.h"

namespace halfnote {

struct EvaluateOptions {
  std::string_view kernels = "reference";  // rows whose name starts with this
  int threads = 1;
};

/// The results of one node for these inputs (an undefined Tensor stands for an absent one). Throws
/// Error(kUnsupported) for an op without a kernel, naming each candidate's reason.
std::vector<Tensor> evaluate_node(const Graph& graph, NodeId node,
                                  const std::vector<Tensor>& inputs,
                                  const EvaluateOptions& options = {});

/// The outputs of a graph for its inputs, in order. States keep their first values.
std::vector<Tensor> evaluate(const Graph& graph, const std::vector<Tensor>& inputs,
                             const EvaluateOptions& options = {});

/// The error for a call that no kernel takes: every candidate with its reason.
Error no_kernel(const KernelCall& call, const std::vector<Refusal>& refusals);
/// The same of several nodes: one error that has them all. Not for none.
Error no_kernels(const std::vector<Error>& failures);

}  // namespace halfnote
