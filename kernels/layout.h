// The layouts in which convolutions are fastest, and the kernels that take them: channel blocks on
// AVX-512, channels last on a GPU's tensor cores. The plan keeps values of whole regions so, from
// kernel to kernel (runtime/core/layout.h); the graph knows nothing of it.
//
// A blocked row is another form of a row of the kernel table: same operator, same results (to the
// order of sums over pixels), for calls that the plain row has accepted. Whoever has no blocked
// form gets its operands plain. "Blocked" means: in the layout of the device's regions.
#pragma once

#include <span>
#include <string_view>

#include "kernels/kernel.h"

namespace halfnote {

/// Channels of a block: an AVX-512 vector of f32.
inline constexpr int64_t kBlockChannels = 16;

/// (N, C, spatial…) stored as (N, spatial…, C).
inline Layout channels_last() { return {Layout::Kind::kChannelsLast, {}, {}, 0}; }
inline bool is_channels_last(const Operand& operand) {
  return operand.layout.kind == Layout::Kind::kChannelsLast;
}

/// (N, C, spatial…) stored as (N, C/16, spatial…, 16); C is a multiple of 16.
inline Layout channel_blocks() { return {Layout::Kind::kBlocked, "C16", {}, 0}; }
inline bool is_blocked(const Operand& operand) {
  return operand.layout.kind == Layout::Kind::kBlocked;
}
/// Are there kernels for this operand in channel blocks on this CPU? Its channels fill blocks, it
/// has more than one pixel (with one, both layouts are the same), and it is f32, f16 or bf16.
bool fits_channel_blocks(const Operand& operand);

/// Does the place of an element decide what becomes of it? A fused program draws random words by
/// it, and sums rows or columns: in another layout they would be others.
inline bool knows_places(const KernelCall& call) {
  if (call.op != "Pointwise" || call.attributes == nullptr) return false;
  const std::string program = call.attributes->get_string("program", "");
  return program.find("Dropout") != std::string::npos ||
         program.find("Reduce") != std::string::npos;
}

/// The operands of a call that may be in channel blocks; bit i = operand i.
struct BlockedOperands {
  uint32_t inputs = 0, outputs = 0;
  bool together = false;   // all of them or none; else each as it comes
  bool preferred = false;  // faster so, or spared a change of layout inside; else no slower

  bool any() const { return inputs != 0 || outputs != 0; }
};

struct BlockedRow {
  KernelRow row;
  std::string_view beside;  // the plain row that it is another form of
  BlockedOperands (*operands)(const KernelCall& call);
};

/// How a device keeps the values of regions, and its kernels for that.
struct RegionLayout {
  Layout layout;
  std::string_view words;  // "channel blocks"
  std::span<const BlockedRow> rows;
  /// Copies input 0 into another layout. No node of a graph asks for it, the plan does.
  const KernelRow* reorder = nullptr;
};

/// The blocked forms of a row of the kernel table, best first. The last one takes all operands that
/// any of them does; the others may refuse.
std::vector<const BlockedRow*> blocked_rows_of(const RegionLayout& regions, const KernelRow& plain);

/// Those of the CPU.
const RegionLayout& cpu_regions();
inline std::vector<const BlockedRow*> blocked_rows_of(const KernelRow& plain) {
  return blocked_rows_of(cpu_regions(), plain);
}
inline const KernelRow& reorder_row() { return *cpu_regions().reorder; }

}  // namespace halfnote
