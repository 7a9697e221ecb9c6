// The gradient of maxima whose taps are known, of windows two apart that meet, as those of 3 x 3
// before a residual net's first block: a thread takes a cell of 2 x 2 pixels of some channels, so
// that each window over it is loaded once for all four and places are found once.
//
// Pixel y = 2·q + m − pad (m: 0 or 1) lies in window q as tap m and, if windows reach so far, in
// window q − 1 as tap m + 2: a cell is the pixels of one q in either dim.
#pragma once

#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/reduction/flat_maxima.h"

namespace halfnote::HN_CUDA {

struct MaxCells2 {
  FlatImages images;
  int32_t first_y, first_x;  // the first q of either dim
  Divisor height, width;     // cells of an image

  /// Taps along a dim that kernels are compiled for.
  static int64_t most_taps(const cpu::PoolGeometry& g) {
    return g.kernel[1] <= 3 && g.kernel[2] <= 3 ? 3 : 4;
  }
  /// A row of taps has as many as kernels are compiled for, or two, those of one window alone: else
  /// the tap behind its end would be that of the next row.
  static bool takes(const cpu::PoolGeometry& g, int64_t inputs, int64_t outputs) {
    const auto fits = [&](size_t d) { return g.stride[d] == 2 && g.kernel[d] <= 4; };
    const bool whole_rows = g.kernel[2] == 2 || g.kernel[2] == most_taps(g);
    return FlatImages::takes(g, inputs, outputs) && fits(1) && fits(2) && whole_rows;
  }
  MaxCells2(const cpu::PoolGeometry& g, int64_t channels, int together)
      : images(g, channels, together),
        first_y(images.h.pad / 2),
        first_x(images.w.pad / 2),
        height(cells_along(images.h)),
        width(cells_along(images.w)) {}
  int64_t per_image() const { return height.value() * width.value(); }

  /// Where a cell is: its q's.
  struct Place {
    int32_t image, y, x;
  };
  __device__ Place place(int64_t cell) const {
    const auto at = static_cast<uint32_t>(cell);
    const uint32_t row = width.small_quotient(at), image = height.small_quotient(row);
    const auto y = static_cast<int32_t>(row - image * static_cast<uint32_t>(height.value()));
    const auto x = static_cast<int32_t>(at - row * static_cast<uint32_t>(width.value()));
    return {static_cast<int32_t>(image), y + first_y, x + first_x};
  }

 private:
  static int64_t cells_along(const FlatImages::Line& line) {
    return (line.in - 1 + line.pad) / 2 - line.pad / 2 + 1;
  }
};

/// The taps of a window's maxima, as bytes of words where that may be.
template <int V>
struct TapBytes {
  using Word = std::conditional_t<V % 4 == 0, uint32_t, uint8_t>;
  static constexpr int kBytes = sizeof(Word), kWords = V / kBytes;
  Word of[kWords];

  /// No tap is that of any element.
  __device__ TapBytes() {
    HN_UNROLL
    for (int w = 0; w < kWords; ++w) of[w] = static_cast<Word>(~Word{0});
  }
  __device__ explicit TapBytes(const Packed<uint8_t, V>& taps) { memcpy(of, &taps, V); }
  __device__ bool is(int v, uint32_t tap) const {
    const uint32_t all = tap * 0x01010101u, byte = 0xFFu << v % kBytes * 8;
    return ((of[v / kBytes] ^ all) & byte) == 0;
  }
};

/// The windows over a cell: [0] is q − 1, [1] is q.
template <class T, int V>
struct CellWindows {
  Packed<T, V> gradients[2][2];
  TapBytes<V> taps[2][2];

  __device__ CellWindows(const FlatImages& images, const MaxCells2::Place& at, int64_t channel,
                         const T* dy, const uint8_t* kept) {
    const int64_t last = (int64_t{at.image} * images.h.out + at.y) * images.w.out + at.x;  // [1][1]
    HN_UNROLL
    for (int a = 0; a < 2; ++a) {
      const int32_t oh = at.y - 1 + a;
      HN_UNROLL
      for (int b = 0; b < 2; ++b) {
        const int32_t ow = at.x - 1 + b;
        const bool reaches = (a == 1 || images.h.kernel > 2) && (b == 1 || images.w.kernel > 2);
        if (!reaches || oh < 0 || oh >= images.h.out || ow < 0 || ow >= images.w.out) continue;
        const int64_t place = last - (1 - a) * images.w.out - (1 - b);
        const int64_t from = place * images.channels + channel;
        gradients[a][b] = load_packed<V>(dy + from);
        taps[a][b] = TapBytes<V>(load_packed<V>(kept + from));
      }
    }
  }
  /// What comes to pixel (m, n) of the cell, in the order of the outputs.
  template <int kMostTaps>
  __device__ void add(const FlatImages& images, int m, int n, Math<T> (&sums)[V]) const {
    HN_UNROLL
    for (int a = 0; a < 2; ++a) {
      const int kh = m + 2 * (1 - a);
      HN_UNROLL
      for (int b = 0; b < 2; ++b) {
        const int kw = n + 2 * (1 - b);
        if (kh >= kMostTaps || kw >= kMostTaps) continue;
        const auto tap = static_cast<uint32_t>(kh * images.w.kernel + kw);
        HN_UNROLL
        for (int v = 0; v < V; ++v) {
          if (taps[a][b].is(v, tap)) sums[v] += load_number(gradients[a][b].of[v]);
        }
      }
    }
  }
};

/// `finish.know(c, channels)` gives what is known of V channels from c on, `finish.read(at, own)`
/// what it wants of the elements of dX's pixel there, `finish.make(channels, own, sums)` dX.
/// kMostTaps: of a window along a dim.
template <int V, int kMostTaps, class T, class Finish>
__global__ void __launch_bounds__(kBlock, 2)
    max_cells(const __grid_constant__ Finish finish, const __grid_constant__ MaxCells2 cells,
              ChannelWalk walk, const T* dy, const uint8_t* taps, T* dx) {
  const int64_t c = walk.channel<V>();
  if (c >= walk.channels || walk.turn() >= walk.turns()) return;
  const FlatImages& images = cells.images;
  typename Finish::Channel channels[V];
  finish.template know<V>(c, channels);
  const ChannelWalk::Part part = walk.part();
  HN_IN_TURN
  for (int64_t cell = part.begin + threadIdx.x / walk.lanes; cell < part.end; cell += walk.step()) {
    const MaxCells2::Place at = cells.place(cell);
    const CellWindows<T, V> windows(images, at, c, dy, taps);
    const int32_t top = 2 * at.y - images.h.pad, left = 2 * at.x - images.w.pad;
    const int64_t corner =
        ((int64_t{at.image} * images.h.in + top) * images.w.in + left) * images.channels + c;
    typename Finish::template Own<V> own[2][2];
    bool inside[2][2];
    int64_t places[2][2];
    HN_UNROLL
    for (int m = 0; m < 2; ++m) {
      HN_UNROLL
      for (int n = 0; n < 2; ++n) {
        inside[m][n] =
            top + m >= 0 && top + m < images.h.in && left + n >= 0 && left + n < images.w.in;
        places[m][n] = corner + (m * images.w.in + n) * int64_t{images.channels};
        if (inside[m][n]) finish.template read<V>(places[m][n], own[m][n]);
      }
    }
    HN_UNROLL
    for (int m = 0; m < 2; ++m) {
      HN_UNROLL
      for (int n = 0; n < 2; ++n) {
        if (!inside[m][n]) continue;
        Math<T> sums[V] = {}, result[V];
        windows.template add<kMostTaps>(images, m, n, sums);
        finish.template make<V>(channels, own[m][n], sums, result);
        store_joined(dx + places[m][n], pack_of<T>(result));
      }
    }
  }
}

/// Runs it for `images` images of X, V channels at a time.
template <int V, class T, class Finish>
void run_max_cells(Stream& stream, const Finish& finish, const cpu::PoolGeometry& g,
                   int64_t channels, int64_t images, const T* dy, const uint8_t* taps, T* dx) {
  const MaxCells2 cells(g, channels, V);
  const ChannelWalk walk = walk_for_sums<T>(cells.per_image() * images, channels);
  const bool is_small = MaxCells2::most_taps(g) == 3;
  launch(stream, is_small ? max_cells<V, 3, T, Finish> : max_cells<V, 4, T, Finish>, walk.grid(),
         kBlock, 0, finish, cells, walk, dy, taps, dx);
}

/// What comes to a pixel is its gradient.
template <class T>
struct SumsAlone {
  struct Channel {};
  template <int V>
  struct Own {};
  template <int V>
  __device__ void know(int64_t, Channel (&)[V]) const {}
  template <int V>
  __device__ void read(int64_t, Own<V>&) const {}
  template <int V>
  __device__ void make(const Channel (&)[V], const Own<V>&, const Math<T> (&sums)[V],
                       Math<T> (&result)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) result[v] = sums[v];
  }
};

}  // namespace halfnote::HN_CUDA
