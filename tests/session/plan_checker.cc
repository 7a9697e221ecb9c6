#include "plan_checker.h"

#include <fmt/format.h>

#include <map>

namespace halfnote::test {
namespace {

using Space = BufferRef::Space;
using ::testing::AssertionFailure;
using ::testing::AssertionResult;
using ::testing::AssertionSuccess;

/// Which value the bytes of arena and states hold, as intervals without overlap.
class Memory {
 public:
  void write(Space space, size_t from, size_t size, ValueId value) {
    if (size == 0) return;
    auto& map = maps_[space];
    cut(map, from);
    cut(map, from + size);
    map.erase(map.lower_bound(from), map.lower_bound(from + size));
    map[from] = {from + size, value};
  }

  /// Do all bytes hold this value (and were written for it from the start on)?
  bool holds(Space space, size_t from, size_t size, ValueId value) const {
    if (size == 0) return true;
    const auto map = maps_.find(space);
    if (map == maps_.end()) return false;
    const auto found = map->second.find(from);
    return found != map->second.end() && found->second.value == value &&
           found->second.end >= from + size;
  }

  /// The value that starts here; invalid if none does.
  ValueId at(Space space, size_t from) const {
    const auto map = maps_.find(space);
    if (map == maps_.end()) return {};
    const auto found = map->second.find(from);
    return found == map->second.end() ? ValueId{} : found->second.value;
  }

 private:
  struct Piece {
    size_t end = 0;
    ValueId value;
  };
  using Map = std::map<size_t, Piece>;

  static void cut(Map& map, size_t at) {
    auto found = map.lower_bound(at);
    if (found == map.begin()) return;
    --found;
    if (found->second.end <= at) return;
    const Piece piece = found->second;
    found->second = {at, ValueId{}};  // what is left of a value that was cut is no value
    map[at] = {piece.end, ValueId{}};
  }

  std::map<Space, Map> maps_;
};

class Checker {
 public:
  Checker(const Graph& graph, const Program& program, const StateStore& store)
      : graph_(graph), program_(program), store_(store) {}

  AssertionResult run() {
    for (const ProgramStep& step : program_.steps) by_node_[step.id] = &step;
    for (const State& state : graph_.states()) start(state.current);
    for (ValueId id : graph_.initializers()) start(id);
    for (NodeId node : graph_.nodes()) {
      if (!copy_before(node) || !visit(node)) return AssertionFailure() << problem_;
    }
    if (!finish()) return AssertionFailure() << problem_;
    return AssertionSuccess();
  }

 private:
  bool fail(const std::string& text) {
    problem_ = text;
    return false;
  }

  size_t bytes(ValueId id) const {
    const ValueType& type = graph_.value(id).type;
    return static_cast<size_t>(element_count(concrete(*type.shape))) * size_of(type.dtype);
  }

  const std::string& name(ValueId id) const { return graph_.value(id).name; }

  void start(ValueId id) {
    const StateEntry* entry = store_.find(name(id));
    if (entry != nullptr)
      memory_.write(Space::kState, entry->offset, std::max(entry->bytes, entry->room), id);
  }

  /// The value whose bytes a view shows.
  ValueId root(ValueId id) const {
    const auto found = root_.find(id);
    return found == root_.end() ? id : found->second;
  }

  bool holds(const BufferRef& ref, ValueId id) const {
    const Value& value = graph_.value(root(id));
    switch (ref.space) {
      case Space::kInput:
        return value.kind == ValueKind::kInput && program_.inputs[ref.offset].name == value.name;
      case Space::kConstant:
        return value.kind == ValueKind::kInitializer &&
               identical(program_.constants[ref.offset], value.tensor);
      case Space::kArena:
      case Space::kState:
        return memory_.holds(ref.space, ref.offset, bytes(id), root(id));
      case Space::kNone:
        break;
    }
    return false;
  }

  bool in_bounds(const BufferRef& ref, size_t size) const {
    const size_t end = ref.offset + size;
    return ref.space == Space::kArena   ? end <= program_.arena_bytes
           : ref.space == Space::kState ? end <= store_.bytes()
                                        : true;
  }

  /// The reorders between the step before and that of this node: the copy holds the value too.
  bool copy_before(NodeId node) {
    const auto found = by_node_.find(node);
    if (found == by_node_.end()) return true;
    for (; &program_.steps[next_] != found->second; ++next_) {
      const ProgramStep& step = program_.steps[next_];
      if (step.id.valid()) continue;
      const BufferRef &from = step.inputs[0], &to = step.outputs[0];
      const ValueId value = from.space == Space::kInput
                                ? graph_.find(program_.inputs[from.offset].name)
                                : memory_.at(from.space, from.offset);
      if (!value.valid()) return fail(step.node + " copies what is no value");
      const bool in_memory = to.space == Space::kArena || to.space == Space::kState;
      if (!in_memory || !in_bounds(to, bytes(value))) return fail("out of bounds");
      if (overlap(from, bytes(value), to, bytes(value)))
        return fail(step.node + " copies in place");
      memory_.write(to.space, to.offset, bytes(value), value);
    }
    return true;
  }

  bool visit(NodeId node) {
    const auto found = by_node_.find(node);
    if (found == by_node_.end()) {  // a view
      root_[graph_.output(node)] = root(graph_.input(node, 0));
      const StateEntry* entry = store_.find(name(graph_.input(node, 0)));
      const size_t room = entry == nullptr ? 0 : entry->room;
      if (bytes(graph_.output(node)) > std::max(bytes(graph_.input(node, 0)), room))
        return fail("a view of more than there is: " + name(graph_.output(node)));
      return true;
    }
    const ProgramStep& step = *found->second;
    const auto inputs = graph_.inputs(node);
    const auto outputs = graph_.outputs(node);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].valid()) continue;
      if (!holds(step.inputs[i], inputs[i]))
        return fail(step.node + " reads " + name(inputs[i]) + ", which is overwritten");
    }
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!outputs[o].valid()) continue;
      if (!in_bounds(step.outputs[o], bytes(outputs[o]))) return fail("out of bounds");
      if (!may_write(step, inputs, outputs, o)) return false;
    }
    if (!workspace_is_free(step, inputs, outputs)) return false;
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].valid())
        memory_.write(step.outputs[o].space, step.outputs[o].offset, bytes(outputs[o]), outputs[o]);
    }
    return true;
  }

  static bool overlap(const BufferRef& a, size_t a_size, const BufferRef& b, size_t b_size) {
    return a.space == b.space && (a.space == Space::kArena || a.space == Space::kState) &&
           a_size > 0 && b_size > 0 && a.offset < b.offset + b_size && b.offset < a.offset + a_size;
  }

  /// An output overlaps no other output, and an operand only where the kernel says so.
  bool may_write(const ProgramStep& step, std::span<const ValueId> inputs,
                 std::span<const ValueId> outputs, size_t o) {
    const size_t size = bytes(outputs[o]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i].valid()) continue;
      if (!overlap(step.outputs[o], size, step.inputs[i], bytes(inputs[i]))) continue;
      if (!step.kernel->can_share(i, o) || step.outputs[o].offset != step.inputs[i].offset)
        return fail(step.node + " writes over operand " + name(inputs[i]) + " and may not");
    }
    for (size_t other = 0; other < o; ++other) {
      if (!outputs[other].valid()) continue;
      if (overlap(step.outputs[o], size, step.outputs[other], bytes(outputs[other])))
        return fail(step.node + " has two outputs in one place");
    }
    const bool to_memory =
        step.outputs[o].space == Space::kArena || step.outputs[o].space == Space::kState;
    return to_memory || fail(step.node + " writes to what is no memory of ours");
  }

  bool workspace_is_free(const ProgramStep& step, std::span<const ValueId> inputs,
                         std::span<const ValueId> outputs) {
    const size_t size = step.kernel->workspace_bytes();
    if (size == 0) return true;
    if (!in_bounds(step.workspace, size)) return fail("workspace out of bounds");
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].valid() && overlap(step.workspace, size, step.inputs[i], bytes(inputs[i])))
        return fail("the workspace of " + step.node + " overlaps an operand");
    }
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].valid() && overlap(step.workspace, size, step.outputs[o], bytes(outputs[o])))
        return fail("the workspace of " + step.node + " overlaps a result");
    }
    memory_.write(Space::kArena, step.workspace.offset, size, ValueId{});
    return true;
  }

  /// Saves and commits in their order; then every state holds its new value, every output its own.
  bool finish() {
    for (const SavedCopy& save : program_.saves) {
      const ValueId value = held_by(save.from, save.bytes);
      if (!in_bounds({Space::kArena, save.to}, save.bytes)) return fail("a save out of bounds");
      memory_.write(Space::kArena, save.to, save.bytes, value);
    }
    for (const StateCopy& commit : program_.commits)
      memory_.write(Space::kState, commit.to, commit.bytes, held_by(commit.from, commit.bytes));
    for (const State& state : graph_.states()) {
      const StateEntry* entry = store_.find(name(state.current));
      const ValueId want = root(state.next);
      if (graph_.value(want).kind == ValueKind::kInput) continue;
      if (!committed_constant(entry->offset, want) &&
          !memory_.holds(Space::kState, entry->offset, entry->bytes, want))
        return fail("state " + entry->name + " does not hold its new value");
    }
    const auto outputs = graph_.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!holds(program_.outputs[i].buffer, outputs[i]))
        return fail("output " + name(outputs[i]) + " is overwritten");
    }
    return true;
  }

  bool committed_constant(size_t offset, ValueId want) const {
    for (const StateCopy& commit : program_.commits) {
      if (commit.to == offset && commit.from.space == Space::kConstant)
        return identical(program_.constants[commit.from.offset], graph_.value(want).tensor);
    }
    return false;
  }

  /// The value that stands at `ref`, found among all values; invalid if there is none.
  ValueId held_by(const BufferRef& ref, size_t size) const {
    if (ref.space == Space::kInput) return graph_.find(program_.inputs[ref.offset].name);
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      if (graph_.value(ValueId{i}).alive && memory_.holds(ref.space, ref.offset, size, ValueId{i}))
        return ValueId{i};
    }
    return {};
  }

  const Graph& graph_;
  const Program& program_;
  const StateStore& store_;
  std::map<NodeId, const ProgramStep*> by_node_;
  size_t next_ = 0;  // step whose reorders were not looked at yet
  std::map<ValueId, ValueId> root_;
  Memory memory_;
  std::string problem_;
};

}  // namespace

AssertionResult check_plan(const Graph& graph, const Program& program, const StateStore& store) {
  return Checker(graph, program, store).run();
}

}  // namespace halfnote::test
