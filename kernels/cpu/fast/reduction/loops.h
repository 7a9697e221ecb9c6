// The inner loops of pools, reductions and Resize on f32, compiled for the baseline, for AVX2 and
// for AVX-512. All give the same bits: every element is computed for itself, or in an order that
// the source fixes.
//
// Lines are scratch memory: every count of line elements is a multiple of kLine, and addresses may
// be anything.
#pragma once

#include <cstdint>

namespace halfnote::cpu::fast {

inline constexpr int64_t kLine = 16;

/// As many taps and strides as one call of these loops takes.
inline constexpr int64_t kMostTaps = 64;

/// Rows of planes, taken apart by a stride: column w is element w / stride of `runs[w % stride]`.
/// The next plane follows `step` elements later in the rows and `segment` later in the runs.
struct SplitRows {
  int64_t planes = 0, columns = 0, stride = 1, step = 0, segment = 0;
};

struct PoolLoops {
  const char* name;

  void (*split)(const SplitRows& rows, const float* x, float* const* runs);
  /// The way back.
  void (*merge)(const SplitRows& rows, const float* const* runs, float* x);

  /// y[i] = the largest of x[tap][i]: the first of equals, the first NaN. taps > 0.
  void (*maximum)(const float* const* x, int64_t taps, int64_t n, float* y);
  /// y[i] = the sum of x[tap][i], tap by tap.
  void (*sum)(const float* const* x, int64_t taps, int64_t n, float* y);
  /// y[i] /= divisors[i]·factor
  void (*divide)(const float* divisors, float factor, int64_t n, float* y);

  /// Numbers that compare as is_new_maximum() does: equal for equals, NaN above all, kPadding below
  /// all. Any n.
  void (*keys)(const float* x, int64_t n, int32_t* keys);
  /// The largest of keys[tap][i] and `first` + its tap, the first of equals. taps > 0.
  void (*first_maximum)(const int32_t* const* keys, int64_t taps, int32_t first, int64_t n,
                        int32_t* best, int32_t* which);
  /// dx[i] = the sum of dy[tap][i] where which[tap][i] is wanted[tap], tap by tap.
  void (*spread)(const float* const* dy, const int32_t* const* which, const int32_t* wanted,
                 int64_t taps, int64_t n, float* dx);

  static constexpr int32_t kPadding = INT32_MIN;
};

/// Weighted sums of lines of `size` elements: those of line o are k in [starts[o], starts[o + 1]).
struct WeightedLines {
  int64_t outputs = 0, size = 0;
  const int32_t *starts = nullptr, *sources = nullptr;
  const float* weights = nullptr;
};

struct ResizeLoops {
  /// y[o] = Σ weights[k]·x[sources[k]], line by line and k by k. Any size.
  void (*weigh)(const WeightedLines& lines, const float* x, float* y);
  /// y[column][row] = x[row][column], with rows `step` and `to_step` apart.
  void (*turn)(const float* x, int64_t rows, int64_t columns, int64_t step, float* y,
               int64_t to_step);
};

/// How ArgMax and ArgMin choose.
struct ArgOrder {
  bool smallest = false, last = false;  // of equals
};

/// Rows `step` elements apart (backwards: less than 0), summed up from one to the next.
struct RunningRows {
  int64_t count = 0, columns = 0, step = 0;
  bool exclusive = false;
};

/// Rows of n elements behind each other, each reduced to one number. Any n.
struct ReduceLoops {
  static constexpr int64_t kLanes = 8;
  using Rows = void (*)(const float* x, int64_t rows, int64_t n, double* y);
  /// The steps and the order of the reference (kernels/math/reduce.h), in f64.
  Rows sum, sum_sizes, sum_squares, product;
  /// Adds a piece of a row to kLanes interleaved sums, the first element to the first of them, and
  /// gives what `sum` would of all that they hold.
  double (*add_run)(const float* x, int64_t n, double* lanes);
  Rows maximum, minimum;
  /// The index of the largest, the first NaN first of all. n > 0.
  void (*best_places)(const float* x, int64_t rows, int64_t n, const ArgOrder& order, int64_t* y);
  /// Takes the keys of n elements that are better than `best`, and `index` into `which`.
  void (*take_better)(const float* x, int64_t n, int32_t index, const ArgOrder& order,
                      int32_t* best, int32_t* which);
  /// Adds x row by row to the sums in f64 and writes them, rounded to f32, to the rows of y, which
  /// lie as those of x; exclusive: as they were before the row. Any columns; y may be x.
  void (*running_sums)(const RunningRows& rows, const float* x, double* sums, float* y);
};

/// The loops for this CPU.
const PoolLoops& pool_loops();
const ResizeLoops& resize_loops();
const ReduceLoops& reduce_loops();

extern const PoolLoops kBaselinePool;
extern const ResizeLoops kBaselineResize;
extern const ReduceLoops kBaselineReduce;
/// Only on x86-64.
extern const PoolLoops kAvx2Pool, kAvx512Pool;
extern const ResizeLoops kAvx2Resize, kAvx512Resize;
extern const ReduceLoops kAvx2Reduce, kAvx512Reduce;

}  // namespace halfnote::cpu::fast
