// What moves elements, channels last: Concat, Expand, Pad, Slice and Split by the plain kernels, on
// the shapes and along the axes as they lie. A Transpose that the model itself has, to or from
// channels last, is no more than a view.
#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/cuda/table.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr size_t kAxes = 3;  // the operand of Pad and Slice that says which dims are meant

/// The operands that hold elements; the others hold sizes, places, or a value to pad with.
size_t data_inputs(const KernelCall& call) { return call.op == "Concat" ? call.inputs.size() : 1; }

/// Adds the operands that lie otherwise channels last to `mask`; false if one can be neither.
bool add_fitting(std::span<const Operand> operands, size_t rank, bool broadcasts, uint32_t& mask) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    if (!operand.present() || operand.size() == 0) return false;
    if (fits_channels_last(operand) && operand.shape.size() == rank) {
      mask |= 1u << i;
      continue;
    }
    const bool full = operand.shape.size() == rank || (broadcasts && operand.shape.size() < rank);
    if (!full || !lies_alike(broadcast_shape(operand.shape, rank))) return false;
  }
  return true;
}

BlockedOperands moved(const KernelCall& call) {
  const size_t from = data_inputs(call);
  if (!call.has_output(0) || from > 32 || call.inputs.size() < from || call.outputs.size() > 32)
    return {};
  const size_t rank = call.outputs[0].shape.size();
  if (rank < 3 || rank > 5) return {};
  uint32_t inputs = 0, outputs = 0;
  const std::span<const Operand> data(call.inputs.data(), from);
  if (!add_fitting(data, rank, call.op == "Expand", inputs)) return {};
  if (!add_fitting(call.outputs, rank, false, outputs) || (inputs | outputs) == 0) return {};
  return {inputs, outputs, true, false};
}

Tensor tensor_of(const std::vector<int64_t>& values) {
  return Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values);
}

/// The axes of a Pad or a Slice, where they lie; nothing if they are not known.
std::vector<int64_t> lying_axes(const KernelCall& call) {
  const auto rank = static_cast<int64_t>(call.outputs[0].shape.size());
  std::vector<int64_t> axes;
  if (call.has_input(kAxes)) {
    if (call.inputs[kAxes].constant == nullptr) return {};
    axes = call.inputs[kAxes].constant->to_ints();
  } else {
    const int64_t count = call.inputs[1].size() / (call.op == "Pad" ? 2 : 1);
    for (int64_t d = 0; d < count; ++d) axes.push_back(d);
  }
  for (int64_t& axis : axes) {
    axis = normalize_axis(axis, rank);
    axis = static_cast<int64_t>(lying_dim(static_cast<size_t>(axis), static_cast<size_t>(rank)));
  }
  return axes;
}

/// The plain kernel prepares before this is gone; it keeps what it needs.
struct LyingCall {
  KernelCall call;
  Attributes attributes;
  Tensor numbers;

  explicit LyingCall(const KernelCall& as_named)
      : call(as_named), attributes(attributes_of(as_named)) {
    const size_t rank = as_named.outputs[0].shape.size();
    for (size_t i = 0; i < data_inputs(as_named); ++i) lay(call.inputs[i], rank);
    for (Operand& output : call.outputs) lay(output, rank);
  }
  LyingCall(const LyingCall&) = delete;
  LyingCall& operator=(const LyingCall&) = delete;

  void set_input(size_t index, const std::vector<int64_t>& values) {
    numbers = tensor_of(values);
    if (call.inputs.size() <= index) call.inputs.resize(index + 1);
    call.inputs[index] = {DType::kI64, numbers.shape(), {}, &numbers};
  }

 private:
  static void lay(Operand& operand, size_t rank) {
    operand.layout = {};
    operand.shape = lying_channels_last(broadcast_shape(operand.shape, rank));
  }
};

Prepared prepare_moved(const KernelCall& call) {
  LyingCall lying(call);
  const auto rank = static_cast<int64_t>(call.outputs[0].shape.size());
  if (call.op == "Concat" || call.op == "Split") {
    const int64_t axis = normalize_axis(lying.attributes.get_int("axis", 0), rank);
    lying.attributes.set("axis", static_cast<int64_t>(lying_dim(static_cast<size_t>(axis),
                                                                static_cast<size_t>(rank))));
    lying.call.attributes = &lying.attributes;
  } else if (call.op == "Expand") {
    lying.set_input(1, lying.call.outputs[0].shape);
  } else {
    const std::vector<int64_t> axes = lying_axes(call);
    if (axes.empty()) return Prepared::no("axes are not known before the first step");
    lying.set_input(kAxes, axes);
  }
  KernelChoice choice = kernel_table().choose(lying.call);
  if (choice.kernel) return Prepared::yes(std::move(choice.kernel));
  return Prepared::no(choice.refusals.empty() ? "no plain row" : choice.refusals[0].reason);
}

/// Is a Transpose one of (N, C, spatial…) to (N, spatial…, C)?
bool turns_last(const KernelCall& call) {
  const std::vector<int64_t> perm = attributes_of(call).get_ints("perm");
  for (size_t d = 0; d < perm.size(); ++d) {
    if (lying_dim(static_cast<size_t>(perm[d]), perm.size()) != d) return false;
  }
  return perm.size() >= 3;
}

/// Or the other way?
bool turns_plain(const KernelCall& call) {
  const std::vector<int64_t> perm = attributes_of(call).get_ints("perm");
  for (size_t d = 0; d < perm.size(); ++d) {
    if (lying_dim(d, perm.size()) != static_cast<size_t>(perm[d])) return false;
  }
  return perm.size() >= 3;
}

/// With one side channels last and the other plain, both are the same bytes.
BlockedOperands turned(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return {};
  if (turns_last(call) && fits_channels_last(call.inputs[0])) return {.inputs = 0b1};
  if (turns_plain(call) && fits_channels_last(call.outputs[0])) return {.outputs = 0b1};
  return {};
}

Prepared prepare_turned(const KernelCall& call) {
  if (is_channels_last(call.inputs[0]) == is_channels_last(call.outputs[0]))
    return Prepared::no("both sides in one layout");
  return same_bytes(call);
}

}  // namespace

std::vector<BlockedRow> channels_last_moves() {
  std::vector<BlockedRow> rows = {
      {{"", "Transpose", "channels_last.view", prepare_turned}, "own.copy", turned}};
  for (const std::string_view op : {"Concat", "Expand", "Pad", "Slice", "Split"}) {
    rows.push_back({{"", op, "channels_last.move", prepare_moved},
                    op == "Pad" ? "own.pad" : "own.copy",
                    moved});
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
