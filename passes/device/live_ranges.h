// When the results of a graph hold memory if its nodes run in their order: what the memory plan
// will do, seen before kernels are chosen.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// What a plan takes while a node runs beside what the graph shows: workspaces and copies in other
/// layouts; less than nothing where results are written over operands. By label of the node.
using BytesBeside = std::map<std::string, int64_t, std::less<>>;

/// Ranges of the results of the main region. A view (Reshape and its like) holds the memory of what
/// it looks at: both are one range, named by its root. Updates count as standing where their
/// operands are ready (the pass update-early puts them there), and new states as written over the
/// old ones. What only a plan can know is taken from one, where it is given.
class LiveRanges {
 public:
  static constexpr int kEnd = 1 << 30;  // held until the step is over: an output, a state
  static constexpr int kNever = -1;     // not a result of the main region

  /// All result shapes must be known; what has none counts as nothing.
  explicit LiveRanges(const Graph& graph, const BytesBeside& beside = {});

  std::span<const NodeId> nodes() const { return nodes_; }
  /// Where a node of any region stands, as the node of the main region that holds it; kNever for
  /// nodes made later.
  int position(NodeId node) const;
  /// Where a use reads; kEnd for outputs and states.
  int position(const Use& use) const;

  ValueId root(ValueId value) const { return root_[value.index]; }
  /// The root, then its views.
  std::span<const ValueId> members(ValueId root) const { return members_[root.index]; }
  int first(ValueId root) const { return first_[root.index]; }
  int last(ValueId root) const { return last_[root.index]; }
  int64_t bytes(ValueId root) const { return bytes_[root.index]; }

  /// Bytes held while node `position` runs.
  int64_t held(int position) const { return held_[static_cast<size_t>(position)]; }
  int peak_position() const { return peak_; }
  int64_t peak() const { return nodes_.empty() ? 0 : held(peak_); }

 private:
  void move_updates();
  void find_ranges();
  void sum_up();
  void add_beside(const BytesBeside& beside);

  const Graph& graph_;
  std::vector<NodeId> nodes_;
  std::vector<int> position_;                  // by node
  std::vector<ValueId> root_;                  // by value; itself where it is no view
  std::vector<int> first_, last_;              // by root
  std::vector<int64_t> bytes_;                 // by root
  std::vector<std::vector<ValueId>> members_;  // by root
  std::vector<int64_t> held_;                  // by position
  int peak_ = 0;
};

/// Bytes of a value of known shape; 0 for others.
int64_t bytes_of(const ValueType& type);
/// Does the result share the memory of the first operand?
bool is_view(const Node& node);

}  // namespace halfnote
