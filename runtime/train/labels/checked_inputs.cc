#include "runtime/train/labels/checked_inputs.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/loss/plan.h"

namespace halfnote {
namespace {

/// Without a branch in the loop: this is done before every step.
template <class T>
bool reader_takes(const IndexReader& reader, std::span<const T> values) {
  const int64_t least = reader.labels ? 0 : -*reader.size;
  const auto count = static_cast<uint64_t>(*reader.size - least);
  if (count == 0 && !reader.ignore_index) return values.empty();
  const int64_t other = reader.ignore_index.value_or(least);
  uint64_t refused = 0;
  for (const T value : values) {
    const auto wide = static_cast<int64_t>(value);
    const auto above = static_cast<uint64_t>(wide) - static_cast<uint64_t>(least);
    refused |= static_cast<uint64_t>(above >= count) & static_cast<uint64_t>(wide != other);
  }
  return refused == 0;
}

/// Only of types that labels mostly have; false: look at each number.
bool reader_takes_all(const IndexReader& reader, const Tensor& fed) {
  if (fed.dtype() == DType::kI64) return reader_takes(reader, fed.data<int64_t>());
  return fed.dtype() == DType::kI32 && reader_takes(reader, fed.data<int32_t>());
}

}  // namespace

CheckedInput::CheckedInput(const Graph& graph, const IndexReader& reader, IndexSource source)
    : reader_(reader),
      source_(std::move(source)),
      node_(graph.label(reader.node)),
      op_(graph.node(reader.node).op) {
  for (const size_t input : source_.inputs())
    types_.push_back(graph.value(graph.inputs()[input]).type.dtype);
}

std::optional<size_t> CheckedInput::labels_input() const {
  return reader_.labels && source_.in_order() ? std::optional(source_.inputs()[0]) : std::nullopt;
}

void CheckedInput::prepare(std::span<const Shape> shapes) {
  if (source_.in_order()) return;
  std::vector<Tensor> fed(shapes.size());
  for (size_t k = 0; k < types_.size(); ++k) {
    const size_t input = source_.inputs()[k];
    if (input >= shapes.size()) return;
    fed[input] = Tensor(types_[k], shapes[input]);
  }
  find_elements(fed);
}

void CheckedInput::check(std::span<const Tensor> fed) {
  for (const size_t input : source_.inputs()) {
    const bool fits = input < fed.size() && fed[input].defined() && is_integer(fed[input].dtype());
    if (!fits) return;  // refused for its type
  }
  const auto takes_all = [&](size_t input) { return reader_takes_all(reader_, fed[input]); };
  if (std::ranges::all_of(source_.inputs(), takes_all)) return;
  if (source_.in_order()) return check_in_order(fed[source_.inputs()[0]]);
  find_elements(fed);
  for (int64_t i = 0; i < elements_.places.size(); ++i) {
    const auto from = elements_.from(i);
    if (!from) continue;
    const int64_t value = fed[from->input].at_as_int(from->at);
    if (!reader_.takes(value)) refuse(value, i);
  }
}

void CheckedInput::check_in_order(const Tensor& fed) const {
  for (int64_t i = 0; i < fed.size(); ++i) {
    const int64_t value = fed.at_as_int(i);
    if (!reader_.takes(value)) refuse(value, i);
  }
}

void CheckedInput::find_elements(std::span<const Tensor> fed) {
  const std::span<const size_t> inputs = source_.inputs();
  const auto same = [&](const Shape& shape, size_t input) { return shape == fed[input].shape(); };
  if (std::ranges::equal(shapes_, inputs, same)) return;
  try {
    elements_ = source_.read(fed);
  } catch (const Error&) {  // the step itself says what does not fit
    elements_ = {};
  }
  elements_.numbers = {};
  shapes_.clear();
  for (const size_t input : inputs) shapes_.push_back(fed[input].shape());
}

void CheckedInput::refuse(int64_t value, int64_t position) const {
  const std::string got = std::to_string(value), size = std::to_string(*reader_.size);
  if (!reader_.labels) {
    throw Error(ErrorCode::kData, "index out of range")
        .at({{}, node_, op_})
        .expected("an index in [-" + size + ", " + size + ")", got);
  }
  throw cpu::bad_label({value, position, *reader_.size, reader_.ignore_index}).at({{}, node_, op_});
}

std::vector<CheckedInput> find_checked_inputs(const Graph& graph) {
  std::vector<CheckedInput> all;
  for (const IndexReader& reader : find_index_readers(graph)) {
    const Node& node = graph.node(reader.node);
    const bool kept = reader.labels || node.op == "Gather" || node.op == "GatherElements";
    if (!kept || !reader.size || node.region != graph.main()) continue;
    IndexSource source(graph, reader.indices);
    const bool fed = source.as_fed() && !source.inputs().empty();
    if (fed) all.emplace_back(graph, reader, std::move(source));
  }
  return all;
}

}  // namespace halfnote
