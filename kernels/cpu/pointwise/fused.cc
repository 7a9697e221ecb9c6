// The groups, written as programs, and the search for them: from the step that makes a group's
// result back to its operands. Sums and products match in either order.
#include "kernels/cpu/pointwise/fused.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "base/tensor.h"

namespace halfnote::cpu::pointwise {

namespace {

constexpr int kFree = std::numeric_limits<int>::max();

/// A group: its steps, and the value that an operand must have, if any.
struct GroupText {
  std::string_view text;
  std::array<float, kMaxOperands> values;
};

/// In the order of FusedLoop; of two that fit, the first.
constexpr GroupText kGroups[kFusedLoops] = {
    // x·½·(1 + tanh(√(2/π)·(x + 0.044715·x³))): x, ½, 3, 0.044715, √(2/π), 1
    {"t0:f32 = Mul(x0, x1); t1:f32 = Pow(x0, x2); t2:f32 = Mul(t1, x3); t3:f32 = Add(x0, t2); "
     "t4:f32 = Mul(t3, x4); t5:f32 = Tanh(t4); t6:f32 = Add(t5, x5); t7:f32 = Mul(t0, t6); out t7",
     {0, 0, 3}},
    // its gradient: x, ½, 3, 0.044715, √(2/π), 1, dY, 2
    {"t0:f32 = Mul(x0, x1); t1:f32 = Pow(x0, x2); t2:f32 = Mul(t1, x3); t3:f32 = Add(x0, t2); "
     "t4:f32 = Mul(t3, x4); t5:f32 = Tanh(t4); t6:f32 = Add(t5, x5); t7:f32 = Mul(x6, t6); "
     "t8:f32 = Mul(x6, t0); t9:f32 = TanhGrad(t8, t5); t10:f32 = Mul(t9, x4); "
     "t11:f32 = Mul(t10, x3); t12:f32 = Pow(x0, x7); t13:f32 = Mul(t12, x2); "
     "t14:f32 = Mul(t11, t13); t15:f32 = Add(t10, t14); t16:f32 = Mul(t7, x1); "
     "t17:f32 = Add(t15, t16); out t17",
     {0, 0, 3, 0, 0, 0, 0, 2}},
    // x·(1 + erf(x/√2))·½ with x + bias for x: x, √2, 1, ½, bias
    {"t0:f32 = Add(x0, x4); t1:f32 = Div(t0, x1); t2:f32 = Erf(t1); t3:f32 = Add(t2, x2); "
     "t4:f32 = Mul(t0, t3); t5:f32 = Mul(t4, x3); out t5",
     {}},
    // its gradient: x, √2, 1, ½, dY, bias
    {"t0:f32 = Add(x0, x5); t1:f32 = Div(t0, x1); t2:f32 = Erf(t1); t3:f32 = Add(t2, x2); "
     "t4:f32 = Mul(x4, x3); t5:f32 = Mul(t4, t3); t6:f32 = Mul(t4, t0); "
     "t7:f32 = ErfGrad(t6, t1); t8:f32 = Div(t7, x1); t9:f32 = Add(t5, t8); out t9",
     {}},
    // the same without a bias: x, √2, 1, ½
    {"t0:f32 = Div(x0, x1); t1:f32 = Erf(t0); t2:f32 = Add(t1, x2); t3:f32 = Mul(x0, t2); "
     "t4:f32 = Mul(t3, x3); out t4",
     {}},
    // its gradient: x, √2, 1, ½, dY
    {"t0:f32 = Div(x0, x1); t1:f32 = Erf(t0); t2:f32 = Add(t1, x2); t3:f32 = Mul(x4, x3); "
     "t4:f32 = Mul(t3, t2); t5:f32 = Mul(t3, x0); t6:f32 = ErfGrad(t5, t0); "
     "t7:f32 = Div(t6, x1); t8:f32 = Add(t4, t7); out t8",
     {}},
};

struct Group {
  PointwiseProgram program;
  std::array<float, kMaxOperands> values;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> kAll = [] {
    std::vector<Group> all;
    const std::vector<DType> inputs(kMaxOperands, DType::kF32), output(1, DType::kF32);
    for (const GroupText& group : kGroups)
      all.push_back({parse_pointwise(group.text, inputs, output), group.values});
    return all;
  }();
  return kAll;
}

size_t arity(const PointwiseStep& step) {
  return static_cast<size_t>(pointwise_operands(pointwise_row(step.op)));
}

bool is_commutative(PointwiseOp op) { return op == PointwiseOp::kAdd || op == PointwiseOp::kMul; }

/// One attempt to find a group that ends with a step.
class Match {
 public:
  Match(const PointwiseProgram& program, const std::vector<Operand>& inputs, const Group& group)
      : program_(program), inputs_(inputs), group_(group) {
    operands_.fill(kFree);
    steps_.assign(group.program.steps.size(), kFree);
  }

  bool at(int root) {
    dtype_ = program_.steps[static_cast<size_t>(root)].dtype;
    return solve({{~group_.program.outputs[0], ~root}}) && values_fit() && nobody_else_reads(root);
  }

  std::vector<int> operands() const {
    const auto end = std::ranges::find(operands_, kFree);
    return {operands_.begin(), end};
  }
  const std::vector<int>& steps() const { return steps_; }
  DType dtype() const { return dtype_; }

 private:
  const PointwiseStep& step(int index) const { return program_.steps[static_cast<size_t>(index)]; }

  /// Operands of the group that must be operands of the program; both as in PointwiseStep.
  using Pairs = std::vector<std::pair<int, int>>;

  /// Binds all of `open` and what stands behind them, trying both orders of sums and products.
  bool solve(Pairs open) {
    if (open.empty()) return true;
    const auto [wanted, found] = open.back();
    open.pop_back();
    if (wanted < 0 && found >= 0) return false;
    int& bound =
        wanted < 0 ? steps_[static_cast<size_t>(~wanted)] : operands_[static_cast<size_t>(wanted)];
    const int place = wanted < 0 ? ~found : found;
    if (bound != kFree) return bound == place && solve(std::move(open));
    bound = place;
    if (wanted < 0 ? solve_step(~wanted, ~found, open) : solve(open)) return true;
    bound = kFree;
    return false;
  }

  bool solve_step(int wanted, int found, const Pairs& open) {
    const PointwiseStep& own = group_.program.steps[static_cast<size_t>(wanted)];
    const PointwiseStep& other = step(found);
    if (own.op != other.op || other.dtype != dtype_) return false;
    for (const bool swapped : {false, true}) {
      if (swapped && !is_commutative(own.op)) break;
      Pairs next = open;
      for (size_t i = 0; i < arity(own); ++i)
        next.emplace_back(own.operands[i], other.operands[swapped ? 1 - i : i]);
      if (solve(std::move(next))) return true;
    }
    return false;
  }

  bool values_fit() const {
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (group_.values[i] == 0) continue;
      if (operands_[i] < 0 || operands_[i] == kFree) return false;
      const Tensor* constant = inputs_[static_cast<size_t>(operands_[i])].constant;
      if (constant == nullptr || constant->size() != 1) return false;
      if (constant->at_as_double(0) != static_cast<double>(group_.values[i])) return false;
    }
    return true;
  }

  /// Are all but the last step read by the group alone, as its steps, and no outputs?
  bool nobody_else_reads(int root) const {
    const std::set<int> inside(steps_.begin(), steps_.end());
    const auto hidden = [&](int index) { return index != root && inside.contains(index); };
    if (std::ranges::any_of(program_.outputs, hidden)) return false;
    const auto hidden_step = [&](int operand) { return operand < 0 && hidden(~operand); };
    if (std::ranges::any_of(operands_, hidden_step)) return false;
    for (size_t s = 0; s < program_.steps.size(); ++s) {
      if (inside.contains(static_cast<int>(s))) continue;
      const PointwiseStep& other = program_.steps[s];
      if (std::any_of(other.operands.begin(), other.operands.begin() + arity(other), hidden_step))
        return false;
    }
    return true;
  }

  const PointwiseProgram& program_;
  const std::vector<Operand>& inputs_;
  const Group& group_;
  std::array<int, kMaxOperands> operands_;  // of the group: operands of the program
  std::vector<int> steps_;                  // of the group: steps of the program
  DType dtype_ = DType::kUndefined;
};

}  // namespace

std::vector<Task> plan_tasks(const PointwiseProgram& program, const std::vector<Operand>& inputs,
                             const Loops& loops) {
  std::vector<Task> tasks;
  std::set<int> taken;
  for (int s = static_cast<int>(program.steps.size()) - 1; s >= 0; --s) {
    if (taken.contains(s)) continue;
    const PointwiseStep& step = program.steps[static_cast<size_t>(s)];
    Task task{s, loops.of[index_of(step.op)], {}};
    task.operands.assign(step.operands.begin(), step.operands.begin() + arity(step));
    for (size_t g = 0; loops.fused != nullptr && g < groups().size(); ++g) {
      Match match(program, inputs, groups()[g]);
      if (!match.at(s)) continue;
      const FusedLoop& loop = loops.fused[g];
      const Loop own = match.dtype() == DType::kF32    ? loop.f32
                       : match.dtype() == DType::kBF16 ? loop.bf16
                                                       : nullptr;
      if (own == nullptr) continue;
      task.loop = own;
      task.operands = match.operands();
      taken.insert(match.steps().begin(), match.steps().end());
      break;
    }
    tasks.push_back(std::move(task));
  }
  std::ranges::reverse(tasks);
  return tasks;
}

}  // namespace halfnote::cpu::pointwise
