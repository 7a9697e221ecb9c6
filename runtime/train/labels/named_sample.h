// What a kernel or a check says of a bad label or index, said of the data that it came from.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "compiler/ir/graph.h"
#include "runtime/train/data/batcher.h"

namespace halfnote {

/// Whose step a batch was fed to.
struct FedGraph {
  const Graph& graph;
  std::span<const size_t> inputs;  // of the map: what feeds each input of the graph
};

/// Throws the error about a label or an index with the file, field and sample instead of the place
/// in the batch: those of the first element that the node which failed reads and does not take.
/// Where the graph computes what the node reads in a way that leads to no element, the error that
/// is thrown says by which node. Returns for another error. `shuffled_by`: the seed, where the
/// epochs are shuffled.
void name_sample(const Error& error, const FedGraph& fed, const InputMap& data, const Batch& batch,
                 std::optional<uint64_t> shuffled_by = std::nullopt);

}  // namespace halfnote
