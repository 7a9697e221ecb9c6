#include "passes/precision/colouring/colouring.h"

#include "passes/precision/colouring/reasons.h"

namespace halfnote {

Colouring::Colouring(Graph& graph, RegionId region, PassContext& context, PrecisionRules& rules,
                     const ValueFacts& facts)
    : graph_(graph),
      region_(region),
      context_(context),
      low_(context.options.policy.dtype),
      like_(context.options.policy.like.empty() ? nullptr
                                                : &like_preset(context.options.policy.like)),
      rules_(rules),
      facts_(facts),
      nodes_(graph.nodes(region)),
      colours_(graph.node_capacity()) {}

bool Colouring::run(const std::map<std::string, Precision>& decided, bool refine) {
  seed(decided);
  hold_places();
  hold_masks();
  flood_f32();
  hold_sums();
  bridge();
  hold_moves();
  spread();
  check_legality();
  if (refine) refine_by_cost();
  return write();
}

std::vector<NodeId> Colouring::of_colour(Colour colour) {
  std::vector<NodeId> found;
  for (NodeId id : nodes_) {
    if (state(id).colour == colour) found.push_back(id);
  }
  return found;
}

void Colouring::flood_f32() {
  std::vector<NodeId> roots;  // fp32 nodes and open infer nodes
  for (NodeId id : nodes_) {
    const State& s = state(id);
    if (s.colour == Colour::kF32 || (s.colour == Colour::kOpen && s.kind == Kind::kInfer))
      roots.push_back(id);
  }
  std::vector<bool> upstream = reach(roots, above(), [&](NodeId id) {
    return state(id).colour == Colour::kOpen && state(id).kind == Kind::kClear;
  });
  for (NodeId id : roots) upstream[id.index] = true;
  std::vector<NodeId> sources;
  for (NodeId id : of_colour(Colour::kF32)) {
    // The optimizer's f32 says nothing about what reads the loss scale or a weight, positions'
    // nothing about the data that they meet, nor do sums of data about what follows.
    const std::string& why = state(id).reason;
    const bool only_itself = graph_.node(id).role == Role::kOptimizer || why == kPositions ||
                             why == kSums || why == kReadsSums || why == kMoves;
    if (!only_itself) sources.push_back(id);
  }
  const std::vector<bool> flooded = reach(sources, below(), [&](NodeId id) {
    return state(id).colour == Colour::kOpen && upstream[id.index];
  });
  for (NodeId id : nodes_) {
    if (flooded[id.index]) set(id, Colour::kF32, "follows an f32 node, and feeds one");
  }
}

void Colouring::bridge() {
  const std::vector<NodeId> low = of_colour(Colour::kLow);
  const auto open = [&](NodeId id) { return state(id).colour == Colour::kOpen; };
  // What is held for sums stands between nodes as it would if it were not.
  const auto open_or_sum = [&](NodeId id) {
    return open(id) || state(id).reason == kSums || state(id).reason == kReadsSums;
  };
  const std::vector<bool> after = reach(low, below(), open_or_sum), into = into_products();
  const std::vector<bool> right_after = reach(low, below(), open),
                          ahead = reach(low, above(), open);
  for (NodeId id : nodes_) {
    const bool between = (right_after[id.index] && ahead[id.index]) ||
                         (after[id.index] && into[id.index] && open(id));
    if (between) set(id, Colour::kLow, "lies between 16-bit nodes");
  }
}

void Colouring::spread() {
  const auto clear = [&](NodeId id) { return moves(id); };
  const std::vector<NodeId> low = of_colour(Colour::kLow);
  const std::vector<bool> after = reach(low, below(), clear);
  const std::vector<bool> ahead = reach(low, above(), clear);
  for (NodeId id : nodes_) {
    if (after[id.index] || ahead[id.index])
      set(id, Colour::kLow, "only moves what a 16-bit node has");
  }
  for (NodeId id : nodes_) {
    if (state(id).colour == Colour::kOpen) set(id, Colour::kF32, "no 16-bit node on both sides");
  }
}

bool Colouring::write() {
  bool changed = false;
  for (NodeId id : nodes_) {
    const State& s = state(id);
    Precision& precision = graph_.node(id).precision;
    const Precision decision =
        s.colour == Colour::kNone
            ? Precision{precision.dtype, why_no_choice(id)}
            : Precision{s.colour == Colour::kLow ? low_ : DType::kF32, s.reason};
    changed |= !(precision == decision);
    precision = decision;
  }
  return changed;
}

std::string Colouring::why_no_choice(NodeId id) const {
  const Node& node = graph_.node(id);
  const OperatorRow* row = find_operator(node);
  if (row != nullptr && row->precision == Kind::kStruct)
    return "control flow: what crosses its border is f32";
  if (node.role == Role::kOptimizer || node.role == Role::kScaling) {
    return "the " + std::string(role_name(node.role)) + " works in f32";
  }
  for (ValueId output : graph_.outputs(id)) {
    if (!output.valid() || !is_float(graph_.value(output).type.dtype)) continue;
    if (graph_.value(output).type.dtype == DType::kF64)
      return "f64 is left alone: for 16 bit, export the model in f32";
    return "its operands and results keep their types";
  }
  return "computes no float";
}

}  // namespace halfnote
