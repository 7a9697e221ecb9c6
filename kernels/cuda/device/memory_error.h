// What is said where memory is short.
#pragma once

#include <cstddef>

#include "base/error.h"

namespace halfnote {

/// Error(kMemory) for memory of the host that a GPU reads and writes by itself: all of it may be
/// short while the GPU has enough of its own.
Error out_of_pinned_memory(size_t bytes);

}  // namespace halfnote
