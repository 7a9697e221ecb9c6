// Runs a pointwise program over tiles: pieces of the outputs small enough that every step's
// operands and results stay in the first-level cache, so that memory is read and written once
// however many steps there are.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ops/pointwise.h"
#include "kernels/cpu/pointwise/fused.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/pointwise/shapes.h"
#include "kernels/cpu/reduction/plan.h"
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

  /// The call must have passed refusal() and unfit_outputs(). Throws Error(kModel) if an input does
  /// not broadcast.
  TileProgram(const PointwiseProgram& program, const KernelCall& call, const Loops& loops);

  /// More tiles at once than kMaxRooms can hold?
  bool too_large() const { return rooms_ > kMaxRooms; }
  bool can_share(size_t input, size_t output) const;
  /// Of partial sums.
  size_t workspace_bytes() const;
  void run(const KernelBuffers& buffers, int threads) const;

 private:
  enum class Kind : uint8_t {
    kLoad,
    kConvert,
    kStep,
    kDrop,
    kRound,
    kStore,
    kReload,  // what was rounded by the way it was stored
    kSum,
  };

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
    bool short_runs = false;
    Runs runs;  // otherwise
  };

  /// A sum over the first dims or the last ones: the columns of a matrix are summed, or its rows.
  /// It has the plan of ReduceSum, and its order of additions: the bits are the same.
  struct Sum {
    size_t output = 0;
    SummedShape matrix;
    double divisor = 1;  // that of a mean
    ReducePlan plan;
  };

  class Compiler;
  struct Tile;

  /// Computes the elements [begin, end) of all outputs.
  void run_elements(const KernelBuffers& buffers, int64_t begin, int64_t end) const;
  /// Computes `count` columns from `column` on in the rows [begin, end), and sums them.
  void run_columns(const KernelBuffers& buffers, int64_t begin, int64_t end, int64_t column,
                   int64_t count, double* sums) const;
  /// The elements [begin, end): whole rows of `length`, whose sums are stored, or one, whose sum is
  /// left in `sum`.
  void run_rows(const KernelBuffers& buffers, int64_t begin, int64_t end, int64_t length,
                double* sum) const;
  void run_actions(const Tile& tile, bool is_first) const;
  void sum_columns(const KernelBuffers& buffers, int threads) const;
  void sum_rows(const KernelBuffers& buffers, int threads) const;
  int64_t store_sums(const KernelBuffers& buffers, std::span<const double> sums,
                     int64_t first) const;
  void add_partials(const KernelBuffers& buffers, int threads) const;

  const Loops& loops_;
  std::vector<Input> inputs_;
  std::vector<DType> outputs_;
  std::vector<Action> actions_;
  std::vector<size_t> last_read_;      // of each input: the last action that reads it
  std::vector<size_t> first_written_;  // of each output
  std::optional<Sum> sum_;
  size_t rooms_ = 0;
  int64_t count_ = 0;
};

}  // namespace halfnote::cpu::pointwise
