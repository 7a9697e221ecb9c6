// Everything about one node: `halfnote inspect --why NODE`.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "compiler/ir/model.h"

namespace halfnote::cli {

/// The nodes of this name, or that make the value of this name, in all graphs: operands, class and
/// legality, the decision on precision with its reason, the gradient, and the kernels that would
/// run it, with the refusals of the better ones; of a cast its readers. `only` names the one graph
/// to look into (empty: all). `dims` binds symbolic dims for the kernels, which are those of
/// `device`, as `halfnote run --device` names it. Throws Error(kUsage) with the closest name if
/// there is no such node, and what open_device() throws.
std::string node_facts(const Model& model, const std::string& name, const std::string& only,
                       const std::map<std::string, int64_t>& dims, const std::string& device);

}  // namespace halfnote::cli
