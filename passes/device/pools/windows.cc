#include "passes/device/pools/windows.h"

#include <algorithm>

namespace halfnote {

bool has_no_empty_window(const Graph& graph, NodeId pool) {
  const Attributes& attributes = graph.node(pool).attributes;
  const std::vector<int64_t> kernel = attributes.get_ints("kernel_shape", {}),
                             pads = attributes.get_ints("pads", {}),
                             dilations = attributes.get_ints("dilations", {});
  if (attributes.get_int("ceil_mode", 0) != 0) return false;
  if (std::ranges::any_of(dilations, [](int64_t n) { return n != 1; })) return false;
  for (size_t i = 0; i < pads.size(); ++i) {
    if (kernel.empty() || pads[i] >= kernel[i % kernel.size()]) return false;
  }
  return true;
}

}  // namespace halfnote
