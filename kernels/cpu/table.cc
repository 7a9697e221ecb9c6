// The kernels of the CPU: the oneDNN rows first, then the reference rows of every family.
#include "kernels/cpu/families.h"

namespace halfnote {

namespace {

using Family = std::vector<KernelRow> (*)();

// In the order of preference. A row per family; oneDNN stands before the reference.
constexpr Family kFamilies[] = {
    cpu::onednn_kernels,        cpu::elementwise_kernels, cpu::contraction_kernels,
    cpu::normalization_kernels, cpu::reduction_kernels,   cpu::movement_kernels,
    cpu::loss_kernels,          cpu::stateful_kernels,    cpu::quantized_kernels,
    cpu::signal_kernels,
};

std::vector<KernelRow> all_rows() {
  std::vector<KernelRow> all;
  for (const Family family : kFamilies) {
    const std::vector<KernelRow> rows = family();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace

const KernelTable& cpu_kernels() {
  static const KernelTable table(all_rows());
  return table;
}

}  // namespace halfnote
