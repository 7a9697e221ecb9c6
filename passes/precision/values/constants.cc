#include "passes/precision/values/constants.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "base/float16.h"
#include "compiler/ir/model.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

/// A scalar this far off is no longer the number that was meant. Normal 16-bit numbers are off by
/// 2^-9 at most.
constexpr double kDistorted = 0.01;

float round_to(float x, DType low) {
  return low == DType::kF16 ? to_f32(to_f16(x)) : to_f32(to_bf16(x));
}

/// Is a result of an operand's size times or plus something (Add, Mul, ReduceSum)? Those are the
/// ops through which a loss scale passes.
bool keeps_large(const OperatorRow& row) {
  if (row.precision == PrecisionClass::kAllow) return false;
  return row.scale == ScaleRule::kSame || row.scale == ScaleRule::kFirst ||
         row.scale == ScaleRule::kProduct || row.scale == ScaleRule::kQuotient;
}

/// Of whole numbers, one that becomes what its neighbour becomes: 4095 beside 4096 in bf16.
std::optional<UnfitConstant> merged_positions(std::span<const float> numbers, DType low) {
  std::optional<UnfitConstant> merged;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float x = numbers[i];
    if (std::trunc(x) != x) return std::nullopt;  // NaN too
    if (merged || i == 0 || x == numbers[i - 1]) continue;
    const float rounded = round_to(x, low);
    if (rounded != round_to(numbers[i - 1], low)) continue;
    merged = UnfitConstant{UnfitConstant::Kind::kMerged, "", x, rounded};
    if (rounded == x) merged->number = numbers[i - 1];
  }
  return merged;
}

}  // namespace

std::optional<UnfitConstant> unfit_constant(const Tensor& tensor, DType low) {
  if (tensor.dtype() != DType::kF32 || (low != DType::kF16 && low != DType::kBF16)) {
    return std::nullopt;
  }
  float largest = 0;
  for (const float x : tensor.data<float>()) {
    if (!std::isfinite(x)) continue;
    const float rounded = round_to(x, low);
    if (std::isinf(rounded)) return UnfitConstant{UnfitConstant::Kind::kTooLarge, "", x, rounded};
    if (std::fabs(x) > std::fabs(largest)) largest = x;
  }
  if (largest == 0) return std::nullopt;
  const float rounded = round_to(largest, low);
  const double off = std::fabs(static_cast<double>(rounded) / largest - 1);
  if (off <= kDistorted) return merged_positions(tensor.data<float>(), low);
  return UnfitConstant{UnfitConstant::Kind::kTooSmall, "", largest, rounded};
}

UnfitValues::UnfitValues(const Graph& graph, DType low)
    : carried_(graph.value_count(), 0), computed_(graph.value_count(), false) {
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    for (ValueId value : graph.initializers(RegionId{i})) look_at_constant(graph, value, low);
  }
  for (NodeId node : graph.all_nodes()) {
    look_at_constant(graph, graph.output(node), low);
    look_at_fill(graph, node, low);
    pass_on(graph, node);
  }
}

const UnfitConstant* UnfitValues::of(ValueId value) const {
  if (!value.valid() || value.index >= carried_.size() || carried_[value.index] == 0) {
    return nullptr;
  }
  return &found_[carried_[value.index] - 1];
}

const UnfitConstant* UnfitValues::itself(ValueId value) const {
  const UnfitConstant* carried = of(value);
  return carried == nullptr || computed_[value.index] ? nullptr : carried;
}

void UnfitValues::look_at_constant(const Graph& graph, ValueId value, DType low) {
  const Tensor* tensor = value.valid() ? graph.constant(value) : nullptr;
  if (tensor == nullptr) return;
  auto unfit = unfit_constant(*tensor, low);
  if (!unfit) return;
  unfit->name = graph.value(value).name;
  found_.push_back(std::move(*unfit));
  carried_[value.index] = static_cast<uint32_t>(found_.size());
}

/// ConstantOfShape holds its constant in an attribute.
void UnfitValues::look_at_fill(const Graph& graph, NodeId node, DType low) {
  const Attribute* attribute = graph.node(node).attributes.find("value");
  const Tensor* tensor = attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
  const ValueId result = graph.output(node);
  if (tensor == nullptr || !result.valid() || carried_[result.index] != 0) return;
  auto unfit = unfit_constant(*tensor, low);
  if (!unfit) return;
  unfit->name = graph.value(result).name;
  found_.push_back(std::move(*unfit));
  carried_[result.index] = static_cast<uint32_t>(found_.size());
}

void UnfitValues::pass_on(const Graph& graph, NodeId node) {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr) return;
  // A bound of Clip does not move on: such ops are not linear, which their scale rule says.
  const bool moves = row->precision == PrecisionClass::kClear && row->scale != ScaleRule::kNone;
  if (!keeps_large(*row)) return;
  // Nor does one of its gradient, which gives dY or 0.
  const bool of_gradient = row->domain == kHalfnoteDomain && row->scale == ScaleRule::kFirst;
  const auto inputs = graph.inputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueId input = inputs[i];
    const UnfitConstant* unfit = of(input);
    if (unfit == nullptr) continue;
    if (of_gradient && (i >= 32 || (row->linear_inputs >> i & 1u) == 0)) continue;
    if (unfit->kind != UnfitConstant::Kind::kTooLarge && !moves) continue;
    for (ValueId output : graph.outputs(node)) {
      if (!output.valid() || graph.value(output).type.dtype != DType::kF32) continue;
      if (carried_[output.index] != 0) continue;
      carried_[output.index] = carried_[input.index];
      computed_[output.index] = !moves || computed_[input.index];
    }
  }
}

std::string describe(const UnfitConstant& constant, DType low) {
  return fmt::format("constant \"{}\" does not fit {}: {:.6g} would be {:.6g}", constant.name,
                     short_name(low), constant.number, constant.rounded);
}

}  // namespace halfnote
