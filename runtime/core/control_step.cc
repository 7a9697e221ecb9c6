#include "runtime/core/control_step.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

using Space = BufferRef::Space;

/// A capture that the body sees as a constant of its own.
bool is_known(const Graph& graph, const StateStore& store, ValueId value) {
  return graph.value(value).kind == ValueKind::kInitializer && graph.constant(value) != nullptr &&
         store.find(graph.value(value).name) == nullptr;
}

/// A body as a program: its inputs are those of the region, then the captures of the step. What it
/// needs to run is resolved anew each time, into vectors that are as long as they ever get.
class Body {
 public:
  Body(const Graph& graph, NodeId owner, RegionId region, std::vector<ValueType> types,
       const std::vector<ValueId>& captures, const PlanOptions& options)
      : program_(plan(body_graph(graph, owner, region, types, captures), StateStore{}, options)) {
    size_t most = 0, writes = 0;
    for (const ProgramStep& step : program_.steps) {
      most = std::max(most, step.inputs.size());
      writes = std::max(writes, step.outputs.size());
    }
    reads_.resize(most);
    writes_.resize(writes);
  }

  const Program& program() const { return program_; }
  size_t bytes() const { return align_up(program_.arena_bytes); }

  void run(std::byte* arena, std::span<const std::byte* const> inputs) {
    for (const ProgramStep& step : program_.steps) {
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        reads_[i] = address(step.inputs[i], arena, inputs);
      }
      for (size_t i = 0; i < step.outputs.size(); ++i) {
        writes_[i] = const_cast<std::byte*>(address(step.outputs[i], arena, inputs));
      }
      const KernelBuffers buffers{std::span(reads_.data(), step.inputs.size()),
                                  std::span(writes_.data(), step.outputs.size()),
                                  const_cast<std::byte*>(address(step.workspace, arena, inputs))};
      try {
        step.kernel->run(buffers);
      } catch (Error& error) {
        throw error.within({{}, step.node, step.op});
      }
    }
    for (const SavedCopy& save : program_.saves) {
      if (save.bytes > 0)
        std::memcpy(arena + save.to, address(save.from, arena, inputs), save.bytes);
    }
  }

  /// Output `index` of the last run.
  const std::byte* output(size_t index, std::byte* arena) const {
    return address(program_.outputs[index].buffer, arena, {});
  }
  size_t output_bytes(size_t index) const { return program_.outputs[index].bytes; }

 private:
  static Graph body_graph(const Graph& graph, NodeId owner, RegionId region,
                          const std::vector<ValueType>& types,
                          const std::vector<ValueId>& captures) {
    Graph body;
    body.name = graph.label(owner);
    ValueMap values;
    const auto formal = graph.inputs(region);
    for (size_t i = 0; i < formal.size(); ++i) {
      values[formal[i]] = body.add_input(body.main(), graph.value(formal[i]).name, types[i]);
    }
    for (ValueId capture : captures) {
      const Value& value = graph.value(capture);
      values[capture] = body.add_input(body.main(), value.name, value.type);
    }
    clone_nodes(body, body.end(), graph, graph.nodes(region), values);
    for (ValueId output : graph.outputs(region)) {
      if (!values.contains(output)) {
        values[output] = body.add_initializer(graph.value(output).name, graph.value(output).tensor);
      }
      body.add_output(body.main(), values[output]);
    }
    return make_device_ready(body, {});
  }

  const std::byte* address(const BufferRef& ref, std::byte* arena,
                           std::span<const std::byte* const> inputs) const {
    switch (ref.space) {
      case Space::kArena:
        return arena + ref.offset;
      case Space::kConstant:
        return program_.constants[ref.offset].bytes();
      case Space::kInput:
        return inputs[ref.offset];
      case Space::kState:
      case Space::kNone:
        break;
    }
    return nullptr;
  }

  Program program_;
  std::vector<const std::byte*> reads_;
  std::vector<std::byte*> writes_;
};

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

class IfKernel final : public Kernel {
 public:
  IfKernel(std::unique_ptr<Body> then, std::unique_ptr<Body> otherwise)
      : then_(std::move(then)), else_(std::move(otherwise)) {}

  size_t workspace_bytes() const override { return std::max(then_->bytes(), else_->bytes()); }

  void run(const KernelBuffers& buffers) const override {
    Body& body = *buffers.in<uint8_t>(0) != 0 ? *then_ : *else_;
    body.run(buffers.workspace, buffers.inputs.subspan(1));
    for (size_t i = 0; i < buffers.outputs.size(); ++i) {
      if (buffers.outputs[i] == nullptr || body.output_bytes(i) == 0) continue;
      std::memcpy(buffers.outputs[i], body.output(i, buffers.workspace), body.output_bytes(i));
    }
  }

 private:
  std::unique_ptr<Body> then_, else_;
};

/// A tensor as one of its elements along an axis after the other.
struct Strip {
  size_t outer = 1;  // blocks before the axis
  size_t bytes = 0;  // of one block of one element
  size_t length = 0;
  bool turned = false;

  Strip(const Shape& shape, DType dtype, int64_t axis, bool backwards) : turned(backwards) {
    bytes = size_of(dtype);
    for (size_t i = 0; i < shape.size(); ++i) {
      const auto dim = static_cast<size_t>(shape[i]);
      if (static_cast<int64_t>(i) < axis) outer *= dim;
      if (static_cast<int64_t>(i) == axis) length = dim;
      if (static_cast<int64_t>(i) > axis) bytes *= dim;
    }
  }
  size_t element_bytes() const { return outer * bytes; }
  size_t at(size_t trip) const { return turned ? length - 1 - trip : trip; }
  void take(const std::byte* whole, size_t trip, std::byte* element) const {
    if (bytes == 0) return;
    for (size_t o = 0; o < outer; ++o)
      std::memcpy(element + o * bytes, whole + (o * length + at(trip)) * bytes, bytes);
  }
  void put(const std::byte* element, size_t trip, std::byte* whole) const {
    if (bytes == 0) return;
    for (size_t o = 0; o < outer; ++o)
      std::memcpy(whole + (o * length + at(trip)) * bytes, element + o * bytes, bytes);
  }
};

/// Carried values and slices behind the arena of the body, one buffer each.
class ScanKernel final : public Kernel {
 public:
  ScanKernel(std::unique_ptr<Body> body, size_t operands, std::vector<size_t> carried,
             std::vector<Strip> inputs, std::vector<Strip> outputs, size_t trips)
      : body_(std::move(body)),
        carried_(std::move(carried)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        trips_(trips),
        pointers_(operands) {
    size_t at = body_->bytes();
    for (size_t bytes : carried_) {
      places_.push_back(at);
      at += align_up(bytes);
    }
    for (const Strip& strip : inputs_) {
      places_.push_back(at);
      at += align_up(strip.element_bytes());
    }
    bytes_ = at;
  }

  size_t workspace_bytes() const override { return bytes_; }

  void run(const KernelBuffers& buffers) const override {
    std::byte* arena = buffers.workspace;
    std::copy(buffers.inputs.begin(), buffers.inputs.end(), pointers_.begin());
    for (size_t i = 0; i < places_.size(); ++i) pointers_[i] = arena + places_[i];
    for (size_t i = 0; i < carried_.size(); ++i)
      copy(arena + places_[i], buffers.inputs[i], carried_[i]);
    for (size_t trip = 0; trip < trips_; ++trip) {
      for (size_t k = 0; k < inputs_.size(); ++k) {
        const size_t slot = carried_.size() + k;
        inputs_[k].take(buffers.inputs[slot], trip, arena + places_[slot]);
      }
      body_->run(arena, pointers_);
      for (size_t i = 0; i < carried_.size(); ++i)
        copy(arena + places_[i], body_->output(i, arena), carried_[i]);
      for (size_t k = 0; k < outputs_.size(); ++k) {
        std::byte* whole = result(buffers, carried_.size() + k);
        if (whole == nullptr) continue;
        outputs_[k].put(body_->output(carried_.size() + k, arena), trip, whole);
      }
    }
    for (size_t i = 0; i < carried_.size(); ++i) {
      std::byte* last = result(buffers, i);
      if (last != nullptr) copy(last, arena + places_[i], carried_[i]);
    }
  }

 private:
  static void copy(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  static std::byte* result(const KernelBuffers& buffers, size_t index) {
    return index < buffers.outputs.size() ? buffers.outputs[index] : nullptr;
  }

  std::unique_ptr<Body> body_;
  std::vector<size_t> carried_;  // bytes
  std::vector<Strip> inputs_, outputs_;
  size_t trips_ = 0;
  std::vector<size_t> places_;  // in the workspace: carried values, then slices
  size_t bytes_ = 0;
  mutable std::vector<const std::byte*> pointers_;  // what the body reads
};

/// Adds what a body costs, `trips` times.
void count(ControlStep& step, const Body& body, double trips) {
  double flops = 0;
  for (const ProgramStep& inner : body.program().steps) {
    flops += inner.flops * trips;
    step.reads_16bit |= inner.reads_16bit;
  }
  step.flops = std::max(step.flops, flops);
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
    count(step, *bodies[side], 1);
  }
  step.kernel = std::make_unique<IfKernel>(std::move(bodies[0]), std::move(bodies[1]));
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
  std::vector<size_t> bytes;
  std::vector<Strip> strips, stacks;
  for (size_t i = 0; i < inputs; ++i) {
    Shape shape = shape_of(graph, operands[i]);
    const DType dtype = graph.value(operands[i]).type.dtype;
    if (i >= carried) {
      const auto rank = static_cast<int64_t>(shape.size());
      const int64_t axis = normalize_axis(axes[i - carried], rank);
      strips.emplace_back(shape, dtype, axis, turns[i - carried] != 0);
      shape.erase(shape.begin() + axis);
    } else {
      bytes.push_back(static_cast<size_t>(element_count(shape)) * size_of(dtype));
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
    stacks.emplace_back(whole, output.dtype, axis, out_turns[i - carried] != 0);
  }
  ControlStep step;
  count(step, *body, static_cast<double>(strips[0].length));
  const size_t trips = strips[0].length;
  step.kernel = std::make_unique<ScanKernel>(std::move(body), operands.size(), std::move(bytes),
                                             std::move(strips), std::move(stacks), trips);
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
