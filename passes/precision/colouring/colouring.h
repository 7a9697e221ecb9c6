// The colouring of one region of a graph: which of its nodes is f32, which is 16-bit, and why. The
// algorithm is told in assign_precision.cc; seed.cc gives nodes what their class and the rules say,
// holds.cc has what stays f32 for the sake of the values it computes on, colouring.cc what follows
// of the neighbours, refine.cc what the op-set and constants forbid, and what the bytes moved
// advise.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"
#include "passes/pass.h"
#include "passes/precision/cost.h"
#include "passes/precision/like.h"
#include "passes/precision/rules.h"
#include "passes/precision/values/constants.h"
#include "passes/precision/values/masks.h"
#include "passes/precision/values/positions.h"

namespace halfnote {

/// What the colouring asks about the values of a graph, of all its regions.
struct ValueFacts {
  ValueFacts(const Graph& graph, DType low)
      : unfit(graph, low), fixed(graph), positions(graph), fed(graph) {}

  UnfitValues unfit;
  FixedSlots fixed;
  ComputedPositions positions;
  FedValues fed;
};

class Colouring {
 public:
  Colouring(Graph& graph, RegionId region, PassContext& context, PrecisionRules& rules,
            const ValueFacts& facts);

  /// Decisions already made for nodes of these names (the training step's) are taken over.
  /// Says whether a decision or a reason is new.
  bool run(const std::map<std::string, Precision>& decided, bool refine);

 private:
  using Kind = PrecisionClass;
  enum class Colour : uint8_t { kNone, kOpen, kF32, kLow };
  struct State {
    Colour colour = Colour::kNone;
    Kind kind = Kind::kFp32;
    bool pinned = false;
    std::string reason;
  };

  State& state(NodeId node) { return colours_[node.index]; }
  void set(NodeId id, Colour colour, std::string reason);
  void pin(NodeId id, Colour colour, std::string reason);
  std::vector<NodeId> of_colour(Colour colour);

  // seed.cc
  void seed(const std::map<std::string, Precision>& decided);
  /// Only a node that reads and writes f32 in slots that may change has a choice.
  bool has_choice(NodeId id, const OperatorRow& row) const;
  /// The op of class fp32 of which a node, or the forward node it was made for, is a part.
  const std::string* f32_whole(const Node& node) const;
  /// Is it the gradient of a node that computes on positions?
  bool of_positions(const Node& node) const;
  /// Does it round what it computes, if it is 16-bit?
  bool rounds(NodeId id);
  /// The class of a node, the framework's before our own; whose list that is, for the reason.
  std::string choose_kind(NodeId id, const OperatorRow& row);

  // holds.cc
  /// What leads to places stays f32, back to the node that decided its own type; so does what moves
  /// positions to where they are computed with.
  void hold_places();
  /// What computes of several places alone: how far one is from its floor. `before`: the nodes that
  /// lead to places.
  void hold_distances(const std::vector<bool>& before);
  /// What adds a mask that is an input to scores, from where it is fed to the softmax behind it.
  void hold_masks();
  /// Sums of what is fed and what is computed, where an f32 node reads them: near 1000, bf16 would
  /// round the data to fours.
  void hold_sums();
  /// What moves data as they are fed to f32 nodes. After bridge().
  void hold_moves();
  bool is_forward(NodeId id) const;
  /// Is it a forward node that reads more of an operand than its shape?
  bool reads_numbers(NodeId id) const;
  /// Open forward nodes from which a 16-bit one is reached over such nodes and sums that are held.
  std::vector<bool> into_products();
  /// Sums of what is fed and what is computed, and sums of these: by node. `cancels`: sums of sums
  /// and normalizations of them, which may take away most of what they read.
  std::vector<bool> sums_of_fed(std::vector<bool>& cancels);
  /// Does it compute in f32 on 16-bit tensors, as normalizations do?
  bool normalizes(NodeId id) const;
  /// What reads sums that are held, as they are: normalizations, and what moves them (`exact`),
  /// both with their gradients, which look at the numbers again.
  void hold_readers(const std::vector<bool>& exact);
  /// Does it only move what it reads, and is nothing decided of it?
  bool moves(NodeId id);

  // colouring.cc
  void flood_f32();
  void bridge();
  void spread();
  bool write();
  /// The reason of a node that nothing was decided for.
  std::string why_no_choice(NodeId id) const;

  // refine.cc
  void check_legality();
  /// A note, once: the same node stands in several graphs.
  void report(NodeId id, const std::string& text);
  std::string why_illegal(NodeId id) const;
  /// A constant that does not fit, or a value that carries one, in a slot that would be 16-bit. A
  /// contraction only minds the constant itself: what was computed with it depends on the data,
  /// and the finite check watches it.
  std::string why_unfit(NodeId id, const OperatorRow& row) const;
  /// F32 nodes whose result reaches an op that makes small errors large; and those that move what a
  /// comparison in a gradient looks for: where the forward node ran in f32 it would find nothing.
  std::vector<bool> kept_exact();
  void refine_by_cost();

  /// The producers that a node reads in the type it computes in, not through a slot that is f32
  /// whatever both do.
  template <class Visit>
  void each_above(NodeId id, Visit&& visit) const {
    const auto inputs = graph_.inputs(id);
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      if (!is_f32_tensor(graph_, inputs[i])) continue;
      if (facts_.fixed.reads_f32({UseKind::kNodeInput, id.index, i})) continue;
      const Value& value = graph_.value(inputs[i]);
      const NodeId producer = value.producer;
      if (!producer.valid() || facts_.fixed.writes_f32(value)) continue;
      if (graph_.node(producer).region == region_) visit(producer);
    }
  }

  template <class Visit>
  void each_below(NodeId id, Visit&& visit) const {
    for (ValueId output : graph_.outputs(id)) {
      if (!is_f32_tensor(graph_, output) || facts_.fixed.writes_f32(graph_.value(output))) continue;
      for (const Use& use : graph_.uses(output)) {
        if (!use.by_node() || facts_.fixed.reads_f32(use)) continue;
        if (graph_.node(use.node()).region == region_) visit(use.node());
      }
    }
  }

  /// All nodes reached from `from` over `step` (each_above or each_below) through nodes for which
  /// `through` holds.
  template <class Step, class Through>
  std::vector<bool> reach(const std::vector<NodeId>& from, Step&& step, Through&& through) {
    std::vector<bool> seen(colours_.size(), false);
    std::vector<NodeId> stack = from;
    while (!stack.empty()) {
      const NodeId id = stack.back();
      stack.pop_back();
      step(id, [&](NodeId next) {
        if (seen[next.index] || !through(next)) return;
        seen[next.index] = true;
        stack.push_back(next);
      });
    }
    return seen;
  }

  auto above() {
    return [this](NodeId id, auto&& visit) { each_above(id, visit); };
  }
  auto below() {
    return [this](NodeId id, auto&& visit) { each_below(id, visit); };
  }

  Graph& graph_;
  const RegionId region_;
  PassContext& context_;
  const DType low_;
  const LikePreset* like_;
  PrecisionRules& rules_;
  const ValueFacts& facts_;
  const std::vector<NodeId> nodes_;
  std::vector<State> colours_;
  std::vector<bool> held_;  // by value: sums that are held, also where they are moved
  std::map<std::string, std::string> wholes_;  // by node name
  std::set<std::string> on_positions_;         // names of nodes; gradients are made of these
  std::set<std::pair<std::string, std::string>> told_;  // remarks: where and text
  size_t told_until_ = 0;
};

}  // namespace halfnote
