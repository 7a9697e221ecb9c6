#include "tests/random/walk.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/interpret/pieces.h"

namespace halfnote::random {

void Walk::run(RegionId region) {
  for (NodeId node : graph_.nodes(region)) run_node(node);
}

void Walk::run_node(NodeId node) {
  const std::string& op = graph_.node(node).op;
  const auto outputs = graph_.outputs(node);
  if (op == "If" || op == "Loop" || op == "Scan") {
    std::vector<Tensor> results = op == "If"     ? run_if(node)
                                  : op == "Loop" ? run_loop(node)
                                                 : run_scan(node);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].valid()) set(outputs[i], std::move(results.at(i)));
    }
    return;
  }
  const std::vector<Tensor> operands = operands_of(node);
  std::vector<Tensor> results = evaluate_node(graph_, node, operands);
  for (size_t i = 0; i < outputs.size() && i < results.size(); ++i) {
    if (outputs[i].valid()) set(outputs[i], settle_(outputs[i], operands, std::move(results[i])));
  }
}

std::vector<Tensor> Walk::operands_of(NodeId node) const {
  std::vector<Tensor> operands;
  for (ValueId id : graph_.inputs(node)) operands.push_back(id.valid() ? at(id) : Tensor());
  return operands;
}

RegionId Walk::body(NodeId node, const char* attribute) const {
  return std::get<RegionId>(*graph_.node(node).attributes.find(attribute));
}

std::vector<Tensor> Walk::run_body(RegionId body, const std::vector<Tensor>& inputs) {
  const auto formals = graph_.inputs(body);
  for (size_t i = 0; i < formals.size(); ++i) set(formals[i], inputs.at(i));
  for (ValueId id : graph_.initializers(body)) set(id, constant_(id, graph_.value(id).tensor));
  run(body);
  std::vector<Tensor> outputs;
  for (ValueId id : graph_.outputs(body)) outputs.push_back(at(id));
  return outputs;
}

std::vector<Tensor> Walk::run_if(NodeId node) {
  const bool yes = at(graph_.input(node, 0)).at_as_int(0) != 0;
  return run_body(body(node, yes ? "then_branch" : "else_branch"), {});
}

Tensor Walk::collected(RegionId body, size_t output, const std::vector<Tensor>& trips,
                       int64_t axis) const {
  if (!trips.empty()) {
    const auto rank = static_cast<int64_t>(trips[0].shape().size()) + 1;
    return stack_along(trips, axis < 0 ? axis + rank : axis);
  }
  const ValueType& type = graph_.value(graph_.outputs(body)[output]).type;
  Shape shape = concrete(*type.shape);
  shape.insert(shape.begin(), 0);
  return Tensor(type.dtype, shape);
}

std::vector<Tensor> Walk::run_loop(NodeId node) {
  const std::vector<Tensor> operands = operands_of(node);
  const RegionId loop = body(node, "body");
  const size_t carried = operands.size() - 2;
  const int64_t most = operands[0].defined() ? operands[0].at_as_int(0) : int64_t{1} << 20;
  Tensor go = operands[1].defined() ? operands[1] : Tensor::scalar(true);
  std::vector<Tensor> state(operands.begin() + 2, operands.end());
  std::vector<std::vector<Tensor>> scans(graph_.outputs(loop).size() - 1 - carried);
  for (int64_t trip = 0; trip < most && go.at_as_int(0) != 0; ++trip) {
    std::vector<Tensor> inputs = {Tensor::scalar<int64_t>(trip), go};
    inputs.insert(inputs.end(), state.begin(), state.end());
    const std::vector<Tensor> outputs = run_body(loop, inputs);
    go = outputs[0];
    for (size_t k = 0; k < carried; ++k) state[k] = outputs[1 + k];
    for (size_t k = 0; k < scans.size(); ++k) scans[k].push_back(outputs[1 + carried + k]);
  }
  for (size_t k = 0; k < scans.size(); ++k) {
    state.push_back(collected(loop, 1 + carried + k, scans[k], 0));
  }
  return state;
}

std::vector<Tensor> Walk::run_scan(NodeId node) {
  const std::vector<Tensor> operands = operands_of(node);
  const Attributes& attributes = graph_.node(node).attributes;
  const RegionId loop = body(node, "body");
  const auto count = static_cast<size_t>(attributes.get_int("num_scan_inputs", 0));
  const size_t carried = operands.size() - count;
  const size_t results = graph_.outputs(loop).size() - carried;
  const auto listed = [&](const char* name, size_t size) {
    return attributes.get_ints(name, std::vector<int64_t>(size, 0));
  };
  std::vector<int64_t> axes = listed("scan_input_axes", count);
  const std::vector<int64_t> turned = listed("scan_input_directions", count);
  for (size_t k = 0; k < count; ++k) {
    if (axes[k] < 0) axes[k] += static_cast<int64_t>(operands[carried + k].shape().size());
  }
  const int64_t length = operands[carried].shape()[static_cast<size_t>(axes[0])];
  std::vector<Tensor> state(operands.begin(), operands.begin() + static_cast<int64_t>(carried));
  std::vector<std::vector<Tensor>> scans(results);
  for (int64_t trip = 0; trip < length; ++trip) {
    std::vector<Tensor> inputs = state;
    for (size_t k = 0; k < count; ++k) {
      inputs.push_back(
          take_along(operands[carried + k], axes[k], turned[k] != 0 ? length - 1 - trip : trip));
    }
    const std::vector<Tensor> outputs = run_body(loop, inputs);
    for (size_t k = 0; k < carried; ++k) state[k] = outputs[k];
    for (size_t k = 0; k < results; ++k) scans[k].push_back(outputs[carried + k]);
  }
  const std::vector<int64_t> out_axes = listed("scan_output_axes", results);
  const std::vector<int64_t> out_turned = listed("scan_output_directions", results);
  for (size_t k = 0; k < results; ++k) {
    if (out_turned[k] != 0) std::reverse(scans[k].begin(), scans[k].end());
    state.push_back(collected(loop, carried + k, scans[k], out_axes[k]));
  }
  return state;
}

}  // namespace halfnote::random
