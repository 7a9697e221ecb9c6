// What looks like attention, for notes on why it is not one node.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "passes/device/attention/fuse_attention.h"

namespace halfnote {

/// The sizes if a Softmax along the last dim stands between two products of computed matrices, as
/// that of attention does, whatever else is there; `terms`, `causal`, `dropout` and gradients are
/// not looked for.
std::optional<AttentionSize> size_of_likely_attention(const Graph& graph, NodeId softmax);

/// Reasons why attention is left as it is, one note each for all layers.
class LeftAttention {
 public:
  void add(const Graph& graph, NodeId softmax, const std::string& why);
  void tell(PassContext& context) const;

 private:
  struct Place {
    std::string first;
    int more = 0;
  };
  std::map<std::string, Place> places_;  // by reason
};

}  // namespace halfnote
