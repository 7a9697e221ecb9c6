// Operands of a depthwise convolution, plain or in channel blocks and of any small float type, as
// lines of 16 channels of f32: boxes of rows and columns go to lines and back.
#pragma once

#include <array>

#include "kernels/cpu/depthwise/loops.h"
#include "kernels/cpu/reals.h"
#include "kernels/layout.h"

namespace halfnote::cpu::depthwise {

/// (images, planes, height, width) in memory.
struct Planes {
  DType type = DType::kUndefined;
  bool blocked = false;
  int64_t planes = 0, height = 0, width = 0;

  int64_t area() const { return height * width; }
  /// Floats of room that read_lines() and write_lines() need for a box of so many lines.
  int64_t room(int64_t lines) const { return type == DType::kF32 || blocked ? 0 : lines * kLanes; }
};

/// Which plane of an image each lane is; lanes from `count` on repeat the last one, and are not
/// written.
struct LanePlanes {
  std::array<int64_t, kLanes> plane{};
  int64_t count = 0;

  /// Lane l of block `block` is plane (block·16 + l)·factor / divisor + offset, of `lanes` lanes in
  /// all blocks.
  LanePlanes(int64_t block, int64_t lanes, int64_t factor, int64_t divisor, int64_t offset);
};

/// Rows lie within the planes, columns may reach beyond them: zeros are read there.
struct Box {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// The lines of a box, row by row, `to` having box.columns lines a row.
void read_lines(const Planes& planes, const std::byte* from, int64_t image, const LanePlanes& lanes,
                const Box& box, float* to, float* room);

/// Back, for a box within the planes.
void write_lines(const Planes& planes, const float* from, int64_t image, const LanePlanes& lanes,
                 const Box& box, std::byte* to, float* room);

}  // namespace halfnote::cpu::depthwise
