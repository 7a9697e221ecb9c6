// assign_precision: decides the type each node computes in, and says why. Rewrites nothing:
// insert_casts does.
//
//   c = Conv(x, w)  r = Relu(c)  p = Softmax(r)
//       ──▶  Conv: bf16 "allow list: Conv"   Relu: bf16 "between 16-bit nodes …"   Softmax: f32
//       "fp32 list: Softmax"
//
// The colouring is TensorFlow grappler's (auto_mixed_precision), on our classes:
//   1. allow ops are 16-bit, fp32 ops are f32, the user's rules before both;
//   2. f32 floods from fp32 nodes forwards through clear and infer nodes that lie above an fp32 or
//   infer node;
//   3. infer and clear nodes between two 16-bit nodes become 16-bit;
//   4. clear nodes that touch a 16-bit node through clear ones become 16-bit;
//   5. what op-set 23 does not allow in that type, or what reads a constant that does not fit it
//   (constants.h), however far it has been moved, goes back to f32, with a note in the report;
//   6. the cost refinement flips single infer and clear nodes while that saves bytes (cost.h), but
//   for what feeds an op that makes small errors large (Log).
// A mask that is an input is f32 on its way into a softmax, and so are the scores from where it is
// added to them (values/masks.h).
// What computes on positions (positions.h), or leads to coordinates (places.h), is f32, and so is
// what moves them on the way there, and what computes of several coordinates alone. A slot that is
// f32 whatever its node computes in (the biases of an LSTM) connects nothing. A node that lowering
// made of an fp32 op, and its gradients, are f32 as that op is. A normalization that does f32 math
// on 16-bit tensors counts as infer, InstanceNormalization among them (group_form.h) but under
// `like`. Nodes of the optimizer and the scaler are f32. The decisions of the training step hold
// for the same nodes of the other graphs. Bodies of control flow are coloured each by itself: what
// crosses their border is f32. Leaves alone: nodes without f32 operands and results, everything
// under --precision fp32.
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"
#include "passes/precision/cost.h"
#include "passes/precision/group_form.h"
#include "passes/precision/keep_f32.h"
#include "passes/precision/like.h"
#include "passes/precision/rules.h"
#include "passes/precision/values/constants.h"
#include "passes/precision/values/masks.h"
#include "passes/precision/values/places.h"
#include "passes/precision/values/positions.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

using Kind = PrecisionClass;

bool is_f32(const Graph& graph, ValueId value) {
  return value.valid() && graph.value(value).type.is_tensor() &&
         graph.value(value).type.dtype == DType::kF32;
}

class Colouring {
 public:
  Colouring(Graph& graph, RegionId region, PassContext& context, PrecisionRules& rules,
            const UnfitValues& unfit, const FixedSlots& fixed, const ComputedPositions& positions,
            const FedValues& fed)
      : graph_(graph),
        region_(region),
        context_(context),
        low_(context.options.policy.dtype),
        like_(context.options.policy.like.empty() ? nullptr
                                                  : &like_preset(context.options.policy.like)),
        rules_(rules),
        unfit_(unfit),
        fixed_(fixed),
        positions_(positions),
        fed_(fed),
        nodes_(graph.nodes(region)),
        colours_(graph.node_capacity()) {}

  /// Decisions already made for nodes of these names (the training step's) are taken over.
  /// Says whether a decision or a reason is new.
  bool run(const std::map<std::string, Precision>& decided, bool refine) {
    seed(decided);
    hold_places();
    hold_masks();
    flood_f32();
    bridge();
    spread();
    check_legality();
    if (refine) refine_by_cost();
    return write();
  }

 private:
  enum class Colour : uint8_t { kNone, kOpen, kF32, kLow };
  struct State {
    Colour colour = Colour::kNone;
    Kind kind = Kind::kFp32;
    bool pinned = false;
    std::string reason;
  };

  State& state(NodeId node) { return colours_[node.index]; }

  /// Only a node that reads and writes f32 in slots that may change has a choice.
  bool has_choice(NodeId id, const OperatorRow& row) const {
    bool reads = false, writes = false;
    const auto inputs = graph_.inputs(id);
    for (size_t i = 0; i < inputs.size(); ++i) {
      reads |= is_f32(graph_, inputs[i]) && (i >= 32 || (row.fp32_inputs >> i & 1u) == 0);
    }
    const auto outputs = graph_.outputs(id);
    for (size_t i = 0; i < outputs.size(); ++i) {
      writes |= is_f32(graph_, outputs[i]) && (i >= 32 || (row.fp32_outputs >> i & 1u) == 0);
    }
    return reads && writes;
  }

  void set(NodeId id, Colour colour, std::string reason) {
    state(id).colour = colour;
    state(id).reason = std::move(reason);
  }

  /// The op of class fp32 of which a node, or the forward node it was made for, is a part.
  const std::string* f32_whole(const Node& node) const {
    auto found = wholes_.find(node.name);
    if (found == wholes_.end()) found = wholes_.find(node.origin);
    return found == wholes_.end() ? nullptr : &found->second;
  }

  void seed(const std::map<std::string, Precision>& decided) {
    for (NodeId id : nodes_) {
      for (const auto& [key, value] : graph_.node(id).metadata) {
        if (key == kLoweredFromKey) wholes_.emplace(graph_.node(id).name, value);
      }
    }
    for (NodeId id : nodes_) {
      const Node& node = graph_.node(id);
      const OperatorRow* row = find_operator(node);
      const std::string op(node.op);
      const auto forced = rules_.find(node);
      if (row == nullptr) {
        set(id, Colour::kF32, "unknown op: f32");
        state(id).pinned = true;
        continue;
      }
      if (row->precision == Kind::kOpaque || row->precision == Kind::kStruct ||
          !has_choice(id, *row))
        continue;
      const std::string list = choose_kind(id, *row);
      if (node.role == Role::kOptimizer || node.role == Role::kScaling) {
        if (forced && forced->low) {
          context_.warn(node.name, "stays f32 against the " + forced->rule + ": the update is f32");
        }
        pin(id, Colour::kF32, "the " + std::string(role_name(node.role)) + " works in f32");
      } else if (forced) {
        pin(id, forced->low ? Colour::kLow : Colour::kF32, forced->rule);
      } else if (const Precision* known = find_decision(node, decided)) {
        pin(id, known->dtype == low_ ? Colour::kLow : Colour::kF32, known->reason);
      } else if (const std::string* whole = f32_whole(node)) {
        pin(id, Colour::kF32, "fp32 list: part of " + *whole);
      } else if (node.role == Role::kLoss) {
        pin(id, Colour::kF32, "the loss is computed in f32");
      } else if (rounds(id) && (positions_.computes(id) || of_positions(node))) {
        pin(id, Colour::kF32, kPositions);
        if (!node.name.empty()) on_positions_.insert(node.name);
      } else if (state(id).kind == Kind::kAllow) {
        pin(id, Colour::kLow, list + "allow list: " + op);
      } else if (state(id).kind == Kind::kFp32) {
        pin(id, Colour::kF32, list + "fp32 list: " + op);
      } else {
        set(id, Colour::kOpen, "");
      }
    }
  }

  /// Is it the gradient of a node that computes on positions?
  bool of_positions(const Node& node) const {
    return !node.origin.empty() && on_positions_.contains(node.origin);
  }

  /// Does it round what it computes, if it is 16-bit?
  bool rounds(NodeId id) {
    return state(id).kind == Kind::kAllow || state(id).kind == Kind::kInfer;
  }

  /// The class of a node, the framework's before our own; whose list that is, for the reason.
  std::string choose_kind(NodeId id, const OperatorRow& row) {
    state(id).kind = row.fp32_math_inside ? Kind::kInfer : row.precision;
    if (like_ == nullptr) {
      if (!row.fp32_math_inside) state(id).kind = class_of(row, graph_.node(id));
      if (has_group_form(graph_, id)) state(id).kind = Kind::kInfer;
      return "";
    }
    const auto kind = like_class(*like_, row.name, state(id).kind);
    if (!kind || *kind == state(id).kind) return "";
    state(id).kind = *kind;
    return "like " + std::string(like_->name) + ", ";
  }

  void pin(NodeId id, Colour colour, std::string reason) {
    set(id, colour, std::move(reason));
    state(id).pinned = true;
  }

  static const Precision* find_decision(const Node& node,
                                        const std::map<std::string, Precision>& decided) {
    const auto found = decided.find(node.name);
    return found == decided.end() ? nullptr : &found->second;
  }

  /// The producers that a node reads in the type it computes in, not through a slot that is f32
  /// whatever both do.
  template <class Visit>
  void each_above(NodeId id, Visit&& visit) const {
    const auto inputs = graph_.inputs(id);
    for (uint32_t i = 0; i < inputs.size(); ++i) {
      if (!is_f32(graph_, inputs[i])) continue;
      if (fixed_.reads_f32({UseKind::kNodeInput, id.index, i})) continue;
      const Value& value = graph_.value(inputs[i]);
      const NodeId producer = value.producer;
      if (!producer.valid() || fixed_.writes_f32(value)) continue;
      if (graph_.node(producer).region == region_) visit(producer);
    }
  }

  template <class Visit>
  void each_below(NodeId id, Visit&& visit) const {
    for (ValueId output : graph_.outputs(id)) {
      if (!is_f32(graph_, output) || fixed_.writes_f32(graph_.value(output))) continue;
      for (const Use& use : graph_.uses(output)) {
        if (!use.by_node() || fixed_.reads_f32(use)) continue;
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

  std::vector<NodeId> of_colour(Colour colour) {
    std::vector<NodeId> found;
    for (NodeId id : nodes_) {
      if (state(id).colour == colour) found.push_back(id);
    }
    return found;
  }

  auto above() {
    return [this](NodeId id, auto&& visit) { each_above(id, visit); };
  }
  auto below() {
    return [this](NodeId id, auto&& visit) { each_below(id, visit); };
  }

  /// What leads to places stays f32, back to the node that decided its own type; so does what moves
  /// positions to where they are computed with.
  void hold_places() {
    const auto open = [&](NodeId id) { return state(id).colour == Colour::kOpen; };
    const auto by_element = [&](NodeId id) { return open(id) && is_read_by_element(graph_, id); };
    std::vector<NodeId> last, indices, computing;
    const auto add_producer = [&](ValueId place, const auto& holds, std::vector<NodeId>& to) {
      if (!is_f32(graph_, place)) return;
      const NodeId from = graph_.value(place).producer;
      if (from.valid() && graph_.node(from).region == region_ && holds(from)) to.push_back(from);
    };
    for (NodeId id : nodes_) {
      const bool in_f32 = state(id).colour == Colour::kF32;
      if (in_f32 && positions_.computes(id)) computing.push_back(id);
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

  /// What computes of several places alone: how far one is from its floor. `before`: the nodes that
  /// lead to places.
  void hold_distances(const std::vector<bool>& before) {
    std::set<ValueId> places;
    for (NodeId id : nodes_) {
      if (!before[id.index]) continue;
      for (ValueId input : graph_.inputs(id)) {
        if (is_f32(graph_, input) && graph_.value(input).producer.valid()) places.insert(input);
      }
      for (ValueId output : graph_.outputs(id)) places.insert(output);
    }
    for (NodeId id : nodes_) {
      std::set<ValueId> read;
      for (ValueId input : graph_.inputs(id)) {
        if (is_f32(graph_, input) && graph_.constant(input) == nullptr) read.insert(input);
      }
      const bool all = std::ranges::all_of(read, [&](ValueId v) { return places.contains(v); });
      if (all && read.size() > 1 && state(id).colour == Colour::kOpen)
        pin(id, Colour::kF32, kDistances);
    }
  }

  /// What adds a mask that is an input to scores, from where it is fed to the softmax behind it.
  void hold_masks() {
    const auto open = [&](NodeId id) { return state(id).colour == Colour::kOpen; };
    std::vector<NodeId> softmaxes, adding;
    for (NodeId id : nodes_) {
      const bool forward = graph_.node(id).role == Role::kForward;
      if (forward && is_softmax(graph_.node(id)) && state(id).colour == Colour::kF32)
        softmaxes.push_back(id);
    }
    const std::vector<bool> ahead = reach(softmaxes, above(), open);
    for (NodeId id : nodes_) {
      if (ahead[id.index] && fed_.adds(graph_, id)) adding.push_back(id);
    }
    const std::vector<bool> behind =
        reach(adding, below(), [&](NodeId id) { return ahead[id.index]; });
    const std::vector<bool> fed =
        reach(adding, above(), [&](NodeId id) { return open(id) && fed_.has(graph_.output(id)); });
    for (NodeId id : adding) pin(id, Colour::kF32, kMasks);
    for (NodeId id : nodes_) {
      if (open(id) && (behind[id.index] || fed[id.index])) pin(id, Colour::kF32, kMasks);
    }
  }

  void flood_f32() {
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
      // nothing about the data that they meet.
      const bool only_itself =
          graph_.node(id).role == Role::kOptimizer || state(id).reason == kPositions;
      if (!only_itself) sources.push_back(id);
    }
    const std::vector<bool> flooded = reach(sources, below(), [&](NodeId id) {
      return state(id).colour == Colour::kOpen && upstream[id.index];
    });
    for (NodeId id : nodes_) {
      if (flooded[id.index]) set(id, Colour::kF32, "follows an f32 node, and feeds one");
    }
  }

  void bridge() {
    const std::vector<NodeId> low = of_colour(Colour::kLow);
    const auto open = [&](NodeId id) { return state(id).colour == Colour::kOpen; };
    const std::vector<bool> after = reach(low, below(), open);
    const std::vector<bool> ahead = reach(low, above(), open);
    for (NodeId id : nodes_) {
      if (after[id.index] && ahead[id.index]) set(id, Colour::kLow, "lies between 16-bit nodes");
    }
  }

  void spread() {
    const auto clear = [&](NodeId id) {
      return state(id).colour == Colour::kOpen && state(id).kind == Kind::kClear;
    };
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

  void check_legality() {
    for (NodeId id : nodes_) {
      if (state(id).colour != Colour::kLow) continue;
      const std::string why = why_illegal(id);
      if (why.empty()) continue;
      if (state(id).reason.starts_with("policy:")) {
        context_.warn(graph_.node(id).name,
                      "stays f32 against the " + state(id).reason + ": " + why);
      }
      pin(id, Colour::kF32, why);
      if (why.starts_with("constant ")) report(id, why + "; kept in f32");
    }
  }

  /// A note, once: the same node stands in several graphs.
  void report(NodeId id, const std::string& text) {
    const std::string& name = graph_.node(id).name;
    const std::string& where = name.empty() ? graph_.value(graph_.output(id)).name : name;
    for (; told_until_ < context_.remarks.size(); ++told_until_) {
      const Remark& remark = context_.remarks[told_until_];
      told_.emplace(remark.where, remark.text);
    }
    if (!told_.contains({where, text})) context_.note(where, text);
  }

  std::string why_illegal(NodeId id) const {
    const OperatorRow* row = find_operator(graph_.node(id));
    const int since = low_ == DType::kF16 ? row->legality.f16 : row->legality.bf16;
    const std::string type(short_name(low_));
    if (since == 0 || since > kOpsetVersion) {
      return graph_.node(id).op + " is not legal in " + type + " at op-set " +
             std::to_string(kOpsetVersion);
    }
    return why_unfit(id, *row);
  }

  /// A constant that does not fit, or a value that carries one, in a slot that would be 16-bit. A
  /// contraction only minds the constant itself: what was computed with it depends on the data,
  /// and the finite check watches it.
  std::string why_unfit(NodeId id, const OperatorRow& row) const {
    const auto inputs = graph_.inputs(id);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!is_f32(graph_, inputs[i]) || (i < 32 && (row.fp32_inputs >> i & 1u) != 0)) continue;
      const UnfitConstant* unfit =
          row.precision == Kind::kAllow ? unfit_.itself(inputs[i]) : unfit_.of(inputs[i]);
      if (unfit != nullptr) return describe(*unfit, low_);
    }
    return "";
  }

  /// F32 nodes whose result reaches an op that makes small errors large; and those that move what a
  /// comparison in a gradient looks for: where the forward node ran in f32 it would find nothing.
  std::vector<bool> kept_exact() {
    std::vector<NodeId> magnifying, comparing;
    for (NodeId id : nodes_) {
      const OperatorRow* row = find_operator(graph_.node(id));
      if (row != nullptr && row->magnifies) magnifying.push_back(id);
      const bool compares = state(id).colour == Colour::kNone;
      if (compares && graph_.node(id).role == Role::kBackward) comparing.push_back(id);
    }
    std::vector<bool> exact = reach(magnifying, above(), [&](NodeId id) {
      return state(id).colour == Colour::kF32 &&
             (state(id).kind == Kind::kInfer || state(id).kind == Kind::kClear);
    });
    const std::vector<bool> moved = reach(comparing, above(), [&](NodeId id) {
      return state(id).colour == Colour::kF32 && state(id).kind == Kind::kClear &&
             graph_.node(id).role == Role::kBackward;
    });
    for (size_t i = 0; i < exact.size(); ++i) exact[i] = exact[i] || moved[i];
    return exact;
  }

  void refine_by_cost() {
    const std::vector<bool> exact = kept_exact();
    std::vector<bool> low(colours_.size(), false), free(colours_.size(), false);
    for (NodeId id : nodes_) {
      low[id.index] = state(id).colour == Colour::kLow;
      const bool coloured = state(id).colour == Colour::kLow || state(id).colour == Colour::kF32;
      const bool held = exact[id.index] || (!low[id.index] && fed_.are_read_by(graph_, id, low));
      free[id.index] = coloured && !state(id).pinned && !held && why_illegal(id).empty();
    }
    for (const CostFlip& flip : refine_cost(graph_, fixed_, low, free)) {
      set(flip.node, flip.low ? Colour::kLow : Colour::kF32,
          "cost: saves " + std::to_string(flip.saved_bytes) + " bytes of casts and traffic");
    }
  }

  bool write() {
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

  /// The reason of a node that nothing was decided for.
  std::string why_no_choice(NodeId id) const {
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

  static constexpr const char* kPositions = "computes on positions, which rounding would merge";
  static constexpr const char* kMasks = "a mask that is an input, added on the way into a softmax";
  static constexpr const char* kDistances =
      "computes of coordinates alone, which rounding would move";
  static constexpr const char* kPlaces = "leads to coordinates, which rounding would move";

  Graph& graph_;
  const RegionId region_;
  PassContext& context_;
  const DType low_;
  const LikePreset* like_;
  PrecisionRules& rules_;
  const UnfitValues& unfit_;
  const FixedSlots& fixed_;
  const ComputedPositions& positions_;
  const FedValues& fed_;
  const std::vector<NodeId> nodes_;
  std::vector<State> colours_;
  std::map<std::string, std::string> wholes_;  // by node name
  std::set<std::string> on_positions_;         // names of nodes; gradients are made of these
  std::set<std::pair<std::string, std::string>> told_;  // remarks: where and text
  size_t told_until_ = 0;
};

/// Decisions by node name, and by the name of the forward node where the step has another form of
/// it.
std::map<std::string, Precision> decisions_of(const Graph& graph) {
  std::map<std::string, Precision> decided;
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (node.precision.dtype == DType::kUndefined || node.role != Role::kForward) continue;
    decided.emplace(node.name, node.precision);
    if (!node.origin.empty()) decided.emplace(node.origin, node.precision);
  }
  return decided;
}

/// Colours the graph, then each body in it. A body is small, and its casts are cheap next to what
/// it does in each trip: it is not refined.
bool colour(Graph& graph, PassContext& context, PrecisionRules& rules,
            const std::map<std::string, Precision>& decided) {
  const UnfitValues unfit(graph, context.options.policy.dtype);
  const FixedSlots fixed(graph);
  const ComputedPositions positions(graph);
  const FedValues fed(graph);
  const auto run = [&](RegionId region, bool refine) {
    return Colouring(graph, region, context, rules, unfit, fixed, positions, fed)
        .run(decided, refine);
  };
  bool changed = run(graph.main(), context.options.policy.cost_refinement);
  for (NodeId id : graph.all_nodes()) {
    for (RegionId body : graph.subgraphs(id)) changed |= run(body, false);
  }
  return changed;
}

}  // namespace

bool assign_precision(Model& model, PassContext& context) {
  const Policy& policy = context.options.policy;
  PrecisionRules rules(policy);
  if (policy.dtype == DType::kF32) {
    bool changed = keep_f32(model.graph, rules);
    for (TrainingStep& step : model.training) changed |= keep_f32(step.graph, rules);
    rules.check_all_matched(model);
    return changed;
  }
  if (policy.dtype != DType::kF16 && policy.dtype != DType::kBF16) {
    throw Error(ErrorCode::kUsage, "no such training precision")
        .expected("fp32, fp16 or bf16", std::string(short_name(policy.dtype)));
  }
  std::map<std::string, Precision> decided;
  bool changed = false;
  for (TrainingStep& step : model.training) {
    const bool first = step.name == kStepName || step.name == kAccumulateName;
    changed |=
        colour(step.graph, context, rules, first ? std::map<std::string, Precision>{} : decided);
    if (first) decided = decisions_of(step.graph);
  }
  changed |= colour(model.graph, context, rules, decided);
  rules.check_all_matched(model);
  return changed;
}

}  // namespace halfnote
