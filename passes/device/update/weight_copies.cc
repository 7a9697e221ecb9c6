// keep_copies: the 16-bit copy of a weight is state, written in the pass over memory that updates
// the weight, instead of a cast in every step.
//
//   c  = Cast <bf16> (w)   …  w1, m1 = Momentum (w, g, m, lr, t, commit)
//       ──▶
//   state c -> c1             w1, m1, c1 = Momentum <copy_dtype = bf16> (w, g, m, lr, t, commit)
//
// Exact: the copy is the weight rounded as the cast rounds it, also in a step that does not commit.
// Other steps of the model (another micro-batch, the evaluation) read the copy too. Leaves alone:
// casts in bodies, casts that are results of the graph, weights that anything but an optimizer node
// writes.
#include "passes/device/update/weight_copies.h"

#include <nlohmann/json.hpp>
#include <set>

#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

constexpr std::string_view kCopies = "halfnote.device.copies";

/// The weight behind a cast to 16 bits that a copy can stand for; else invalid.
ValueId weight_under(const Graph& graph, NodeId node) {
  if (!is_cast(graph.node(node)) || graph.node(node).region != graph.main()) return {};
  const ValueId weight = graph.input(node, 0), result = graph.output(node);
  if (!weight.valid() || graph.value(weight).kind != ValueKind::kInitializer) return {};
  if (!is_16bit_float(graph.value(result).type.dtype) || is_region_output(graph, result)) return {};
  const DType dtype = graph.value(weight).tensor.dtype();
  return dtype == DType::kF32 || dtype == DType::kF64 ? weight : ValueId{};
}

/// The optimizer node that writes the weight's new value; invalid if something else does, or
/// nothing.
NodeId update_of(const Graph& graph, ValueId weight) {
  const auto state = graph.state_of(weight);
  if (!state) return {};
  const ValueId next = graph.states()[*state].next;
  const NodeId node = producer(graph, next);
  if (!node.valid() || graph.node(node).region != graph.main()) return {};
  const OperatorRow* row = find_operator(graph.node(node));
  const bool updates = row != nullptr && row->commit_input >= 0 && graph.output(node) == next &&
                       graph.input(node, 0) == weight;
  return updates ? node : NodeId{};
}

/// Is the weight updated somewhere, and written by nothing but updates?
bool only_updated(const Model& model, const std::string& name) {
  bool updated = false;
  for (const TrainingStep& step : model.training) {
    const ValueId weight = step.graph.find(name);
    if (!weight.valid() || step.graph.value(weight).kind != ValueKind::kInitializer) continue;
    const auto state = step.graph.state_of(weight);
    if (!state || step.graph.states()[*state].next == weight) continue;
    if (!update_of(step.graph, weight).valid()) return false;
    updated = true;
  }
  return updated;
}

/// A name that no value of the model has, nor another copy.
std::string free_name(const Model& model, const std::set<std::string>& taken, std::string name) {
  const auto is_taken = [&] {
    if (taken.contains(name) || model.graph.find(name).valid()) return true;
    for (const TrainingStep& step : model.training) {
      if (step.graph.find(name).valid()) return true;
    }
    return false;
  };
  while (is_taken()) name += '_';
  return name;
}

/// Bytes of what a Pad makes of a value by rows of zeros behind it; 0 if it does something else.
size_t bytes_with_rows(const Graph& graph, NodeId node) {
  const auto ints_of = [&](size_t input) {
    const Tensor* values = graph.constant(graph.input(node, input));
    return values == nullptr ? std::vector<int64_t>() : values->to_ints();
  };
  const ValueType& result = graph.value(graph.output(node)).type;
  const std::vector<int64_t> pads = ints_of(1), axes = ints_of(3);
  const size_t count = pads.size() / 2;
  const std::string mode = graph.node(node).attributes.get_string("mode", "constant");
  if (count == 0 || !result.has_concrete_shape() || mode != "constant") return 0;
  if (!axes.empty() && axes.size() != count) return 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t axis = axes.empty() ? static_cast<int64_t>(i) : axes[i];
    if (pads[i] != 0 || (axis != 0 && pads[count + i] != 0)) return 0;
  }
  return static_cast<size_t>(element_count(concrete(*result.shape))) * size_of(result.dtype);
}

/// Bytes of the largest result of a Pad that puts rows behind a value.
size_t room_for(const Graph& graph, ValueId value) {
  size_t most = 0;
  for (const Use& use : graph.uses(value)) {
    const bool pads = use.by_node() && use.slot == 0 && graph.node(use.node()).domain.empty() &&
                      graph.node(use.node()).op == "Pad";
    if (pads) most = std::max(most, bytes_with_rows(graph, use.node()));
  }
  return most;
}

class CopyKeeper {
 public:
  explicit CopyKeeper(Graph& graph) : graph_(graph) {}

  bool keep(const std::string& weight_name, const std::string& name, DType dtype) {
    const ValueId weight = graph_.find(weight_name);
    if (!weight.valid() || graph_.value(weight).kind != ValueKind::kInitializer) return false;
    if (graph_.find(name).valid()) return false;  // done before
    std::vector<NodeId> casts;
    for (const NodeId cast : casts_of(graph_, weight, dtype)) {
      if (weight_under(graph_, cast) == weight) casts.push_back(cast);
    }
    const NodeId update = update_of(graph_, weight);
    if (casts.empty() && !update.valid()) return false;
    const Tensor first(dtype, graph_.value(weight).tensor.shape());
    const ValueId copy = graph_.add_initializer(name, first);
    graph_.value(copy).trainable = true;  // it varies: no pass may fold it
    for (const NodeId cast : casts) read(cast, copy);
    if (update.valid()) write(update, copy);
    return true;
  }

 private:
  void read(NodeId cast, ValueId copy) {
    const ValueId result = graph_.output(cast);
    graph_.replace_uses_if(result, copy, [&](const Use& use) {
      return use.by_node() && graph_.node(use.node()).region == graph_.main();
    });
    if (!graph_.has_uses(result)) graph_.remove(cast);
  }

  void write(NodeId update, ValueId copy) {
    const std::string name = graph_.unique_name(graph_.value(copy).name + ".next");
    const size_t last = graph_.outputs(update).size();
    const ValueId next = graph_.add_node_output(update, last, name);
    graph_.value(next).type = graph_.value(copy).type;
    graph_.node(update).attributes.set("copy_dtype",
                                       static_cast<int64_t>(graph_.value(copy).type.dtype));
    graph_.add_state(copy, next, StateKind::kWeight);
  }

  Graph& graph_;
};

}  // namespace

std::vector<WeightCopy> find_weight_copies(const Model& model) {
  std::vector<WeightCopy> copies;
  std::set<std::string> seen, taken;
  for (const TrainingStep& step : model.training) {
    for (const NodeId node : step.graph.nodes()) {
      const ValueId weight = weight_under(step.graph, node);
      if (!weight.valid()) continue;
      const std::string& name = step.graph.value(weight).name;
      const DType dtype = step.graph.value(step.graph.output(node)).type.dtype;
      const size_t room = room_for(step.graph, step.graph.output(node));
      for (WeightCopy& known : copies) {
        if (known.weight == name && known.dtype == dtype) known.room = std::max(known.room, room);
      }
      if (!seen.insert(name).second || !only_updated(model, name)) continue;
      std::string own = free_name(model, taken, name + "@" + std::string(short_name(dtype)));
      taken.insert(own);
      copies.push_back({name, std::move(own), dtype, room});
    }
  }
  return copies;
}

void name_copies(Model& model, std::span<const WeightCopy> copies) {
  nlohmann::json json = nlohmann::json::array();
  for (const WeightCopy& copy : copies) {
    json.push_back({copy.weight, copy.name, static_cast<int>(copy.dtype)});
  }
  model.metadata[std::string(kCopies)] =
      json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

bool keep_copies(Model& model, PassContext&) {
  const auto stated = model.metadata.find(std::string(kCopies));
  if (stated == model.metadata.end()) return false;
  CopyKeeper keeper(model.graph);
  bool changed = false;
  for (const auto& copy : nlohmann::json::parse(stated->second)) {
    const auto dtype = static_cast<DType>(copy[2].get<int>());
    changed |= keeper.keep(copy[0].get<std::string>(), copy[1].get<std::string>(), dtype);
  }
  return changed;
}

}  // namespace halfnote
