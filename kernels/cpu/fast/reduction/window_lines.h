// Pools one axis after the other, on lines: the rows of a few planes beside each other, each
// padded, so that every step is a loop over long vectors however small the planes are.
//
//   rows of x ─ columns of a window ─▶ a line for each row ─ rows of a window ─▶ … ─▶ y
//
// The maximum of a window is that of the maxima of its rows. So is its first maximum, and its
// gradient goes back the same way: to the row that had it, then to the column that the row had it
// from. Gradients that meet in one element are added down the columns first, each in the order of
// the windows.
#pragma once

#include <vector>

#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu::fast {

/// The windows of one axis over whole lines.
struct LineWindows {
  struct Window {
    int64_t line = 0;  // the first one within
    int32_t tap = 0, taps = 0;
    float count = 1;  // elements that a mean counts, at least 1
  };
  struct Use {
    int32_t window = 0, tap = 0;
  };
  int64_t in = 1, out = 1, dilation = 1;
  bool trivial = false;  // window i is line i
  std::vector<Window> windows;
  std::vector<Use> uses;  // of each line in turn, in the order of the windows
  std::vector<int64_t> starts;
};

class WindowLines {
 public:
  enum class Pool { kMaximum, kMaximumGradient, kMean, kMeanPadded };

  /// Why these windows are not for lines, or an empty string.
  static std::string refusal(const PoolGeometry& geometry);
  WindowLines(const PoolGeometry& geometry, Pool pool);

  /// Planes that are pooled at once.
  int64_t planes() const { return planes_; }
  int64_t groups() const { return (geometry_.planes + planes_ - 1) / planes_; }
  /// Bytes of scratch memory; prepare() comes before its first use in a run.
  size_t scratch_bytes() const { return scratch_.bytes; }
  void prepare(std::byte* scratch) const;

  // On `planes` planes, at most planes(), one behind the other.

  void maximum(const float* x, int64_t planes, std::byte* scratch, float* y) const;
  /// `keys` are those of x; dx may lie over them.
  void maximum_gradient(const float* dy, const int32_t* keys, int64_t planes, std::byte* scratch,
                        float* dx) const;
  void mean(const float* x, int64_t planes, std::byte* scratch, float* y) const;
  void mean_gradient(const float* dy, int64_t planes, std::byte* scratch, float* dx) const;

 private:
  /// Offsets: the rows as they are split, the lines when columns, rows and depths are pooled, which
  /// tap each had its maximum from, and the gradients on the way back.
  struct Scratch {
    size_t phases = 0, columns = 0, rows = 0, depths = 0;
    size_t from_column = 0, from_row = 0, from_depth = 0;
    size_t d_phases = 0, dy = 0, d_rows = 0, d_columns = 0, counts = 0, bytes = 0;
  };

  void plan_scratch();
  int64_t used(int64_t planes) const { return (planes * segment_ + kLine - 1) / kLine * kLine; }
  int64_t in_lines() const { return geometry_.in[0] * geometry_.in[1]; }
  int64_t out_lines() const { return geometry_.out[0] * geometry_.out[1]; }
  /// The run that a tap of a row reads, and back.
  float* run_of(float* phases, int64_t tap) const;
  void runs_of_columns(float* phases, float** runs) const;
  template <class Row>
  void for_rows(const float* x, int64_t planes, float* phases, const Row& row) const;
  template <class Row>
  void to_rows(int64_t planes, float* phases, float* dx, const Row& row) const;
  void put_lines(const float* y, int64_t planes, float* lines) const;
  void take_lines(const float* lines, int64_t planes, float* y) const;
  void divide(const float* counts, float* lines) const;
  float* pool_rows(bool sums, std::byte* scratch) const;
  void find(const int32_t* x, int64_t planes, std::byte* scratch) const;
  const float* spread_rows(bool finds, std::byte* scratch) const;
  void spread_columns(const float* lines, const int32_t* which, int64_t planes, float* phases,
                      float* dx) const;

  PoolGeometry geometry_;
  Pool pool_;
  LineWindows height_, depth_;
  int64_t reach_ = 0;    // how far a window goes beyond its first element in a run
  int64_t segment_ = 0;  // elements of a plane in a line
  int64_t planes_ = 1;
  int64_t margin_ = 0;      // in front of a line
  int64_t line_ = 0;        // from one line to the next
  int64_t phase_size_ = 0;  // from one phase of a row to the next
  Scratch scratch_;
};

}  // namespace halfnote::cpu::fast
