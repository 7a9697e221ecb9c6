// Containers of known structure, for flatten-control: a sequence is a list of values here.
//
//   s = SplitToSequence <axis = 1> (x, {2, 3})
//   a = SequenceAt (s, 1)                          ──▶   _, a = Split <axis = 1> (x, {2, 3})
//
// Exact. Leaves alone: positions that are no constants, parts whose number depends on an open dim,
// nodes that would fail (nothing to concatenate; in a body, a position out of range, which
// elsewhere is an error), and with them all that reads their results.
#include "base/error.h"
#include "compiler/ir/replace.h"
#include "passes/canonical/control/flatten_control.h"

namespace halfnote {
namespace {

/// The sizes of the parts of `dim`, as SplitToSequence counts them; none if they are not known.
std::vector<int64_t> part_sizes(const Tensor* given, const Dim& dim) {
  if (given != nullptr && given->shape().size() == 1) return given->to_ints();
  const int64_t size = given == nullptr ? 1 : given->at_as_int(0);
  if (!dim.known() || size < 1 || dim.value / size > kMaxUnrolledNodes) return {};
  std::vector<int64_t> sizes(static_cast<size_t>(dim.value / size), size);
  if (dim.value % size != 0) sizes.push_back(dim.value % size);
  return sizes;
}

}  // namespace

// op, rule
const Containers::Row Containers::kRules[] = {
    {"ConcatFromSequence", &Containers::concat},
    {"Identity", &Containers::pass_on},
    {"Optional", &Containers::make_optional},
    {"OptionalGetElement", &Containers::get_element},
    {"OptionalHasElement", &Containers::has_element},
    {"SequenceAt", &Containers::at},
    {"SequenceConstruct", &Containers::construct},
    {"SequenceEmpty", &Containers::construct},
    {"SequenceErase", &Containers::erase},
    {"SequenceInsert", &Containers::insert},
    {"SequenceLength", &Containers::length},
    {"SplitToSequence", &Containers::split},
};

bool Containers::visit(NodeId node) {
  const Node& data = graph_.node(node);
  if (!data.domain.empty()) return false;
  for (const Row& row : kRules) {
    if (row.op == data.op) return (this->*row.rule)(node);
  }
  return false;
}

const std::vector<ValueId>* Containers::elements(ValueId sequence) const {
  const auto found = known_.find(sequence);
  return found == known_.end() ? nullptr : &found->second;
}

bool Containers::sweep() {
  bool changed = false;
  for (auto node = makers_.rbegin(); node != makers_.rend(); ++node) {
    if (!graph_.node(*node).alive || graph_.has_uses(graph_.output(*node))) continue;
    graph_.remove(*node);
    changed = true;
  }
  return changed;
}

bool Containers::keep(NodeId node, std::vector<ValueId> elements) {
  known_[graph_.output(node)] = std::move(elements);
  makers_.push_back(node);
  return false;
}

bool Containers::replace(NodeId node, ValueId value) {
  give_result(graph_, node, graph_.output(node), value, context_);
  graph_.remove(node);
  return true;
}

/// The constant position in input `slot`, in [0, last]; `last` where the input is absent.
bool Containers::position(NodeId node, size_t slot, int64_t size, int64_t last,
                          int64_t& found) const {
  found = last;
  if (graph_.input(node, slot).valid()) {
    const Tensor* given = graph_.constant(graph_.input(node, slot));
    if (given == nullptr || given->size() != 1) return false;
    found = given->at_as_int(0);
    if (found < -size || found > last) refuse_position(node, found, size, last);
    if (found < 0) found += size;
  }
  return found >= 0 && found <= last;
}

/// A branch that is never taken may hold such a node; what always runs may not.
void Containers::refuse_position(NodeId node, int64_t given, int64_t size, int64_t last) const {
  const Node& data = graph_.node(node);
  if (data.region != graph_.main()) return;
  const std::string most = std::to_string(last);
  throw Error(ErrorCode::kModel, "the position is out of range")
      .at({.node = graph_.label(node), .op = data.op})
      .expected(last < 0 ? "a sequence that is not empty"
                         : std::to_string(-size) + " to " + most + " in a sequence of length " +
                               std::to_string(size),
                std::to_string(given));
}

bool Containers::construct(NodeId node) {
  const auto inputs = graph_.inputs(node);
  return keep(node, {inputs.begin(), inputs.end()});
}

bool Containers::insert(NodeId node) {
  const std::vector<ValueId>* from = elements(graph_.input(node, 0));
  if (from == nullptr) return false;
  const auto size = static_cast<int64_t>(from->size());
  int64_t where = 0;
  if (!position(node, 2, size, size, where)) return false;
  std::vector<ValueId> copy = *from;
  copy.insert(copy.begin() + where, graph_.input(node, 1));
  return keep(node, std::move(copy));
}

bool Containers::erase(NodeId node) {
  const std::vector<ValueId>* from = elements(graph_.input(node, 0));
  if (from == nullptr) return false;
  const auto size = static_cast<int64_t>(from->size());
  int64_t where = 0;
  if (!position(node, 1, size, size - 1, where)) return false;
  std::vector<ValueId> copy = *from;
  copy.erase(copy.begin() + where);
  return keep(node, std::move(copy));
}

bool Containers::split(NodeId node) {
  const ValueType& type = graph_.value(graph_.input(node, 0)).type;
  if (!type.is_tensor() || !type.shape) return false;
  const Attributes& attributes = graph_.node(node).attributes;
  const int64_t axis = normalize_axis(attributes.get_int("axis", 0), type.rank());
  const bool named = graph_.input(node, 1).valid();
  const Tensor* given = graph_.constant(graph_.input(node, 1));
  if (named && given == nullptr) return false;
  const bool drop = !named && attributes.get_int("keepdims", 1) == 0;
  const std::vector<int64_t> sizes = part_sizes(given, (*type.shape)[static_cast<size_t>(axis)]);
  if (sizes.empty()) return false;
  Builder b = builder_at(graph_, node, context_);
  std::vector<ValueId> parts;
  for (Expr part : split_parts(b, b.value(graph_.input(node, 0)), axis, sizes)) {
    parts.push_back(drop ? b.op("Squeeze", {part, b.ints({axis})}).id : part.id);
  }
  const Node& data = graph_.node(node);
  NodeSpec spec{"SequenceConstruct", parts, {}, {}, data.name};
  const NodeId made = graph_.create(std::move(spec), 1, graph_.before(node));
  graph_.node(made).role = data.role;
  context_.infer(graph_, made);
  keep(made, std::move(parts));
  take_place(graph_, graph_.output(node), graph_.output(made));
  graph_.remove(node);
  return true;
}

bool Containers::pass_on(NodeId node) {
  const std::vector<ValueId>* from = elements(graph_.input(node, 0));
  return from != nullptr && keep(node, std::vector<ValueId>(*from));
}

bool Containers::make_optional(NodeId node) {
  const ValueId element = graph_.input(node, 0);
  return keep(node, element.valid() ? std::vector<ValueId>{element} : std::vector<ValueId>{});
}

bool Containers::at(NodeId node) {
  const std::vector<ValueId>* from = elements(graph_.input(node, 0));
  if (from == nullptr) return false;
  const auto size = static_cast<int64_t>(from->size());
  int64_t where = 0;
  if (!position(node, 1, size, size - 1, where)) return false;
  return replace(node, (*from)[static_cast<size_t>(where)]);
}

bool Containers::length(NodeId node) {
  const std::vector<ValueId>* from = elements(graph_.input(node, 0));
  if (from == nullptr) return false;
  Builder b = builder_at(graph_, node, context_);
  return replace(node, b.constant(Tensor::scalar(static_cast<int64_t>(from->size()))).id);
}

bool Containers::concat(NodeId node) {
  const std::vector<ValueId>* from = elements(graph_.input(node, 0));
  if (from == nullptr || from->empty()) return false;
  Builder b = builder_at(graph_, node, context_);
  std::vector<Expr> parts;
  for (ValueId element : *from) parts.push_back(b.value(element));
  const Attributes attributes = graph_.node(node).attributes;
  const int64_t axis = attributes.get_int("axis", 0);
  if (attributes.get_int("new_axis", 0) != 0) return replace(node, stack_parts(b, parts, axis).id);
  return replace(node, b.ops("Concat", parts, 1, {{"axis", axis}})[0].id);
}

bool Containers::get_element(NodeId node) {
  const ValueId from = graph_.input(node, 0);
  const ValueType& type = graph_.value(from).type;
  if (type.kind == TypeKind::kTensor || type.kind == TypeKind::kSequence) {
    return replace(node, from);
  }
  const std::vector<ValueId>* known = elements(from);
  return known != nullptr && known->size() == 1 && replace(node, known->front());
}

bool Containers::has_element(NodeId node) {
  const ValueId from = graph_.input(node, 0);
  const bool plain = from.valid() && graph_.value(from).type.kind != TypeKind::kOptional;
  const std::vector<ValueId>* known = from.valid() ? elements(from) : nullptr;
  if (from.valid() && !plain && known == nullptr) return false;
  Builder b = builder_at(graph_, node, context_);
  return replace(node, b.constant(Tensor::scalar<bool>(plain || (known && !known->empty()))).id);
}

}  // namespace halfnote
