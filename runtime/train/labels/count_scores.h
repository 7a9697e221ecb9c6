// How many labels have the highest score, or one of the five highest, counted on the host.
#pragma once

#include <cstdint>
#include <optional>

#include "base/tensor.h"
#include "runtime/train/labels/classification.h"

namespace halfnote {

/// Where C is in the scores: (outer, classes, inner), label i belonging to outer i / inner and
/// inner i % inner. Nothing if the shapes do not belong together.
struct ScoreLayout {
  int64_t outer = 0, classes = 0, inner = 0;
};
std::optional<ScoreLayout> score_layout(const Classification& kind, const Shape& scores,
                                        const Shape& labels);

/// Sums over labels; ignored ones are not counted.
struct ScoreCounts {
  int64_t labels = 0, top1 = 0, top5 = 0;
  double loss = 0;  // -log softmax(scores)[label], if asked for

  ScoreCounts& operator+=(const ScoreCounts& other);
};

enum class ScoreLoss { kSkip, kCompute };

/// Counts the first `rows` rows. A label is in the top k if fewer than k classes score higher
/// (equal scores count for the lower class; NaN is never right, and above all others). Nothing if
/// the shapes do not belong together or a label that counts is no class. The same on any number of
/// threads.
std::optional<ScoreCounts> count_scores(const Classification& kind, const Tensor& scores,
                                        const Tensor& labels, int64_t rows, ScoreLoss loss,
                                        int threads = 1);

}  // namespace halfnote
