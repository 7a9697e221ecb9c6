// The verifier: is a graph what graph.h says it is? The pass manager asks after each pass that
// changed something.
#pragma once

#include <functional>

#include "base/error.h"
#include "compiler/ir/model.h"

namespace halfnote {

struct VerifyOptions {
  /// Every result, input and new value of a state must have a known type.
  bool typed = false;
  /// kInternal: a pass broke the graph. kModel: the graph comes from outside.
  ErrorCode code = ErrorCode::kInternal;
  /// Only every so many-th value is looked up by its name: in a large graph that takes a third of
  /// the time. That there are as many names as values is always checked.
  uint32_t name_stride = 1;
};

/// Checks, and throws one Error that lists what is wrong (the first 20 findings):
///  - regions: each but the main one is held by exactly one node, which is its owner, and stands
///    below that node's region; what no node holds is empty; values and nodes say where they stand
///  - nodes: lists are linked both ways and ordered; only live nodes and values are reachable
///  - uses: operands, region outputs and new states stand in their values' lists, and nothing else
///  - order: an operand is defined before its reader, in the same region or around it
///  - values: names are unique and found; an initializer has the type of its tensor; a result knows
///    its producer
///  - states: a live initializer of the main region, in one state; the new value is visible there,
///    with the same element type and shape
///  - attribute references occur in function bodies only
void verify(const Graph& graph, const VerifyOptions& options = {});

/// Checks every graph of the model, and the bindings of its training steps: an initialization has
/// no inputs and gives values of the right type to initializers that exist; step names are unique.
void verify(const Model& model, const VerifyOptions& options = {});
/// The same for those graphs only that `wanted` asks for; the bindings always.
void verify(const Model& model, const std::function<bool(const Graph&)>& wanted,
            const VerifyOptions& options = {});

/// Throws Error(kModel) for a state whose new value cannot have its type: an update_binding from
/// outside names the two, and inference finds out what they are.
void check_state_types(const Graph& graph);

}  // namespace halfnote
