#include "runtime/train/labels/count_correct.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/device/margins.h"

namespace halfnote {
namespace {

/// Does it give each f16 or bf16 as the f32 that it is?
bool widens(const Graph& graph, NodeId id) {
  return is_cast(graph.node(id)) && is_16bit_float(graph.value(graph.input(id, 0)).type.dtype) &&
         graph.value(graph.output(id)).type.dtype == DType::kF32;
}

bool cuts_padding(const Graph& graph, NodeId id) {
  if (!is_standard(graph, id, "Slice")) return false;
  const auto margins = margins_of_slice(graph, id);
  return margins && margins->only_behind_last();
}

/// Scores, and what was left out between them and those that an output shows.
struct FirstScores {
  ValueId value;
  int64_t width = 0;  // of a line: the classes, and padding behind them
  std::set<NodeId> passed;
};

FirstScores find_first(const Graph& graph, ValueId scores, const ScoreLayout& layout) {
  FirstScores found{scores, layout.classes, {}};
  while (true) {
    const NodeId id = graph.value(found.value).producer;
    if (!id.valid()) return found;
    // Where classes are not the last dim, only casts are looked through.
    const bool last = layout.inner == 1 && known_shape(graph, found.value)->back() == found.width;
    const bool cuts = last && found.width == layout.classes && cuts_padding(graph, id);
    if (!widens(graph, id) && !cuts && !(last && keeps_last_dim(graph, id))) return found;
    found.passed.insert(id);
    found.value = graph.input(id, 0);
    if (cuts) found.width = known_shape(graph, found.value)->back();
  }
}

template <class List>
ValueId named(const Graph& graph, const List& values, std::string_view name) {
  for (const ValueId value : values) {
    if (graph.value(value).name == name) return value;
  }
  return {};
}

InsertPoint behind(const Graph& graph, ValueId value) {
  const NodeId producer = graph.value(value).producer;
  if (producer.valid()) return graph.after(producer);
  const NodeId first = graph.first(graph.main());
  return first.valid() ? graph.before(first) : graph.end();
}

template <class Keep>
void keep_outputs(Graph& graph, const Keep& keep) {
  std::vector<ValueId> kept;
  std::ranges::copy_if(graph.outputs(), std::back_inserter(kept), keep);
  graph.set_outputs(graph.main(), std::move(kept));
}

bool is_loss_or_scores(const Graph& graph, ValueId output, const Classification* kind) {
  if (output == graph.outputs().front()) return true;
  return kind != nullptr && graph.value(output).name == kind->scores;
}

}  // namespace

std::optional<Shape> count_correct(Graph& graph, const Classification& kind, Scores scores,
                                   Places places) {
  const ValueId shown = named(graph, graph.outputs(), kind.scores);
  const ValueId labels = named(graph, graph.inputs(), kind.labels);
  if (!shown.valid() || !labels.valid()) return std::nullopt;
  const auto of_scores = known_shape(graph, shown), of_labels = known_shape(graph, labels);
  if (!of_scores || !of_labels) return std::nullopt;
  const auto layout = score_layout(kind, *of_scores, *of_labels);
  if (!layout || layout->outer * layout->inner * layout->classes == 0) return std::nullopt;

  const FirstScores first = find_first(graph, shown, *layout);
  const DType dtype = graph.value(first.value).type.dtype;
  if (!is_16bit_float(dtype) && dtype != DType::kF32 && dtype != DType::kF64) return std::nullopt;
  Builder b(graph, behind(graph, first.value), infer_node);
  b.set_role(Role::kLoss);
  const Expr lines =
      b.reshape(b.value(first.value), b.ints({layout->outer, first.width, layout->inner}));
  Expr wanted = b.reshape(b.value(labels), b.ints({layout->outer, layout->inner}));
  if (wanted.dtype() != DType::kI32) wanted = b.cast(wanted, DType::kI64);
  Attributes attributes;
  if (kind.ignore_index) attributes.set("ignore_index", *kind.ignore_index);
  if (first.width != layout->classes) attributes.set("classes", layout->classes);
  const std::vector<Expr> counts =
      b.ops("CountCorrect", {lines, wanted}, places == Places::kFive ? 3 : 2, attributes,
            kHalfnoteDomain);
  const std::string_view names[] = {kCorrectLabels, kCountedLabels, kLabelsAmongFive};
  for (size_t i = 0; i < counts.size(); ++i) {
    graph.rename(counts[i].id, std::string(names[i]));
    graph.add_output(graph.main(), counts[i].id);
  }
  if (scores == Scores::kGo) {
    keep_outputs(graph, [&](ValueId id) { return id != shown; });
    erase_dead(graph, [&](const Graph&, NodeId id) { return first.passed.contains(id); });
  }
  return of_scores;
}

void drop_other_outputs(Graph& graph, const Graph& model, const Classification* kind) {
  keep_outputs(graph, [&](ValueId id) {
    const bool of_model = named(model, model.outputs(), graph.value(id).name).valid();
    return !of_model || is_loss_or_scores(graph, id, kind);
  });
}

void keep_loss_and_scores(Graph& graph, const Classification* kind) {
  keep_outputs(graph, [&](ValueId id) { return is_loss_or_scores(graph, id, kind); });
}

}  // namespace halfnote
