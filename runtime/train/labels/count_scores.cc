#include "runtime/train/labels/count_scores.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/loss/rank.h"

namespace halfnote {
namespace {

Shape without(const Shape& shape, size_t axis) {
  Shape rest = shape;
  rest.erase(rest.begin() + static_cast<Shape::difference_type>(axis));
  return rest;
}

ScoreLayout layout_at(const Shape& scores, size_t axis) {
  const auto at = scores.begin() + static_cast<Shape::difference_type>(axis);
  return {element_count({scores.begin(), at}), *at, element_count({at + 1, scores.end()})};
}

template <class T>
double negative_log_softmax(const T* scores, int64_t label, int64_t classes, int64_t stride) {
  const auto score = [&](int64_t c) { return static_cast<double>(cpu::load(scores[c * stride])); };
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < classes; ++c) highest = std::max(highest, score(c));
  double sum = 0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(score(c) - highest);
  return std::log(sum) + highest - score(label);
}

/// The labels of a batch that count.
struct BatchLabels {
  const Tensor& labels;
  std::optional<int64_t> ignored;
  int64_t each = 1;   // labels of a sample that follow each other
  int64_t batch = 1;  // samples
  int64_t rows = 0;   // of them: those that count

  bool counts(int64_t i) const {
    return i / each % batch < rows && !(ignored && labels.at_as_int(i) == *ignored);
  }
};

BatchLabels labels_of(const Classification& kind, const Shape& scores, const Tensor& labels,
                      int64_t rows) {
  // Either may have flattened samples and positions into its first dim.
  const Shape& shape = labels.shape();
  const bool first = kind.batch_axis == 0;
  const int64_t batch = std::max<int64_t>(
      first ? std::min(scores[0], shape[0]) : shape[static_cast<size_t>(kind.batch_axis)], 1);
  const int64_t each = first ? labels.size() / batch
                             : element_count({shape.begin() + kind.batch_axis + 1, shape.end()});
  return {labels, kind.ignore_index, std::max<int64_t>(each, 1), batch, rows};
}

/// Nothing if a label is outside the classes.
template <class T>
std::optional<ScoreCounts> count_typed(const Classification& kind, const T* scores,
                                       const ScoreLayout& layout, const BatchLabels& of,
                                       ScoreLoss loss, int threads) {
  const int64_t count = of.labels.size(), classes = layout.classes;
  std::vector<double> losses(loss == ScoreLoss::kCompute ? static_cast<size_t>(count) : 0);
  std::atomic<int64_t> counted = 0, top1 = 0, top5 = 0;
  std::atomic<bool> outside = false;
  const int64_t grain = std::max<int64_t>(1, cpu::kElementGrain / std::max<int64_t>(1, classes));
  cpu::parallel_blocks(count, grain, threads, [&](int64_t begin, int64_t end) {
    int64_t all = 0, first = 0, near = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (!of.counts(i)) continue;
      const int64_t label = of.labels.at_as_int(i);
      if (label < 0 || label >= classes) {
        outside = true;
        return;
      }
      const T* at = scores + i / layout.inner * classes * layout.inner + i % layout.inner;
      const int64_t rank = cpu::rank_of(at, classes, layout.inner, label, cpu::kTopFive);
      ++all;
      first += rank < 1 ? 1 : 0;
      near += rank < cpu::kTopFive ? 1 : 0;
      if (losses.empty()) continue;
      losses[static_cast<size_t>(i)] =
          kind.probabilities ? -std::log(static_cast<double>(cpu::load(at[label * layout.inner])))
                             : negative_log_softmax(at, label, classes, layout.inner);
    }
    counted += all;
    top1 += first;
    top5 += near;
  });
  if (outside) return std::nullopt;
  return ScoreCounts{counted, top1, top5, std::accumulate(losses.begin(), losses.end(), 0.0)};
}

}  // namespace

std::optional<ScoreLayout> score_layout(const Classification& kind, const Shape& scores,
                                        const Shape& labels) {
  if (scores.size() < 2 || labels.empty()) return std::nullopt;
  const size_t last = scores.size() - 1;
  const bool fits_first = without(scores, 1) == labels;
  const bool fits_last = without(scores, last) == labels;
  if (fits_first && !(kind.class_last && fits_last)) return layout_at(scores, 1);
  if (fits_last) return layout_at(scores, last);
  // (N, T, C) scores against (N·T) labels, or labels (N, 1).
  const ScoreLayout flat = layout_at(scores, last);
  if (flat.outer == element_count(labels)) return flat;
  return std::nullopt;
}

ScoreCounts& ScoreCounts::operator+=(const ScoreCounts& other) {
  labels += other.labels;
  top1 += other.top1;
  top5 += other.top5;
  loss += other.loss;
  return *this;
}

std::optional<ScoreCounts> count_scores(const Classification& kind, const Tensor& scores,
                                        const Tensor& labels, int64_t rows, ScoreLoss loss,
                                        int threads) {
  const auto layout = score_layout(kind, scores.shape(), labels.shape());
  if (!layout) return std::nullopt;
  const BatchLabels of = labels_of(kind, scores.shape(), labels, rows);
  const auto count = [&]<class T>(const Tensor& typed) {
    return count_typed(kind, typed.data<T>().data(), *layout, of, loss, threads);
  };
  switch (scores.dtype()) {
    case DType::kF64:
      return count.operator()<double>(scores);
    case DType::kF16:
      return count.operator()<Half>(scores);
    case DType::kBF16:
      return count.operator()<BFloat16>(scores);
    case DType::kF32:
      return count.operator()<float>(scores);
    default:
      return count.operator()<float>(scores.cast_to(DType::kF32));
  }
}

}  // namespace halfnote
