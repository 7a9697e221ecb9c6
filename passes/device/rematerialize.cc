// rematerialize: forward results that the backward pass reads much later are computed again there,
// until what the step holds at once is within the limit that the model states.
//
//   h = Gelu(x)  …  dw = MatMul(h, dy)   ──▶   h = Gelu(x)  …  h_again = Gelu(x)  dw =
//   MatMul(h_again, dy)
//
// Exact: the same nodes on the same operands, so the same bits. Greedy: of the results that are
// held at the peak, those first that free the most bytes for a millisecond of computing them again,
// by the fixed table below (the result never depends on the machine). What a copy reads must be
// there: it is still held, or computed again too, or held longer, which counts against what is
// freed. What stands there again may go a second time. All plans of a peak at once, or, in graphs
// of few nodes, one plan and then a new look; and the same with chains of several results split,
// so that a result can go without its neighbours: what comes nearer, as far as it came nearest.
// Leaves alone: random draws (a counter-based dropout draws the same again), nodes with bodies,
// results that are outputs or states, the backward pass and the update.
#include "passes/device/rematerialize.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "passes/device/live_ranges.h"
#include "passes/device/pointwise/split_pointwise.h"

namespace halfnote {
namespace {

constexpr std::string_view kLimit = "halfnote.activation_bytes";
constexpr std::string_view kBeside = "halfnote.activation_bytes_beside";
constexpr std::string_view kAgain = "halfnote.again";  // on a copy: a result of the original

// Speeds of the cost table, per millisecond: a share of what two cores of a server do.
constexpr double kFlops16 = 400e6, kFlops32 = 200e6, kBytes = 10e6, kNodeMs = 0.002;
constexpr size_t kMostOfCopy = 24;             // of one copy, with all that it needs
constexpr int kMostTimes = 2;                  // that a node is computed again
constexpr int kRounds = 256, kIdleRounds = 8;  // idle: without a lower peak
constexpr size_t kAllPlans = std::numeric_limits<size_t>::max();
constexpr uint32_t kFewNodes = 2000;     // up to which a plan a round is tried too
constexpr int64_t kSmallShare = 100000;  // less than a 100,000th of the peak is not worth a copy

Shape shape_of(const Graph& graph, ValueId value) {
  const bool known = value.valid() && graph.value(value).type.has_concrete_shape();
  return known ? concrete(*graph.value(value).type.shape) : Shape{};
}

double milliseconds(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (is_view(node)) return 0;
  double bytes = 0, flops = 0;
  std::vector<Shape> inputs, outputs;
  for (ValueId value : graph.inputs(id)) {
    inputs.push_back(shape_of(graph, value));
    if (value.valid()) bytes += static_cast<double>(bytes_of(graph.value(value).type));
  }
  for (ValueId value : graph.outputs(id)) {
    outputs.push_back(shape_of(graph, value));
    if (value.valid()) bytes += static_cast<double>(bytes_of(graph.value(value).type));
  }
  const OperatorRow* row = find_operator(node);
  if (row != nullptr && row->flops != nullptr) flops = row->flops(node.attributes, inputs, outputs);
  const ValueId first = graph.input(id, 0);
  const bool low = first.valid() && is_16bit_float(graph.value(first).type.dtype);
  return kNodeMs + bytes / kBytes + flops / (low ? kFlops16 : kFlops32);
}

std::string first_result(const Graph& graph, NodeId node) {
  for (ValueId output : graph.outputs(node)) {
    if (output.valid()) return graph.value(output).name;
  }
  return {};
}

/// What it takes to have one range again.
struct Plan {
  ValueId root;
  int at = 0;                          // before the node that stands there
  std::vector<NodeId> originals = {};  // to be copied; where there is a copy already, it moves here
  std::vector<ValueId> longer = {};    // roots that are held until then
  std::vector<ValueId> reads = {};     // roots that must not go in this round
  double ms = 0;
  int64_t freed = 0;

  double worth() const { return static_cast<double>(freed) / ms; }
};

/// Where the rounds led: the last one with the lowest peak (a plan of kernels may still take less
/// than the ones before), or the first within the limit.
struct Outcome {
  int rounds = 0;  // before it
  int64_t before = 0, peak = 0;
  double ms = 0;

  bool is_better(const Outcome& other, int64_t limit) const {
    if (peak <= limit && other.peak <= limit) return ms < other.ms;
    return peak < other.peak;
  }
};

class Rematerializer {
 public:
  Rematerializer(Graph& graph, int64_t limit, const BytesBeside& beside, size_t plans_a_round)
      : graph_(graph), limit_(limit), beside_(beside), plans_a_round_(plans_a_round) {}

  /// Goes on for so many rounds, or as long as it leads somewhere. A round may also make things
  /// worse: copies hold something, too.
  Outcome run(int rounds) {
    Outcome best;
    for (int round = 0;; ++round) {
      const LiveRanges live(graph_, beside_);
      if (round == 0) best = {0, live.peak(), live.peak(), 0};
      if (live.peak() <= best.peak) best = {round, best.before, live.peak(), ms_};
      rounds_ = round;
      const bool idles = round > best.rounds + kIdleRounds;
      if (live.peak() <= limit_ || round == rounds || idles || !reduce(live)) break;
    }
    return best;
  }
  int rounds() const { return rounds_; }

  bool finish(const Outcome& outcome, PassContext& context) {
    if (copies_ == 0) return false;
    erase_dead(graph_, [this](const Graph&, NodeId node) { return copied_.contains(node); });
    context.note("activations", fmt::format("{} node(s) are computed again, {:.1f} ms by the cost "
                                            "table: {:.1f} instead of {:.1f} MB held at once",
                                            copies_, ms_, static_cast<double>(outcome.peak) / 1e6,
                                            static_cast<double>(outcome.before) / 1e6));
    return true;
  }

 private:
  bool may_repeat(NodeId id) const {
    const Node& node = graph_.node(id);
    const auto copy = times_.find(id);
    if (copy == times_.end() ? node.role != Role::kForward && node.role != Role::kLoss
                             : copy->second == kMostTimes || fresh_.contains(id)) {
      return false;
    }
    const OperatorRow* row = find_operator(node);
    return row != nullptr && row->purity == Purity::kPure && graph_.subgraphs(id).empty();
  }

  /// One round: the results held at the peak, the best first.
  bool reduce(const LiveRanges& live) {
    pinned_.clear();
    gone_.clear();
    fresh_.clear();
    std::vector<Plan> plans;
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      const std::optional<Plan> plan = plan_for(live, ValueId{i});
      if (plan) plans.push_back(*plan);
    }
    std::ranges::stable_sort(plans,
                             [](const Plan& a, const Plan& b) { return a.worth() > b.worth(); });
    int64_t over = live.peak() - limit_;
    size_t applied = 0;
    for (const Plan& known : plans) {
      if (over <= 0 || applied == plans_a_round_) break;
      if (pinned_.contains(known.root)) continue;
      const std::optional<Plan> plan = plan_for(live, known.root);  // as things are by now
      if (!plan) continue;
      apply(live, *plan);
      over -= plan->freed;
      ++applied;
    }
    return applied > 0;
  }

  /// The best way to let `root` go over the peak; nothing if it is not held there or has to be.
  std::optional<Plan> plan_for(const LiveRanges& live, ValueId root) const {
    const int peak = live.peak_position();
    if (live.first(root) == LiveRanges::kNever || live.root(root) != root) return std::nullopt;
    if (live.first(root) >= peak || live.last(root) <= peak) return std::nullopt;
    if (live.last(root) == LiveRanges::kEnd) return std::nullopt;
    if (live.bytes(root) * kSmallShare < live.peak()) return std::nullopt;
    if (!may_repeat(graph_.value(root).producer)) return std::nullopt;
    Plan plan{.root = root, .at = LiveRanges::kEnd};
    std::vector<ValueId> wanted;
    for (ValueId member : live.members(root)) {
      // Views made behind the peak look at the copy, as any reader does.
      if (live.position(graph_.value(member).producer) > peak) continue;
      const int first = first_late_read(live, member);
      if (first == LiveRanges::kNever) return std::nullopt;
      plan.at = std::min(plan.at, first);
      if (first != LiveRanges::kEnd) wanted.push_back(member);
    }
    if (wanted.empty()) return std::nullopt;
    std::optional<Plan> best;
    for (const bool deep : {false, true}) {
      Plan way = plan;
      if (!complete(live, way, wanted, deep) || way.freed <= 0) continue;
      if (!best || way.worth() > best->worth()) best = std::move(way);
    }
    return best;
  }

  /// Where a value is first read behind the peak; kEnd: nowhere, kNever: it must be held (or a copy
  /// of this round reads it, which has no position yet).
  int first_late_read(const LiveRanges& live, ValueId value) const {
    int first = LiveRanges::kEnd;
    for (const Use& use : graph_.uses(value)) {
      const int position = live.position(use);
      const bool behind = position > live.peak_position();
      if (position == LiveRanges::kNever || position == live.peak_position() ||
          (behind && !use.by_node())) {
        return LiveRanges::kNever;
      }
      if (behind) first = std::min(first, position);
    }
    return first;
  }

  /// Finds what the copies need. `deep`: what is no longer held is computed again too, where it may
  /// be; else it is held longer.
  bool complete(const LiveRanges& live, Plan& plan, std::vector<ValueId> open, bool deep) const {
    std::unordered_set<ValueId> seen(open.begin(), open.end());
    std::unordered_set<NodeId> taken;
    plan.freed = live.bytes(plan.root);
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      const NodeId node = graph_.value(value).producer;
      if (!may_repeat(node) || taken.size() > kMostOfCopy) return false;
      if (!taken.insert(node).second) continue;
      plan.originals.push_back(node);
      const auto copy = copy_of_.find(node);
      if (copy == copy_of_.end()) plan.ms += milliseconds(graph_, node);
      if (copy != copy_of_.end()) {
        if (fresh_.contains(copy->second)) return false;
        if (live.position(copy->second) < plan.at) {
          hold_copy(live, plan, graph_.output(copy->second, graph_.value(value).output));
          continue;
        }
      }
      for (ValueId input : graph_.inputs(node)) {
        if (!input.valid() || !seen.insert(input).second) continue;
        if (!supply(live, plan, input, deep, open)) return false;
      }
    }
    plan.ms += kNodeMs;
    std::ranges::sort(plan.originals, [&](NodeId a, NodeId b) { return graph_.is_before(a, b); });
    return true;
  }

  /// A copy that stands early enough is held until the plan reads it.
  static void hold_copy(const LiveRanges& live, Plan& plan, ValueId copy) {
    const ValueId root = live.root(copy);
    const bool adds = live.first(root) <= live.peak_position() &&
                      live.last(root) < live.peak_position() && live.last(root) < plan.at;
    if (adds) plan.freed -= live.bytes(root);
    plan.reads.push_back(root);
  }

  /// Sees to an operand of a copy.
  bool supply(const LiveRanges& live, Plan& plan, ValueId input, bool deep,
              std::vector<ValueId>& open) const {
    const ValueId root = live.root(input);
    if (live.first(root) == LiveRanges::kNever) return true;  // a weight, an input of the step
    if (gone_.contains(root)) return false;
    const NodeId producer = graph_.value(input).producer;
    if (root == plan.root) {
      open.push_back(input);
      return true;
    }
    if (live.last(root) >= plan.at) {
      plan.reads.push_back(root);
      return true;
    }
    const bool known = copy_of_.contains(producer);
    if (known || (deep && live.last(root) < live.peak_position() && may_repeat(producer))) {
      open.push_back(input);
      return true;
    }
    if (live.last(root) < live.peak_position()) plan.freed -= live.bytes(root);
    plan.longer.push_back(root);
    plan.reads.push_back(root);
    return true;
  }

  void apply(const LiveRanges& live, const Plan& plan) {
    const NodeId before = live.nodes()[static_cast<size_t>(plan.at)];
    ValueMap values;
    for (NodeId original : plan.originals) place(live, original, before, plan.at, values);
    for (ValueId member : live.members(plan.root)) {
      const auto copy = values.find(member);
      if (copy == values.end()) continue;
      graph_.replace_uses_if(member, copy->second, [&](const Use& use) {
        const int position = live.position(use);
        return use.by_node() && position != LiveRanges::kNever && position >= plan.at;
      });
    }
    gone_.insert(plan.root);
    for (ValueId root : plan.reads) pinned_.insert(root);
    for (ValueId root : plan.longer) pinned_.insert(root);
    ms_ += plan.ms;
  }

  /// A copy of the node before `before`; the one there is, if it stands before it or can move
  /// there.
  void place(const LiveRanges& live, NodeId original, NodeId before, int at, ValueMap& values) {
    const auto known = copy_of_.find(original);
    if (known == copy_of_.end()) {
      CloneOptions options;
      options.role = Role::kBackward;
      options.prefix = "again/";
      clone_nodes(graph_, graph_.before(before), graph_, std::span(&original, 1), values, options);
      const NodeId copy = graph_.prev(before);
      const auto times = times_.find(original);
      if (times == times_.end())
        graph_.node(copy).metadata.emplace_back(std::string(kAgain),
                                                first_result(graph_, original));
      times_.emplace(copy, times == times_.end() ? 1 : times->second + 1);
      copy_of_.emplace(original, copy);
      copied_.insert(original);
      fresh_.insert(copy);
      ++copies_;
      return;
    }
    const NodeId copy = known->second;
    if (live.position(copy) >= at) {
      graph_.move_before(copy, graph_.before(before));
      // What it read may stand behind its new place; what the plan sees to does not.
      for (size_t i = 0; i < graph_.inputs(original).size(); ++i) {
        const ValueId input = graph_.input(original, i);
        const auto other = values.find(input);
        if (input.valid()) graph_.set_input(copy, i, other == values.end() ? input : other->second);
      }
    }
    fresh_.insert(copy);
    for (size_t i = 0; i < graph_.outputs(original).size(); ++i) {
      if (graph_.output(original, i).valid()) {
        values[graph_.output(original, i)] = graph_.output(copy, i);
      }
    }
  }

  Graph& graph_;
  int64_t limit_;
  const BytesBeside& beside_;
  size_t plans_a_round_;
  std::unordered_map<NodeId, NodeId> copy_of_;  // by original, which may be a copy itself
  std::unordered_map<NodeId, int> times_;       // of each copy: how often it is computed again then
  std::unordered_set<NodeId> copied_;           // originals
  // Of this round:
  std::unordered_set<ValueId> pinned_;  // roots that copies read
  std::unordered_set<ValueId> gone_;    // roots that are no longer held
  std::unordered_set<NodeId> fresh_;    // copies made or moved
  size_t copies_ = 0;
  double ms_ = 0;
  int rounds_ = 0;
};

/// Rounds on a copy of the graph.
struct Trial {
  Graph graph;
  Rematerializer rounds;

  Trial(const Graph& from, int64_t limit, const BytesBeside& beside, size_t plans_a_round)
      : graph(from), rounds(graph, limit, beside, plans_a_round) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
};

/// Tries the ways to go on, on copies of the graph, until one reaches the limit; keeps to the best
/// one, as far as it led to the best. The second graph has its chains split.
bool rematerialize_within(Graph& graph, int64_t limit, const BytesBeside& beside,
                          PassContext& context) {
  Graph split = graph;
  const bool splits = LiveRanges(graph, beside).peak() > limit && split_pointwise(split);
  const bool is_small = graph.node_count() <= kFewNodes;
  std::unique_ptr<Trial> chosen;
  std::optional<Outcome> best;
  const auto attempt = [&](const Graph& from, size_t plans) {
    if (best && best->peak <= limit) return;
    auto trial = std::make_unique<Trial>(from, limit, beside, plans);
    const Outcome outcome = trial->rounds.run(kRounds);
    if (best && !outcome.is_better(*best, limit)) return;
    best = outcome;
    if (trial->rounds.rounds() != best->rounds) {  // it went too far
      trial = std::make_unique<Trial>(from, limit, beside, plans);
      trial->rounds.run(best->rounds);
    }
    chosen = std::move(trial);
  };
  attempt(graph, kAllPlans);
  if (splits) attempt(split, kAllPlans);
  if (is_small) attempt(graph, 1);
  if (splits && is_small) attempt(split, 1);
  if (!chosen->rounds.finish(*best, context)) return false;
  graph = std::move(chosen->graph);
  return true;
}

}  // namespace

void limit_activations(Model& model, int64_t bytes, const BytesBeside& beside) {
  model.metadata[std::string(kLimit)] = std::to_string(bytes);
  for (NodeId node : model.graph.all_nodes()) {  // the file's word does not count
    model.graph.node(node).metadata.erase_if([](const auto& e) { return e.first == kAgain; });
  }
  if (beside.empty()) return;
  model.metadata[std::string(kBeside)] =
      nlohmann::json(beside).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int64_t activation_limit(const Model& model) {
  const auto stated = model.metadata.find(std::string(kLimit));
  return stated == model.metadata.end() ? 0 : std::stoll(stated->second);
}

NodeId original_of(const Graph& graph, NodeId node) {
  for (const auto& [key, result] : graph.node(node).metadata) {
    if (key != kAgain) continue;
    const ValueId value = graph.find(result);
    const NodeId original = value.valid() ? graph.value(value).producer : NodeId{};
    const bool alike = original.valid() && graph.node(original).op == graph.node(node).op &&
                       graph.outputs(original).size() == graph.outputs(node).size();
    return alike ? original : NodeId{};
  }
  return {};
}

bool rematerialize(Model& model, PassContext& context) {
  const int64_t limit = activation_limit(model);
  if (limit <= 0) return false;
  BytesBeside beside;
  if (const auto known = model.metadata.find(std::string(kBeside)); known != model.metadata.end())
    nlohmann::json::parse(known->second).get_to(beside);
  return rematerialize_within(model.graph, limit, beside, context);
}

}  // namespace halfnote
