// A fingerprint of what a graph says: the pass manager compares it with the "changed" flag of a
// pass.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/ir/model.h"

namespace halfnote {

/// Depends on all that `print` shows, and on nothing else: not on handles, removed nodes or the
/// history of the graph. Tensors up to 4 KiB count with their bytes, larger ones with the address
/// of their storage, their size and 64 samples: so two hashes are comparable within one process
/// only.
uint64_t content_hash(const Graph& graph);
uint64_t content_hash(const Model& model);

/// Tells one graph object from what it was before, several times as fast: uses count by their
/// handles, so a graph rebuilt with the same content has another one, large tensors by their
/// address: a mapped weight is not touched, and long metadata by their ends. Of nodes and values
/// only every `stride`-th counts: a large graph is not read as a whole.
uint64_t history_hash(const Graph& graph, uint32_t stride = 1);

/// Equal for identical tensors and for equal attributes, in any process. Tensors above 4 KiB count
/// with samples only, and graphs in attributes with their handle only: compare what has the same
/// hash.
uint64_t content_hash(const Tensor& tensor);
uint64_t content_hash(const Attributes& attributes);
uint64_t content_hash(const ValueType& type);
/// Building blocks for hashes of other things; the same in any process.
uint64_t hash_mix(uint64_t a, uint64_t b);
uint64_t hash_text(std::string_view text);

}  // namespace halfnote
