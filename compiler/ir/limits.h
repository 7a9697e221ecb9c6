// Limits on untrusted model files, binary and text: one set for all readers. Every one is checked
// before memory is spent on what it bounds. `cli/import_flags.cc` has a flag for each.
#pragma once

#include <cstdint>

#include "base/shape.h"

namespace halfnote {

struct ImportLimits {
  uint64_t file_bytes =
      (uint64_t{1} << 31) - 1;  // of the model file itself; external data may be larger
  int graph_nesting = 16;       // If in Loop in …
  int type_nesting = 16;        // sequence of optional of …
  uint64_t nodes = 1'000'000;
  uint64_t node_operands = 100'000;  // inputs, and outputs, of one node
  uint64_t attributes = 64;          // of one node
  uint64_t initializers = 100'000;
  uint64_t name_bytes = 64 * 1024;
  uint64_t fields =
      uint64_t{1} << 26;  // strings and messages of the whole file: bounds what parsing allocates
  uint64_t external_files = 1024;
  int rank = kMaxRank;
  int64_t dim = int64_t{1} << 40;
  int64_t elements = kMaxElements;             // of one tensor
  int64_t sparse_elements = int64_t{1} << 28;  // of one sparse tensor once it is dense
  uint64_t copied_bytes =
      0;  // bytes of tensors that cannot be mapped; 0: 80 % of the machine's memory
};

/// `copied_bytes` with its default filled in.
uint64_t memory_limit(const ImportLimits& limits);

}  // namespace halfnote
