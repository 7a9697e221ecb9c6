// The inner loops of a tiled matrix product, one set for each element type and instruction set.
//
// A product is cut into tiles of at most kTileRows × kTileColumns results that stay in registers
// while k runs over one block. The operands are first copied ("packed") into panels that a tile
// reads in order, converted where the products are not of the stored type; rows of A that need
// neither stay where they are. A lane is what one 32-bit element of a panel holds: one k, or the
// two neighbouring k that a bf16 dot product takes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace halfnote::cpu::tiled {

inline constexpr int64_t kTileRows = 14;
inline constexpr int64_t kTileColumns = 32;
/// Lanes of k in one of several blocks.
inline constexpr int64_t kDepth = 384;
/// As many are one block where the sums between two would need room of their own.
inline constexpr int64_t kMostDepth = 1536;
/// From one row of a panel of A to the next: the rows never fall on the same lines of the cache.
inline constexpr int64_t kRowStep = kMostDepth + 16;
/// From one lane to the next where a panel of A holds its lanes one after the other.
inline constexpr int64_t kLaneStep = 16;

/// How a panel of A lies: follows from which of its dims is contiguous in memory.
enum class LeftForm { kRows, kLanes };

/// Part of an operand: element (i, l) at `from` + i·line_step + l·k_step elements; one of the two
/// steps is 1. `lines` are rows of A or columns of B.
struct Part {
  const std::byte* from = nullptr;
  int64_t line_step = 0, k_step = 0;
  int64_t lines = 0, depth = 0;
};

/// What becomes of the sums of one tile and one block of k.
struct Finish {
  int64_t rows = 0, columns = 0;
  float* partial = nullptr;  // the sums so far, and where they go if more blocks follow
  int64_t partial_step = 0;
  bool first = true, last = true;  // block of k
  // Of the last block: y = alpha·sum + c.
  float alpha = 1;
  const std::byte* c = nullptr;
  DType c_type = DType::kUndefined;
  int64_t c_row = 0, c_column = 0;  // c_column is 0 or 1
  std::byte* y = nullptr;
  DType y_type = DType::kUndefined;
  int64_t y_step = 0;
};

/// Memory that will be read or written soon: `runs` times `lines` lines of the cache, from one run
/// to the next `step` bytes.
struct Stretch {
  const std::byte* from = nullptr;
  int64_t step = 0, runs = 0, lines = 0;
};

/// What a tile brings into the cache while it computes, a few lines at a time, so that nobody waits
/// for memory. Only a hint.
struct Soon {
  static constexpr int kMost = 3;  // and one without lines after them
  Stretch stretches[kMost + 1];
  int64_t count = 0, lines = 0;
};

struct Loops {
  const char* name;
  int64_t k_of_lane;  // 1 or 2
  bool reads_stored;  // a lane of A is as it is stored: its rows need no panel
  /// At most kTileRows rows, each from kRowStep floats on or each lane from kLaneStep floats on.
  void (*pack_left)(const Part& part, float* panel);
  /// At most kTileColumns columns, into kTileColumns floats a lane, lanes rounded up to 16.
  void (*pack_right)(const Part& part, float* panel);
  /// tile[form][rows]: sums over `lanes` into rows of kTileColumns floats, `step` apart; `add`ed
  /// to what is there. Rows of A are `left_step` floats apart.
  using Tile = void (*)(const float* left, int64_t left_step, const float* right, int64_t lanes,
                        float* sums, int64_t step, bool add, const Soon& soon);
  std::array<std::array<Tile, kTileRows + 1>, 2> tile;
  /// Takes the sums of a tile where they belong; may write over them.
  void (*finish)(float* sums, const Finish& finish);
};

/// The loops for operands of this type on this CPU; null if there are none.
const Loops* find_loops(DType operands);

extern const Loops kAvx512F32, kAvx512F16, kAvx512BF16AsF32;  // loops_avx512.cc
extern const Loops kAvx512BF16;                               // loops_avx512_bf16.cc

}  // namespace halfnote::cpu::tiled
