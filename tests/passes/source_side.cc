#include "source_side.h"

#include "compiler/onnx/schema.h"
#include "passes/canonical/lift_rules.h"
#include "runtime/core/evaluate.h"

namespace halfnote::test {
namespace {

const Function* function_of(const Model& model, const Node& node) {
  for (const Function& function : model.functions) {
    if (function.domain == node.domain && function.name == node.op &&
        function.overload == node.overload)
      return &function;
  }
  return nullptr;
}

/// The body with the attributes of a call in the places that refer to them.
Graph with_attributes(const Function& function, const Attributes& given) {
  Graph body = function.body;
  for (NodeId id : body.nodes()) {
    const Attributes written = body.node(id).attributes;
    for (const auto& [name, value] : written) {
      const auto* reference = std::get_if<AttributeReference>(&value);
      if (reference == nullptr) continue;
      const Attribute* found = given.find(reference->name);
      for (const auto& [parameter, fallback] : function.default_attributes) {
        if (found == nullptr && parameter == reference->name) found = &fallback;
      }
      if (found == nullptr) {
        body.node(id).attributes.erase(name);
      } else {
        body.node(id).attributes.set(name, *found);
      }
    }
  }
  return body;
}

std::vector<Tensor> run(const Model& model, const Graph& graph, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> values(graph.value_count());
  for (size_t i = 0; i < inputs.size(); ++i) values[graph.inputs()[i].index] = inputs[i];
  for (ValueId id : graph.initializers()) values[id.index] = graph.value(id).tensor;
  for (NodeId node : graph.nodes()) {
    std::vector<Tensor> operands;
    for (ValueId input : graph.inputs(node)) {
      operands.push_back(input.valid() ? values[input.index] : Tensor());
    }
    const Function* function = function_of(model, graph.node(node));
    const std::vector<Tensor> results =
        function == nullptr
            ? evaluate_node(graph, node, operands)
            : run(model, with_attributes(*function, graph.node(node).attributes), operands);
    for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
      if (graph.output(node, i).valid()) values[graph.output(node, i).index] = results[i];
    }
  }
  std::vector<Tensor> outputs;
  for (ValueId output : graph.outputs()) outputs.push_back(values[output.index]);
  return outputs;
}

}  // namespace

Results execute_calls(const Model& model, const std::map<std::string, int64_t>& dims) {
  std::vector<Tensor> inputs;
  for (ValueId input : model.graph.inputs()) inputs.push_back(test_input(model.graph, input, dims));
  const std::vector<Tensor> outputs = run(model, model.graph, inputs);
  Results results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    results["/" + model.graph.value(model.graph.outputs()[i]).name] = outputs[i];
  }
  return results;
}

bool has_forms_of_today(const Model& model) {
  const auto opset = model.opsets.find("");
  const int64_t version = opset == model.opsets.end() ? kOpsetVersion : opset->second;
  for (NodeId id : model.graph.all_nodes()) {
    const Node& node = model.graph.node(id);
    if (!node.domain.empty()) continue;
    if (!has_schema("", node.op, kOpsetVersion)) return false;
    for (const LiftRule& rule : lift_rules()) {
      if (rule.op == node.op && version < rule.changed_in) return false;
    }
  }
  return true;
}

}  // namespace halfnote::test
