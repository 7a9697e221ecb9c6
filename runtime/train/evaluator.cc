#include "runtime/train/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "passes/train/step.h"
#include "runtime/train/labels/named_sample.h"
#include "runtime/train/progress.h"

namespace halfnote {
namespace {

const Graph& evaluation_graph(const Session& session) {
  for (const TrainingStep& step : session.model().training) {
    if (step.name == kEvaluateName) return step.graph;
  }
  throw Error(ErrorCode::kModel, "the artifact has no evaluation step")
      .at({session.model().source, {}, {}});
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

bool has_symbolic_batch(const Session& session, const InputMap& map) {
  for (const auto& [name, type] : session.inputs()) {
    const auto index = find_input(map, name);
    if (index && map.is_whole(*index)) continue;
    const auto axis = static_cast<size_t>(index ? map.input(*index).batch_axis : 0);
    if (!type.shape || type.shape->size() <= axis || (*type.shape)[axis].known()) return false;
  }
  return true;
}

std::optional<size_t> find_input(const InputMap& map, std::string_view name) {
  for (size_t i = 0; i < map.size(); ++i) {
    if (map.input(i).name == name) return i;
  }
  return std::nullopt;
}

std::vector<CountedLabels> find_counted_labels(const Graph& graph, const InputMap& map) {
  std::vector<CountedLabels> found;
  for (CountedLabels& labels : find_counted_labels(graph)) {
    const auto input = find_input(map, labels.name);
    if (!input) continue;
    labels.input = *input;
    found.push_back(std::move(labels));
  }
  return found;
}

bool counts_nothing(const std::vector<CountedLabels>& labels, const Batch& batch) {
  return std::any_of(labels.begin(), labels.end(), [&](const CountedLabels& each) {
    return count_labels(each, batch.inputs[each.input]) == 0;
  });
}

void check_classes(const Classification& kind, const Session& session, std::string_view step,
                   const InputMap& map, size_t labels) {
  const auto scores = session.scores_shape(step, kind.scores);
  const Program* program = session.program(step);
  if (!scores || program == nullptr) return;
  const auto input = std::ranges::find(program->inputs, kind.labels, &ProgramOperand::name);
  if (input == program->inputs.end()) return;
  const auto layout = score_layout(kind, *scores, input->shape);
  const DType stored = map.field(labels).dtype();
  if (!layout || stored == DType::kBool) return;
  check_labels(map.data(), map.field(labels), layout->classes, kind.ignore_index);
}

struct Evaluator::Sums {
  double loss = 0;
  int64_t loss_weight = 0;
  ScoreCounts counts;
  bool scored = true;  // every batch gave scores and labels that fit together
};

Evaluator::Evaluator(Session& session, InputMap map, int64_t batch)
    : session_(session),
      map_(std::move(map)),
      batch_(batch),
      tail_(has_symbolic_batch(session, map_) ? Tail::kShort : Tail::kPad) {
  const Graph& graph = evaluation_graph(session);
  for (const ValueId input : graph.inputs()) {
    const std::string& name = graph.value(input).name;
    const auto index = find_input(map_, name);
    if (!index) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("no data for input \"{}\" of the evaluation", name))
          .at({map_.data().origin(), {}, {}});
    }
    order_.push_back(*index);
  }
  counted_ = find_counted_labels(graph, map_);
  kind_ = find_classification(graph);
  const auto labels = kind_ ? find_input(map_, kind_->labels) : std::nullopt;
  if (!labels) kind_.reset();
  if (!labels) return;
  labels_ = *labels;
  kind_->batch_axis = map_.input(labels_).batch_axis;
}

std::vector<Shape> Evaluator::shapes(int64_t rows) const {
  std::vector<Shape> shapes;
  for (const size_t input : order_) shapes.push_back(map_.batch_shape(input, rows));
  return shapes;
}

Evaluates Evaluator::what() const {
  const bool fills_up = tail_ == Tail::kPad && map_.data().size() % batch_ != 0;
  return fills_up ? Evaluates::kCountsAndScores : Evaluates::kCounts;
}

void Evaluator::prepare() {
  BatcherOptions alone = batcher_options();
  alone.prefetch = 0;
  Batcher(map_, alone);  // refuses data without samples
  const int64_t samples = map_.data().size();
  const int64_t rest = samples % batch_;
  if (tail_ == Tail::kShort && rest > 0) session_.prepare_evaluation(shapes(rest), what());
  if (tail_ == Tail::kPad || samples >= batch_) session_.prepare_evaluation(shapes(batch_), what());
  if (kind_) check_classes(*kind_, session_, kEvaluateName, map_, labels_);
}

size_t Evaluator::batch_bytes() const {
  const int64_t all = (map_.data().size() + batch_ - 1) / batch_;
  const int64_t held = std::min<int64_t>(all, batcher_options().held());
  return map_.batch_bytes(batch_) * static_cast<size_t>(held);
}

EvaluatedBatch Evaluator::evaluate(const Batch& batch) {
  std::vector<Tensor> inputs;
  for (const size_t input : order_) inputs.push_back(batch.inputs[input]);
  try {
    return session_.evaluate_batch(inputs, what());
  } catch (const Error& error) {
    name_sample(error, {evaluation_graph(session_), order_}, map_, batch);
    throw;
  }
}

std::optional<ScoreCounts> Evaluator::count(const EvaluatedBatch& found, const Batch& batch) const {
  if (!kind_) return std::nullopt;
  const bool padded = batch.count < batch.rows;
  if (!padded && found.counts) return found.counts;
  return count_scores(*kind_, session_.evaluated_scores(), batch.inputs[labels_],
                      map_.rows_of(labels_, batch.count),
                      padded && kind_->plain_mean ? ScoreLoss::kCompute : ScoreLoss::kSkip,
                      session_.threads());
}

int64_t Evaluator::weight_of(const Batch& batch, const std::optional<ScoreCounts>& counts) const {
  if (counts && kind_->plain_mean) return counts->labels;
  if (counted_.size() != 1) return batch.count;
  return count_labels(counted_[0], batch.inputs[counted_[0].input]);
}

void Evaluator::add_batch(const Batch& batch, Sums& sums) {
  const EvaluatedBatch found = evaluate(batch);
  const std::optional<ScoreCounts> counts = count(found, batch);
  const bool padded = batch.count < batch.rows;
  sums.scored &= counts.has_value();
  if (counts) sums.counts += *counts;
  if (!padded) {
    const double loss = found.loss;
    const int64_t weight =
        std::isnan(loss) && counts_nothing(counted_, batch) ? 0 : weight_of(batch, counts);
    if (weight > 0) sums.loss += loss * static_cast<double>(weight);
    sums.loss_weight += weight;
  } else if (counts && kind_->plain_mean) {
    sums.loss += counts->loss;
    sums.loss_weight += counts->labels;
  }
}

std::optional<EvaluationResult> Evaluator::run(const std::function<bool()>& stop) {
  const auto begin = std::chrono::steady_clock::now();
  session_.drop_outputs();
  Batcher batcher(map_, batcher_options());
  Sums sums;
  EvaluationResult result;
  for (Batch batch; batcher.next(batch);) {
    if (stop && stop()) return std::nullopt;
    add_batch(batch, sums);
    session_.drop_outputs();  // the last batch may be of another program
    result.samples += batch.count;
    const bool padded = batch.count < batch.rows;
    const bool plain = kind_ && kind_->plain_mean && sums.scored;
    if (padded && !plain) result.samples_without_loss += batch.count;
  }
  if (sums.loss_weight > 0) result.loss = sums.loss / static_cast<double>(sums.loss_weight);
  if (kind_ && sums.scored && sums.counts.labels > 0) {
    const auto labels = static_cast<double>(sums.counts.labels);
    result.top1 = static_cast<double>(sums.counts.top1) / labels;
    result.top5 = static_cast<double>(sums.counts.top5) / labels;
  }
  result.seconds = seconds_since(begin);
  return result;
}

std::string evaluation_sentence(int64_t step, const EvaluationResult& evaluation) {
  std::string text = fmt::format("evaluation after step {}:", step);
  if (evaluation.loss) text += " loss " + loss_text(*evaluation.loss);
  const bool told = evaluation.samples_without_loss < evaluation.samples;
  if (!evaluation.loss && told) text += " no loss, since every label is ignored";
  if (evaluation.top1) {
    text += fmt::format(" top-1 {:.2f} % top-5 {:.2f} %", 100 * *evaluation.top1,
                        100 * *evaluation.top5);
  }
  text += fmt::format(" ({} samples, {})", evaluation.samples, duration_text(evaluation.seconds));
  if (evaluation.samples_without_loss > 0) {
    text += fmt::format("; the loss leaves out the last {} samples, which do not fill a batch",
                        evaluation.samples_without_loss);
  }
  return text;
}

std::string evaluation_fields(int64_t step, const EvaluationResult& evaluation) {
  std::string text = fmt::format("step={}", step);
  if (evaluation.loss) text += " evaluation_loss=" + loss_text(*evaluation.loss);
  if (evaluation.top1) {
    text += fmt::format(" evaluation_top-1={:.4f} evaluation_top-5={:.4f}", *evaluation.top1,
                        *evaluation.top5);
  }
  text += fmt::format(" evaluation_samples={} evaluation_time={}", evaluation.samples,
                      duration_text(evaluation.seconds));
  if (evaluation.samples_without_loss > 0) {
    text += fmt::format(" evaluation_samples_without_loss={}", evaluation.samples_without_loss);
  }
  return text;
}

}  // namespace halfnote
