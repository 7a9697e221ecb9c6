// The walk over nodes and regions. Values of all regions share one table, so a capture is a
// look-up.
#include "runtime/core/interpret/interpreter.h"

#include "base/error.h"

namespace halfnote {
namespace {

std::vector<Datum> pass_on(Interpreter& run, NodeId node) { return {run.input(node, 0)}; }

std::vector<Datum> give_constant(Interpreter& run, NodeId node) {
  const Tensor* tensor = run.graph().constant(run.graph().output(node));
  if (tensor == nullptr) throw Error(ErrorCode::kModel, "a Constant has no value");
  return {*tensor};
}

RunNode find_special(const Node& node) {
  if (!node.domain.empty()) return nullptr;
  if (node.op == "Identity") return pass_on;
  if (node.op == "Constant") return give_constant;
  if (RunNode found = find_control_op(node.op)) return found;
  return find_container_op(node.op);
}

}  // namespace

const Datum& Interpreter::input(NodeId node, size_t index) const {
  static const Datum absent;
  const ValueId value = graph_.input(node, index);
  return value.valid() ? values_[value.index] : absent;
}

const Tensor& Interpreter::tensor(NodeId node, size_t index) const {
  const Datum& datum = input(node, index);
  if (datum.is_tensor()) return datum.tensor;
  throw Error(ErrorCode::kModel, "input " + std::to_string(index) + " is no tensor")
      .expected("a tensor", datum.present() ? "a container" : "nothing");
}

RegionId Interpreter::region(NodeId node, const char* attribute) const {
  const Attribute* found = attributes(node).find(attribute);
  const auto* id = found == nullptr ? nullptr : std::get_if<RegionId>(found);
  if (id != nullptr) return *id;
  throw Error(ErrorCode::kModel, std::string("attribute \"") + attribute + "\" is missing")
      .expected("a graph", found == nullptr ? "nothing" : "another type");
}

std::vector<Datum> Interpreter::run(const std::vector<Datum>& inputs) {
  return run_region(graph_.main(), inputs);
}

std::vector<Datum> Interpreter::run_region(RegionId region, std::vector<Datum> inputs) {
  const auto formal = graph_.inputs(region);
  if (formal.size() != inputs.size()) {
    throw Error(ErrorCode::kUsage, "wrong number of inputs")
        .expected(std::to_string(formal.size()), std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) values_[formal[i].index] = std::move(inputs[i]);
  for (ValueId initializer : graph_.initializers(region)) {
    values_[initializer.index] = graph_.value(initializer).tensor;
  }
  for (NodeId node : graph_.nodes(region)) {
    try {
      run_node(node);
    } catch (Error& error) {
      const Node& data = graph_.node(node);
      throw error.within({.node = data.name, .op = data.op});
    }
  }
  std::vector<Datum> results;
  for (ValueId output : graph_.outputs(region)) results.push_back(values_[output.index]);
  return results;
}

void Interpreter::run_node(NodeId node) {
  const auto inputs = graph_.inputs(node);
  std::vector<Datum> results;
  if (RunNode special = find_special(graph_.node(node))) {
    results = special(*this, node);
  } else {
    std::vector<Tensor> operands;
    for (size_t i = 0; i < inputs.size(); ++i) {
      operands.push_back(inputs[i].valid() && input(node, i).present() ? tensor(node, i)
                                                                       : Tensor{});
    }
    for (Tensor& result : evaluate_node(graph_, node, operands, options_)) {
      results.emplace_back(std::move(result));
    }
  }
  const auto outputs = graph_.outputs(node);
  for (size_t i = 0; i < outputs.size() && i < results.size(); ++i) {
    if (outputs[i].valid()) values_[outputs[i].index] = std::move(results[i]);
  }
}

}  // namespace halfnote
