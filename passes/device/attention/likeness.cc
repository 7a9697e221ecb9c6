#include "passes/device/attention/likeness.h"

#include <vector>

#include "compiler/ir/query.h"
#include "passes/device/attention/match.h"

namespace halfnote {
namespace {

constexpr size_t kMostNodes = 32;  // on either side of Softmax

/// Goes from Softmax over values with as many elements as the scores.
class Search {
 public:
  Search(const Graph& graph, const Shape& scores) : graph_(graph), count_(element_count(scores)) {}

  /// The product that gives the scores.
  NodeId product_above(ValueId scores) const {
    std::vector<ValueId> open = {scores};
    for (size_t i = 0; i < open.size() && i < kMostNodes; ++i) {
      const NodeId id = producer(graph_, open[i]);
      if (!id.valid() || graph_.node(id).op == "Softmax") continue;
      if (product_flags(graph_, id)) {
        if (reads_computed(id)) return id;
        continue;
      }
      for (const ValueId x : graph_.inputs(id)) {
        if (counts(x)) open.push_back(x);
      }
    }
    return {};
  }

  /// The product with V.
  NodeId product_below(ValueId probabilities) const {
    std::vector<ValueId> open = {probabilities};
    for (size_t i = 0; i < open.size() && i < kMostNodes; ++i) {
      for (const Use& use : graph_.uses(open[i])) {
        if (!use.by_node() || graph_.node(use.node()).role == Role::kBackward) continue;
        if (product_flags(graph_, use.node())) {
          if (use.slot == 0 && reads_computed(use.node())) return use.node();
          continue;
        }
        for (const ValueId y : graph_.outputs(use.node())) {
          if (counts(y)) open.push_back(y);
        }
      }
    }
    return {};
  }

 private:
  bool counts(ValueId value) const {
    const auto shape = known_shape(graph_, value);
    return shape && element_count(*shape) == count_;
  }

  /// A layer's product reads a parameter.
  bool reads_computed(NodeId product) const {
    for (const ValueId x : graph_.inputs(product)) {
      if (graph_.value(before_casts(graph_, x)).kind == ValueKind::kInitializer) return false;
    }
    return true;
  }

  const Graph& graph_;
  int64_t count_;
};

}  // namespace

std::optional<AttentionSize> size_of_likely_attention(const Graph& graph, NodeId softmax) {
  const auto scores = known_shape(graph, graph.input(softmax, 0));
  if (!scores || scores->size() < 2 || element_count(*scores) == 0) return std::nullopt;
  const auto rank = static_cast<int64_t>(scores->size());
  const int64_t axis = graph.node(softmax).attributes.get_int("axis", -1);
  if (axis != -1 && axis != rank - 1) return std::nullopt;
  const Search search(graph, *scores);
  const NodeId above = search.product_above(graph.input(softmax, 0));
  const NodeId below = search.product_below(graph.output(softmax));
  if (!above.valid() || !below.valid()) return std::nullopt;
  const auto y = known_shape(graph, graph.output(below));
  if (!y || y->empty()) return std::nullopt;
  AttentionSize size;
  size.queries = (*scores)[scores->size() - 2];
  size.keys = scores->back();
  size.batches = element_count(*scores) / (size.queries * size.keys);
  size.key_size = known_shape(graph, graph.input(above, 0))->back();
  size.value_size = y->back();
  size.dtype = graph.value(graph.output(above)).type.dtype;
  return size;
}

void LeftAttention::add(const Graph& graph, NodeId softmax, const std::string& why) {
  const auto [found, added] = places_.emplace(why, Place{graph.label(softmax)});
  if (!added) ++found->second.more;
}

namespace {
std::string times(int count) { return count == 1 ? "once" : std::to_string(count) + " times"; }
}  // namespace

void LeftAttention::tell(PassContext& context) const {
  for (const auto& [why, place] : places_) {
    const std::string also =
        place.more == 0 ? std::string() : ", here and " + times(place.more) + " more";
    context.note(place.first, "attention is left as it is" + also + ": " + why);
  }
}

}  // namespace halfnote
