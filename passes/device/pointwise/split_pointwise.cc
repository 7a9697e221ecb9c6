// split_pointwise: the pointwise nodes of the forward pass that have several results become one
// node a result, where an early result needs fewer operands than the whole node.
//
//   c, z = Pointwise <"t0 = Clip(x0, …); t1 = Add(t0, x1); out t0, t1"> (a, before)
//     ──▶  c = Pointwise <"t0 = Clip(x0, …); out t0"> (a)
//          z = Pointwise <"t0 = Add(x0, x1); out t0"> (c, before)
//
// To compute c again then takes a alone, not all that stands before. Exact: the same steps; one
// that several parts need and that is no result is in each. No row of the pipeline: it is one of
// the ways that rematerialize tries, because the parts pass over memory once more. Leaves alone:
// nodes whose results all need the same, programs with a sum, and what would have more operands
// than a node may.
#include "passes/device/pointwise/split_pointwise.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/ops/pointwise.h"
#include "compiler/ir/model.h"

namespace halfnote {
namespace {

constexpr size_t kMostOperands = 12;  // as fuse_pointwise has it

/// The steps of one result, with what they read besides each other.
struct Part {
  std::vector<int> steps;        // of the whole program, ascending
  std::vector<ValueId> inputs;   // each once
  std::map<int, size_t> number;  // of an input: by operand, as in PointwiseStep
};

class Splitter {
 public:
  Splitter(Graph& graph, NodeId node) : graph_(graph), node_(node) {}

  bool run() {
    if (!read()) return false;
    std::vector<Part> parts;
    bool pays = false;
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      parts.push_back(part_of(i));
      if (parts.back().inputs.size() > kMostOperands) return false;
      const bool last = i + 1 == program_.outputs.size();
      pays |= !last && large(parts.back().inputs) < large(inputs_);
    }
    if (!pays) return false;
    for (size_t i = 0; i < parts.size(); ++i) make(i, parts[i]);
    remove();
    return true;
  }

 private:
  bool read() {
    const Node& node = graph_.node(node_);
    const auto inputs = graph_.inputs(node_), outputs = graph_.outputs(node_);
    inputs_.assign(inputs.begin(), inputs.end());
    results_.assign(outputs.begin(), outputs.end());
    std::vector<DType> given, made;
    for (const ValueId value : inputs_) given.push_back(graph_.value(value).type.dtype);
    for (const ValueId value : results_) made.push_back(graph_.value(value).type.dtype);
    program_ = parse_pointwise(node.attributes.get_string("program", ""), given, made);
    return !sum_of(program_) && std::ranges::is_sorted(program_.outputs);
  }

  /// Operands of as many elements as the results have.
  size_t large(const std::vector<ValueId>& values) const {
    const SymbolicShape& whole = *graph_.value(results_[0]).type.shape;
    return static_cast<size_t>(std::ranges::count_if(
        values, [&](ValueId value) { return *graph_.value(value).type.shape == whole; }));
  }

  /// What result `i` needs; the results before it are there.
  Part part_of(size_t i) const {
    Part part;
    std::set<int> needed;
    std::vector<int> open = {program_.outputs[i]};
    while (!open.empty()) {
      const int step = open.back();
      open.pop_back();
      if (!needed.insert(step).second) continue;
      for (const int operand : operands(step)) {
        if (operand < 0 && !is_before(~operand, i)) open.push_back(~operand);
      }
    }
    part.steps.assign(needed.begin(), needed.end());
    for (const int step : part.steps) {
      for (const int operand : operands(step)) {
        if (operand < 0 && needed.contains(~operand)) continue;
        if (!part.number.emplace(operand, part.inputs.size()).second) continue;
        part.inputs.push_back(value_of(operand));
      }
    }
    return part;
  }

  std::span<const int> operands(int step) const {
    const PointwiseStep& found = program_.steps[static_cast<size_t>(step)];
    return std::span(found.operands).first(static_cast<size_t>(pointwise_row(found.op).arity));
  }

  bool is_before(int step, size_t output) const {
    return std::ranges::find(program_.outputs, step) - program_.outputs.begin() <
           static_cast<std::ptrdiff_t>(output);
  }

  ValueId value_of(int operand) const {
    if (operand >= 0) return inputs_[static_cast<size_t>(operand)];
    const auto at = std::ranges::find(program_.outputs, ~operand) - program_.outputs.begin();
    return results_[static_cast<size_t>(at)];
  }

  void make(size_t i, const Part& part) {
    std::map<int, int> place;  // of a step in the part
    PointwiseProgram program;
    std::vector<std::string> names;
    const Attribute* given = graph_.node(node_).attributes.find("nodes");
    const auto* all = given ? std::get_if<std::vector<std::string>>(given) : nullptr;
    for (const int step : part.steps) {
      PointwiseStep copy = program_.steps[static_cast<size_t>(step)];
      for (size_t k = 0; k < operands(step).size(); ++k) {
        const auto inner = place.find(~copy.operands[k]);
        copy.operands[k] = copy.operands[k] < 0 && inner != place.end()
                               ? ~inner->second
                               : static_cast<int>(part.number.at(copy.operands[k]));
      }
      place.emplace(step, static_cast<int>(program.steps.size()));
      program.steps.push_back(copy);
      if (all != nullptr && static_cast<size_t>(step) < all->size())
        names.push_back((*all)[static_cast<size_t>(step)]);
    }
    program.outputs = {place.at(program_.outputs[i])};
    NodeSpec spec;
    spec.op = "Pointwise";
    spec.domain = kHalfnoteDomain;
    spec.name =
        i + 1 == program_.outputs.size() || names.empty() ? graph_.label(node_) : names.back();
    for (const ValueId input : part.inputs) spec.inputs.push_back(current(input));
    spec.attributes.set("program", to_text(program));
    spec.attributes.set("nodes", std::move(names));
    const std::string name = graph_.unique_name(graph_.value(results_[i]).name + ".part");
    const NodeId made =
        graph_.create(std::move(spec), std::vector<std::string>{name}, graph_.before(node_));
    graph_.node(made).role = graph_.node(node_).role;
    graph_.node(made).precision = graph_.node(node_).precision;
    graph_.node(made).origin = graph_.node(node_).origin;
    made_.push_back(graph_.output(made));
    graph_.value(made_.back()).type = graph_.value(results_[i]).type;
    graph_.value(made_.back()).scale_power = graph_.value(results_[i]).scale_power;
  }

  /// An operand as it is by now.
  ValueId current(ValueId value) const {
    const auto at = std::ranges::find(results_, value) - results_.begin();
    return static_cast<size_t>(at) < made_.size() ? made_[static_cast<size_t>(at)] : value;
  }

  void remove() {
    std::vector<std::string> names;
    for (size_t i = 0; i < results_.size(); ++i) {
      names.push_back(graph_.value(results_[i]).name);
      graph_.replace_uses(results_[i], made_[i]);
    }
    graph_.remove(node_);
    for (size_t i = 0; i < names.size(); ++i) graph_.rename(made_[i], names[i]);
  }

  Graph& graph_;
  NodeId node_;
  PointwiseProgram program_;
  std::vector<ValueId> inputs_, results_, made_;
};

}  // namespace

bool split_pointwise(Graph& graph) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    const bool forward = node.role == Role::kForward || node.role == Role::kLoss;
    if (forward && node.domain == kHalfnoteDomain && node.op == "Pointwise" &&
        graph.outputs(id).size() > 1) {
      changed |= Splitter(graph, id).run();
    }
  }
  return changed;
}

}  // namespace halfnote
