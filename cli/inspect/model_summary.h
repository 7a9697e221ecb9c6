// What `halfnote inspect` says of a whole model.
#pragma once

#include <string>
#include <vector>

#include "compiler/ir/model.h"
#include "passes/report.h"

namespace halfnote::cli {

/// The names of the graphs of a model: its steps, then `graph`.
std::vector<std::string> graph_names(const Model& model);
/// The graph of this name; empty: the first. Throws Error(kUsage) with the closest name.
const Graph& find_graph(const Model& model, const std::string& name);

/// File, producer, op-sets, inputs, outputs, operators, and those that halfnote does not know.
std::string model_summary(const Model& model);

/// Every cast with the bytes it reads and writes, and their sum.
std::string cast_table(const Report& report);

}  // namespace halfnote::cli
