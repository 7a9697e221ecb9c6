// Correct labels counted where the scores are: in the program of a training step on a device, and
// of an evaluation on any.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "compiler/ir/graph.h"
#include "runtime/train/labels/count_scores.h"

namespace halfnote {

/// Of the labels of a training step that count: to how many the highest score belongs.
struct Correct {
  int64_t top1 = 0, labels = 0;
};

/// Outputs that count_correct() adds; the last one for Places::kFive alone.
inline constexpr std::string_view kCorrectLabels = "halfnote.correct";
inline constexpr std::string_view kCountedLabels = "halfnote.counted";
inline constexpr std::string_view kLabelsAmongFive = "halfnote.among_five";

/// What becomes of the scores that were counted.
enum class Scores : uint8_t { kStay, kGo };
/// Which labels are counted: those with the highest score, and those among the five highest too.
enum class Places : uint8_t { kFirst, kFive };

/// Lets a graph whose dims are numbers count correct labels by itself, as count_scores() does for a
/// whole batch, of the scores as they were before they were widened and the padding of their
/// classes was cut off. With kGo they are no output any more, and what made them for that goes.
/// Gives the shape of the scores as they were shown. Nothing, and nothing is changed, where the
/// shapes do not belong together or the scores are no floats.
std::optional<Shape> count_correct(Graph& graph, const Classification& kind, Scores scores,
                                   Places places);

/// Takes the outputs of a model out of its training graph, but for the first one, the loss, and the
/// scores.
void drop_other_outputs(Graph& graph, const Graph& model, const Classification* kind);
/// Takes all outputs out of an evaluation but for the first one, the loss, and the scores.
void keep_loss_and_scores(Graph& graph, const Classification* kind);

}  // namespace halfnote
