// Elementwise ops and their chains channels last: the plain kernels, on the shapes as they lie.
// Elements meet their likes in any order; what is broadcast lies the same either way, or is
// channels last itself.
#include <algorithm>
#include <array>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/transpose.h"
#include "kernels/cuda/support.h"
#include "kernels/cuda/table.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr std::array<std::string_view, 8> kElementwise = {
    "generated.chain", "own.binary", "own.cast",  "own.clip",
    "own.fold",        "own.test",   "own.unary", "own.where"};

BlockedOperands elements(const KernelCall& call) {
  if (!call.has_output(0) || call.inputs.size() > 32 || call.outputs.size() > 32) return {};
  const Shape& whole = call.outputs[0].shape;
  if (!fit_channels_last(call, 0, 0b1) || knows_places(call)) return {};
  uint32_t inputs = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Operand& input = call.inputs[i];
    if (!input.present() || input.size() == 1) continue;
    if (input.shape.size() > whole.size()) return {};
    if (lies_alike(broadcast_shape(input.shape, whole.size()))) continue;
    if (input.shape.size() < whole.size()) return {};
    inputs |= 1u << i;
  }
  for (const Operand& output : call.outputs) {
    if (output.shape != whole) return {};
  }
  const auto outputs = static_cast<uint32_t>((uint64_t{1} << call.outputs.size()) - 1);
  return all_channels_last(call, inputs, outputs);
}

Prepared prepare_elements(const KernelCall& call) {
  KernelCall lain = call;
  const size_t rank = call.outputs[0].shape.size();
  for (std::vector<Operand>* operands : {&lain.inputs, &lain.outputs}) {
    for (Operand& operand : *operands) {
      operand.layout = {};
      // Bounds, seeds and the like stay the scalars that they are.
      if (operand.present() && operand.size() != 1)
        operand.shape = lying_channels_last(broadcast_shape(operand.shape, rank));
    }
  }
  KernelChoice choice = kernel_table().choose(lain);
  if (choice.kernel) return Prepared::yes(std::move(choice.kernel));
  return Prepared::no(choice.refusals.empty() ? "no plain row" : choice.refusals[0].reason);
}

/// A Cast of f32 to 16 bits (of a weight, of images) may turn its operand as it reads it: each
/// side as it comes. Another Cast lies as its operand does.
BlockedOperands cast_operands(const KernelCall& call) {
  const BlockedOperands together = elements(call);
  const bool narrows = together.any() && call.inputs[0].dtype == DType::kF32 &&
                       is_16bit_float(call.outputs[0].dtype);
  return narrows ? BlockedOperands{0b1, 0b1} : together;
}

Prepared prepare_turning_cast(const KernelCall& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  if (x.layout == y.layout) return Prepared::no("both sides in one layout");
  const int64_t images = x.shape[0], channels = x.shape[1], pixels = x.size() / images / channels;
  const int64_t rows = is_channels_last(y) ? channels : pixels;
  const int64_t columns = is_channels_last(y) ? pixels : channels;
  return make_kernel([=, from = x.dtype, to = y.dtype](const KernelBuffers& buffers) {
    transpose(stream_of(buffers), {{buffers.inputs[0], from},
                                   {buffers.outputs[0], to},
                                   {},
                                   images,
                                   rows,
                                   columns,
                                   columns,
                                   rows,
                                   images});
  });
}

}  // namespace

std::vector<BlockedRow> channels_last_elements() {
  std::vector<BlockedRow> rows;
  for (const KernelRow& plain : kernel_table().rows()) {
    if (std::ranges::find(kElementwise, plain.name) == kElementwise.end()) continue;
    const std::string_view name =
        plain.name == "generated.chain" ? "channels_last.chain" : "channels_last.elementwise";
    const bool casts = plain.domain.empty() && plain.op == "Cast";
    if (casts) {
      rows.push_back({{"", "Cast", "channels_last.turning_cast", prepare_turning_cast},
                      plain.name,
                      cast_operands});
    }
    rows.push_back({{plain.domain, plain.op, name, prepare_elements},
                    plain.name,
                    casts ? cast_operands : elements});
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
