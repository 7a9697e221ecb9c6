// Sequences and optional values: nodes that move whole tensors.
#include "base/error.h"
#include "runtime/core/interpret/interpreter.h"
#include "runtime/core/interpret/pieces.h"

namespace halfnote {
namespace {

using Results = std::vector<Datum>;

const Datum& sequence(const Interpreter& run, NodeId node, size_t index) {
  const Datum& datum = run.input(node, index);
  if (datum.is_sequence()) return datum;
  throw Error(ErrorCode::kModel, "input " + std::to_string(index) + " is no sequence");
}

/// The position that input `index` names, in [0, size); `size` itself is allowed for an insertion.
size_t position(const Interpreter& run, NodeId node, size_t index, int64_t size, int64_t last) {
  const int64_t given = run.tensor(node, index).at_as_int(0);
  if (given < -size || given > last) {
    throw Error(ErrorCode::kData, "position out of range")
        .expected(std::to_string(-size) + " to " + std::to_string(last), std::to_string(given));
  }
  return static_cast<size_t>(given < 0 ? given + size : given);
}

Results construct(Interpreter& run, NodeId node) {
  Results elements;
  for (size_t i = 0; i < run.graph().inputs(node).size(); ++i)
    elements.push_back(run.input(node, i));
  return {Datum::sequence(std::move(elements))};
}

Results empty(Interpreter&, NodeId) { return {Datum::sequence({})}; }

Results at(Interpreter& run, NodeId node) {
  const Datum& from = sequence(run, node, 0);
  const auto size = static_cast<int64_t>(from.elements.size());
  return {from.elements[position(run, node, 1, size, size - 1)]};
}

Results erase(Interpreter& run, NodeId node) {
  Datum copy = sequence(run, node, 0);
  const auto size = static_cast<int64_t>(copy.elements.size());
  const bool named = run.input(node, 1).present();
  if (!named && size == 0) throw Error(ErrorCode::kData, "nothing to erase in an empty sequence");
  const size_t where = named ? position(run, node, 1, size, size - 1) : copy.elements.size() - 1;
  copy.elements.erase(copy.elements.begin() + static_cast<int64_t>(where));
  return {std::move(copy)};
}

Results insert(Interpreter& run, NodeId node) {
  Datum copy = sequence(run, node, 0);
  const auto size = static_cast<int64_t>(copy.elements.size());
  const bool named = run.input(node, 2).present();
  const size_t where = named ? position(run, node, 2, size, size) : copy.elements.size();
  copy.elements.insert(copy.elements.begin() + static_cast<int64_t>(where), run.input(node, 1));
  return {std::move(copy)};
}

Results length(Interpreter& run, NodeId node) {
  return {Tensor::scalar(static_cast<int64_t>(sequence(run, node, 0).elements.size()))};
}

Results concat(Interpreter& run, NodeId node) {
  std::vector<Tensor> pieces;
  for (const Datum& element : sequence(run, node, 0).elements) pieces.push_back(element.tensor);
  if (pieces.empty()) throw Error(ErrorCode::kData, "an empty sequence has nothing to concatenate");
  const bool is_new = run.attributes(node).get_int("new_axis", 0) != 0;
  const auto rank = static_cast<int64_t>(pieces[0].shape().size()) + (is_new ? 1 : 0);
  const int64_t axis = normalize_axis(run.attributes(node).get_int("axis", 0), rank);
  return {is_new ? stack_along(pieces, axis) : concat_along(pieces, axis)};
}

/// The sizes of the parts: as given, or equal ones of `size` with a smaller last one.
std::vector<int64_t> part_sizes(const Tensor* given, int64_t dim) {
  if (given != nullptr && given->shape().size() == 1) return given->to_ints();
  const int64_t size = given == nullptr ? 1 : given->at_as_int(0);
  if (size < 1) throw Error(ErrorCode::kData, "parts need at least one element");
  std::vector<int64_t> sizes(static_cast<size_t>(dim / size), size);
  if (dim % size != 0) sizes.push_back(dim % size);
  return sizes;
}

Results split(Interpreter& run, NodeId node) {
  const Tensor& whole = run.tensor(node, 0);
  const Tensor* given = run.input(node, 1).present() ? &run.tensor(node, 1) : nullptr;
  const auto rank = static_cast<int64_t>(whole.shape().size());
  const int64_t axis = normalize_axis(run.attributes(node).get_int("axis", 0), rank);
  const bool keep = given != nullptr || run.attributes(node).get_int("keepdims", 1) != 0;
  const int64_t dim = whole.shape()[static_cast<size_t>(axis)];
  Results parts;
  int64_t begin = 0;
  for (const int64_t size : part_sizes(given, dim)) {
    if (size < 0 || size > dim - begin) {
      throw Error(ErrorCode::kData, "the parts exceed the tensor")
          .expected(std::to_string(dim), std::to_string(begin) + " and " + std::to_string(size));
    }
    parts.emplace_back(keep ? slice_along(whole, axis, begin, begin + size)
                            : take_along(whole, axis, begin));
    begin += size;
  }
  return {Datum::sequence(std::move(parts))};
}

Results make_optional(Interpreter& run, NodeId node) {
  if (!run.input(node, 0).present()) return {Datum::optional({})};
  return {Datum::optional({run.input(node, 0)})};
}

Results get_element(Interpreter& run, NodeId node) {
  const Datum& from = run.input(node, 0);
  if (!from.is_optional()) return {from};
  if (from.elements.empty()) throw Error(ErrorCode::kData, "the optional value is empty");
  return {from.elements[0]};
}

Results has_element(Interpreter& run, NodeId node) {
  const Datum& from = run.input(node, 0);
  const bool has = from.is_optional() ? !from.elements.empty() : from.present();
  return {Tensor::scalar<bool>(has)};
}

constexpr std::pair<std::string_view, RunNode> kContainerOps[] = {
    {"ConcatFromSequence", concat},
    {"Optional", make_optional},
    {"OptionalGetElement", get_element},
    {"OptionalHasElement", has_element},
    {"SequenceAt", at},
    {"SequenceConstruct", construct},
    {"SequenceEmpty", empty},
    {"SequenceErase", erase},
    {"SequenceInsert", insert},
    {"SequenceLength", length},
    {"SplitToSequence", split},
};

}  // namespace

RunNode find_container_op(std::string_view op) {
  for (const auto& [name, run] : kContainerOps) {
    if (name == op) return run;
  }
  return nullptr;
}

}  // namespace halfnote
