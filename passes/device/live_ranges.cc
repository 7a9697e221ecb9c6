#include "passes/device/live_ranges.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "passes/device/rematerialize.h"

namespace halfnote {
namespace {

// Ops that only rename what they get (kernels/cpu/movement/reshape.cc plans them as views).
constexpr std::array<std::string_view, 5> kViews = {"Flatten", "Identity", "Reshape", "Squeeze",
                                                    "Unsqueeze"};

}  // namespace

bool is_view(const Node& node) {
  return node.domain.empty() && std::ranges::find(kViews, node.op.str()) != kViews.end();
}

int64_t bytes_of(const ValueType& type) {
  if (!type.has_concrete_shape()) return 0;
  return checked_mul(element_count(concrete(*type.shape)),
                     static_cast<int64_t>(size_of(type.dtype)));
}

LiveRanges::LiveRanges(const Graph& graph, const BytesBeside& beside)
    : graph_(graph),
      nodes_(graph.nodes()),
      position_(graph.node_capacity(), kNever),
      root_(graph.value_count()),
      first_(graph.value_count(), kNever),
      last_(graph.value_count(), kNever),
      bytes_(graph.value_count(), 0),
      members_(graph.value_count()) {
  for (size_t i = 0; i < nodes_.size(); ++i) position_[nodes_[i].index] = static_cast<int>(i);
  for (uint32_t i = 0; i < graph.value_count(); ++i) root_[i] = ValueId{i};
  move_updates();
  find_ranges();
  sum_up();
  if (!beside.empty()) add_beside(beside);
  for (size_t i = 0; i < held_.size(); ++i) {
    if (held_[i] > held_[static_cast<size_t>(peak_)]) peak_ = static_cast<int>(i);
  }
}

void LiveRanges::move_updates() {
  for (NodeId node : nodes_) {
    if (graph_.node(node).role != Role::kOptimizer || !graph_.subgraphs(node).empty()) continue;
    int ready = 0;
    for (ValueId input : graph_.inputs(node)) {
      const NodeId producer = input.valid() ? graph_.value(input).producer : NodeId{};
      if (producer.valid()) ready = std::max(ready, position(producer));
    }
    position_[node.index] = ready;
  }
}

int LiveRanges::position(NodeId node) const {
  if (node.index >= position_.size()) return kNever;
  while (graph_.node(node).region != graph_.main()) {
    node = graph_.region_owner(graph_.node(node).region);
  }
  return position_[node.index];
}

int LiveRanges::position(const Use& use) const {
  if (use.by_node()) return position(use.node());
  // The end of a body is a read by the node that holds it.
  const RegionId region{use.owner};
  const bool inner = use.kind == UseKind::kRegionOutput && region != graph_.main();
  return inner ? position(graph_.region_owner(region)) : kEnd;
}

void LiveRanges::find_ranges() {
  const auto is_state = [](const Use& use) { return use.kind == UseKind::kStateNext; };
  for (const NodeId node : nodes_) {
    for (ValueId output : graph_.outputs(node)) {
      if (!output.valid()) continue;
      const ValueId source = graph_.input(node, 0);
      ValueId root = output;
      if (is_view(graph_.node(node)) && source.valid()) root = root_[source.index];
      root_[output.index] = root;
      members_[root.index].push_back(output);
      if (root == output) {
        first_[root.index] = last_[root.index] = position(node);
        const bool in_place = std::ranges::any_of(graph_.uses(output), is_state);
        bytes_[root.index] = in_place ? 0 : bytes_of(graph_.value(output).type);
      }
      if (first_[root.index] == kNever) continue;  // a view of an input
      for (const Use& use : graph_.uses(output)) {
        last_[root.index] = std::max(last_[root.index], position(use));
      }
    }
  }
}

void LiveRanges::sum_up() {
  std::vector<int64_t> change(nodes_.size() + 1, 0);
  for (uint32_t i = 0; i < root_.size(); ++i) {
    if (first_[i] == kNever) continue;
    change[static_cast<size_t>(first_[i])] += bytes_[i];
    const size_t end = std::min<size_t>(static_cast<size_t>(last_[i]), nodes_.size() - 1);
    change[end + 1] -= bytes_[i];
  }
  held_.resize(nodes_.size());
  int64_t sum = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    sum += change[i];
    held_[i] = sum;
  }
}

/// Nodes of which the plan says nothing take as much as the one before them; copies that are new
/// as much as their originals.
void LiveRanges::add_beside(const BytesBeside& beside) {
  std::vector<std::optional<int64_t>> known(nodes_.size());
  for (const NodeId node : nodes_) {
    auto found = beside.find(graph_.label(node));
    const NodeId original = original_of(graph_, node);
    if (found == beside.end() && original.valid()) found = beside.find(graph_.label(original));
    if (found == beside.end()) continue;
    std::optional<int64_t>& at = known[static_cast<size_t>(position(node))];
    at = std::max(at.value_or(found->second), found->second);
  }
  int64_t last = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    last = known[i].value_or(last);
    held_[i] += last;
  }
}

}  // namespace halfnote
