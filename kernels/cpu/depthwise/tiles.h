// How a depthwise convolution is cut: results in tiles of rows and columns whose lines, with those
// of what they read, stay in the second-level cache.
#pragma once

#include <string>

#include "kernels/cpu/depthwise/choice.h"
#include "kernels/cpu/depthwise/lines.h"
#include "kernels/cpu/depthwise/rows.h"

namespace halfnote::cpu::depthwise {

/// Why a call is none for these kernels; else empty.
std::string refusal(const KernelCall& call, const ConvPlan& plan, Direction direction,
                    Wanted wanted);

/// One spatial dim of a convolution, seen from its results: those of the forward op, or (`spread`)
/// those of its gradient for the input, each of which meets only every stride-th tap.
struct Axis {
  int64_t results = 0, sources = 0, kernel = 1, stride = 1, dilation = 1, pad = 0;
  bool spread = false;

  /// Results of the same phase meet the same taps, sources step() apart.
  int64_t phases() const { return spread ? stride : 1; }
  int64_t step() const { return spread ? 1 : stride; }
  /// Where result r meets tap k: maybe beyond the edges. False if it never does.
  bool meets(int64_t r, int64_t k, int64_t* source) const;
  bool within(int64_t source) const { return source >= 0 && source < sources; }
  /// The sources that results [begin, end) meet, edges or not.
  Range reach(int64_t begin, int64_t end) const;
};

Axis forward_axis(const ConvPlan& plan, size_t dim);
Axis gradient_axis(const ConvPlan& plan, size_t dim);

/// The tiles of an image.
struct Tiling {
  int64_t rows = 0, columns = 0;               // of a tile of results; the last ones are smaller
  int64_t down = 0, across = 0;                // tiles
  int64_t source_columns = 0;                  // that every tile reads
  int64_t result_lines = 0, source_lines = 0;  // of the largest tile

  /// For `passes` sources at once.
  static Tiling plan(const Axis& height, const Axis& width, int64_t passes);
  int64_t count() const { return down * across; }
  Box results(const Axis& height, const Axis& width, int64_t tile) const;
  /// What the results of `box` meet: rows within the planes, columns edges or not.
  Box sources(const Axis& height, const Axis& width, const Box& box) const;
};

/// Why a tile is too large; else empty.
std::string tile_refusal(const Tiling& tiling, int64_t passes);

/// The weights as lines: line (block, pass, tap) has those of the block's 16 lanes, lane l having
/// filter l·passes + pass.
struct WeightLines {
  DType type = DType::kUndefined;
  int64_t lanes = 0, passes = 1, taps = 0;
  int64_t blocks() const { return (lanes + kLanes - 1) / kLanes; }
  int64_t block_size() const { return passes * taps * kLanes; }
  int64_t size() const { return blocks() * block_size(); }
  /// Floats of room that fill() needs.
  int64_t room() const { return type == DType::kF32 ? 0 : size(); }
  void fill(const std::byte* weights, float* lines, float* room, int threads) const;
};

}  // namespace halfnote::cpu::depthwise
