// Correct labels of a training step counted where its scores are, for devices with memory of their
// own.
#pragma once

#include <cstdint>
#include <string_view>

#include "compiler/ir/graph.h"
#include "runtime/train/labels/classification.h"

namespace halfnote {

/// Of the labels of a training step that count: to how many the highest score belongs.
struct Correct {
  int64_t top1 = 0, labels = 0;
};

/// Outputs that count_correct() adds.
inline constexpr std::string_view kCorrectLabels = "halfnote.correct";
inline constexpr std::string_view kCountedLabels = "halfnote.counted";

/// What becomes of the scores that were counted.
enum class Scores : uint8_t { kStay, kGo };

/// Lets a training graph whose dims are numbers count them by itself, of the scores as they were
/// before they were widened and the padding of their classes was cut off. With kGo they are no
/// output any more, and what made them for that goes. Says whether it does: not where the shapes do
/// not belong together; then nothing is changed.
bool count_correct(Graph& graph, const Classification& kind, Scores scores = Scores::kStay);

/// Takes the outputs of a model out of its training graph, but for the first one, the loss, and the
/// scores.
void drop_other_outputs(Graph& graph, const Graph& model, const Classification* kind);

}  // namespace halfnote
