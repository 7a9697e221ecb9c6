#include "runtime/core/control/control_step.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "runtime/core/control/body.h"
#include "runtime/core/control/if_kernel.h"
#include "runtime/core/control/scan_kernel.h"

namespace halfnote {
namespace {

/// A capture that the body sees as a constant of its own.
bool is_known(const Graph& graph, const StateStore& store, ValueId value) {
  return graph.value(value).kind == ValueKind::kInitializer && graph.constant(value) != nullptr &&
         store.find(graph.value(value).name) == nullptr;
}

Error refusal(const Graph& graph, NodeId node, std::string why) {
  return Error(ErrorCode::kUnsupported, std::move(why))
      .at({.node = graph.label(node), .op = graph.node(node).op});
}

/// The bodies must give what the plan made room for.
void check_output(const Graph& graph, NodeId node, const ProgramOperand& given, DType dtype,
                  const Shape& shape) {
  if (given.dtype == dtype && given.shape == shape) return;
  throw refusal(graph, node, "a body gives another shape than the node's result has")
      .expected(
          std::string(short_name(dtype)) + to_string(std::span<const int64_t>(shape)),
          std::string(short_name(given.dtype)) + to_string(std::span<const int64_t>(given.shape)))
      .hint("branches must give equal shapes, and carried values must keep theirs");
}

Shape shape_of(const Graph& graph, ValueId value) {
  const Value& data = graph.value(value);
  if (data.type.has_concrete_shape()) return concrete(*data.type.shape);
  throw Error(ErrorCode::kUnsupported, "value \"" + data.name + "\" has no concrete shape")
      .expected("every dim a number", to_string(data.type))
      .hint("bind symbolic dims: --dim NAME=N, or give data");
}

RegionId region_of(const Graph& graph, NodeId node, const char* name) {
  const Attribute* found = graph.node(node).attributes.find(name);
  const auto* region = found == nullptr ? nullptr : std::get_if<RegionId>(found);
  if (region != nullptr) return *region;
  throw Error(ErrorCode::kModel, std::string("attribute \"") + name + "\" is no graph")
      .at({.node = graph.label(node), .op = graph.node(node).op});
}

/// Adds what a body costs that runs `trips` times.
void count(ControlStep& step, const Body& body, size_t trips) {
  for (const ProgramStep& inner : body.program().steps) {
    step.flops += inner.flops * static_cast<double>(trips);
    step.nodes += inner.nodes * trips;
    step.reads_16bit |= inner.reads_16bit;
  }
  step.constant_bytes += body.program().constant_bytes;
}

std::vector<ValueId> captured_of(const Graph& graph, NodeId node,
                                 const std::vector<ValueId>& operands) {
  return {operands.begin() + static_cast<int64_t>(graph.inputs(node).size()), operands.end()};
}

ControlStep plan_if(const Graph& graph, NodeId node, const std::vector<ValueId>& operands,
                    const PlanOptions& options) {
  const std::vector<ValueId> captured = captured_of(graph, node, operands);
  ControlStep step;
  std::unique_ptr<Body> bodies[2];
  const char* const names[2] = {"then_branch", "else_branch"};
  for (size_t side = 0; side < 2; ++side) {
    const RegionId region = region_of(graph, node, names[side]);
    bodies[side] =
        std::make_unique<Body>(graph, node, region, std::vector<ValueType>{}, captured, options);
    for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
      const ValueId output = graph.output(node, i);
      if (!output.valid()) continue;
      check_output(graph, node, bodies[side]->program().outputs[i], graph.value(output).type.dtype,
                   shape_of(graph, output));
    }
    const double before = std::exchange(step.flops, 0);
    count(step, *bodies[side], 1);
    // A CPU runs one of them, a device both.
    step.flops = options.device == nullptr ? std::max(before, step.flops) : before + step.flops;
  }
  step.kernel = make_if_kernel(std::move(bodies[0]), std::move(bodies[1]), options.device);
  return step;
}

/// One axis or direction of each operand.
std::vector<int64_t> per_operand(const Graph& graph, NodeId node, const char* name, size_t size) {
  std::vector<int64_t> values =
      graph.node(node).attributes.get_ints(name, std::vector<int64_t>(size, 0));
  if (values.size() == size) return values;
  throw Error(ErrorCode::kModel, std::string("wrong length of \"") + name + "\"")
      .at({.node = graph.label(node), .op = graph.node(node).op})
      .expected(std::to_string(size), std::to_string(values.size()));
}

/// On a device all trips are captured, step by step.
void check_length(const Graph& graph, NodeId node, const Body& body, size_t trips) {
  constexpr size_t kMostCaptured = size_t{1} << 20;
  size_t nodes = 0;
  for (const ProgramStep& step : body.program().steps) nodes += step.nodes;
  const size_t steps = std::max<size_t>(1, nodes);
  if (trips <= kMostCaptured / steps) return;
  throw refusal(graph, node, "too many trips for a step that is captured once")
      .expected("at most " + std::to_string(kMostCaptured) + " nodes in all trips",
                std::to_string(trips) + " trips of " + std::to_string(steps) + " nodes")
      .hint("run it with --device cpu, or on shorter sequences");
}

ControlStep plan_scan(const Graph& graph, NodeId node, const std::vector<ValueId>& operands,
                      const PlanOptions& options) {
  const RegionId region = region_of(graph, node, "body");
  const auto scans = static_cast<size_t>(graph.node(node).attributes.get_int("num_scan_inputs", 0));
  const size_t inputs = graph.inputs(node).size();
  if (scans < 1 || scans > inputs || graph.inputs(region).size() != inputs) {
    throw Error(ErrorCode::kModel, "wrong number of scan inputs")
        .expected("1 to " + std::to_string(inputs), std::to_string(scans));
  }
  const size_t carried = inputs - scans;
  const size_t results = graph.outputs(region).size() - carried;
  const auto axes = per_operand(graph, node, "scan_input_axes", scans);
  const auto turns = per_operand(graph, node, "scan_input_directions", scans);
  const auto out_axes = per_operand(graph, node, "scan_output_axes", results);
  const auto out_turns = per_operand(graph, node, "scan_output_directions", results);
  std::vector<ValueType> types;
  ScanPlan scan;
  scan.operands = operands.size();
  std::vector<Strip>& strips = scan.inputs;
  for (size_t i = 0; i < inputs; ++i) {
    Shape shape = shape_of(graph, operands[i]);
    const DType dtype = graph.value(operands[i]).type.dtype;
    if (i >= carried) {
      const auto rank = static_cast<int64_t>(shape.size());
      const int64_t axis = normalize_axis(axes[i - carried], rank);
      strips.emplace_back(shape, dtype, axis, turns[i - carried] != 0);
      shape.erase(shape.begin() + axis);
    } else {
      scan.carried.push_back(static_cast<size_t>(element_count(shape)) * size_of(dtype));
    }
    types.push_back(ValueType::tensor(dtype, symbolic(shape)));
  }
  for (const Strip& strip : strips) {
    if (strip.length != strips[0].length)
      throw refusal(graph, node, "scan inputs of different lengths");
  }
  auto body = std::make_unique<Body>(graph, node, region, types, captured_of(graph, node, operands),
                                     options);
  for (size_t i = 0; i < carried + results; ++i) {
    const ProgramOperand& output = body->program().outputs[i];
    if (i < carried) {
      check_output(graph, node, output, types[i].dtype, concrete(*types[i].shape));
      continue;
    }
    Shape whole = output.shape;
    const int64_t axis =
        normalize_axis(out_axes[i - carried], static_cast<int64_t>(whole.size()) + 1);
    whole.insert(whole.begin() + axis, static_cast<int64_t>(strips[0].length));
    scan.outputs.emplace_back(whole, output.dtype, axis, out_turns[i - carried] != 0);
  }
  scan.trips = strips[0].length;
  if (options.device != nullptr) check_length(graph, node, *body, scan.trips);
  ControlStep step;
  count(step, *body, scan.trips);
  step.kernel = make_scan_kernel(std::move(body), std::move(scan), options.device);
  return step;
}

}  // namespace

bool runs_bodies(std::string_view domain, std::string_view op) {
  return domain.empty() && (op == "If" || op == "Scan");
}

std::vector<ValueId> step_operands(const Graph& graph, NodeId node, const StateStore& store) {
  std::vector<ValueId> operands(graph.inputs(node).begin(), graph.inputs(node).end());
  if (graph.subgraphs(node).empty()) return operands;
  for (ValueId capture : captures(graph, node)) {
    if (!is_known(graph, store, capture)) operands.push_back(capture);
  }
  return operands;
}

ControlStep plan_control(const Graph& graph, NodeId node, const std::vector<ValueId>& operands,
                         const PlanOptions& options) {
  const std::string& op = graph.node(node).op;
  try {
    if (op == "If") return plan_if(graph, node, operands, options);
    if (op == "Scan") return plan_scan(graph, node, operands, options);
  } catch (Error& error) {
    throw error.within({.node = graph.label(node), .op = op});
  }
  throw refusal(graph, node, "how often it runs depends on data: no program can be planned for it")
      .hint(
          "give the trip count as a constant and pass the condition on, or bind the dims that it "
          "follows from (--dim NAME=N)");
}

}  // namespace halfnote
