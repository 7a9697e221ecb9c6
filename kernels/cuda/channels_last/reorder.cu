// Copies a tensor between the plain layout and channels last: a Transpose of (N, C, pixels). The
// plan puts it where a region meets a kernel that knows plain tensors only.
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/table.h"

namespace halfnote::HN_CUDA {

namespace {

Prepared prepare_reorder(const KernelCall& call) {
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  if (from.dtype != to.dtype || from.shape != to.shape || !fits_channels_last(from))
    return Prepared::no("operands that are no copies of each other");
  if (from.layout == to.layout) return Prepared::no("nothing to reorder");
  const int64_t images = from.shape[0], channels = from.shape[1];
  const int64_t pixels = from.size() / (images * channels);
  const Shape plain{images, channels, pixels}, last{images, pixels, channels};
  const bool goes_last = is_channels_last(to);
  Attributes attributes;
  attributes.set("perm", std::vector<int64_t>{0, 2, 1});
  KernelCall turn;
  turn.op = "Transpose";
  turn.attributes = &attributes;
  turn.inputs = {{from.dtype, goes_last ? plain : last, {}, nullptr}};
  turn.outputs = {{to.dtype, goes_last ? last : plain, {}, nullptr}};
  KernelChoice choice = kernel_table().choose(turn);
  return choice.kernel ? Prepared::yes(std::move(choice.kernel))
                       : Prepared::no("no kernel of Transpose");
}

}  // namespace

const KernelRow& channels_last_reorder() {
  static constexpr KernelRow row{"", "Reorder", "own.reorder", prepare_reorder};
  return row;
}

}  // namespace halfnote::HN_CUDA
