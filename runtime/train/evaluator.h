// Loss and accuracy over a whole data set, in inference form. No sample is left out: where the
// batch is symbolic the last one is planned with its own size; where it is fixed the last one is
// filled up and only its real rows count.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "runtime/train/data/batcher.h"
#include "runtime/train/labels/count_scores.h"
#include "runtime/train/session.h"

namespace halfnote {

struct EvaluationResult {
  /// Mean over the labels that count (over samples where the loss has no mean over labels, or
  /// several); nothing if no batch could tell it.
  std::optional<double> loss;
  int64_t samples = 0;
  std::optional<double> top1, top5;  // shares; nothing where scores or labels are not to be found
  /// Samples of a filled-up batch whose loss cannot be told from that of the filling: they count
  /// for accuracy, not for the mean loss.
  int64_t samples_without_loss = 0;
  double seconds = 0;
};

/// What is said of an evaluation after a step: a sentence, and the same for plain lines, with the
/// keys of the summary at the end of the run.
std::string evaluation_sentence(int64_t step, const EvaluationResult& evaluation);
std::string evaluation_fields(int64_t step, const EvaluationResult& evaluation);

/// May the inputs that are not whole come with any number of rows?
bool has_symbolic_batch(const Session& session, const InputMap& map);

/// The counted labels of the graph that the map feeds.
std::vector<CountedLabels> find_counted_labels(const Graph& graph, const InputMap& map);
/// Does a loss over these labels count none of the batch? The mean over no label is NaN, as
/// PyTorch's; the gradients are 0.
bool counts_nothing(const std::vector<CountedLabels>& labels, const Batch& batch);

class Evaluator {
 public:
  /// `map` feeds the session's inputs; the session must outlive the evaluator. Throws Error(kUsage)
  /// when the evaluation step reads an input that the training step lacks.
  Evaluator(Session& session, InputMap map, int64_t batch);

  /// Plans all signatures. Throws Error(kData) for labels outside the classes.
  void prepare();
  /// Nothing if `stop` said so between two batches.
  std::optional<EvaluationResult> run(const std::function<bool()>& stop = {});

  const InputMap& map() const { return map_; }
  /// What a run takes for batches and results, beside the session's memory.
  size_t batch_bytes() const;

 private:
  struct Sums;
  std::vector<Shape> shapes(int64_t rows) const;
  BatcherOptions batcher_options() const { return {batch_, 0, false, tail_, 1}; }
  /// What programs give: scores only where a batch is filled up, which the host counts.
  Evaluates what() const;
  EvaluatedBatch evaluate(const Batch& batch);
  std::optional<ScoreCounts> count(const EvaluatedBatch& found, const Batch& batch) const;
  /// What the loss of a batch is the mean of: the labels that count where it has one mean over
  /// labels, else samples.
  int64_t weight_of(const Batch& batch, const std::optional<ScoreCounts>& counts) const;
  void add_batch(const Batch& batch, Sums& sums);

  Session& session_;
  InputMap map_;
  int64_t batch_;
  Tail tail_;
  std::vector<size_t> order_;  // input of the evaluation step -> input of the map
  std::optional<Classification> kind_;
  size_t labels_ = 0;  // input of the map that holds the labels
  std::vector<CountedLabels> counted_;
};

/// Throws Error(kData) naming the sample if a label is outside the classes of the scores in the
/// program of a step. Checks nothing where the two do not belong together.
void check_classes(const Classification& kind, const Session& session, std::string_view step,
                   const InputMap& map, size_t labels);

/// Index of the map's input of this name; nothing if there is none.
std::optional<size_t> find_input(const InputMap& map, std::string_view name);

}  // namespace halfnote
