// fuse_pointwise: elementwise nodes that feed each other become one ai.halfnote.Pointwise node,
// which runs as one pass over memory.
//
//   a = Add(x, bias)  e = Erf(a)  y = Mul(a, e)      ──▶
//   y = Pointwise <program = "t0:f32 = Add(x0, x1); t1:f32 = Erf(t0); …; out t2"> (x, bias)
//
// Exact: each step computes in f32 and rounds to its type, as the node did. Results that others
// read stay outputs, nothing is computed twice. Attribute `nodes` keeps the names for reports.
// A node joins the nodes that make its operands if the results have one shape and nobody in between
// reads what they make; these stand at most kPointwiseWindow nodes back, so that the pass is linear
// and values are not held much longer. A Dropout in a chain draws at its elements' positions, as it
// does alone. Leaves alone: single nodes, other types than f32, f16, bf16 and bool, shapes that are
// not known.
//
// program-large does it for GPUs with each large node that is left alone, behind the passes that
// look for single ones: generated kernels move 16 bytes at once, those of operators an element.
// Leaves alone: Casts, which may turn the layout on the way, and operands that are broadcast, but
// scalars and, where nothing lies channels last, those with the last dims of the result (biases,
// tables of positions), which are read in packs as well.
#include "passes/device/pointwise/fuse_pointwise.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"

namespace halfnote {
namespace {

constexpr size_t kMaxSteps = 32;
constexpr size_t kMaxInputs = 12;

bool is_known_pointwise(const Graph& graph, ValueId value) {
  return value.valid() && graph.value(value).type.has_concrete_shape() &&
         is_pointwise_type(graph.value(value).type.dtype);
}

bool is_known_input(const Graph& graph, ValueId value) {
  if (!value.valid() || !graph.value(value).type.has_concrete_shape()) return false;
  const ValueType& type = graph.value(value).type;
  return unfit_input(type.dtype, element_count(concrete(*type.shape))).empty();
}

/// Nodes that will be one. Their results may be read by others only behind the last of them.
struct Group {
  std::vector<std::pair<int64_t, NodeId>> nodes;  // with their positions, ascending
  std::vector<ValueId> inputs;                    // each once
  Shape shape;
  bool open = true;

  int64_t last() const { return nodes.back().first; }
};

/// Elements from which a pass over memory takes longer than a launch.
constexpr int64_t kLarge = 1 << 18;

class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), group_of_(graph.node_capacity()) {}

  bool run() {
    const std::vector<NodeId> nodes = graph_.nodes();
    for (size_t i = 0; i < nodes.size(); ++i) visit(nodes[i], static_cast<int64_t>(i));
    bool changed = false;
    for (NodeId node : nodes) {
      const std::shared_ptr<Group> group = group_of_[node.index];
      if (group == nullptr || group->nodes.size() < 2 || group->nodes.back().second != node)
        continue;
      changed |= rewrite(*group);
    }
    return changed;
  }

  /// A program for each large node.
  bool run_alone() {
    bool changed = false;
    for (const NodeId id : graph_.nodes()) {
      if (is_cast(graph_.node(id)) || pointwise_row_of(graph_, id) == nullptr) continue;
      if (element_count(shape_of(id)) < kLarge || broadcasts(id)) continue;
      const std::shared_ptr<Group> group = group_of_node(id, 0);
      changed |= rewrite(*group);
    }
    return changed;
  }

 private:
  /// Is there an operand that a generated kernel reads element by element?
  bool broadcasts(NodeId id) const {
    return std::ranges::any_of(graph_.inputs(id), [&](ValueId input) {
      const Shape shape = concrete(*graph_.value(input).type.shape), whole = shape_of(id);
      return element_count(shape) != 1 && shape != whole && !has_last_dims(shape, whole);
    });
  }

  /// Has it the last dims of `whole`, and ones before? Of a shape that never lies channels last.
  static bool has_last_dims(Shape shape, const Shape& whole) {
    constexpr size_t kMostRank = 3;
    shape.erase(shape.begin(), std::ranges::find_if(shape, [](int64_t dim) { return dim != 1; }));
    return whole.size() <= kMostRank && shape.size() <= whole.size() &&
           std::equal(shape.rbegin(), shape.rend(), whole.rbegin());
  }

  std::shared_ptr<Group> group_of_node(NodeId id, int64_t position) {
    const auto own = std::make_shared<Group>();
    own->nodes = {{position, id}};
    own->shape = shape_of(id);
    for (ValueId input : graph_.inputs(id)) add_input(own->inputs, input);
    group_of_[id.index] = own;
    return own;
  }

  Shape shape_of(NodeId id) const { return concrete(*graph_.value(graph_.output(id)).type.shape); }

  /// The groups that make operands of the node, each once.
  std::vector<std::shared_ptr<Group>> makers(NodeId id) const {
    std::vector<std::shared_ptr<Group>> found;
    const auto add = [&](ValueId value) {
      const NodeId producer = value.valid() ? graph_.value(value).producer : NodeId{};
      if (!producer.valid()) return;
      const std::shared_ptr<Group>& group = group_of_[producer.index];
      if (group != nullptr && std::ranges::find(found, group) == found.end())
        found.push_back(group);
    };
    for (ValueId input : graph_.inputs(id)) add(input);
    for (RegionId region : graph_.subgraphs(id)) {
      // Captures: any value of this region that a body reads.
      for (NodeId inner : graph_.nodes(region))
        for (const std::shared_ptr<Group>& group : makers(inner)) found.push_back(group);
      for (ValueId output : graph_.outputs(region)) add(output);
    }
    return found;
  }

  void visit(NodeId id, int64_t position) {
    const std::vector<std::shared_ptr<Group>> sources = makers(id);
    std::shared_ptr<Group> own;
    if (pointwise_row_of(graph_, id) != nullptr) own = group_of_node(id, position);
    for (const std::shared_ptr<Group>& source : sources) {
      if (own == nullptr || !join(own, source)) source->open = false;
    }
  }

  static void add_input(std::vector<ValueId>& inputs, ValueId value) {
    if (std::ranges::find(inputs, value) == inputs.end()) inputs.push_back(value);
  }

  /// Takes `source` into `own`, the group of the node under way.
  bool join(const std::shared_ptr<Group>& own, const std::shared_ptr<Group>& source) {
    if (!source->open || source->shape != own->shape) return false;
    if (own->last() - source->last() > kPointwiseWindow) return false;
    if (own->nodes.size() + source->nodes.size() > kMaxSteps) return false;
    std::vector<ValueId> inputs;
    const auto made_inside = [&](ValueId value) {
      const NodeId producer = graph_.value(value).producer;
      return producer.valid() &&
             (group_of_[producer.index] == own || group_of_[producer.index] == source);
    };
    for (const Group* group : {source.get(), own.get()}) {
      for (ValueId input : group->inputs) {
        if (!made_inside(input)) add_input(inputs, input);
      }
    }
    if (inputs.size() > kMaxInputs) return false;
    own->inputs = std::move(inputs);
    for (const auto& [position, node] : source->nodes) group_of_[node.index] = own;
    own->nodes.insert(own->nodes.end(), source->nodes.begin(), source->nodes.end());
    std::ranges::sort(own->nodes);
    return true;
  }

  bool rewrite(Group& group) {
    for (ValueId& input : group.inputs) {
      if (const auto by = replaced_.find(input); by != replaced_.end()) input = by->second;
    }
    std::map<ValueId, int> operands;  // as in PointwiseStep
    for (size_t i = 0; i < group.inputs.size(); ++i)
      operands[group.inputs[i]] = static_cast<int>(i);
    PointwiseProgram program;
    std::vector<std::string> names;
    std::vector<ValueId> results;
    for (size_t k = 0; k < group.nodes.size(); ++k) {
      const NodeId id = group.nodes[k].second;
      const Node& node = graph_.node(id);
      const PointwiseRow& row = *pointwise_row_of(graph_, id);
      const ValueId result = graph_.output(id);
      PointwiseStep step{row.code,
                         {},
                         pointwise_parameters(row, node.attributes),
                         graph_.value(result).type.dtype};
      for (size_t i = 0; i < static_cast<size_t>(row.arity); ++i)
        step.operands[i] = operands.at(graph_.input(id, i));
      program.steps.push_back(step);
      operands[result] = ~static_cast<int>(k);
      names.push_back(graph_.label(id));
      const auto outside = [&](const Use& use) { return is_outside(group, use); };
      if (std::ranges::none_of(graph_.uses(result), outside)) continue;
      program.outputs.push_back(static_cast<int>(k));
      results.push_back(result);
    }
    if (results.empty()) return false;  // dead
    replace(group, program, std::move(names), results);
    return true;
  }

  /// Nodes made here belong to no group.
  bool is_outside(const Group& group, const Use& use) const {
    if (!use.by_node() || use.node().index >= group_of_.size()) return true;
    return group_of_[use.node().index].get() != &group;
  }

  void replace(const Group& group, const PointwiseProgram& program, std::vector<std::string> names,
               const std::vector<ValueId>& results) {
    const NodeId last = group.nodes.back().second;
    NodeSpec spec;
    spec.op = "Pointwise";
    spec.domain = kHalfnoteDomain;
    spec.name = graph_.label(last);
    spec.inputs = group.inputs;
    spec.attributes.set("program", to_text(program));
    spec.attributes.set("nodes", std::move(names));
    std::vector<std::string> fresh;
    for (size_t i = 0; i < results.size(); ++i)
      fresh.push_back(graph_.unique_name(graph_.value(results[i]).name + ".fused"));
    const NodeId fused = graph_.create(std::move(spec), fresh, graph_.after(last));
    Node& node = graph_.node(fused);
    node.role = graph_.node(last).role;
    node.precision = graph_.node(last).precision;
    node.origin = graph_.node(last).origin;
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId made = graph_.output(fused, i);
      graph_.value(made).type = graph_.value(results[i]).type;
      graph_.value(made).scale_power = graph_.value(results[i]).scale_power;
      graph_.replace_uses_if(results[i], made,
                             [&](const Use& use) { return is_outside(group, use); });
      replaced_[results[i]] = made;
    }
    for (auto node_at = group.nodes.rbegin(); node_at != group.nodes.rend(); ++node_at) {
      const ValueId result = graph_.output(node_at->second);
      const auto kept = std::ranges::find(results, result);
      const std::string name = graph_.value(result).name;
      graph_.remove(node_at->second);
      if (kept != results.end())
        graph_.rename(graph_.output(fused, static_cast<size_t>(kept - results.begin())), name);
    }
  }

  Graph& graph_;
  std::vector<std::shared_ptr<Group>> group_of_;  // by node
  std::map<ValueId, ValueId> replaced_;           // results of fused nodes, by those they replace
};

}  // namespace

const PointwiseRow* pointwise_row_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const PointwiseRow* row = find_pointwise(node.domain, node.op);
  const auto inputs = graph.inputs(id), outputs = graph.outputs(id);
  if (row == nullptr || inputs.size() != static_cast<size_t>(row->arity) || outputs.size() != 1)
    return nullptr;
  if (!is_known_pointwise(graph, outputs[0])) return nullptr;
  if (!unfit_attributes(*row, node.attributes).empty()) return nullptr;
  std::vector<DType> types;
  for (ValueId input : inputs) {
    if (!is_known_input(graph, input)) return nullptr;
    types.push_back(graph.value(input).type.dtype);
  }
  return unfit_types(*row, types, graph.value(outputs[0]).type.dtype).empty() ? row : nullptr;
}

bool fuse_pointwise(Graph& graph, PassContext&) { return Fuser(graph).run(); }
bool program_large(Graph& graph, PassContext&) { return Fuser(graph).run_alone(); }

}  // namespace halfnote
