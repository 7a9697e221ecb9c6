// What the normalizations channels last share: the moments of a channel, and its elements by the
// line that follows from them (normalization/batch.h), with what is added behind it.
#pragma once

#include "kernels/cuda/channels_last/lines.h"
#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/normalization/batch.h"

namespace halfnote::HN_CUDA {

template <class T>
using NormLines = LineTable<ChannelLine<T>, NormMath<T>>;

/// Sums of the distances from a channel's pivot, and of their squares. `pivots.read(line, to)`
/// gives those of the lines from there on.
template <class T, class Pivots>
struct MomentSums {
  using Element = T;
  using Number = NormMath<T>;
  using Channel = Number;
  static constexpr int kOperands = 1, kSums = 2;
  static constexpr int kBlocksAtOnce = 6;  // kWaves in one: of five a sixth would be left over
  const T* operands[kOperands];
  Pivots pivots;
  template <int V>
  __device__ void know(int64_t line, Channel (&of)[V]) const {
    pivots.read(line, of);
  }
  template <int V>
  __device__ void add(const Channel (&of)[V], const RowOf<T, V, 1>& row, int64_t,
                      SumsOf<Number, kSums> (&sums)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const Number distance = static_cast<Number>(load_number(row[0].of[v])) - of[v];
      sums[v].of[0] += distance;
      sums[v].of[1] += distance * distance;
    }
  }
};

/// What is added to the normalized x.
enum class Added { kNothing, kResidual, kNormalized };

template <class T, Added kAdded>
struct Normalize {
  struct Line {
    ChannelLine<T> x;
  };
  struct TwoLines : Line {
    ChannelLine<T> residual;
  };
  static constexpr bool kTwoLines = kAdded == Added::kNormalized;
  using Element = T;
  using Channel = std::conditional_t<kTwoLines, TwoLines, Line>;
  static constexpr int kOperands = kAdded == Added::kNothing ? 1 : 2;
  const T* operands[kOperands];
  T* y;
  uint8_t* signs_of_y;  // a byte for 8 channels, or null
  NormLines<T> lines;
  int64_t channels;
  bool relu;
  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    ChannelLine<T> some[V];
    lines.read(c, some);
    HN_UNROLL
    for (int v = 0; v < V; ++v) of[v].x = some[v];
    if constexpr (kTwoLines) {
      lines.read(channels + c, some);
      HN_UNROLL
      for (int v = 0; v < V; ++v) of[v].residual = some[v];
    }
  }
  template <int V>
  __device__ void apply(const Channel (&of)[V], const RowOf<T, V, kOperands>& row,
                        int64_t at) const {
    Math<T> result[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      auto value = of[v].x.at(row[0].of[v]);
      if constexpr (kAdded == Added::kResidual)
        value += static_cast<NormMath<T>>(load_number(row[1].of[v]));
      if constexpr (kTwoLines) value += of[v].residual.at(row[1].of[v]);
      result[v] = ChannelLine<T>::finished(value, relu);
    }
    store_row(y, at, result);
    if constexpr (V == 8) {
      if (signs_of_y == nullptr) return;
      unsigned bits = 0;
      HN_UNROLL
      for (int v = 0; v < V; ++v) bits |= is_stored_positive<T>(result[v]) ? 1u << v : 0;
      signs_of_y[at / 8] = static_cast<uint8_t>(bits);
    }
  }
};

}  // namespace halfnote::HN_CUDA
