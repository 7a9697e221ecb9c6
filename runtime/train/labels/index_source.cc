#include "runtime/train/labels/index_source.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/core/evaluate.h"
#include "runtime/train/labels/classification.h"

namespace halfnote {

/// Builds the way backwards. Values are ids of its graph: absent operands are invalid ones, and
/// nothing is what the way cannot lead through.
class WayFinder {
 public:
  using Found = std::optional<ValueId>;

  WayFinder(const Graph& graph, IndexSource& source) : graph_(graph), source_(source) {}

  void find(ValueId indices) {
    const Found places = places_of(indices);
    const Found numbers = places ? numbers_of(indices) : std::nullopt;
    if (!numbers) {
      way() = Graph();
      return;
    }
    for (const ValueId end : {*numbers, *places})
      way().add_output(way().main(), add({"Identity", {end}}, 1));
  }

 private:
  static constexpr int kMostNodes = 128;  // of both ways

  struct Numbers {
    ValueId id;
    bool read_data = false;
  };
  using Words = std::span<const std::string_view>;

  Graph& way() { return source_.way_; }

  static bool is_one_of(const Node& node, Words ops) {
    return node.domain.empty() && std::ranges::find(ops, std::string_view(node.op)) != ops.end();
  }
  /// Elements of operand 0 take other places, and keep their values.
  static bool moves(const Node& node) {
    static constexpr std::array<std::string_view, 12> kOps = {
        "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
        "Slice",    "Expand",  "Tile",    "Split",   "Gather",    "GatherElements"};
    return is_one_of(node, kOps);
  }
  /// An element of the result follows from the one of operand 0 at its place.
  static bool converts(const Node& node) {
    static constexpr std::array<std::string_view, 5> kOps = {"Cast", "Neg", "Abs", "Clip", "Floor"};
    return is_one_of(node, kOps);
  }
  static bool calculates(const Node& node) {
    static constexpr std::array<std::string_view, 5> kOps = {"Add", "Sub", "Mul", "Div", "Mod"};
    return is_one_of(node, kOps);
  }
  /// Makes what the others are told: shapes, places to begin, conditions.
  static bool tells(const Node& node) {
    static constexpr std::array<std::string_view, 14> kOps = {
        "Shape",      "Size",     "ConstantOfShape", "Range",
        "Equal",      "Less",     "LessOrEqual",     "Not",
        "And",        "Or",       "Greater",         "GreaterOrEqual",
        "ReduceProd", "ReduceMax"};
    return is_one_of(node, kOps);
  }

  Found stop(const std::string& label, const std::string& op) {
    source_.stopped_at_ = "\"" + label + "\" (" + op + ")";
    return std::nullopt;
  }
  Found stop(NodeId id) { return stop(graph_.label(id), graph_.node(id).op); }

  /// The producer of a value; its body's node where it has none, which ends the way.
  Found stop_at(ValueId value) {
    const Value& data = graph_.value(value);
    if (data.producer.valid()) return stop(data.producer);
    const NodeId owner = graph_.region_owner(data.region);
    return owner.valid() ? stop(owner) : stop(data.name, "a weight");
  }

  ValueId add(NodeSpec spec, size_t outputs, size_t index = 0) {
    return way().output(way().create(std::move(spec), static_cast<int>(outputs), way().end()),
                        index);
  }
  ValueId constant(Tensor tensor) {
    return way().add_initializer(way().unique_name("constant"), std::move(tensor));
  }

  /// An input of the graph, and the places of its elements.
  std::optional<std::pair<ValueId, ValueId>> input(ValueId value) {
    const auto inputs = graph_.inputs();
    const auto at = std::ranges::find(inputs, value);
    if (at == inputs.end()) return std::nullopt;
    const auto [known, fresh] = fed_.try_emplace(value);
    if (fresh) {
      const ValueType& type = graph_.value(value).type;
      ValueType places = type;
      places.dtype = DType::kI64;
      source_.inputs_.push_back(static_cast<size_t>(at - inputs.begin()));
      known->second.first = way().add_input(way().main(), way().unique_name("fed"), type);
      known->second.second = way().add_input(way().main(), way().unique_name("places"), places);
    }
    return known->second;
  }

  /// A copy of the node that makes `value`, with these operands.
  ValueId copy(ValueId value, std::vector<ValueId> operands) {
    const NodeId id = graph_.value(value).producer;
    const Node& node = graph_.node(id);
    return add({node.op, std::move(operands), node.attributes}, graph_.outputs(id).size(),
               graph_.value(value).output);
  }

  Found numbers_of(ValueId value) {
    if (!value.valid()) return ValueId{};
    const bool before = std::exchange(reads_data_, false);
    auto known = numbers_.find(value);
    if (known == numbers_.end()) {
      const Found made = make_numbers(value);
      if (!made) return std::nullopt;
      known = numbers_.emplace(value, Numbers{*made, reads_data_}).first;
    }
    reads_data_ = before || known->second.read_data;
    return known->second.id;
  }

  Found make_numbers(ValueId value) {
    if (const Tensor* known = graph_.constant(value)) return constant(*known);
    if (const auto fed = input(value)) {
      reads_data_ = true;
      return fed->first;
    }
    const NodeId id = graph_.value(value).producer;
    if (!id.valid() || ++nodes_ > kMostNodes) return stop_at(value);
    if (in_order_views_.contains(value)) return numbers_of(graph_.input(id, 0));
    const Node& node = graph_.node(id);
    const bool joins = node.domain.empty() && (node.op == "Concat" || node.op == "Where");
    if (!joins && !moves(node) && !converts(node) && !calculates(node) && !tells(node))
      return stop(id);
    std::vector<ValueId> operands;
    for (const ValueId operand : graph_.inputs(id)) {
      const Found made = numbers_of(operand);
      if (!made) return std::nullopt;
      operands.push_back(*made);
    }
    if (node.op == "Shape" || node.op == "Size") reads_data_ = false;
    return copy(value, std::move(operands));
  }

  Found places_of(ValueId value) {
    if (const Tensor* known = graph_.constant(value))
      return constant(Tensor::full(DType::kI64, known->shape(), -1));
    if (const auto fed = input(value)) return fed->second;
    const NodeId id = graph_.value(value).producer;
    if (!id.valid() || ++nodes_ > kMostNodes) return stop_at(value);
    const Node& node = graph_.node(id);
    source_.in_order_ &= keeps_order(node);
    if (converts(node)) {
      source_.as_fed_ &= keeps_numbers(id);
      return places_of(graph_.input(id, 0));
    }
    if (calculates(node)) return places_of_sum(id);
    // In order all the way to the reader, elements are those of operand 0, whatever their shape.
    if (source_.in_order_ && moves(node)) {
      in_order_views_.insert(value);
      return places_of(graph_.input(id, 0));
    }
    const bool joins = node.domain.empty() && node.op == "Concat";
    const bool chooses = node.domain.empty() && node.op == "Where";
    const bool looks_up = !joins && !chooses && graph_.constant(graph_.input(id, 0)) != nullptr;
    if (looks_up || (!joins && !chooses && !moves(node))) return stop(id);
    // What Where leaves out depends on the data.
    source_.as_fed_ &= !chooses;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < graph_.inputs(id).size(); ++i) {
      const bool element = joins || (chooses ? i > 0 : i == 0);
      const Found made = element ? places_of(graph_.input(id, i)) : told(graph_.input(id, i));
      if (!made) return std::nullopt;
      operands.push_back(*made);
    }
    return copy(value, std::move(operands));
  }

  /// What a node is told besides its elements.
  Found told(ValueId value) {
    const Found made = numbers_of(value);
    source_.as_fed_ &= !reads_data_;
    return made;
  }

  /// The places of the operand that is no constant, broadcast as the sum is.
  Found places_of_sum(NodeId id) {
    source_.as_fed_ = false;
    for (const size_t side : {0, 1}) {
      const Tensor* known = graph_.constant(graph_.input(id, side));
      if (known == nullptr) continue;
      const Found places = places_of(graph_.input(id, 1 - side));
      if (!places) return std::nullopt;
      const ValueId zeros = constant(Tensor::full(DType::kI64, known->shape(), 0));
      return add({"Add", {*places, zeros}}, 1);
    }
    return stop(id);
  }

  /// A Cast to fewer bits need not.
  bool keeps_numbers(NodeId id) const {
    if (graph_.node(id).op != "Cast") return false;
    const DType from = graph_.value(graph_.input(id, 0)).type.dtype;
    const DType to = graph_.value(graph_.output(id)).type.dtype;
    return is_integer(from) && is_integer(to) && (from == to || size_of(to) > size_of(from));
  }

  const Graph& graph_;
  IndexSource& source_;
  std::map<ValueId, std::pair<ValueId, ValueId>> fed_;
  std::map<ValueId, Numbers> numbers_;
  std::set<ValueId> in_order_views_;  // whose elements the reader has in the order of operand 0
  bool reads_data_ = false;           // the numbers at hand follow from more than shapes
  int nodes_ = 0;
};

IndexSource::IndexSource(const Graph& graph, ValueId indices) {
  WayFinder(graph, *this).find(indices);
}

std::optional<FedElement> ReadElements::from(int64_t at) const {
  const int64_t place = places.data<int64_t>()[static_cast<size_t>(at)];
  if (place < 0) return std::nullopt;
  const auto k = static_cast<size_t>(std::ranges::upper_bound(ends, place) - ends.begin());
  return FedElement{inputs[k], place - (k == 0 ? 0 : ends[k - 1])};
}

ReadElements IndexSource::read(std::span<const Tensor> fed) const {
  std::vector<Tensor> tensors;
  std::vector<int64_t> ends;
  int64_t next = 0;
  for (const size_t input : inputs_) {
    Tensor places(DType::kI64, fed[input].shape());
    const std::span<int64_t> numbers = places.mutable_data<int64_t>();
    std::iota(numbers.begin(), numbers.end(), next);
    ends.push_back(next += fed[input].size());
    tensors.push_back(fed[input]);
    tensors.push_back(std::move(places));
  }
  std::vector<Tensor> results = evaluate(way_, tensors);
  return {std::move(results[0]), std::move(results[1]), inputs_, std::move(ends)};
}

}  // namespace halfnote
