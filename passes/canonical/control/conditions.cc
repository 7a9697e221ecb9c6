#include "passes/canonical/control/conditions.h"

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/fold_constants.h"

namespace halfnote {
namespace {

/// The arithmetic of a condition is a few nodes on a few numbers: ranks, dims, flags.
constexpr int kLongestChain = 32;
constexpr int64_t kMostInCondition = 256;

/// Is this a result that may be computed here: of known, small size?
bool fits_condition(const ValueType& type) {
  if (!type.is_tensor() || !type.has_concrete_shape()) return false;
  int64_t elements = 1;
  for (const Dim& dim : *type.shape) {
    if (dim.value > kMostInCondition) return false;
    elements *= dim.value;
    if (elements > kMostInCondition) return false;
  }
  return true;
}

}  // namespace

std::optional<bool> Conditions::truth(ValueId value) {
  const std::optional<Tensor> found = find(value, 0);
  if (!found || found->size() != 1) return std::nullopt;
  return found->at_as_int(0) != 0;
}

std::optional<RegionId> Conditions::dead_branch(NodeId node) {
  const Node& data = graph_.node(node);
  if (!data.domain.empty() || data.op != "If") return std::nullopt;
  const std::optional<bool> yes = truth(graph_.input(node, 0));
  if (!yes) return std::nullopt;
  const Attribute* branch = data.attributes.find(*yes ? "else_branch" : "then_branch");
  const auto* region = branch == nullptr ? nullptr : std::get_if<RegionId>(branch);
  if (region == nullptr) return std::nullopt;
  return *region;
}

std::optional<Tensor> Conditions::find(ValueId value, int depth) {
  if (!value.valid()) return std::nullopt;
  if (const Tensor* tensor = graph_.constant(value)) {
    if (tensor->size() > kMostInCondition) return std::nullopt;
    return *tensor;
  }
  const Value& data = graph_.value(value);
  if (data.kind != ValueKind::kResult || depth == kLongestChain) return std::nullopt;
  const auto before = known_.find(value);
  if (before != known_.end()) return before->second;
  std::optional<Tensor> found = compute(data.producer, data.output, depth);
  known_[value] = found;
  return found;
}

std::optional<Tensor> Conditions::compute(NodeId node, size_t output, int depth) {
  if (std::optional<Tensor> dims = dims_of_type(graph_, node)) return dims;
  const OperatorRow* row = find_operator(graph_.node(node));
  if (row == nullptr || row->purity != Purity::kPure || row->sized_by_values) return std::nullopt;
  if (!context_.evaluate || !graph_.subgraphs(node).empty()) return std::nullopt;
  for (ValueId result : graph_.outputs(node)) {
    if (result.valid() && !fits_condition(graph_.value(result).type)) return std::nullopt;
  }
  std::vector<Tensor> operands;
  for (ValueId input : graph_.inputs(node)) {
    std::optional<Tensor> operand = input.valid() ? find(input, depth + 1) : Tensor{};
    if (!operand) return std::nullopt;
    operands.push_back(std::move(*operand));
  }
  try {
    return context_.evaluate(graph_, node, operands).at(output);
  } catch (const Error&) {
    return std::nullopt;  // the node is refused where it stands, by the check or by the folding
  }
}

}  // namespace halfnote
