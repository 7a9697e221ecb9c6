// What a Slice leaves out of each dim, what a Pad adds, and which views do neither to the last one.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// How many elements lie before and behind each dim of what is left.
struct Margins {
  std::vector<int64_t> before, behind;
  bool only_behind_last() const {
    const auto none = [](int64_t n) { return n == 0; };
    return std::ranges::all_of(before, none) &&
           std::all_of(behind.begin(), behind.end() - 1, none) && behind.back() > 0;
  }
  bool none_at_last() const { return before.back() == 0 && behind.back() == 0; }
};

/// Is it this op of ONNX's own? False for an invalid node.
bool is_standard(const Graph& graph, NodeId id, std::string_view op);
/// Is it a view, of elements that there are, which leaves the last dim as it is?
bool keeps_last_dim(const Graph& graph, NodeId id);
/// The numbers of an i64 operand; nothing if it is computed, empty where it is absent.
std::optional<std::vector<int64_t>> known_numbers(const Graph& graph, NodeId id, size_t input);
/// The dims that operand `axes` of a node names, all `rank` if it is absent; nothing if they are
/// not known.
std::optional<std::vector<size_t>> named_dims(const Graph& graph, NodeId id, size_t axes,
                                              size_t rank);
/// What a Slice leaves out; nothing if that is not known or it steps.
std::optional<Margins> margins_of_slice(const Graph& graph, NodeId id);
/// What a Pad with zeros adds; nothing if that is not known, or it adds something else.
std::optional<Margins> margins_of_pad(const Graph& graph, NodeId id);

}  // namespace halfnote
