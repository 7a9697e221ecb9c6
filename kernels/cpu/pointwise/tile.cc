// Makes a program ready: its operands, its actions, and whether a call can be run at all.
#include "kernels/cpu/pointwise/tile.h"

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/pointwise/fused.h"
#include "kernels/cpu/pointwise/shapes.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::pointwise {

namespace {

/// Does a step leave numbers that its type does not hold? Of those that give bool only a cast does:
/// the others make 0 and 1.
bool needs_rounding(const PointwiseStep& step) {
  return is_16bit_float(step.dtype) ||
         (step.dtype == DType::kBool && step.op == PointwiseOp::kCast);
}

/// Runs of up to kSpread elements, adjacent or alike.
bool has_short_runs(DType dtype, const Runs& runs) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) return false;
  if (runs.dims.size() < 2 || runs.dims.back() > kSpread) return false;
  return runs.step(0) == 0 || runs.step(0) == 1;
}

}  // namespace

/// Turns the steps into actions: loads before the first use, roundings and stores behind the step,
/// rooms reused once nobody reads them any more.
class TileProgram::Compiler {
 public:
  Compiler(TileProgram& tile, const PointwiseProgram& program, std::vector<Task> tasks)
      : tile_(tile),
        program_(program),
        tasks_(std::move(tasks)),
        loaded_(tile.inputs_.size()),
        results_(program.steps.size()),
        is_loaded_(loaded_.size()) {}

  void run() {
    find_last_uses();
    for (const Task& task : tasks_) add_task(task);
    tile_.rooms_ = rooms_;
  }

 private:
  void find_last_uses() {
    last_of_input_.assign(tile_.inputs_.size(), -1);
    last_of_step_.assign(program_.steps.size(), -1);
    for (const Task& task : tasks_) {
      for (const int operand : task.operands) {
        (operand >= 0 ? last_of_input_[static_cast<size_t>(operand)]
                      : last_of_step_[static_cast<size_t>(~operand)]) = task.step;
      }
    }
  }

  Slot new_room() {
    if (!free_.empty()) {
      const size_t room = free_.back();
      free_.pop_back();
      return {Slot::Space::kRoom, room};
    }
    return {Slot::Space::kRoom, rooms_++};
  }
  void release(const Slot& slot) {
    if (slot.space == Slot::Space::kRoom) free_.push_back(slot.index);
  }

  Slot slot_of(int operand) {
    if (operand < 0) return results_[static_cast<size_t>(~operand)];
    const auto index = static_cast<size_t>(operand);
    if (!is_loaded_[index]) {
      const Input& input = tile_.inputs_[index];
      is_loaded_[index] = true;
      if (input.whole && input.dtype == DType::kF32) {
        loaded_[index] = {Slot::Space::kInput, index};
      } else {
        // The room of a single element is nobody else's: it must last for all tiles.
        loaded_[index] = input.single ? Slot{Slot::Space::kRoom, rooms_++} : new_room();
        Action load{input.whole ? Kind::kConvert : Kind::kLoad};
        load.to = loaded_[index];
        load.operand = index;
        load.dtype = input.dtype;
        add(load);
        tile_.last_read_[index] = tile_.actions_.size() - 1;
      }
    }
    return loaded_[index];
  }

  void add(const Action& action) { tile_.actions_.push_back(action); }

  void add_task(const Task& task) {
    const int number = task.step;
    const PointwiseStep& step = program_.steps[static_cast<size_t>(number)];
    if (is_sum(step.op)) return add_sum(task);
    const bool draws = pointwise_row(step.op).types == PointwiseTypes::kDraw;
    Action action{draws ? Kind::kDrop : Kind::kStep};
    action.loop = task.loop;
    if (draws) {
      action.seed = static_cast<size_t>(step.operands[1]);
      action.step = static_cast<size_t>(step.operands[2]);
    }
    action.operands = task.operands.size();
    std::copy(step.parameters.begin(), step.parameters.end(), action.parameters);
    for (size_t i = 0; i < action.operands; ++i) action.from[i] = slot_of(task.operands[i]);
    for (size_t i = 0; i < action.operands; ++i) finish_operand(task, i);
    const auto output = std::ranges::find(program_.outputs, number);
    const bool is_output = output != program_.outputs.end();
    const auto index = static_cast<size_t>(output - program_.outputs.begin());
    const bool direct = is_output && step.dtype == DType::kF32;
    action.to = direct ? Slot{Slot::Space::kOutput, index} : new_room();
    const size_t position = tile_.actions_.size();
    for (size_t i = 0; i < action.operands; ++i) {
      if (task.operands[i] >= 0 && action.from[i].space == Slot::Space::kInput)
        tile_.last_read_[action.from[i].index] = position;
    }
    add(action);
    results_[static_cast<size_t>(number)] = action.to;
    const bool read_again = last_of_step_[static_cast<size_t>(number)] >= 0;
    const bool stores_round = is_output && is_16bit_float(step.dtype);
    if (needs_rounding(step) && read_again && !stores_round) {
      Action round{Kind::kRound};
      round.to = action.to;
      round.dtype = step.dtype;
      add(round);
    }
    if (is_output) add_stores(number, action.to, step.dtype);
    if (stores_round && read_again) {
      Action reload{Kind::kReload};
      reload.to = action.to;
      reload.operand = index;
      reload.dtype = step.dtype;
      add(reload);
    }
    if (!read_again) release(action.to);
  }

  void add_sum(const Task& task) {
    Action action{Kind::kSum};
    action.from[0] = slot_of(task.operands[0]);
    if (action.from[0].space == Slot::Space::kInput)
      tile_.last_read_[action.from[0].index] = tile_.actions_.size();
    add(action);
    finish_operand(task, 0);
  }

  /// One value may be several outputs.
  void add_stores(int number, const Slot& from, DType dtype) {
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      if (program_.outputs[k] != number) continue;
      tile_.first_written_[k] = tile_.actions_.size() - 1;
      if (from.space == Slot::Space::kOutput && from.index == k) continue;
      Action store{Kind::kStore};
      store.from[0] = from;
      store.operand = k;
      store.dtype = dtype;
      add(store);
      tile_.first_written_[k] = tile_.actions_.size() - 1;
    }
  }

  /// Gives back the room of an operand that is read for the last time, once.
  void finish_operand(const Task& task, size_t i) {
    const int operand = task.operands[i];
    for (size_t k = 0; k < i; ++k) {
      if (task.operands[k] == operand) return;
    }
    const bool is_input = operand >= 0;
    const auto index = static_cast<size_t>(is_input ? operand : ~operand);
    if (is_input && tile_.inputs_[index].single) return;  // for the tiles to come
    if ((is_input ? last_of_input_ : last_of_step_)[index] != task.step) return;
    release(is_input ? loaded_[index] : results_[index]);
  }

  TileProgram& tile_;
  const PointwiseProgram& program_;
  const std::vector<Task> tasks_;
  std::vector<Slot> loaded_, results_;  // where inputs and the results of steps are
  std::vector<bool> is_loaded_;
  std::vector<int> last_of_input_, last_of_step_;
  std::vector<size_t> free_;
  size_t rooms_ = 0;
};

std::string TileProgram::refusal(const KernelCall& call) {
  if (call.inputs.empty() || call.outputs.empty()) return "an operand is missing";
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.has_input(i)) return "an operand is missing";
    if (std::string why = unfit_input(call.inputs[i].dtype, call.inputs[i].size()); !why.empty())
      return why;
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (!call.has_output(i)) return "an operand is missing";
    if (!is_pointwise_type(call.outputs[i].dtype))
      return "elements of type " + std::string(short_name(call.outputs[i].dtype));
  }
  return {};
}

TileProgram::TileProgram(const PointwiseProgram& program, const KernelCall& call,
                         const Loops& loops)
    : loops_(loops), last_read_(call.inputs.size(), 0), first_written_(call.outputs.size(), 0) {
  const Shape shape = elements_of(program, call);
  count_ = element_count(shape);
  if (const std::optional<PointwiseSum> sum = sum_of(program)) {
    const SummedShape matrix = summed_shape(shape, *sum);
    sum_ = {sum->output, matrix, static_cast<double>(sum->is_mean ? matrix.summed() : 1),
            plan_reduce({matrix.rows, matrix.columns}, {sum->along_rows ? 1 : 0})};
  }
  for (const Operand& operand : call.inputs) {
    if (operand.dtype == DType::kI64) {
      inputs_.push_back(
          {operand.dtype, false, false, false, {}});  // read by a Dropout, at each run
      continue;
    }
    Input input{operand.dtype, false, false, false, plan_broadcast({operand.shape}, shape)};
    input.whole = operand.size() == count_;
    input.single = operand.size() == 1 && !input.whole;
    input.short_runs = has_short_runs(input.dtype, input.runs);
    inputs_.push_back(std::move(input));
  }
  for (const Operand& operand : call.outputs) outputs_.push_back(operand.dtype);
  Compiler(*this, program, plan_tasks(program, call.inputs, loops)).run();
}

bool TileProgram::can_share(size_t input, size_t output) const {
  if (sum_ && sum_->output == output) return false;
  return inputs_[input].whole && size_of(inputs_[input].dtype) == size_of(outputs_[output]) &&
         last_read_[input] <= first_written_[output];
}

}  // namespace halfnote::cpu::pointwise
