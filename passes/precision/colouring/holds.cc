// What stays f32 for the sake of the values that it computes on: coordinates, positions, masks of
// scores, data as they are fed.
#include <algorithm>

#include "compiler/ir/query.h"
#include "passes/precision/colouring/colouring.h"
#include "passes/precision/colouring/reasons.h"
#include "passes/precision/values/places.h"

namespace halfnote {
namespace {

bool is_sum(const Node& node) {
  return is_op(node, "Add") || is_op(node, "Sub") || is_op(node, "Sum");
}

}  // namespace

void Colouring::hold_places() {
  const auto open = [&](NodeId id) { return state(id).colour == Colour::kOpen; };
  const auto by_element = [&](NodeId id) { return open(id) && is_read_by_element(graph_, id); };
  std::vector<NodeId> last, indices, computing;
  const auto add_producer = [&](ValueId place, const auto& holds, std::vector<NodeId>& to) {
    if (!is_f32_tensor(graph_, place)) return;
    const NodeId from = graph_.value(place).producer;
    if (from.valid() && graph_.node(from).region == region_ && holds(from)) to.push_back(from);
  };
  for (NodeId id : nodes_) {
    const bool in_f32 = state(id).colour == Colour::kF32;
    if (in_f32 && facts_.positions.computes(id)) computing.push_back(id);
    for (ValueId place : places_of(graph_, id)) add_producer(place, open, last);
    if (makes_indices(graph_, id)) add_producer(graph_.input(id, 0), by_element, indices);
  }
  std::vector<bool> before = reach(last, above(), open);
  const std::vector<bool> of_indices = reach(indices, above(), by_element);
  for (size_t i = 0; i < before.size(); ++i) before[i] = before[i] || of_indices[i];
  for (const auto* ends : {&last, &indices}) {
    for (NodeId id : *ends) before[id.index] = true;
  }
  hold_distances(before);
  const std::vector<bool> moved = reach(computing, above(), open);
  for (NodeId id : nodes_) {
    if (before[id.index]) pin(id, Colour::kF32, kPlaces);
    if (moved[id.index] && open(id)) pin(id, Colour::kF32, kPositions);
  }
}

void Colouring::hold_distances(const std::vector<bool>& before) {
  std::set<ValueId> places;
  for (NodeId id : nodes_) {
    if (!before[id.index]) continue;
    for (ValueId input : graph_.inputs(id)) {
      if (is_f32_tensor(graph_, input) && graph_.value(input).producer.valid())
        places.insert(input);
    }
    for (ValueId output : graph_.outputs(id)) places.insert(output);
  }
  for (NodeId id : nodes_) {
    std::set<ValueId> read;
    for (ValueId input : graph_.inputs(id)) {
      if (is_f32_tensor(graph_, input) && graph_.constant(input) == nullptr) read.insert(input);
    }
    const bool all = std::ranges::all_of(read, [&](ValueId v) { return places.contains(v); });
    if (all && read.size() > 1 && state(id).colour == Colour::kOpen)
      pin(id, Colour::kF32, kDistances);
  }
}

void Colouring::hold_masks() {
  const auto open = [&](NodeId id) { return state(id).colour == Colour::kOpen; };
  std::vector<NodeId> softmaxes, adding;
  for (NodeId id : nodes_) {
    const bool forward = graph_.node(id).role == Role::kForward;
    if (forward && is_softmax(graph_.node(id)) && state(id).colour == Colour::kF32)
      softmaxes.push_back(id);
  }
  const std::vector<bool> ahead = reach(softmaxes, above(), open);
  for (NodeId id : nodes_) {
    if (ahead[id.index] && facts_.fed.adds(graph_, id)) adding.push_back(id);
  }
  const std::vector<bool> behind =
      reach(adding, below(), [&](NodeId id) { return ahead[id.index]; });
  const std::vector<bool> fed = reach(
      adding, above(), [&](NodeId id) { return open(id) && facts_.fed.has(graph_.output(id)); });
  for (NodeId id : adding) pin(id, Colour::kF32, kMasks);
  for (NodeId id : nodes_) {
    if (open(id) && (behind[id.index] || fed[id.index])) pin(id, Colour::kF32, kMasks);
  }
}

bool Colouring::is_forward(NodeId id) const {
  const Role role = graph_.node(id).role;
  return role == Role::kForward || role == Role::kLoss;
}

bool Colouring::moves(NodeId id) {
  return state(id).colour == Colour::kOpen && state(id).kind == Kind::kClear;
}

bool Colouring::reads_numbers(NodeId id) const {
  return is_forward(id) && !reads_shape_only(graph_.node(id));
}

std::vector<bool> Colouring::into_products() {
  std::vector<NodeId> low = of_colour(Colour::kLow);
  std::erase_if(low, [&](NodeId id) { return !is_forward(id); });
  return reach(low, above(), [&](NodeId id) {
    const std::string& why = state(id).reason;
    const bool open = state(id).colour == Colour::kOpen || why == kSums || why == kReadsSums;
    return is_forward(id) && open;
  });
}

std::vector<bool> Colouring::sums_of_fed(std::vector<bool>& cancels) {
  std::vector<bool> sums(colours_.size(), false), carried(graph_.value_count(), false);
  cancels.assign(colours_.size(), false);
  for (NodeId id : nodes_) {
    if (!is_forward(id) || state(id).pinned || state(id).colour == Colour::kNone) continue;
    const bool carries = std::ranges::any_of(
        graph_.inputs(id), [&](ValueId v) { return v.valid() && carried[v.index]; });
    sums[id.index] = is_sum(graph_.node(id)) && (carries || facts_.fed.adds_data(graph_, id));
    cancels[id.index] = carries && (sums[id.index] || normalizes(id));
    if (!sums[id.index] && !(carries && state(id).kind == Kind::kClear)) continue;
    for (ValueId output : graph_.outputs(id)) {
      if (output.valid()) carried[output.index] = true;
    }
  }
  return sums;
}

bool Colouring::normalizes(NodeId id) const {
  const OperatorRow* row = find_operator(graph_.node(id));
  return row != nullptr && row->fp32_math_inside;
}

void Colouring::hold_sums() {
  std::vector<bool> cancels;
  const std::vector<bool> sums = sums_of_fed(cancels), rounded = into_products();
  const auto is_returned = [&](ValueId value) {
    return is_f32_tensor(graph_, value) &&
           std::ranges::any_of(graph_.uses(value), [](const Use& use) { return !use.by_node(); });
  };
  std::vector<NodeId> readers;  // that are f32, or become it, or take away most of what they read
  for (NodeId id : nodes_) {
    if (!reads_numbers(id) || state(id).colour == Colour::kLow) continue;
    const bool passes_on = moves(id) || sums[id.index] || rounded[id.index];
    const bool reads = !passes_on || cancels[id.index] ||
                       (!rounded[id.index] && std::ranges::any_of(graph_.outputs(id), is_returned));
    if (reads) readers.push_back(id);
  }
  std::vector<bool> exact =
      reach(readers, above(), [&](NodeId id) { return moves(id) || sums[id.index]; });
  for (NodeId id : readers) exact[id.index] = true;
  for (NodeId id : nodes_) {
    if (exact[id.index] && sums[id.index]) pin(id, Colour::kF32, kSums);
  }
  hold_readers(exact);
}

void Colouring::hold_readers(const std::vector<bool>& exact) {
  held_.assign(graph_.value_count(), false);
  for (NodeId id : nodes_) {
    const bool reads_held = std::ranges::any_of(
        graph_.inputs(id), [&](ValueId v) { return v.valid() && held_[v.index]; });
    const bool sum = state(id).reason == kSums, open = state(id).colour == Colour::kOpen;
    const bool moved = reads_held && moves(id) && (exact[id.index] || !is_forward(id));
    if (moved || (reads_held && open && normalizes(id))) pin(id, Colour::kF32, kReadsSums);
    if (!sum && !(moved && is_forward(id))) continue;
    for (ValueId output : graph_.outputs(id)) {
      if (output.valid()) held_[output.index] = true;
    }
  }
}

void Colouring::hold_moves() {
  const auto reads_fed = [&](NodeId id) {
    return std::ranges::any_of(graph_.inputs(id),
                               [&](ValueId v) { return v.valid() && facts_.fed.has(v); });
  };
  std::vector<NodeId> readers;
  for (NodeId id : nodes_) {
    const bool low = state(id).colour == Colour::kLow;
    if (reads_numbers(id) && !low && !moves(id)) readers.push_back(id);
  }
  const std::vector<bool> exact =
      reach(readers, above(), [&](NodeId id) { return moves(id) && reads_fed(id); });
  for (NodeId id : nodes_) {
    if (exact[id.index]) set(id, Colour::kF32, kMoves);
  }
}

}  // namespace halfnote
