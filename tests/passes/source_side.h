// The side of a golden case that the kernels alone do not know: models that call functions of their
// own, and models of another op-set.
#pragma once

#include "compiler/ir/model.h"
#include "support.h"

namespace halfnote::test {

/// The results of the inference graph, each call of a model-local function run through its body,
/// node by node. Written without the inliner, which it judges.
Results execute_calls(const Model& model, const std::map<std::string, int64_t>& dims);

/// Is there no node in the inference graph that the lift has a rule for, so that the kernels, which
/// know op-set 23, may run them all?
bool has_forms_of_today(const Model& model);

}  // namespace halfnote::test
