// Scan, on the CPU and on a device, where all its trips are put into the stream.
#pragma once

#include <memory>
#include <vector>

#include "runtime/core/control/body.h"

namespace halfnote {

/// A tensor as one of its elements along an axis after the other.
struct Strip {
  size_t outer = 1;  // blocks before the axis
  size_t bytes = 0;  // of one block of one element
  size_t length = 0;
  bool turned = false;

  Strip(const Shape& shape, DType dtype, int64_t axis, bool backwards);
  size_t element_bytes() const { return outer * bytes; }
  void take(Stream* stream, const std::byte* whole, size_t trip, std::byte* element) const;
  void put(Stream* stream, const std::byte* element, size_t trip, std::byte* whole) const;

 private:
  size_t at(size_t trip) const { return (turned ? length - 1 - trip : trip) * bytes; }
};

struct ScanPlan {
  size_t operands = 0;          // of the step: the node's inputs, then captures
  std::vector<size_t> carried;  // bytes
  std::vector<Strip> inputs, outputs;
  size_t trips = 0;
};

/// Carried values and slices lie behind the arena of the body, one buffer each.
std::unique_ptr<Kernel> make_scan_kernel(std::unique_ptr<Body> body, ScanPlan plan,
                                         const Device* device);

}  // namespace halfnote
