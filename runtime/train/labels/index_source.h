// Where the labels or indices that a node reads come from: the elements of what a run feeds the
// graph that become them, on a way of nodes that move numbers (Slice, Transpose, Concat, …),
// convert them or calculate with a constant.
//
//   ids ── Slice ── Add 1 ── Gather        numbers: what the Gather reads
//   places of ids ── Slice ── Add 0        places: the element of ids that each comes from
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// An element of what feeds an input of the graph.
struct FedElement {
  size_t input = 0;
  int64_t at = 0;

  friend bool operator==(const FedElement&, const FedElement&) = default;
};

/// What a node reads, element by element.
struct ReadElements {
  Tensor numbers;
  Tensor places;  // i64: elements of the inputs on the way, one input behind the other; -1: none
  std::vector<size_t> inputs;  // on the way
  std::vector<int64_t> ends;   // of each among the places

  /// Where element `at` comes from; nothing for a constant of the graph.
  std::optional<FedElement> from(int64_t at) const;
};

class IndexSource {
 public:
  /// Looks for the way to `indices`; `graph` is not needed any more afterwards.
  IndexSource(const Graph& graph, ValueId indices);

  /// Is there such a way?
  bool found() const { return stopped_at_.empty(); }
  /// The node that computes the indices from others: `"m" (Mul)`; empty where there is a way.
  const std::string& stopped_at() const { return stopped_at_; }
  /// Does the node read nothing but what is fed, each number as it is?
  bool as_fed() const { return found() && as_fed_; }
  /// And all numbers of one input, in their order?
  bool in_order() const { return as_fed() && in_order_; }
  /// The inputs of the graph on the way.
  std::span<const size_t> inputs() const { return inputs_; }

  /// `fed` are all inputs of the graph. Throws Error where the way cannot be gone with them.
  ReadElements read(std::span<const Tensor> fed) const;

 private:
  friend class WayFinder;

  Graph way_;  // (input, its places, …) → (numbers, places)
  std::vector<size_t> inputs_;
  std::string stopped_at_;
  bool as_fed_ = true, in_order_ = true;
};

}  // namespace halfnote
