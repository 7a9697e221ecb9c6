// Steps of a session: micro-batches that are started and finished, evaluations.
#include "base/error.h"
#include "passes/train/step.h"
#include "runtime/train/session.h"

namespace halfnote {

Tensor output_of(const Executor& executor, size_t index, TensorsAs as) {
  return as == TensorsAs::kViews ? executor.output_view(index) : executor.output(index);
}

void Session::start(std::span<const Tensor> inputs) {
  if (in_flight_ == most_in_flight()) {
    throw Error(ErrorCode::kUsage, "as many steps are on their way as can be")
        .expected("finish() of the oldest", std::to_string(in_flight_) + " started");
  }
  check_batch(inputs);
  Flight flight;
  flight.main = &executor_for({model_.training.front().name}, inputs);
  in_file([&] { flight.main->run(inputs); });
  flight.main_run = flight.main->last_run();
  if (find_training_step(kApplyName) != nullptr) {
    flight.updates = ++pending_ >= accumulation_;
    if (flight.updates) {
      pending_ = 0;
      flight.apply = &executor_for({kApplyName}, {});
      in_update_ = true;  // the micro-batch before it has changed the sums already
      in_file([&] { flight.apply->run({}); });
      in_update_ = false;
      flight.apply_run = flight.apply->last_run();
    }
  }
  flight.pending = pending_;
  flights_[next_flight_] = flight;
  next_flight_ = (next_flight_ + 1) % flights_.size();
  ++in_flight_;
}

/// The kernels of the CPU do so themselves, before they change a state.
void Session::check_batch(std::span<const Tensor> inputs) {
  if (!device_) return;
  refused_ = true;
  in_file([&] {
    for (CheckedInput& checked : checked_) checked.check(inputs);
  });
  refused_ = false;
}

StepResult Session::finish() {
  if (in_flight_ == 0) throw Error(ErrorCode::kUsage, "no step was started");
  const auto started = static_cast<size_t>(in_flight_);
  const Flight& flight = flights_[(next_flight_ + flights_.size() - started) % flights_.size()];
  --in_flight_;
  StepResult result;
  in_file([&] {
    flight.main->wait(flight.main_run);
    if (flight.apply != nullptr) flight.apply->wait(flight.apply_run);
  });
  result.loss = flight.main->scalar_output(0, flight.main_run);
  const auto correct = flight.main->find_output(kCorrectLabels);
  const auto labels = flight.main->find_output(kCountedLabels);
  if (correct && labels) {
    const auto count = [&](size_t output) {
      return static_cast<int64_t>(flight.main->scalar_output(output, flight.main_run));
    };
    result.correct = Correct{count(*correct), count(*labels)};
  }
  result.updated = flight.updates;
  result.pending = flight.pending;
  const Executor& last = flight.apply != nullptr ? *flight.apply : *flight.main;
  const uint64_t run = flight.apply != nullptr ? flight.apply_run : flight.main_run;
  if (result.updated) read_update(last, run, result);
  read_states(last, run, result);
  return result;
}

StepResult Session::step(std::span<const Tensor> inputs) {
  if (in_flight_ > 0) {
    throw Error(ErrorCode::kUsage, "steps are on their way")
        .expected("finish() of each before step()", std::to_string(in_flight_) + " started");
  }
  start(inputs);
  return finish();
}

void Session::read_update(const Executor& executor, uint64_t run, StepResult& result) const {
  if (const auto finite = executor.find_output(kFinite))
    result.finite = executor.scalar_output(*finite, run) != 0;
  if (const auto norm = executor.find_output(kGradientNorm))
    result.grad_norm = executor.scalar_output(*norm, run);
  if (const auto rate = executor.find_output(kLearningRate))
    result.learning_rate = executor.scalar_output(*rate, run);
  result.applied = result.finite;
}

void Session::read_states(const Executor& executor, uint64_t run, StepResult& result) const {
  const auto read = [&](std::string_view name) -> std::optional<double> {
    const StateEntry* entry = state_->find(name);
    if (entry == nullptr) return std::nullopt;
    return executor.scalar_state(*entry, run);
  };
  result.loss_scale = read(kLossScale).value_or(1);
  result.floor_hits = static_cast<int64_t>(read(kFloorHits).value_or(0));
  if (const auto applied = read(kAppliedStep))
    result.applied_steps = static_cast<int64_t>(*applied);
}

bool Session::left_states() const {
  const auto main = last_.find(model_.training.front().name);
  return refused_ || (!in_update_ && (main == last_.end() || main->second->left_states()));
}

void Session::require_evaluation() const {
  if (find_training_step(kEvaluateName) != nullptr) return;
  throw Error(ErrorCode::kModel, "the artifact has no evaluation step").at({model_.source, {}, {}});
}

void Session::prepare_evaluation(std::span<const Shape> shapes, Evaluates what) {
  require_evaluation();
  executor({kEvaluateName, what}, shapes);
}

std::vector<Tensor> Session::evaluate(std::span<const Tensor> inputs, TensorsAs as) {
  require_evaluation();
  Executor& program = executor_for({kEvaluateName}, inputs);
  in_file([&] {
    program.run(inputs);
    program.wait(program.last_run());
  });
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < program.program().outputs.size(); ++i)
    outputs.push_back(output_of(program, i, as));
  return outputs;
}

EvaluatedBatch Session::evaluate_batch(std::span<const Tensor> inputs, Evaluates what) {
  require_evaluation();
  Executor& program = executor_for({kEvaluateName, what}, inputs);
  in_file([&] {
    program.run(inputs);
    program.wait(program.last_run());
  });
  const auto read = [&](size_t output) {
    return program.scalar_output(output, program.last_run());
  };
  EvaluatedBatch batch;
  batch.loss = read(0);
  const auto first = program.find_output(kCorrectLabels);
  const auto five = program.find_output(kLabelsAmongFive);
  const auto labels = program.find_output(kCountedLabels);
  if (!first || !five || !labels) return batch;
  const auto count = [&](size_t output) { return static_cast<int64_t>(read(output)); };
  batch.counts = ScoreCounts{count(*labels), count(*first), count(*five)};
  return batch;
}

Tensor Session::evaluated_scores() const {
  const auto last = last_.find(kEvaluateName);
  const bool has_run = last != last_.end() && last->second->has_outputs();
  const auto index =
      has_run && evaluated_ ? last->second->find_output(evaluated_->scores) : std::nullopt;
  if (index) return last->second->output_view(*index);
  throw Error(ErrorCode::kUsage, "there are no scores of an evaluation");
}

}  // namespace halfnote
