// The last stage before the plan: a graph of the artifact, made concrete for the device and the
// data at hand.
#pragma once

#include <map>
#include <string>

#include "compiler/ir/graph.h"

namespace halfnote {

/// Binds the dims, infers and folds what follows from them, and takes out the padding where the
/// device gains nothing by it (a CPU has no tensor cores). Throws Error(kUnsupported) naming the
/// dims that stay open.
Graph make_device_ready(const Graph& graph, const std::map<std::string, int64_t>& dims);

/// The dims that input shapes give to the symbols of a graph's inputs. `shapes` in the order of the
/// inputs. Throws Error(kData) where a shape does not fit the input's type or gives a symbol two
/// values.
std::map<std::string, int64_t> dims_from_shapes(const Graph& graph, std::span<const Shape> shapes);

}  // namespace halfnote
