// Strided copies: most of the movement family is one or several of them.
#pragma once

#include <cstdlib>

#include "kernels/cpu/movement/parts.h"

namespace halfnote::cpu {

/// A copy that turns a matrix: adjacent in the target is one dim (of `columns`), adjacent in the
/// source another (of `rows`). Without columns it is none.
struct Turn {
  Runs rest;  // the other dims
  int64_t rows = 0, columns = 0;
  int64_t from_step = 0, to_step = 0;  // from a column to the next, and from a row to the next
};

/// A copy over `runs`, whose two tensors are the source and the target.
struct CopyJob {
  Runs runs;
  Turn turn = {};
  size_t input = 0, output = 0;
  int64_t from = 0, to = 0;  // the first element of each
};

/// Plans a copy of `dims` elements with the given strides.
CopyJob plan_copy(const Shape& dims, const Shape& from_strides, const Shape& to_strides);

/// Is the one output just the first elements of input 0, and most of them? A slice of the first
/// rows, a transpose that moves dims of 1. A view of little would keep all of input 0 in memory.
bool keeps_first_bytes(const KernelCall& call, const std::vector<CopyJob>& jobs);

/// A kernel that does all jobs in turn; the elements have the type of output 0.
Prepared make_copies(const KernelCall& call, std::vector<CopyJob> jobs);

/// Makes a kernel that carries out the jobs; every device has its own.
using CopyMaker = Prepared (*)(const KernelCall& call, std::vector<CopyJob> jobs);
/// Plans a call of any op that is strided copies, and leaves the work to `make`.
Prepared prepare_copies(const KernelCall& call, CopyMaker make);
/// The rows of these ops.
std::vector<KernelRow> copy_rows(std::string_view name, Prepared (*prepare)(const KernelCall&));

/// Edge of the squares in which a matrix is turned: some lines of either side stay in the cache.
inline constexpr int64_t kTurned = 16;

/// Turns a square of 4 by 4 words in vectors.
inline void turn_vectors(const uint32_t* from, int64_t from_step, uint32_t* to, int64_t to_step) {
  using Words = uint32_t __attribute__((vector_size(16), aligned(4), may_alias));
  const auto line = [&](int64_t i) {
    return *reinterpret_cast<const Words*>(from + i * from_step);
  };
  const Words a = line(0), b = line(1), c = line(2), d = line(3);
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const auto put = [&](int64_t i, Words words) {
    *reinterpret_cast<Words*>(to + i * to_step) = words;
  };
  put(0, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  put(1, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  put(2, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  put(3, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

/// Turns a square of 8 by 8 half words in vectors: interleaving the upper four lines with the lower
/// ones three times makes columns of them.
inline void turn_vectors(const uint16_t* from, int64_t from_step, uint16_t* to, int64_t to_step) {
  using Halves = uint16_t __attribute__((vector_size(16), aligned(2), may_alias));
  Halves lines[8], mixed[8];
  for (int64_t i = 0; i < 8; ++i) lines[i] = *reinterpret_cast<const Halves*>(from + i * from_step);
  const auto interleave = [](const Halves* x, Halves* y) {
    for (int64_t i = 0; i < 4; ++i) {
      y[2 * i] = __builtin_shufflevector(x[i], x[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
  };
  interleave(lines, mixed);
  interleave(mixed, lines);
  interleave(lines, mixed);
  for (int64_t i = 0; i < 8; ++i) *reinterpret_cast<Halves*>(to + i * to_step) = mixed[i];
}

/// to[row·to_step + column] = from[column·from_step + row], at most kTurned of either.
template <class T>
void turn_square(const T* from, int64_t from_step, int64_t rows, int64_t columns, T* to,
                 int64_t to_step) {
  int64_t turned_rows = 0, turned_columns = 0;  // by vectors
  if constexpr (sizeof(T) == sizeof(uint32_t) || sizeof(T) == sizeof(uint16_t)) {
    constexpr auto kEdge = static_cast<int64_t>(16 / sizeof(T));
    turned_rows = rows / kEdge * kEdge;
    turned_columns = columns / kEdge * kEdge;
    for (int64_t row = 0; row < turned_rows; row += kEdge) {
      for (int64_t column = 0; column < turned_columns; column += kEdge)
        turn_vectors(from + column * from_step + row, from_step, to + row * to_step + column,
                     to_step);
    }
  }
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = column < turned_columns ? turned_rows : 0; row < rows; ++row)
      to[row * to_step + column] = from[column * from_step + row];
  }
}

/// A job that turns a matrix, in strips of kTurned rows.
template <class T>
void run_turn(const CopyJob& job, const T* from, T* to, int threads) {
  const Turn& turn = job.turn;
  const int64_t strips = (turn.rows + kTurned - 1) / kTurned;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / (kTurned * turn.columns));
  parallel_blocks(turn.rest.count * strips, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % strips * kTurned, place = unit / strips;
      const int64_t rows = std::min(kTurned, turn.rows - first);
      walk_runs<2>(turn.rest, place, place + 1, [&](int64_t, const auto& offsets, int64_t) {
        const T* source = from + job.from + offsets[0] + first;
        T* target = to + job.to + offsets[1] + first * turn.to_step;
        for (int64_t column = 0; column < turn.columns; column += kTurned) {
          turn_square(source + column * turn.from_step, turn.from_step, rows,
                      std::min(kTurned, turn.columns - column), target + column, turn.to_step);
        }
      });
    }
  });
}

/// Asks for the lines of `bytes` bytes, `ahead` elements after `at`. The address may lie outside of
/// the tensor, so it is no pointer.
template <class T>
void ask_for(const T* at, int64_t ahead, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(at) +
                     static_cast<uintptr_t>(ahead * static_cast<int64_t>(sizeof(T)));
  for (int64_t line = 0; line < bytes; line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(first + static_cast<uintptr_t>(line)));
}

/// Words in vectors, and how they lie backwards.
struct WordVector {
  using Vector = uint32_t __attribute__((vector_size(16), aligned(4), may_alias));
  static constexpr int64_t kLanes = 4;
  static void turn(const Vector& x, Vector& y) { y = __builtin_shufflevector(x, x, 3, 2, 1, 0); }
};

/// Half words.
struct HalfVector {
  using Vector = uint16_t __attribute__((vector_size(16), aligned(2), may_alias));
  static constexpr int64_t kLanes = 8;
  static void turn(const Vector& x, Vector& y) {
    y = __builtin_shufflevector(x, x, 7, 6, 5, 4, 3, 2, 1, 0);
  }
};

/// to[i] = last[-i]
template <class T>
void copy_backwards(const T* last, int64_t count, T* to) {
  int64_t i = 0;
  if constexpr (sizeof(T) == sizeof(uint32_t) || sizeof(T) == sizeof(uint16_t)) {
    using V = std::conditional_t<sizeof(T) == sizeof(uint32_t), WordVector, HalfVector>;
    for (; i + V::kLanes <= count; i += V::kLanes) {
      V::turn(*reinterpret_cast<const typename V::Vector*>(last - i - (V::kLanes - 1)),
              *reinterpret_cast<typename V::Vector*>(to + i));
    }
  }
  for (; i < count; ++i) to[i] = last[-i];
}

/// Pieces of at most this many bytes are too short for the processor to foresee the next ones.
inline constexpr int64_t kShortPiece = 2048;
/// Bytes ahead that are asked for.
inline constexpr int64_t kAhead = 2048;

/// A job whose runs are adjacent on both sides, and so short that a call for each costs more than
/// the bytes.
template <class T>
void copy_pieces(const CopyJob& job, const T* from, T* to, int threads) {
  const size_t dim = job.runs.dims.size() - 2;
  const int64_t step_from = job.runs.strides[0][dim], step_to = job.runs.strides[1][dim];
  parallel_blocks(job.runs.count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    walk_rows<2>(job.runs, begin, end, [&](const RunRows& rows, const auto& offsets) {
      const T* source = from + job.from + offsets[0];
      T* target = to + job.to + offsets[1];
      const size_t bytes = static_cast<size_t>(rows.length) * sizeof(T);
      for (int64_t row = 0; row < rows.rows; ++row, source += step_from, target += step_to)
        copy_piece(source, bytes, target);
    });
  });
}

/// Are the runs pieces for copy_pieces()? Those that lie far apart are better asked for before.
template <class T>
bool has_pieces(const Runs& runs) {
  constexpr auto kNear = static_cast<int64_t>(4 * kMostPieceBytes / sizeof(T));
  const size_t rank = runs.dims.size();
  if (rank < 2 || runs.step(0) != 1 || runs.step(1) != 1) return false;
  return static_cast<size_t>(runs.dims.back()) * sizeof(T) <= kMostPieceBytes &&
         std::abs(runs.strides[0][rank - 2]) <= kNear &&
         std::abs(runs.strides[1][rank - 2]) <= kNear;
}

/// Carries out one job on elements of type T.
template <class T>
void run_copy(const CopyJob& job, const T* from, T* to, int threads) {
  if (job.turn.columns > 0) return run_turn(job, from, to, threads);
  if (has_pieces<T>(job.runs)) return copy_pieces(job, from, to, threads);
  const int64_t step_from = job.runs.step(0), step_to = job.runs.step(1);
  const size_t rank = job.runs.dims.size();
  const int64_t bytes = job.runs.dims.back() * static_cast<int64_t>(sizeof(T));
  const bool is_short = rank > 1 && bytes <= kShortPiece;
  // Hints about the piece so many pieces later; past the end of a dim they are wrong, and harmless.
  const int64_t later = is_short ? std::max<int64_t>(1, kAhead / std::max<int64_t>(bytes, 64)) : 0;
  const int64_t source_ahead = is_short ? later * job.runs.strides[0][rank - 2] : 0;
  const int64_t target_ahead = is_short ? later * job.runs.strides[1][rank - 2] : 0;
  parallel_blocks(job.runs.count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    walk_runs<2>(job.runs, begin, end, [&](int64_t, const auto& offsets, int64_t length) {
      const T* source = from + job.from + offsets[0];
      T* target = to + job.to + offsets[1];
      if (step_from == 1 && step_to == 1) {
        if (is_short) {
          ask_for(source, source_ahead, bytes);
          ask_for(target, target_ahead, bytes);
        }
        std::copy_n(source, length, target);
        return;
      }
      if (step_from == -1 && step_to == 1) return copy_backwards(source, length, target);
      for (int64_t i = 0; i < length; ++i) target[i * step_to] = source[i * step_from];
    });
  });
}

}  // namespace halfnote::cpu
