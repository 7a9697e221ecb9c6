// bind-gradients and expand-gradients: the op Gradient of ai.onnx.preview.training, which asks for
// derivatives inside a graph, by the names of values.
//
//   d = Mul (c, a)    dd_da, dd_db = Gradient <xs = ["a", "b"], y = "d"> (a, b)
//   ──▶ bind          … = Gradient <…> (a, b, a, b, d)
//   ──▶ expand        the backward pass of d, from a seed of ones
//
// Exact: our own autodiff. Names are bound to values first of all, as other passes rename; the
// backward pass is written when types are known and composite ops are lowered. Operands are the
// values at which the derivative is taken: where they are others than xs and zs name, the nodes
// between are computed again for them. A Gradient of a Gradient's result is written after it, from
// the bodies of the first one's gradient ops.
// Leaves alone: everything else.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "compiler/ir/replace.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "compiler/ops/rule_support.h"
#include "passes/passes.h"
#include "passes/train/backward.h"
#include "passes/train/gradient_path.h"

namespace halfnote {
namespace {

constexpr const char* kWayOut =
    "compile the forward model: halfnote differentiates it, and says all that it lacks";

bool is_gradient(const Node& node) {
  return node.op == "Gradient" && node.domain == "ai.onnx.preview.training";
}

Place place_of(const Graph& graph, NodeId node) {
  return {{}, graph.label(node), graph.node(node).op};
}

[[noreturn]] void refuse(const Graph& graph, NodeId node, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, why).at(place_of(graph, node)).hint(kWayOut);
}

std::vector<std::string> names_of(const Graph& graph, NodeId node, std::string_view attribute) {
  const Attribute* found = graph.node(node).attributes.find(attribute);
  if (found == nullptr) return {};
  if (const auto* names = std::get_if<std::vector<std::string>>(found)) return *names;
  throw Error(ErrorCode::kModel, "attribute \"" + std::string(attribute) + "\" is no list of names")
      .at(place_of(graph, node));
}

/// Operands are there, and no more results than xs. Gives the number of variables.
size_t check_form(const Graph& graph, NodeId node) {
  const size_t wanted = names_of(graph, node, "xs").size();
  const auto inputs = graph.inputs(node);
  const bool absent =
      std::any_of(inputs.begin(), inputs.end(), [](ValueId input) { return !input.valid(); });
  if (wanted == 0 || absent || graph.outputs(node).size() > wanted) {
    throw Error(ErrorCode::kModel, "Gradient has the wrong form")
        .at(place_of(graph, node))
        .expected("xs, an operand for each of xs and zs, and a result for each of xs",
                  absent ? "an operand that is left out"
                         : std::to_string(wanted) + " xs and " +
                               std::to_string(graph.outputs(node).size()) + " results");
  }
  return wanted + names_of(graph, node, "zs").size();
}

// --- bind ----------------------------------------------------------------------------------------

/// The value that a Gradient names; in the region of the node.
ValueId named_value(const Graph& graph, NodeId node, const std::string& name) {
  const ValueId value = graph.find(name);
  if (!value.valid() || graph.value(value).region != graph.node(node).region) {
    throw Error(ErrorCode::kModel, "Gradient names a value that its graph does not have")
        .at(place_of(graph, node))
        .expected("the name of a value", "\"" + name + "\"");
  }
  return value;
}

bool bind(Graph& graph, NodeId node) {
  check_form(graph, node);
  std::vector<std::string> names = names_of(graph, node, "xs");
  const std::vector<std::string> zs = names_of(graph, node, "zs");
  names.insert(names.end(), zs.begin(), zs.end());
  const size_t operands = graph.inputs(node).size();
  if (operands == 2 * names.size() + 1) return false;  // bound before
  if (operands != names.size()) {
    throw Error(ErrorCode::kModel, "Gradient has the wrong number of operands")
        .at(place_of(graph, node))
        .expected(std::to_string(names.size()) + ", one for each of xs and zs",
                  std::to_string(operands));
  }
  if (graph.node(node).region != graph.main()) refuse(graph, node, "stands in a body");
  names.push_back(graph.node(node).attributes.get_string("y", ""));
  for (const std::string& name : names) {
    const ValueId value = named_value(graph, node, name);
    const NodeId producer = graph.value(value).producer;
    if (producer.valid() && !graph.is_before(producer, node)) {
      refuse(graph, node, "differentiates \"" + name + "\", which is computed behind it");
    }
    graph.add_node_input(node, value);
  }
  return true;
}

bool bind_all(Graph& graph) {
  bool changed = false;
  for (NodeId node : graph.all_nodes()) {
    if (is_gradient(graph.node(node))) changed |= bind(graph, node);
  }
  return changed;
}

// --- expand --------------------------------------------------------------------------------------

class Expansion {
 public:
  Expansion(Graph& graph, NodeId node, const InferNode& infer)
      : graph_(graph), node_(node), infer_(infer) {
    const auto inputs = graph.inputs(node);
    count_ = check_form(graph, node);
    if (inputs.size() != 2 * count_ + 1) refuse(graph, node, "is not bound (bind-gradients)");
    wanted_ = names_of(graph, node, "xs").size();
    at_.assign(inputs.begin(), inputs.begin() + static_cast<ptrdiff_t>(count_));
    named_.assign(inputs.begin() + static_cast<ptrdiff_t>(count_), inputs.end() - 1);
    y_ = inputs.back();
  }

  void run() {
    check_variables();
    const bool elsewhere = at_ != named_;
    const std::vector<NodeId> forward = elsewhere ? compute_again() : nodes_between();
    const std::vector<ValueId> sources(at_.begin(), at_.begin() + static_cast<ptrdiff_t>(wanted_));
    const uint32_t first_value = graph_.value_count(), first_node = graph_.node_capacity();
    UnsupportedOps problems;
    Backward backward(graph_, graph_.main(), infer_, problems);
    Builder& b = backward.builder();
    const Tensor one = Tensor::scalar_of(graph_.value(y_).type.dtype, 1).reshaped({1});
    const Expr y = b.value(y_);
    backward.seed(y_, b.op("ConstantOfShape", {b.shape_of(y)}, {{"value", one}}));
    backward.run(forward, sources);
    if (!problems.empty()) {
      UnsupportedError error("no gradient for " + problems.ops_text() + " between xs and y",
                             problems, kWayOut);
      error.at(place_of(graph_, node_));
      throw error;
    }
    for (size_t i = 0; i < graph_.outputs(node_).size(); ++i) {
      give_result(b, i, backward.gradient(sources[i]), first_value);
    }
    for (uint32_t i = first_node; i < graph_.node_capacity(); ++i) {
      graph_.node(NodeId{i}).role = graph_.node(node_).role;
    }
    graph_.remove(node_);
    sort_region(graph_, graph_.main());
  }

 private:
  std::vector<NodeId> nodes_before() const {
    std::vector<NodeId> nodes = graph_.nodes();
    nodes.resize(static_cast<size_t>(std::find(nodes.begin(), nodes.end(), node_) - nodes.begin()));
    return nodes;
  }

  /// Those that depend on xs: what makes a variable is not differentiated.
  std::vector<NodeId> nodes_between() const {
    const std::vector<NodeId> dependent = forward_slice(graph_, named_);
    const std::set<NodeId> behind(dependent.begin(), dependent.end());
    std::vector<NodeId> nodes = nodes_before();
    std::erase_if(nodes, [&](NodeId node) { return !behind.contains(node); });
    return nodes;
  }

  /// ONNX wants independent variables; what was folded to a constant lost its path to y.
  void check_variables() const {
    if (!is_float(graph_.value(y_).type.dtype)) refuse(graph_, node_, "y is no float tensor");
    const std::vector<NodeId> dependent = forward_slice(graph_, named_);
    const std::set<NodeId> behind(dependent.begin(), dependent.end());
    for (size_t i = 0; i < count_; ++i) {
      const Value& value = graph_.value(named_[i]);
      if (value.producer.valid() && behind.contains(value.producer)) {
        refuse(graph_, node_, "\"" + value.name + "\" depends on another of xs and zs");
      }
      if (i >= wanted_) continue;
      if (!is_float(value.type.dtype)) {
        refuse(graph_, node_, "\"" + value.name + "\" is no float tensor");
      }
      const bool variable = value.trainable || graph_.state_of(named_[i]);
      if (graph_.constant(named_[i]) != nullptr && !variable) {
        refuse(graph_, node_, "\"" + value.name + "\" is a constant");
      }
    }
  }

  /// Copies the nodes between the variables and y for the values of the operands.
  std::vector<NodeId> compute_again() {
    const std::vector<NodeId> behind = forward_slice(graph_, named_);
    const std::vector<ValueId> end = {y_};
    const std::vector<NodeId> needed = backward_slice(graph_, end);
    const std::set<NodeId> on_path(behind.begin(), behind.end());
    std::vector<NodeId> between;
    for (NodeId node : needed) {
      if (!on_path.contains(node) || graph_.node(node).region != graph_.main()) continue;
      const OperatorRow* row = find_operator(graph_.node(node));
      if (row == nullptr || row->purity != Purity::kPure) {
        refuse(graph_, node_,
               "other operands than xs and zs name, and " + graph_.label(node) +
                   " draws random numbers between");
      }
      between.push_back(node);
    }
    ValueMap values;
    for (size_t i = 0; i < count_; ++i) values[named_[i]] = at_[i];
    const uint32_t first = graph_.node_capacity();
    clone_nodes(graph_, graph_.before(node_), graph_, between, values,
                {.prefix = graph_.label(node_) + "/"});
    const auto copy = values.find(y_);
    if (copy != values.end()) y_ = copy->second;
    std::vector<NodeId> copies;
    for (NodeId node : nodes_before()) {
      if (node.index >= first) copies.push_back(node);
    }
    for (NodeId node : copies) infer_again(node);
    return copies;
  }

  /// The operands may have other shapes than what they stand for.
  void infer_again(NodeId node) {
    for (ValueId output : graph_.outputs(node)) {
      if (output.valid()) graph_.value(output).type = ValueType{};
    }
    infer_(graph_, node);
  }

  /// Gives the name and the uses of a result to the gradient; zeros where y does not depend on x.
  void give_result(Builder& b, size_t index, ValueId gradient, uint32_t first_value) {
    const ValueId output = graph_.output(node_, index);
    if (!output.valid() || !graph_.has_uses(output)) return;
    const Expr x = b.value(at_[index]);
    if (!gradient.valid()) gradient = zeros(x.dtype(), b.shape_of(x)).id;
    // A value that was there before, or stands for another result, keeps its own name.
    if (gradient.index < first_value || !given_.insert(gradient).second ||
        graph_.value(gradient).kind != ValueKind::kResult) {
      gradient = b.op("Identity", {b.value(gradient)}).id;
    }
    take_place(graph_, output, gradient);
  }

  Graph& graph_;
  NodeId node_;
  const InferNode& infer_;
  size_t count_ = 0, wanted_ = 0;    // of xs and zs; of xs
  std::vector<ValueId> at_, named_;  // operands, and what xs and zs name
  ValueId y_;
  std::set<ValueId> given_;
};

}  // namespace

bool bind_gradients(Model& model, PassContext&) {
  bool changed = false;
  for_each_graph(model, [&](Graph& graph) { changed |= bind_all(graph); });
  for (Function& function : model.functions) changed |= bind_all(function.body);
  return changed;
}

bool expand_gradients(Graph& graph, PassContext& context) {
  bool changed = false;
  for (NodeId node : graph.nodes()) {
    if (!is_gradient(graph.node(node))) continue;
    const size_t count = check_form(graph, node);
    const auto operands = graph.inputs(node);
    if (operands.size() == 2 * count + 1) {
      const std::vector<ValueId> named(operands.begin() + static_cast<ptrdiff_t>(count),
                                       operands.end() - 1);
      write_out_derivatives(graph, context.infer, named, operands.back());
    }
    Expansion(graph, node, context.infer).run();
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
