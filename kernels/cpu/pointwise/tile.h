// Runs a pointwise program over tiles: pieces of the outputs small enough that every step's
// operands and results stay in the first-level cache, so that memory is read and written once
// however many steps there are.
#pragma once

#include <string>
#include <vector>

#include "base/ops/pointwise.h"
#include "kernels/cpu/pointwise/fused.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/runs.h"
#include "kernels/kernel.h"

namespace halfnote::cpu::pointwise {

/// Elements of a tile.
inline constexpr int64_t kTile = 512;
/// Rooms of a tile that a program may need at once; more are refused.
inline constexpr size_t kMaxRooms = 32;

/// A program made ready for the operands of one call.
class TileProgram {
 public:
  /// Empty, or why the call cannot run it.
  static std::string refusal(const KernelCall& call);

  /// The call must have passed refusal(). Throws Error(kModel) if an input does not broadcast.
  TileProgram(const PointwiseProgram& program, const KernelCall& call, const Loops& loops);

  /// More tiles at once than kMaxRooms can hold?
  bool too_large() const { return rooms_ > kMaxRooms; }
  int64_t count() const { return count_; }
  bool can_share(size_t input, size_t output) const;
  /// Computes the elements [begin, end) of all outputs.
  void run(const KernelBuffers& buffers, int64_t begin, int64_t end) const;

 private:
  enum class Kind : uint8_t { kLoad, kConvert, kStep, kDrop, kRound, kStore };

  /// Where a step finds an operand or leaves its result: a room, or memory itself (f32).
  struct Slot {
    enum class Space : uint8_t { kRoom, kInput, kOutput } space = Space::kRoom;
    size_t index = 0;
  };

  struct Action {
    Kind kind = Kind::kStep;
    Loop loop = nullptr;
    Slot from[kMaxOperands], to;
    size_t operands = 0;  // in `from`
    size_t operand = 0;   // of loads and stores: input or output
    DType dtype = DType::kUndefined;
    float parameters[2] = {};
    size_t seed = 0, step = 0;  // the inputs of a Dropout
  };

  struct Input {
    DType dtype = DType::kUndefined;
    bool whole = false;   // as many elements as the outputs, in their order
    bool single = false;  // one element, spread over a room once for many tiles
    Runs runs;            // otherwise
  };

  class Compiler;
  struct Tile;

  const Loops& loops_;
  std::vector<Input> inputs_;
  std::vector<DType> outputs_;
  std::vector<Action> actions_;
  std::vector<size_t> last_read_;      // of each input: the last action that reads it
  std::vector<size_t> first_written_;  // of each output
  size_t rooms_ = 0;
  int64_t count_ = 0;
};

}  // namespace halfnote::cpu::pointwise
