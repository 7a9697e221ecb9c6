#include "runtime/core/steps/group_steps.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace halfnote {
namespace {

/// Goes through the steps once. What belongs to a group, and what has to come behind one, is held
/// until the group is closed.
class Grouper {
 public:
  Grouper(const Graph& graph, std::span<const GroupedStep> steps,
          const std::function<size_t(ValueId)>& bytes)
      : graph_(graph),
        steps_(steps),
        bytes_(bytes),
        made_(graph.value_count(), false),
        read_(graph.value_count(), false) {
    for (const GroupedStep& step : steps) {
      if (step.key >= 0) ++left_[step.key];
    }
    std::erase_if(left_, [](const auto& group) { return group.second < 2; });
    for (const State& state : graph.states()) {
      if (state.next != state.current) states_[state.next].push_back(state.current);
    }
  }

  std::vector<std::vector<size_t>> run() {
    for (size_t i = 0; i < steps_.size(); ++i) {
      const auto group = left_.find(steps_[i].key);
      if (group == left_.end()) {
        pass(i);
        continue;
      }
      if (reads_held(i) || writes_held(i)) close_all();
      hold(i);
      if (--group->second == 0) close(group->first);
    }
    close_all();
    return std::move(order_);
  }

 private:
  bool is_member(size_t i) const { return left_.contains(steps_[i].key); }

  /// Does the step read what a held one makes?
  bool reads_held(size_t i) const {
    return std::ranges::any_of(steps_[i].reads,
                               [&](ValueId value) { return value.valid() && made_[value.index]; });
  }

  /// Does it make the new value of a state whose old one is read by a held step? Before that the
  /// new value could not be written over the old one.
  bool writes_held(size_t i) const {
    const auto is_read = [&](ValueId value) { return read_[value.index]; };
    return std::ranges::any_of(steps_[i].writes, [&](ValueId value) {
      const auto states = states_.find(value);
      return states != states_.end() && std::ranges::any_of(states->second, is_read);
    });
  }

  /// A step that belongs to no group.
  void pass(size_t i) {
    if (reads_held(i) || writes_held(i)) return hold(i);
    if (!steps_[i].while_held) close_large();
    order_.push_back({i});
  }

  void hold(size_t i) {
    held_.push_back(i);
    for (const ValueId value : steps_[i].reads) {
      if (!value.valid()) continue;
      read_[value.index] = true;
      const bool kept = is_member(i) && graph_.value(value).kind == ValueKind::kResult;
      if (kept) bytes_held_[steps_[i].key] += bytes_(value);
    }
    for (const ValueId value : steps_[i].writes) {
      if (value.valid()) made_[value.index] = true;
    }
  }

  void close(int key) {
    const std::vector<size_t> members = std::move(held_);
    held_.clear();
    bytes_held_.clear();
    for (const size_t i : members) {
      for (const ValueId value : steps_[i].reads) {
        if (value.valid()) read_[value.index] = false;
      }
      for (const ValueId value : steps_[i].writes) {
        if (value.valid()) made_[value.index] = false;
      }
    }
    std::vector<size_t> group;
    std::ranges::copy_if(members, std::back_inserter(group),
                         [&](size_t i) { return steps_[i].key == key; });
    order_.push_back(std::move(group));
    for (const size_t i : members) {
      if (steps_[i].key == key) continue;
      if (is_member(i) || reads_held(i) || writes_held(i)) {
        hold(i);
      } else {
        order_.push_back({i});
      }
    }
  }

  void close_all() {
    while (!held_.empty()) close(steps_[held_.front()].key);  // what is held waits for a member
  }

  void close_large() {
    const auto large = [](const auto& group) { return group.second > kMostHeld; };
    for (;;) {
      const auto group = std::ranges::find_if(bytes_held_, large);
      if (group == bytes_held_.end()) return;
      close(group->first);
    }
  }

  const Graph& graph_;
  std::span<const GroupedStep> steps_;
  const std::function<size_t(ValueId)>& bytes_;
  std::map<int, size_t> left_;                      // members to come, by key
  std::map<int, size_t> bytes_held_;                // of operands that are no states, by key
  std::map<ValueId, std::vector<ValueId>> states_;  // old values by new value
  std::vector<bool> made_, read_;                   // by held steps
  std::vector<size_t> held_;                        // in order; the first one is a member
  std::vector<std::vector<size_t>> order_;
};

/// What members of a group have in common but for their attributes.
using GroupKey = std::tuple<const KernelRow*, DType, std::vector<bool>, std::vector<ValueId>>;

GroupKey key_of(const ProgramStep& step, const std::vector<ValueId>& reads, DType dtype) {
  const GroupForm& form = step.row->group;
  const size_t begin = std::min(form.shared_before, reads.size());
  const size_t end = std::min(begin + form.own_inputs, reads.size());
  std::vector<bool> present;
  std::vector<ValueId> shared;
  for (size_t i = 0; i < reads.size(); ++i) {
    if (i >= begin && i < end) {
      present.push_back(reads[i].valid());
    } else {
      shared.push_back(reads[i]);
    }
  }
  while (!shared.empty() && !shared.back().valid()) shared.pop_back();
  return {step.row, dtype, std::move(present), std::move(shared)};
}

/// Gives equal numbers to steps that may be of one group.
class Keys {
 public:
  int number_of(const GroupKey& key, Attributes attributes) {
    attributes.erase(std::get<0>(key)->group.own_attribute);
    auto& kinds = known_[key];
    for (const auto& [known, number] : kinds) {
      if (known == attributes) return number;
    }
    kinds.emplace_back(std::move(attributes), count_);
    return count_++;
  }

 private:
  std::map<GroupKey, std::vector<std::pair<Attributes, int>>> known_;
  int count_ = 0;
};

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// The step that does all of `members`; without a kernel if theirs refuses.
ProgramStep joined_step(const PlannedSteps& planned, const std::vector<size_t>& members,
                        const std::function<KernelCall(size_t)>& call_of) {
  std::vector<KernelCall> calls;
  for (const size_t i : members) calls.push_back(call_of(i));
  const ProgramStep& first = planned.steps[members.front()];
  ProgramStep step;
  step.kernel = first.row->group.prepare(calls).kernel;
  step.row = first.row;
  step.op = first.op;
  step.id = planned.steps[members.back()].id;
  step.node = first.node + " and " + std::to_string(members.size() - 1) + " more";
  step.refusals = first.refusals;
  for (const size_t i : members) {
    step.flops += planned.steps[i].flops;
    append(step.input_types, planned.steps[i].input_types);
    append(step.output_types, planned.steps[i].output_types);
  }
  return step;
}

}  // namespace

std::vector<std::vector<size_t>> order_groups(const Graph& graph,
                                              std::span<const GroupedStep> steps,
                                              const std::function<size_t(ValueId)>& bytes) {
  return Grouper(graph, steps, bytes).run();
}

void group_steps(const Graph& graph, PlannedSteps planned,
                 const std::function<KernelCall(size_t)>& call_of,
                 const std::function<size_t(ValueId)>& bytes) {
  Keys keys;
  std::vector<GroupedStep> steps;
  for (size_t i = 0; i < planned.steps.size(); ++i) {
    const ProgramStep& step = planned.steps[i];
    const Node& node = graph.node(step.id);
    steps.push_back({planned.reads[i], planned.writes[i], -1, node.role == Role::kOptimizer});
    if (step.row == nullptr || step.row->group.prepare == nullptr) continue;
    const DType dtype = graph.value(planned.reads[i].at(step.row->group.shared_before)).type.dtype;
    steps[i].key = keys.number_of(key_of(step, planned.reads[i], dtype), node.attributes);
  }
  std::vector<ProgramStep> fresh;
  std::vector<std::vector<ValueId>> reads, writes;
  for (const std::vector<size_t>& members : order_groups(graph, steps, bytes)) {
    ProgramStep joined;
    if (members.size() > 1) joined = joined_step(planned, members, call_of);
    const bool one = joined.kernel != nullptr;
    if (one) fresh.push_back(std::move(joined));
    for (const size_t i : members) {
      if (!one) fresh.push_back(std::move(planned.steps[i]));
      reads.resize(fresh.size());
      writes.resize(fresh.size());
      append(reads.back(), planned.reads[i]);
      append(writes.back(), planned.writes[i]);
    }
  }
  planned.steps = std::move(fresh);
  planned.reads = std::move(reads);
  planned.writes = std::move(writes);
}

}  // namespace halfnote
