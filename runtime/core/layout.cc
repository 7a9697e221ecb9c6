#include "runtime/core/layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "passes/device/rematerialize.h"

namespace halfnote {
namespace {

constexpr size_t kMaxOperands = 32;  // of a mask

/// Calls `body(value)` for the named operands.
template <class Body>
void for_named(std::span<const ValueId> values, uint32_t mask, Body&& body) {
  for (size_t i = 0; i < std::min(values.size(), kMaxOperands); ++i) {
    if ((mask >> i & 1) != 0 && values[i].valid()) body(values[i]);
  }
}

/// Calls `body(value)` for the operands that are not named.
template <class Body>
void for_others(std::span<const ValueId> values, uint32_t mask, Body&& body) {
  for (size_t i = 0; i < values.size(); ++i) {
    const bool named = i < kMaxOperands && (mask >> i & 1) != 0;
    if (!named && values[i].valid()) body(values[i]);
  }
}

class Regions {
 public:
  explicit Regions(size_t values) : parent_(values) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t of(ValueId value) {
    size_t root = value.index;
    while (parent_[root] != root) root = parent_[root] = parent_[parent_[root]];
    return root;
  }
  /// The earlier value stands for both.
  void join(ValueId a, ValueId b) {
    const size_t x = of(a), y = of(b);
    parent_[std::max(x, y)] = std::min(x, y);
  }

 private:
  std::vector<size_t> parent_;
};

uint32_t without_plain(std::span<const ValueId> operands, uint32_t mask,
                       std::span<const LayoutValue> values) {
  for (size_t i = 0; i < kMaxOperands; ++i) {
    if ((mask >> i & 1) == 0) continue;
    const bool known = i < operands.size() && operands[i].valid();
    if (!known || values[operands[i].index].stays_plain) mask &= ~(uint32_t{1} << i);
  }
  return mask;
}

/// Steps that repeat others take what these take, and what they write is in their regions.
void follow_originals(std::span<LayoutStep> steps, std::span<const LayoutValue> values,
                      Regions& regions) {
  for (LayoutStep& step : steps) {
    // One whose kernel refused all blocks stays plain.
    if (step.original >= 0 && step.blocked.any())
      step.blocked = steps[static_cast<size_t>(step.original)].blocked;
  }
  for (uint32_t v = 0; v < values.size(); ++v) {
    if (values[v].original.valid()) regions.join(values[v].original, ValueId{v});
  }
}

/// An input of a region may be plain: it is copied. A result may not.
void leave_plain_values(LayoutStep& step, std::span<const LayoutValue> values) {
  const uint32_t outputs = without_plain(step.writes, step.blocked.outputs, values);
  if (step.blocked.together && outputs != step.blocked.outputs) {
    step.blocked = {};
  } else {
    step.blocked.outputs = outputs;
  }
}

}  // namespace

void ask_graph(const Graph& graph, std::span<const NodeId> nodes, std::span<LayoutStep> steps,
               std::span<LayoutValue> values) {
  for (ValueId output : graph.outputs()) values[output.index].stays_plain = true;
  for (const State& state : graph.states()) values[state.next.index].stays_plain = true;
  std::map<NodeId, int> step_of;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeId original = original_of(graph, nodes[i]);
    const auto known = step_of.find(original);
    step_of[nodes[i]] = static_cast<int>(i);
    if (known == step_of.end()) continue;
    steps[i].original = known->second;
    const auto results = graph.outputs(nodes[i]);
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k].valid()) values[results[k].index].original = graph.output(original, k);
    }
  }
}

std::vector<bool> choose_blocked(std::span<LayoutStep> steps, std::span<const LayoutValue> values) {
  Regions regions(values.size());
  std::vector<bool> written_blocked(values.size(), false), read_plain(values.size(), false);
  std::vector<size_t> spared(values.size(), 0), spent(values.size(), 0);
  for (LayoutStep& step : steps) leave_plain_values(step, values);
  follow_originals(steps, values, regions);
  for (const LayoutStep& step : steps) {
    if (!step.blocked.together) continue;
    ValueId first;
    const auto join = [&](ValueId value) {
      if (first.valid()) regions.join(first, value);
      first = value;
    };
    for_named(step.reads, step.blocked.inputs, join);
    for_named(step.writes, step.blocked.outputs, join);
  }
  for (const LayoutStep& step : steps) {
    if (step.original >= 0) continue;
    for_named(step.writes, step.blocked.outputs,
              [&](ValueId value) { written_blocked[value.index] = true; });
    for_others(step.reads, step.blocked.inputs, [&](ValueId value) {
      const ValueId original = values[value.index].original;
      read_plain[original.valid() ? original.index : value.index] = true;
    });
    if (!step.blocked.preferred) continue;
    const auto spare = [&](ValueId value) {
      spared[regions.of(value)] += values[value.index].bytes;
    };
    for_named(step.reads, step.blocked.inputs, spare);
    for_named(step.writes, step.blocked.outputs, spare);
  }
  for (size_t v = 0; v < values.size(); ++v) {
    if (values[v].original.valid()) continue;
    const size_t root = regions.of(ValueId{static_cast<uint32_t>(v)});
    if (!written_blocked[v]) spent[root] += values[v].bytes;
    if (written_blocked[v] && read_plain[v]) spent[root] += values[v].bytes;
  }
  std::vector<bool> blocked(values.size());
  for (size_t v = 0; v < values.size(); ++v) {
    const size_t root = regions.of(ValueId{static_cast<uint32_t>(v)});
    blocked[v] = spared[root] > spent[root];
  }
  return blocked;
}

bool StepLayouts::any() const {
  return std::find(reads.begin(), reads.end(), true) != reads.end() ||
         std::find(writes.begin(), writes.end(), true) != writes.end();
}

std::vector<bool> blocked_operands(std::span<const ValueId> values, uint32_t mask,
                                   const std::vector<bool>& regions) {
  std::vector<bool> blocked(values.size(), false);
  for (size_t i = 0; i < std::min(values.size(), kMaxOperands); ++i) {
    blocked[i] = (mask >> i & 1) != 0 && values[i].valid() && regions[values[i].index];
  }
  return blocked;
}

void set_layouts(std::vector<Operand>& operands, const std::vector<bool>& blocked,
                 const Layout& layout) {
  for (size_t i = 0; i < operands.size(); ++i) {
    operands[i].layout = blocked[i] ? layout : Layout{};
  }
}

LayoutCounts count_layouts(const Program& program) {
  LayoutCounts counts;
  for (const ProgramStep& step : program.steps) {
    if (step.row == nullptr) continue;
    counts.reorders += step.row->op == reorder_row().op;
    const std::string_view name = step.row->name;
    const bool last = name.starts_with("channels_last.");
    counts.channels_last |= last;
    counts.blocked_steps += last || name.starts_with("blocked.");
  }
  return counts;
}

BlockedChoice choose_blocked_kernel(const BlockedForm& form, const KernelCall& call) {
  for (const BlockedRow* candidate : form.rows) {
    Prepared prepared = candidate->row.prepare(call);
    if (prepared) return {&candidate->row, std::move(prepared.kernel)};
  }
  return {};
}

}  // namespace halfnote
