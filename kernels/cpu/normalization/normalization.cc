// Joins the rows of the normalization family.
#include "kernels/cpu/families.h"
#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

Lines lines_along(const Shape& shape, int64_t axis) {
  const auto rank = static_cast<int64_t>(shape.size());
  if (rank == 0) return {1, 1, 1};
  axis = normalize_axis(axis, rank);
  const std::span<const int64_t> dims(shape);
  const int64_t outer = element_count(dims.first(static_cast<size_t>(axis)));
  const int64_t inner = element_count(dims.subspan(static_cast<size_t>(axis) + 1));
  return {outer * inner, shape[static_cast<size_t>(axis)], std::max<int64_t>(1, inner)};
}

Lines lines_from(const Shape& shape, int64_t axis) {
  const auto rank = static_cast<int64_t>(shape.size());
  if (rank == 0) return {1, 1, 1};
  const auto first = static_cast<size_t>(normalize_axis(axis, rank));
  const std::span<const int64_t> dims(shape);
  return {element_count(dims.first(first)), element_count(dims.subspan(first)), 1};
}

void require_size(const KernelCall& call, size_t index, int64_t size) {
  if (!call.has_input(index)) {
    throw model_error(call, "input " + std::to_string(index) + " is missing");
  }
  if (call.inputs[index].size() == size) return;
  throw model_error(call, "input " + std::to_string(index) + " has the wrong size")
      .expected(std::to_string(size) + " elements", to_string(call.inputs[index].shape));
}

std::string check_alike(const KernelCall& call, size_t index, size_t like) {
  require_size(call, index, call.inputs[like].size());
  return call.inputs[index].dtype == call.inputs[like].dtype ? "" : "operands of different types";
}

std::string residual_refusal(const KernelCall& call, size_t residual, size_t sum) {
  if (residual == 0) return sum == 0 ? "" : "a sum without a residual";
  if (std::string why = check_alike(call, residual, 0); !why.empty()) return why;
  const bool fits = sum == 0 || call.outputs[sum].dtype == call.inputs[0].dtype;
  return fits ? "" : "X and sum of different types";
}

bool has_more(const KernelCall& call, size_t more) {
  return call.has_input(more) || call.has_input(more + 1);
}

std::string grad_refusal(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1)) throw model_error(call, "dY or X is missing");
  require_size(call, 0, call.inputs[1].size());
  if (std::string why = float_refusal(call); !why.empty()) return why;
  const DType type = call.inputs[1].dtype;
  const bool fits =
      call.inputs[0].dtype == type && (!call.has_output(0) || call.outputs[0].dtype == type);
  return fits ? "" : "dY, X and dX of different types";
}

std::string more_refusal(const KernelCall& call, size_t more) {
  std::string why;
  for (size_t i = more; why.empty() && i <= more + 1; ++i) {
    if (call.has_input(i)) why = check_alike(call, i, 1);
  }
  return why;
}

std::string float_refusal(const KernelCall& call, size_t other_input, size_t other_output) {
  const auto check = [](const std::vector<Operand>& operands, size_t other,
                        const char* what) -> std::string {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (i == other || !operands[i].present() || is_real(operands[i].dtype)) continue;
      return what + std::to_string(i) + " is " + std::string(short_name(operands[i].dtype)) +
             ", no float type";
    }
    return {};
  };
  std::string why = check(call.inputs, other_input, "input ");
  return why.empty() ? check(call.outputs, other_output, "output ") : why;
}

std::vector<KernelRow> normalization_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {batch_norm_rows, layer_norm_rows, layer_grad_rows, group_grad_rows,
                    group_norm_rows, local_norm_rows, softmax_rows, softmax_grad_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
