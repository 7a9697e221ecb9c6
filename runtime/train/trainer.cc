#include "runtime/train/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "passes/train/step.h"
#include "runtime/train/checkpoint/run_folder.h"
#include "runtime/train/labels/named_sample.h"

namespace halfnote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTimedSteps = 4096;  // of the median

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void check(const Session& session, const TrainerOptions& options) {
  if ((options.epochs > 0) == (options.steps > 0)) {
    throw Error(ErrorCode::kUsage, "the length of the run is not clear")
        .expected("either --epochs or --steps, above 0", options.epochs > 0 ? "both" : "neither");
  }
  if (options.batch < 1) {
    throw Error(ErrorCode::kModel, "a batch without samples")
        .at({session.model().source, {}, {}})
        .expected("inputs whose first dim is 1 or more, or a symbol", std::to_string(options.batch))
        .hint("export the model with a symbolic first dim");
  }
  if (options.log_every < 1) {
    throw Error(ErrorCode::kUsage, "bad --log-every")
        .expected("1 or more", std::to_string(options.log_every));
  }
  if (!holds_weights(session.state())) {
    throw Error(ErrorCode::kModel, "the artifact has no optimizer: a run would change nothing")
        .at({session.model().source, {}, {}})
        .hint("compile it with --optimizer adamw, or another one");
  }
}

/// A count of steps that no counter holds is the option's fault.
void check_length(const TrainerOptions& options, int64_t steps_per_epoch) {
  const int64_t most = std::numeric_limits<int64_t>::max() / std::max<int64_t>(steps_per_epoch, 1);
  if (options.epochs <= most) return;
  throw Error(ErrorCode::kUsage, "--epochs is too large")
      .expected(fmt::format("at most {} epochs of {} steps", most, steps_per_epoch),
                std::to_string(options.epochs));
}

}  // namespace

Trainer::Trainer(Session& session, InputMap data, std::optional<InputMap> evaluation,
                 TrainerOptions options)
    : session_(session), data_(std::move(data)), options_(std::move(options)) {
  check(session_, options_);
  refuse_foreign_folder(options_.run_folder);
  check_length(options_, steps_per_epoch());
  if (evaluation) {
    evaluator_ = std::make_unique<Evaluator>(session_, std::move(*evaluation), options_.batch);
  }
  guarded_ = checks_gradients(session_.model());
  broken_ = find_nonfinite_state(session_.state());
  const Graph& graph = session_.model().training.front().graph;
  counted_ = find_counted_labels(graph, data_);
  kind_ = find_classification(graph);
  const auto labels = kind_ ? find_input(data_, kind_->labels) : std::nullopt;
  if (!labels) kind_.reset();
  if (!labels) return;
  labels_ = *labels;
  kind_->batch_axis = data_.input(labels_).batch_axis;
}

int64_t Trainer::total_steps() const {
  return options_.steps > 0 ? options_.steps : checked_mul(options_.epochs, steps_per_epoch());
}

void Trainer::plan() {
  // Refuses a batch that the data cannot fill.
  Batcher(data_, {options_.batch, options_.seed, options_.shuffle, Tail::kDrop, 0, 0});
  if (total_steps() < session_.accumulation()) {
    throw Error(ErrorCode::kUsage, "the run ends before its first update")
        .expected(fmt::format("at least {} steps, which the artifact was compiled to accumulate",
                              session_.accumulation()),
                  std::to_string(total_steps()));
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < data_.size(); ++i) {
    shapes.push_back(data_.batch_shape(i, options_.batch));
  }
  session_.prepare(shapes);
  check_all_labels();
  if (evaluator_ != nullptr) evaluator_->prepare();
  data_.data().release_pages();
}

/// Of all samples, before the first step: those that the graph reads as they are, and where the
/// number of classes follows from sizes of the data only, those that are counted.
void Trainer::check_all_labels() const {
  bool counted = false;
  for (const CheckedInput& checked : session_.checked_inputs()) {
    const auto input = checked.labels_input();
    if (!input || data_.field(*input).dtype() == DType::kBool) continue;
    check_labels(data_.data(), data_.field(*input), checked.size(), checked.ignore_index());
    counted |= kind_ && *input == labels_;
  }
  if (kind_ && !counted)
    check_classes(*kind_, session_, session_.model().training.front().name, data_, labels_);
}

size_t Trainer::batch_bytes() const {
  const int held = batcher_options().held() + session_.most_in_flight() - 1;
  const size_t own = data_.batch_bytes(options_.batch) * static_cast<size_t>(held);
  return own + (evaluator_ == nullptr ? 0 : evaluator_->batch_bytes());
}

RunIdentity Trainer::identity() const {
  return {options_.artifact,    fmt::format("{}", fmt::join(data_.describe(), "; ")),
          data_.data().size(),  options_.batch,
          options_.seed,        options_.shuffle,
          session_.arithmetic()};
}

std::optional<FoundCheckpoint> Trainer::open() {
  std::error_code error;
  // A misspelt folder is not made, but named in the error.
  if (options_.resume && !is_run_folder(options_.run_folder)) {
    locate_checkpoint(options_.run_folder);
  }
  options_.run_folder = make_run_folder(options_.run_folder, options_.new_number);
  lock_ = std::make_unique<RunLock>(options_.run_folder);
  const std::filesystem::path metrics = options_.run_folder / kRunMetrics;
  if (!options_.resume) {
    if (std::filesystem::exists(options_.run_folder / kRunCheckpoints, error)) {
      throw Error(ErrorCode::kUsage, "the run folder holds another run")
          .at({options_.run_folder.string(), {}, {}})
          .hint("go on with it by --resume, or choose another folder with --run-dir");
    }
    metrics_.emplace(MetricsWriter::create(metrics));
    return std::nullopt;
  }
  Checkpoint checkpoint;
  std::optional<FoundCheckpoint> latest = find_latest(options_.run_folder, &checkpoint);
  if (!latest) {  // the run ended before it saved: it begins again, its metrics too
    tidy_checkpoints(options_.run_folder);
    metrics_.emplace(MetricsWriter::resume(metrics, -1));
    return std::nullopt;
  }
  FoundCheckpoint& found = *latest;
  position_ = restore_checkpoint(session_, checkpoint, identity(), found.folder.string());
  if (std::string warning = arithmetic_warning(checkpoint, identity()); !warning.empty()) {
    found.warnings.push_back(std::move(warning));
  }
  for (std::string& warning : tidy_checkpoints(options_.run_folder)) {
    found.warnings.push_back(std::move(warning));
  }
  saved_ = position_.step;
  result_.checkpoint = found.folder;
  metrics_.emplace(MetricsWriter::resume(metrics, position_.step));
  position_.evaluated = std::max(position_.evaluated, metrics_->last_evaluation());
  return latest;
}

bool Trainer::is_scaled() const { return session_.state().find(kLossScale) != nullptr; }

double Trainer::loss_scale() const {
  const StateEntry* scale = session_.state().find(kLossScale);
  return scale == nullptr ? 1 : session_.state().get(*scale).at_as_double(0);
}

void Trainer::count_accuracy(const StepResult& result, const Batch& batch) {
  if (batch.start.sample == 0) position_.correct = position_.labels = 0;
  if (!kind_) return;
  if (result.correct) {
    position_.correct += result.correct->top1;
    position_.labels += result.correct->labels;
    return;
  }
  const auto counts =
      count_scores(*kind_, session_.output(kind_->scores, TensorsAs::kViews), batch.inputs[labels_],
                   data_.rows_of(labels_, batch.count), ScoreLoss::kSkip, session_.threads());
  if (!counts) return;
  position_.correct += counts->top1;
  position_.labels += counts->labels;
}

void Trainer::name_sample(const Error& error, const Batch& batch) const {
  std::vector<size_t> inputs(data_.size());
  std::iota(inputs.begin(), inputs.end(), size_t{0});
  halfnote::name_sample(error, {session_.model().training.front().graph, inputs}, data_, batch,
                        options_.shuffle ? std::optional(options_.seed) : std::nullopt);
}

/// Is there room for another step, and nothing to be done first: a checkpoint or an evaluation
/// wants the states after the last one that was started?
bool Trainer::may_start() const {
  if (started_ >= total_steps() || wants_stop()) return false;
  if (session_.in_flight() == session_.most_in_flight()) return false;
  if (session_.in_flight() == 0) return true;
  return !due(options_.save, started_, started_to_) &&
         !due(options_.evaluate, started_, started_to_);
}

void Trainer::start(Batcher& batcher, Progress& progress) {
  Running& running = running_of(started_);
  bool more = false;
  try {
    more = batcher.next(running.batch);
  } catch (const Error&) {  // what is on its way is whole
    while (session_.in_flight() > 0) finish(progress);
    throw;
  }
  if (!more) throw Error(ErrorCode::kInternal, "the data ended before the run");
  data_wait_ = batcher.wait_seconds();
  running.start = Clock::now();
  in_step_ = true;
  try {
    session_.start(running.batch.inputs);
  } catch (const Error& error) {
    const bool left = session_.left_states();
    while (left && session_.in_flight() > 0) finish(progress);  // what is on its way is whole
    if (left) in_step_ = false;
    name_sample(error, running.batch);
    throw;
  }
  ++started_;
  started_to_ = running.batch.next;
}

/// The oldest step on its way, to its end, and what is due after it.
void Trainer::finish(Progress& progress) {
  const Running& running = running_of(position_.step);
  try {
    last_ = session_.finish();
  } catch (const Error& error) {
    name_sample(error, running.batch);
    throw;
  }
  judge(last_, running);
  in_step_ = session_.in_flight() > 0;
  report(last_, progress);
  log_step(last_, progress);
  if (session_.in_flight() == 0) housekeeping(progress);
}

void Trainer::judge(const StepResult& result, const Running& running) {
  // A step that began while another was computed took the time from there.
  const Clock::time_point begin = std::max(running.start, finished_);
  finished_ = Clock::now();
  if (result_.new_steps > 0) step_seconds_.push_back(seconds_between(begin, finished_));
  if (step_seconds_.size() > kTimedSteps) step_seconds_.pop_front();
  ++result_.new_steps;
  ++position_.step;
  position_.data = running.batch.next;
  position_.pending = result.pending;
  const double scale_before = std::exchange(scale_, result.loss_scale);
  const int64_t hits_before = std::exchange(hits_, result.floor_hits);
  check_numerics(result, scale_before, hits_before, running.batch);
  count_accuracy(result, running.batch);
}

void Trainer::report(const StepResult& result, Progress& progress) {
  StepReport report;
  report.step = position_.step;
  report.loss = result.loss;
  if (position_.labels > 0) {
    report.accuracy =
        static_cast<double>(position_.correct) / static_cast<double>(position_.labels);
  }
  if (session_.state().find(kLossScale) != nullptr) report.loss_scale = result.loss_scale;
  report.skipped = position_.skipped;
  report.samples = result_.new_steps * options_.batch;
  report.data_wait = data_wait_;
  report.paused = paused_;
  result_.loss = report.loss;
  result_.accuracy = report.accuracy;
  progress.update(report);
}

int64_t Trainer::applied_updates() const {
  if (result_.new_steps > 0 && last_.applied_steps) return *last_.applied_steps;
  const bool counted = session_.state().find(kAppliedStep) != nullptr;
  return counted ? session_.applied_steps() : position_.step - position_.skipped;
}

void Trainer::log_step(const StepResult& result, Progress& progress) {
  const bool skipped = result.updated && !result.finite;
  const bool regular = position_.step == 1 || position_.step % options_.log_every == 0;
  if (!regular && !skipped && position_.step != total_steps()) return;
  // The epoch of the batch that was just trained on, from 1.
  const int64_t epoch = position_.data.epoch + (position_.data.sample > 0 ? 1 : 0);
  std::vector<Metric> line = {{"epoch", epoch}, {"loss", result.loss}};
  if (result_.accuracy) line.push_back({"accuracy", *result_.accuracy});
  if (is_scaled()) {
    line.push_back({"loss_scale", result.loss_scale});
  }
  if (guarded_ && result.updated) line.push_back({"finite", result.finite});
  line.push_back({"skipped", position_.skipped});
  line.push_back({"applied", applied_updates()});
  if (result.learning_rate) line.push_back({"lr", *result.learning_rate});
  if (result.grad_norm) line.push_back({"grad_norm", *result.grad_norm});
  line.push_back({"samples_per_second", progress.samples_per_second()});
  line.push_back({"data_wait", progress.data_wait_share()});
  metrics_->log(position_.step, line);
}

bool Trainer::due(const Every& every, int64_t step, const DataPosition& data) {
  if (step == 0) return false;
  if (every.steps > 0 && step % every.steps == 0) return true;
  return every.epochs > 0 && data.sample == 0 && data.epoch > 0 && data.epoch % every.epochs == 0;
}

void Trainer::evaluate(Progress& progress) {
  const auto evaluation = evaluator_->run(options_.stop);
  if (!evaluation) return;
  position_.evaluated = position_.step;
  result_.evaluation = evaluation;
  std::vector<Metric> line = {{"event", std::string("evaluation")}};
  if (evaluation->loss) line.push_back({"eval_loss", *evaluation->loss});
  if (evaluation->top1) {
    line.push_back({"eval_top1", *evaluation->top1});
    line.push_back({"eval_top5", *evaluation->top5});
  }
  line.push_back({"eval_samples", evaluation->samples});
  line.push_back({"eval_samples_without_loss", evaluation->samples_without_loss});
  line.push_back({"eval_seconds", evaluation->seconds});
  metrics_->log(position_.step, line);
  progress.note(evaluation_sentence(position_.step, *evaluation),
                evaluation_fields(position_.step, *evaluation));
}

/// A gradient can be NaN where the loss is not, and nothing else looks at the weights without a
/// finite check: a model that is lost must not take the place of the last whole one.
void Trainer::refuse_lost_state() {
  const std::string name = broken_.empty() ? find_nonfinite_state(session_.state()) : "";
  if (name.empty()) return;
  throw diverged(last_, fmt::format("\"{}\" holds a NaN or Inf at step {}, though the loss is {}",
                                    name, position_.step, loss_text(last_.loss)))
      .hint(
          "look for a Log, Sqrt, Div or Pow of what can be 0 in the model: its gradient is not "
          "finite there; or compile again, with a smaller learning rate (--lr)");
}

void Trainer::save(Progress& progress) {
  refuse_lost_state();
  metrics_->sync();
  SaveOptions options;
  options.keep_last = options_.keep;
  const SavedCheckpoint saved = save_checkpoint(
      options_.run_folder, make_checkpoint(session_, identity(), position_), options);
  for (const std::string& warning : saved.warnings) progress.note("warning: " + warning);
  saved_ = position_.step;
  result_.checkpoint = saved.folder;
}

/// What is due after a step, the checkpoint first: an evaluation can take long, and fail. After a
/// resume it does what the stop cut short.
void Trainer::housekeeping(Progress& progress) {
  const Clock::time_point begin = Clock::now();
  const bool end = position_.step >= total_steps();
  const auto is_due = [&](const Every& every) {
    return due(every, position_.step, position_.data);
  };
  const bool wanted = is_due(options_.evaluate) || (end && options_.evaluate_at_end);
  if ((is_due(options_.save) || end) && saved_ != position_.step) save(progress);
  if (evaluator_ != nullptr && wanted && position_.evaluated != position_.step && !wants_stop()) {
    evaluate(progress);
  }
  paused_ += seconds_between(begin, Clock::now());
}

void Trainer::train(Progress& progress) {
  const int64_t total = total_steps();
  Batcher batcher(data_, batcher_options(), position_.data);
  housekeeping(progress);
  started_ = position_.step;
  started_to_ = position_.data;
  scale_ = loss_scale();
  hits_ = session_.floor_hits();
  while (position_.step < total) {
    if (may_start()) {
      start(batcher, progress);
    } else if (session_.in_flight() > 0) {
      finish(progress);
    } else {
      break;
    }
  }
  if (saved_ != position_.step) save(progress);
}

/// Data that ends a run must not take with it what was trained: saves the last finished step, and
/// gives the error that says so. A step that broke off may have changed a part of the state.
Error Trainer::after_saving(const Error& error, Progress& progress) {
  std::string text;
  if (in_step_ && saved_ < 0) return error;
  if (in_step_) {
    text = fmt::format("the last checkpoint is that of step {}, {}", saved_,
                       result_.checkpoint.string());
  } else {
    try {
      if (saved_ != position_.step) save(progress);
      text = fmt::format("what was trained up to step {} is saved in {}", position_.step,
                         result_.checkpoint.string());
    } catch (const Error& failure) {
      text = fmt::format("what was trained up to step {} could not be saved ({})", position_.step,
                         failure.what());
    }
  }
  const std::string& hint = error.hint_text();
  return Error(error).hint(hint.empty() ? text : hint + "; " + text);
}

/// No update was finite.
void Trainer::refuse_skipped_run() {
  Error error = diverged(
      last_,
      fmt::format("none of the {} updates was finite: nothing was trained", position_.skipped));
  if (is_scaled()) {
    throw std::move(error)
        .expected("an update with finite gradients", fmt::format("loss scale {}", last_.loss_scale))
        .hint("train longer, or start with a smaller loss scale (--loss-scale)");
  }
  throw std::move(error)
      .expected("an update with finite gradients", "a NaN or Inf among the gradients of each")
      .hint(reason_from_the_start().value_or(
          "look at the range of the data (--normalize), and for a Log, Sqrt or Div of what can be "
          "0 in the model; or compile again, with the nodes that overflow in FP32 (--fp32-node)"));
}

/// A run that ends with a loss that is no number gives no model, whatever was skipped on the way.
void Trainer::refuse_diverged_end() {
  const auto& evaluation = result_.evaluation;
  const bool lost = evaluation && evaluation->loss && !std::isfinite(*evaluation->loss);
  if (!position_.diverged && !lost) return;
  throw diverged(last_, fmt::format("the loss{} is not finite at the end of the run, step {}",
                                    position_.diverged ? "" : " of the evaluation", position_.step))
      .expected("a finite loss", fmt::format("{} updates, and {} that were skipped",
                                             applied_updates(), position_.skipped))
      .hint(reason_from_the_start().value_or(
          "compile again, with a smaller learning rate (--lr), a warm-up (--warmup) or clipping "
          "(--grad-clip)"));
}

/// A run whose every update was skipped, or whose every loss was NaN, trained nothing.
void Trainer::refuse_idle_run() {
  if (result_.stopped) return;
  if (position_.skipped > 0 && session_.applied_steps() == 0) refuse_skipped_run();
  refuse_diverged_end();
  if (position_.step == 0 || lost_ < position_.step) return;
  // Any other NaN has ended the run where it came.
  throw diverged(
      last_, fmt::format("the loss of all {} steps was NaN: nothing was trained", position_.step))
      .expected("labels that count in the loss", "in every batch only labels that it ignores")
      .hint("look at the labels, and at the index that the loss ignores (--ignore-index)");
}

TrainResult Trainer::run(Progress& progress) {
  const Clock::time_point begin = Clock::now();
  try {
    train(progress);
  } catch (const Error& error) {
    progress.finish();
    if (error.code() != ErrorCode::kData || position_.step == 0) throw;
    throw after_saving(error, progress);
  } catch (...) {
    progress.finish();
    throw;
  }
  progress.finish();
  metrics_->sync();
  const bool evaluated =
      evaluator_ == nullptr || !options_.evaluate_at_end || position_.evaluated == position_.step;
  result_.stopped = position_.step < total_steps() || !evaluated;
  result_.steps = position_.step;
  result_.applied = applied_updates();
  refuse_idle_run();
  result_.skipped = position_.skipped;
  result_.step_seconds = median({step_seconds_.begin(), step_seconds_.end()});
  result_.seconds = seconds_between(begin, Clock::now());
  return result_;
}

}  // namespace halfnote
