// Binding symbolic dims outside of the pipeline.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "compiler/ir/graph.h"

namespace halfnote {

/// Gives the named dims their numbers in the types of all values; result types that follow from
/// them are left to `infer_graph`. Returns true when a type changed.
bool bind_symbols(Graph& graph, const std::map<std::string, int64_t>& dims);

/// Dims of inputs that have neither number nor name are called after the input and the axis,
/// `x_d0`, as those of results are: nobody could bind them otherwise.
void name_input_dims(Graph& graph);

/// Throws Error(kUsage) for a name that no input of the graph has as a dim.
void check_dim_names(const Graph& graph, const std::map<std::string, int64_t>& dims);

}  // namespace halfnote
