#include "runtime/core/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "runtime/core/control_step.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/memory_plan.h"
#include "runtime/core/tune/tuner.h"

namespace halfnote {
namespace {

using Space = BufferRef::Space;

/// One buffer: a value, and the views of it.
struct Buffer {
  BufferRef ref;
  size_t bytes = 0;
  int last_use = -1;  // step; INT_MAX: until the end
  bool planned = false;
};

constexpr int kForEver = 1 << 30;

class Planner {
 public:
  Planner(const Graph& graph, const StateStore& store, const PlanOptions& options)
      : graph_(graph), store_(store), options_(options), buffer_of_(graph.value_count(), -1) {}

  Program run() {
    program_.name = graph_.name;
    nodes_ = graph_.nodes();
    for (NodeId node : nodes_) reads_.push_back(step_operands(graph_, node, store_));
    place_inputs();
    place_initializers();
    choose_kernels();
    find_lifetimes();
    for (size_t i = 0; i < nodes_.size(); ++i) place_step(static_cast<int>(i));
    finish();
    return std::move(program_);
  }

 private:
  int new_buffer(BufferRef ref, size_t bytes) {
    buffers_.push_back({ref, bytes, -1, ref.space != Space::kNone});
    return static_cast<int>(buffers_.size()) - 1;
  }

  Buffer& buffer(ValueId value) { return buffers_[static_cast<size_t>(buffer_of_[value.index])]; }

  Operand operand(ValueId id) const {
    if (!id.valid()) return {};
    const Value& value = graph_.value(id);
    if (!value.type.has_concrete_shape()) {
      throw Error(ErrorCode::kUnsupported, "value \"" + value.name + "\" has no concrete shape")
          .expected("every dim a number", to_string(value.type))
          .hint("bind symbolic dims: --dim NAME=N, or give data");
    }
    return {value.type.dtype, concrete(*value.type.shape), {}, graph_.constant(id)};
  }

  size_t bytes_of(ValueId id) const {
    const Operand o = operand(id);
    return static_cast<size_t>(checked_mul(o.size(), static_cast<int64_t>(size_of(o.dtype))));
  }

  void place_inputs() {
    for (ValueId input : graph_.inputs()) {
      const Operand o = operand(input);
      const BufferRef ref{Space::kInput, program_.inputs.size()};
      buffer_of_[input.index] = new_buffer(ref, bytes_of(input));
      program_.inputs.push_back({graph_.value(input).name, o.dtype, o.shape, ref, bytes_of(input)});
    }
  }

  void place_initializers() {
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      const StateEntry* entry = store_.find(value.name);
      if (entry != nullptr) {
        buffer_of_[id.index] = new_buffer({Space::kState, entry->offset}, entry->bytes);
        continue;
      }
      if (!graph_.has_uses(id)) continue;
      buffer_of_[id.index] =
          new_buffer({Space::kConstant, program_.constants.size()}, value.tensor.byte_size());
      program_.constants.push_back(value.tensor);
      program_.constant_bytes += value.tensor.byte_size();
    }
  }

  /// Buffers are plain so far: a kernel that wants another layout would misread them.
  static void require_plain_layouts(const Kernel& kernel, const KernelCall& call) {
    bool plain = true;
    for (size_t i = 0; i < call.inputs.size(); ++i) plain &= kernel.input_layout(i) == Layout{};
    for (size_t i = 0; i < call.outputs.size(); ++i) plain &= kernel.output_layout(i) == Layout{};
    if (plain) return;
    throw Error(ErrorCode::kInternal, "a kernel asks for a layout that the plan does not give")
        .at({{}, {}, std::string(call.op)});
  }

  static double flops_of(const Node& node, const KernelCall& call) {
    const OperatorRow* row = find_operator(node);
    if (row == nullptr || row->flops == nullptr) return 0;
    std::vector<Shape> inputs, outputs;
    for (const Operand& input : call.inputs) inputs.push_back(input.shape);
    for (const Operand& output : call.outputs) outputs.push_back(output.shape);
    return row->flops(node.attributes, inputs, outputs);
  }

  void keep_types(ProgramStep& step) const {
    if (!options_.keep_types) return;
    const auto keep = [&](ValueId value) {
      const Operand o = operand(value);
      return StepOperand{o.dtype, o.shape, o.constant != nullptr};
    };
    for (ValueId input : graph_.inputs(step.id)) step.input_types.push_back(keep(input));
    for (ValueId output : graph_.outputs(step.id)) step.output_types.push_back(keep(output));
  }

  void choose_kernels() {
    std::vector<Error> failures;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const NodeId id = nodes_[i];
      const Node& node = graph_.node(id);
      if (!graph_.subgraphs(id).empty()) {
        add_control(id, reads_[i], failures);
        continue;
      }
      KernelCall call;
      call.domain = node.domain;
      call.op = node.op;
      call.attributes = &node.attributes;
      call.threads = options_.threads;
      for (ValueId input : graph_.inputs(id)) call.inputs.push_back(operand(input));
      for (ValueId output : graph_.outputs(id)) call.outputs.push_back(operand(output));
      KernelChoice choice =
          choose_kernel(call, {options_.kernels, options_.choices, options_.tune});
      ProgramStep step;
      step.id = id;
      step.node = graph_.label(id);
      step.op = node.domain.empty() ? node.op : node.domain + "." + node.op;
      if (choice.kernel == nullptr) {
        failures.push_back(no_kernel(call, choice.refusals).within({{}, step.node, {}}));
        continue;
      }
      require_plain_layouts(*choice.kernel, call);
      step.row = choice.row;
      step.kernel = std::move(choice.kernel);
      step.refusals = std::move(choice.refusals);
      step.flops = flops_of(node, call);
      step.reads_16bit = step.flops > 0 && is_16bit_float(call.inputs[0].dtype) &&
                         is_16bit_float(call.inputs[1].dtype);
      keep_types(step);
      program_.steps.push_back(std::move(step));
    }
    if (failures.empty()) return;
    if (failures.size() == 1) throw failures.front();
    std::string list;
    for (const Error& failure : failures)
      list += std::string(list.empty() ? "" : "\n  ") + failure.what();
    throw Error(ErrorCode::kUnsupported, std::to_string(failures.size()) +
                                             " nodes have no kernel on this device:\n  " + list);
  }

  /// A node with bodies is a step over programs of its own.
  void add_control(NodeId id, const std::vector<ValueId>& operands, std::vector<Error>& failures) {
    ProgramStep step;
    step.id = id;
    step.node = graph_.label(id);
    step.op = graph_.node(id).op;
    try {
      ControlStep control = plan_control(graph_, id, operands, options_);
      step.kernel = std::move(control.kernel);
      step.flops = control.flops;
      step.reads_16bit = control.reads_16bit;
      program_.constant_bytes += control.constant_bytes;
      keep_types(step);
      program_.steps.push_back(std::move(step));
    } catch (Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      failures.push_back(std::move(error));
    }
  }

  /// Groups views with what they look at, then finds the last step that reads each buffer.
  void find_lifetimes() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const std::vector<ValueId>& inputs = reads_[i];
      const auto outputs = graph_.outputs(nodes_[i]);
      if (program_.steps[i].kernel->is_view() && inputs[0].valid() && outputs[0].valid()) {
        buffer_of_[outputs[0].index] = buffer_of_[inputs[0].index];
      }
      for (ValueId output : outputs) {
        if (output.valid() && buffer_of_[output.index] < 0) {
          buffer_of_[output.index] = new_buffer({}, bytes_of(output));
        }
      }
      for (ValueId input : inputs) {
        if (input.valid()) buffer(input).last_use = static_cast<int>(i);
      }
      for (ValueId output : outputs) {
        if (output.valid())
          buffer(output).last_use = std::max(buffer(output).last_use, static_cast<int>(i));
      }
    }
    for (ValueId output : graph_.outputs()) buffer(output).last_use = kForEver;
    for (const State& state : graph_.states()) {
      if (state.next != state.current) buffer(state.next).last_use = kForEver;
    }
  }

  /// Writes a new state value straight over the old one where nobody reads the old one any more.
  bool place_in_state(int step, ValueId output, size_t output_index) {
    for (const Use& use : graph_.uses(output)) {
      if (use.kind != UseKind::kStateNext) continue;
      const State& state = graph_.states()[use.slot];
      const Buffer& old = buffer(state.current);
      if (old.ref.space != Space::kState || old.last_use > step || taken_.contains(old.ref.offset))
        continue;
      if (!fits_over(step, state.current, output_index) && old.last_use == step) continue;
      taken_.insert({old.ref.offset, true});
      buffer(output).ref = old.ref;
      buffer(output).planned = true;
      ++program_.in_place;
      return true;
    }
    return false;
  }

  /// May output `output_index` of the step be written over `value`, one of its operands?
  bool fits_over(int step, ValueId value, size_t output_index) const {
    const std::vector<ValueId>& inputs = reads_[static_cast<size_t>(step)];
    bool any = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].valid() || buffer_of_[inputs[i].index] != buffer_of_[value.index]) continue;
      any = true;
      if (!program_.steps[static_cast<size_t>(step)].kernel->can_share(i, output_index))
        return false;
    }
    return any;
  }

  bool place_over_operand(int step, ValueId output, size_t output_index) {
    const std::vector<ValueId>& inputs = reads_[static_cast<size_t>(step)];
    for (ValueId input : inputs) {
      if (!input.valid()) continue;
      Buffer& from = buffer(input);
      if (from.ref.space != Space::kArena || from.last_use != step) continue;
      if (from.bytes != buffer(output).bytes || !fits_over(step, input, output_index)) continue;
      buffer(output).ref = from.ref;
      buffer(output).planned = true;
      from.last_use = -1;  // its block goes on as the output's
      ++program_.in_place;
      return true;
    }
    return false;
  }

  void place_step(int index) {
    ProgramStep& step = program_.steps[static_cast<size_t>(index)];
    const auto outputs = graph_.outputs(step.id);
    const bool view = step.kernel->is_view() && graph_.input(step.id, 0).valid();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid() || buffer(outputs[i]).planned) continue;
      if (place_in_state(index, outputs[i], i) || place_over_operand(index, outputs[i], i))
        continue;
      buffer(outputs[i]).ref = {Space::kArena, arena_.allocate(buffer(outputs[i]).bytes)};
      buffer(outputs[i]).planned = true;
    }
    if (step.kernel->workspace_bytes() > 0) {
      step.workspace = {Space::kArena, arena_.allocate(step.kernel->workspace_bytes())};
    }
    for (ValueId input : reads_[static_cast<size_t>(index)]) {
      step.inputs.push_back(input.valid() ? buffer(input).ref : BufferRef{});
    }
    for (ValueId output : outputs)
      step.outputs.push_back(output.valid() ? buffer(output).ref : BufferRef{});
    if (step.workspace.space == Space::kArena) arena_.release(step.workspace.offset);
    if (view) ++program_.views;
    release_dead(index);
  }

  void release_dead(int index) {
    const NodeId node = nodes_[static_cast<size_t>(index)];
    const auto release = [&](ValueId value) {
      if (!value.valid()) return;
      Buffer& b = buffer(value);
      if (b.ref.space != Space::kArena || b.last_use != index) return;
      arena_.release(b.ref.offset);
      b.last_use = -1;
    };
    for (ValueId input : reads_[static_cast<size_t>(index)]) release(input);
    for (ValueId output : graph_.outputs(node)) release(output);
  }

  void finish() {
    std::erase_if(program_.steps, [&](const ProgramStep& step) {
      return step.kernel->is_view() && graph_.input(step.id, 0).valid();
    });
    for (const State& state : graph_.states()) {
      const BufferRef from = buffer(state.next).ref;
      const BufferRef to = buffer(state.current).ref;
      if (from.space == to.space && from.offset == to.offset) continue;
      program_.commits.push_back({from, to.offset, buffer(state.current).bytes});
    }
    std::set<size_t> committed;
    for (const StateCopy& commit : program_.commits) committed.insert(commit.to);
    const auto changes = [&](const BufferRef& ref) {
      return ref.space == Space::kState && committed.contains(ref.offset);
    };
    for (StateCopy& commit : program_.commits) {
      if (changes(commit.from)) commit.from = save(commit.from, commit.bytes);
    }
    for (ValueId output : graph_.outputs()) {
      const Operand o = operand(output);
      BufferRef ref = buffer(output).ref;
      // The caller's input may be gone when the output is read.
      if (changes(ref) || ref.space == Space::kInput) ref = save(ref, bytes_of(output));
      program_.outputs.push_back(
          {graph_.value(output).name, o.dtype, o.shape, ref, bytes_of(output)});
    }
    program_.arena_bytes = arena_.peak();
  }

  BufferRef save(const BufferRef& from, size_t bytes) {
    const BufferRef to{Space::kArena, arena_.allocate(bytes)};
    program_.saves.push_back({from, to.offset, bytes});
    return to;
  }

  const Graph& graph_;
  const StateStore& store_;
  const PlanOptions& options_;
  Program program_;
  std::vector<NodeId> nodes_;
  std::vector<std::vector<ValueId>> reads_;  // what each node reads, captures too
  std::vector<int> buffer_of_;
  std::vector<Buffer> buffers_;
  std::map<size_t, bool> taken_;  // states already written over
  ArenaPlan arena_;
};

}  // namespace

Program plan(const Graph& graph, const StateStore& store, const PlanOptions& options) {
  return Planner(graph, store, options).run();
}

}  // namespace halfnote
