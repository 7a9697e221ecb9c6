#include "runtime/core/plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "runtime/core/borrowed_space.h"
#include "runtime/core/control/control_step.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/layout.h"
#include "runtime/core/memory/arena_plan.h"
#include "runtime/core/steps/branches.h"
#include "runtime/core/steps/group_steps.h"
#include "runtime/core/steps/step_flops.h"
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
  bool borrowed = false;  // in the space of a copy of a weight (borrowed_space.h)
};

constexpr int kForEver = 1 << 30;

class Planner {
 public:
  Planner(const Graph& graph, const StateStore& store, const PlanOptions& options)
      : graph_(graph),
        store_(store),
        options_(options),
        regions_(options.device != nullptr ? options.device->regions() : cpu_regions()),
        buffer_of_(graph.value_count(), -1) {}

  Program run() {
    program_.name = graph_.name;
    nodes_ = graph_.nodes();
    for (NodeId node : nodes_) {
      const auto outputs = graph_.outputs(node);
      reads_.push_back(step_operands(graph_, node, store_));
      writes_.emplace_back(outputs.begin(), outputs.end());
    }
    place_inputs();
    place_initializers();
    choose_kernels();
    if (options_.device != nullptr) group_updates();
    while (assign_layouts()) {
    }
    find_lifetimes();
    if (options_.device != nullptr && options_.branches) branch_off();
    borrowed_ = BorrowedSpace(find_free_stretches(
        graph_, store_, writes_, [this](ValueId value) { return buffer(value).last_use; }));
    for (size_t i = 0; i < program_.steps.size(); ++i) place_step(static_cast<int>(i));
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
    if (id.index >= graph_.value_count()) {
      const LayoutCopy& copy = copies_[id.index - graph_.value_count()];
      Operand original = operand(copy.of);
      original.layout = copy.layout;
      return original;
    }
    const Value& value = graph_.value(id);
    if (!value.type.has_concrete_shape()) {
      throw Error(ErrorCode::kUnsupported, "value \"" + value.name + "\" has no concrete shape")
          .expected("every dim a number", to_string(value.type))
          .hint("bind symbolic dims: --dim NAME=N, or give data");
    }
    const bool blocked = !blocked_.empty() && blocked_[id.index];
    return {value.type.dtype, concrete(*value.type.shape), blocked ? regions_.layout : Layout{},
            graph_.constant(id)};
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

  KernelCall call_of(size_t step) const {
    const Node& node = graph_.node(nodes_[step]);
    KernelCall call;
    call.domain = node.domain;
    call.op = node.op;
    call.attributes = &node.attributes;
    call.threads = options_.threads;
    call.tf32 = options_.tf32;
    const size_t operands = graph_.inputs(nodes_[step]).size();
    for (size_t i = 0; i < operands; ++i) call.inputs.push_back(operand(reads_[step][i]));
    for (ValueId output : writes_[step]) call.outputs.push_back(operand(output));
    return call;
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

  /// What a kernel finds wrong as it prepares is told of the node.
  KernelChoice choose(const KernelCall& call, const ProgramStep& step) const {
    try {
      return choose_kernel(call,
                           {options_.kernels, options_.choices, options_.tune, options_.device});
    } catch (Error& error) {
      error.within({{}, step.node, step.op});
      throw;
    }
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
      const KernelCall call = call_of(i);
      ProgramStep step;
      step.id = id;
      step.node = graph_.label(id);
      step.op = op_name(node);
      KernelChoice choice = choose(call, step);
      if (choice.kernel == nullptr) {
        failures.push_back(no_kernel(call, choice.refusals).within({{}, step.node, {}}));
        continue;
      }
      step.row = choice.row;
      step.kernel = std::move(choice.kernel);
      step.refusals = std::move(choice.refusals);
      step.algorithm = std::move(choice.algorithm);
      step.flops = flops_of(node, call);
      step.reads_16bit = step.flops > 0 && is_16bit_float(call.inputs[0].dtype) &&
                         is_16bit_float(call.inputs[1].dtype);
      keep_types(step);
      note_blocked_form(i, *choice.row, call);
      program_.steps.push_back(std::move(step));
    }
    if (!failures.empty()) throw no_kernels(failures);
  }

  /// From here on a step may be that of many nodes, and is known by the last of them.
  void group_updates() {
    std::map<NodeId, BlockedForm> forms;
    forms_.resize(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) forms[nodes_[i]] = forms_[i];
    group_steps(
        graph_, {program_.steps, reads_, writes_}, [this](size_t i) { return call_of(i); },
        [this](ValueId value) { return bytes_of(value); });
    nodes_.clear();
    forms_.clear();
    for (const ProgramStep& step : program_.steps) {
      nodes_.push_back(step.id);
      forms_.push_back(forms[step.id]);
    }
  }

  /// Remembers which operands the chosen kernel would take in the regions' layout. Where only some
  /// kernels are allowed, all stays plain.
  void note_blocked_form(size_t step, const KernelRow& plain, const KernelCall& call) {
    if (!options_.kernels.empty()) return;
    const auto [at, fresh] = blocked_rows_.try_emplace(&plain);
    if (fresh) at->second = blocked_rows_of(regions_, plain);
    if (at->second.empty()) return;
    forms_.resize(nodes_.size());
    forms_[step] = {at->second, at->second.back()->operands(call)};
    any_preferred_ |= forms_[step].operands.preferred;
  }

  std::vector<LayoutValue> layout_values() const {
    std::vector<LayoutValue> values(graph_.value_count());
    const auto note = [&](ValueId value) {
      if (value.valid()) values[value.index].bytes = bytes_of(value);
    };
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (ValueId value : reads_[i]) note(value);
      for (ValueId value : writes_[i]) note(value);
    }
    return values;
  }

  /// Keeps regions in the device's layout where that spares reorders (layout.h). True if a kernel
  /// refused to, so that the answer has to be found anew without it.
  bool assign_layouts() {
    if (!any_preferred_) return false;
    std::vector<LayoutValue> values = layout_values();
    std::vector<LayoutStep> steps;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      steps.push_back({reads_[i], writes_[i], forms_[i].operands});
    }
    ask_graph(graph_, nodes_, steps, values);
    const std::vector<bool> regions = choose_blocked(steps, values);
    std::vector<StepLayouts> layouts;
    blocked_.assign(graph_.value_count(), false);
    std::vector<BlockedChoice> choices(nodes_.size());
    bool refused = false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      layouts.push_back({blocked_operands(reads_[i], steps[i].blocked.inputs, regions),
                         blocked_operands(writes_[i], steps[i].blocked.outputs, regions)});
      if (!layouts[i].any()) continue;
      KernelCall call = call_of(i);
      call.algorithm = program_.steps[i].algorithm;
      set_layouts(call.inputs, layouts[i].reads, regions_.layout);
      set_layouts(call.outputs, layouts[i].writes, regions_.layout);
      choices[i] = choose_blocked_kernel(forms_[i], call);
      if (choices[i].kernel != nullptr) continue;
      forms_[i] = {};
      refused = true;
    }
    if (refused) {
      blocked_.clear();
      return true;
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (choices[i].kernel == nullptr) continue;
      program_.steps[i].kernel = std::move(choices[i].kernel);
      program_.steps[i].row = choices[i].row;
    }
    put_reorders(layouts);
    return false;
  }

  /// Puts a reorder before the first step that reads a value in the layout in which it is not
  /// written; later ones share the copy.
  void put_reorders(const std::vector<StepLayouts>& layouts) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (size_t k = 0; k < writes_[i].size(); ++k) {
        if (layouts[i].writes[k]) blocked_[writes_[i][k].index] = true;
      }
    }
    std::vector<ProgramStep> steps = std::move(program_.steps);
    std::vector<std::vector<ValueId>> reads = std::move(reads_), writes = std::move(writes_);
    program_.steps.clear();
    reads_.clear();
    writes_.clear();
    std::map<std::pair<ValueId, bool>, ValueId> copies;
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool again = options_.reorder_again && graph_.node(nodes_[i]).role == Role::kBackward;
      for (size_t k = 0; k < reads[i].size(); ++k) {
        ValueId& value = reads[i][k];
        if (!value.valid() || blocked_[value.index] == layouts[i].reads[k]) continue;
        const auto [copy, fresh] = copies.try_emplace({value, again});
        if (fresh) copy->second = add_reorder(value, layouts[i].reads[k]);
        value = copy->second;
      }
      program_.steps.push_back(std::move(steps[i]));
      reads_.push_back(std::move(reads[i]));
      writes_.push_back(std::move(writes[i]));
    }
  }

  /// A step that copies `value` into the other layout; gives the copy.
  ValueId add_reorder(ValueId value, bool to_blocks) {
    const ValueId copy{graph_.value_count() + static_cast<uint32_t>(copies_.size())};
    copies_.push_back({value, to_blocks ? regions_.layout : Layout{}});
    buffer_of_.push_back(-1);
    KernelCall call;
    call.op = regions_.reorder->op;
    call.threads = options_.threads;
    call.inputs = {operand(value)};
    call.outputs = {operand(copy)};
    Prepared prepared = regions_.reorder->prepare(call);
    if (!prepared) {
      throw Error(ErrorCode::kInternal, "a layout that cannot be changed: " + prepared.refusal)
          .at({{}, graph_.value(value).name, {}});
    }
    ProgramStep step;
    step.node = graph_.value(value).name + " in " +
                std::string(to_blocks ? regions_.words : "plain layout");
    step.op = call.op;
    step.row = regions_.reorder;
    step.kernel = std::move(prepared.kernel);
    if (options_.keep_types) {
      step.input_types = {{call.inputs[0].dtype, call.inputs[0].shape}};
      step.output_types = step.input_types;
    }
    program_.steps.push_back(std::move(step));
    reads_.push_back({value});
    writes_.push_back({copy});
    return copy;
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
      step.nodes = control.nodes;
      step.reads_16bit = control.reads_16bit;
      program_.constant_bytes += control.constant_bytes;
      keep_types(step);
      program_.steps.push_back(std::move(step));
    } catch (Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      failures.push_back(std::move(error));
    }
  }

  /// Does a step show what lies in the buffer of its first operand?
  bool looks_on(size_t step) const {
    const std::vector<ValueId>&inputs = reads_[step], &outputs = writes_[step];
    if (inputs.empty() || !inputs[0].valid() || !outputs[0].valid()) return false;
    const Kernel& kernel = *program_.steps[step].kernel;
    if (!kernel.appends_zeros() || inputs[0].index >= graph_.value_count()) return kernel.is_view();
    const BufferRef& ref = buffers_[static_cast<size_t>(buffer_of_[inputs[0].index])].ref;
    const StateEntry* entry = store_.find(graph_.value(inputs[0]).name);
    return entry != nullptr && ref.space == Space::kState && ref.offset == entry->offset &&
           entry->room >= bytes_of(outputs[0]);
  }

  /// Groups views with what they look at, then finds the last step that reads each buffer.
  void find_lifetimes() {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      const std::vector<ValueId>& inputs = reads_[i];
      const std::vector<ValueId>& outputs = writes_[i];
      is_view_.push_back(looks_on(i));
      if (is_view_[i]) {
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

  /// Sends steps off the main line where that pays; what they touch stays until they join it.
  void branch_off() {
    std::vector<BranchBuffer> buffers;
    for (const Buffer& b : buffers_) buffers.push_back({b.bytes, b.last_use == kForEver});
    branches_ = Branches(
        branch_steps(graph_, {program_.steps, reads_, writes_}, is_view_, buffer_of_), buffers);
    for (int i = 0; i <= static_cast<int>(is_view_.size()); ++i) {
      for (const int b : branches_.held(i)) {
        int& last = buffers_[static_cast<size_t>(b)].last_use;
        last = std::max(last, i);
      }
    }
  }

  /// Writes a new state value straight over the old one where nobody reads the old one any more.
  bool place_in_state(int step, ValueId output, size_t output_index) {
    if (output.index >= graph_.value_count()) return false;
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
    const Kernel& kernel = *program_.steps[static_cast<size_t>(step)].kernel;
    const auto same = std::ranges::equal_range(operands_, buffer_of_[value.index], {},
                                               &std::pair<int, size_t>::first);
    return !same.empty() && std::ranges::all_of(same, [&](const auto& operand) {
      return kernel.can_share(operand.second, output_index);
    });
  }

  /// A step that updates all weights has thousands of them.
  void sort_operands(std::span<const ValueId> inputs) {
    operands_.clear();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].valid()) operands_.emplace_back(buffer_of_[inputs[i].index], i);
    std::ranges::sort(operands_);
  }

  bool place_over_operand(int step, ValueId output, size_t output_index) {
    const std::vector<ValueId>& inputs = reads_[static_cast<size_t>(step)];
    for (ValueId input : inputs) {
      if (!input.valid()) continue;
      Buffer& from = buffer(input);
      if ((from.ref.space != Space::kArena && !from.borrowed) || from.last_use != step) continue;
      if (from.borrowed && !borrowed_.lasts(from.ref.offset, buffer(output).last_use)) continue;
      // A view may be less than its buffer.
      if (from.bytes != buffer(output).bytes || from.bytes != bytes_of(input)) continue;
      if (!fits_over(step, input, output_index)) continue;
      buffer(output).ref = from.ref;
      buffer(output).planned = true;
      buffer(output).borrowed = from.borrowed;
      from.last_use = -1;  // its block goes on as the output's
      ++program_.in_place;
      return true;
    }
    return false;
  }

  void place_free(int step, Buffer& result) {
    const auto offset = borrowed_.allocate(result.bytes, step, result.last_use);
    result.borrowed = offset.has_value();
    result.ref = offset ? BufferRef{Space::kState, *offset}
                        : BufferRef{Space::kArena, arena_.allocate(result.bytes)};
    result.planned = true;
  }

  void place_step(int index) {
    ProgramStep& step = program_.steps[static_cast<size_t>(index)];
    const std::vector<ValueId>& outputs = writes_[static_cast<size_t>(index)];
    sort_operands(reads_[static_cast<size_t>(index)]);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid() || buffer(outputs[i]).planned) continue;
      if (place_in_state(index, outputs[i], i) || place_over_operand(index, outputs[i], i))
        continue;
      place_free(index, buffer(outputs[i]));
    }
    if (step.kernel->workspace_bytes() > 0) {
      step.workspace = {Space::kArena, workspace_of(index)};
    }
    step.moment = arena_.last_event();
    for (ValueId input : reads_[static_cast<size_t>(index)]) {
      step.inputs.push_back(input.valid() ? buffer(input).ref : BufferRef{});
    }
    for (ValueId output : outputs)
      step.outputs.push_back(output.valid() ? buffer(output).ref : BufferRef{});
    if (step.workspace.space == Space::kArena && branches_.join(index) == 0)
      arena_.release(step.workspace.offset);
    if (is_view_[static_cast<size_t>(index)]) ++program_.views;
    release_dead(index);
  }

  void release_dead(int index) {
    const auto release = [&](int number) {
      Buffer& b = buffers_[static_cast<size_t>(number)];
      if ((b.ref.space != Space::kArena && !b.borrowed) || b.last_use != index) return;
      b.borrowed ? borrowed_.release(b.ref.offset) : arena_.release(b.ref.offset);
      b.last_use = -1;
    };
    const auto at = static_cast<size_t>(index);
    for (const std::vector<ValueId>* values : {&reads_[at], &writes_[at]}) {
      for (const ValueId value : *values)
        if (value.valid()) release(buffer_of_[value.index]);
    }
    for (const int number : branches_.held(index)) release(number);
    if (beside_workspace_ && branches_.last_join() == index) arena_.release(*beside_workspace_);
  }

  /// Steps beside the main line come one after the other: one room will do.
  size_t workspace_of(int index) {
    if (branches_.join(index) == 0)
      return arena_.allocate(program_.steps[static_cast<size_t>(index)].kernel->workspace_bytes());
    if (!beside_workspace_) beside_workspace_ = arena_.allocate(branches_.most_workspace(program_));
    return *beside_workspace_;
  }

  void finish() {
    branches_.tell(program_, is_view_);
    size_t step = 0;
    std::erase_if(program_.steps, [&](const ProgramStep&) { return is_view_[step++]; });
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
    arena_.settle(program_);
  }

  BufferRef save(const BufferRef& from, size_t bytes) {
    const BufferRef to{Space::kArena, arena_.allocate(bytes)};
    program_.saves.push_back({from, to.offset, bytes});
    return to;
  }

  const Graph& graph_;
  const StateStore& store_;
  const PlanOptions& options_;
  const RegionLayout& regions_;
  Program program_;
  std::vector<NodeId> nodes_;
  // By step, of which nodes_ tells the node until reorders come between them.
  std::vector<std::vector<ValueId>> reads_;       // captures too
  std::vector<std::pair<int, size_t>> operands_;  // buffer and index, of the step to be placed
  std::vector<std::vector<ValueId>> writes_;
  std::vector<BlockedForm> forms_;
  std::map<const KernelRow*, std::vector<const BlockedRow*>> blocked_rows_;
  bool any_preferred_ = false;
  std::vector<bool> blocked_;       // is it written in the regions' layout? Empty: none is
  std::vector<LayoutCopy> copies_;  // values behind those of the graph
  std::vector<bool> is_view_;       // by step
  Branches branches_;
  std::optional<size_t> beside_workspace_;
  std::vector<int> buffer_of_;
  std::vector<Buffer> buffers_;
  std::map<size_t, bool> taken_;  // states already written over
  ArenaPlan arena_;
  BorrowedSpace borrowed_;
};

}  // namespace

Program plan(const Graph& graph, const StateStore& store, const PlanOptions& options) {
  return Planner(graph, store, options).run();
}

}  // namespace halfnote
