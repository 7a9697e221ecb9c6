// How blocks share out (rows, channels), a row being the channels of a pixel: a thread has some
// channels side by side and goes down its rows, so that neighbours read neighbours and what a
// channel needs stays in registers. Sums are taken in two stages, in an order that the shape alone
// decides: a block leaves one pair a channel for its slice of rows, a second kernel merges them.
// A thread loads some rows before it computes with them: memory answers late.
#pragma once

#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// Channels side by side that a thread takes where their number allows it: 8 bytes of them. With 16
/// what is known of the channels, and their sums, took the registers of half the threads.
template <class T>
inline constexpr int kChannelsTogether = 8 / sizeof(T);
/// Rows that a thread loads at once.
inline constexpr int kRowsTogether = 4;

/// V elements that are loaded and stored at once.
template <class T, int V>
struct alignas(sizeof(T) * V) Together {
  T of[V];
};

struct ChannelWalk {
  int64_t rows = 0, channels = 0;
  int64_t slice = 1, slices = 1;  // rows of a block, and such slices
  unsigned lanes = 1;             // threads side by side, a power of two up to 32
  int together = 1;               // channels of a thread
  bool from_end = false;          // the first blocks take the last slices

  /// Slices are at least `least` rows a thread long, at most `most` in number, and make no more
  /// than about `blocks` blocks. `wide` channels go together if their number allows it.
  ChannelWalk(int64_t rows_of_all, int64_t channels_of_all, int wide, int64_t least, int64_t most,
              int64_t blocks)
      : rows(rows_of_all), channels(channels_of_all) {
    if (channels % wide == 0) together = wide;
    while (lanes < 32 && int64_t{lanes} * together < channels) lanes *= 2;
    most = std::clamp<int64_t>(blocks / std::max(1u, grid().x), 1, most);
    slice = std::max(least * step(), (rows + most - 1) / most);
    slice = (slice + step() - 1) / step() * step();
    slices = (rows + slice - 1) / slice;
  }
  /// Rows that a block reads at once.
  __host__ __device__ int64_t step() const { return kBlock / lanes; }
  dim3 grid() const {
    const int64_t width = std::max<int64_t>(1, int64_t{lanes} * together);
    return {static_cast<unsigned>((channels + width - 1) / width), static_cast<unsigned>(slices)};
  }
  /// The first channel of a thread; it has none if that is behind the last.
  template <int V>
  __device__ int64_t channel() const {
    return (int64_t{blockIdx.x} * lanes + threadIdx.x % lanes) * V;
  }
  /// The thread's rows, kRowsTogether at a time: `load(r, at)` with the place of its channels in
  /// each of them, then `use(r, at)`, then `pause()`.
  template <class Load, class Use, class Pause>
  __device__ void for_rows(int64_t channel, const Load& load, const Use& use,
                           const Pause& pause) const {
    const int64_t begin =
        (from_end ? slices - 1 - int64_t{blockIdx.y} : int64_t{blockIdx.y}) * slice;
    const int64_t end = begin + slice < rows ? begin + slice : rows;
    const int64_t below = step();
    for (int64_t row = begin + threadIdx.x / lanes; row < end; row += kRowsTogether * below) {
      HN_UNROLL
      for (int r = 0; r < kRowsTogether; ++r) {
        if (row + r * below < end) load(r, (row + r * below) * channels + channel);
      }
      HN_UNROLL
      for (int r = 0; r < kRowsTogether; ++r) {
        if (row + r * below < end) use(r, (row + r * below) * channels + channel);
      }
      pause();
    }
  }
};

/// A walk for sums: enough blocks for a GPU, few slices to merge.
template <class T>
ChannelWalk walk_for_sums(int64_t rows, int64_t channels) {
  return {rows, channels, kChannelsTogether<T>, 8, 512, 2048};
}
/// A walk for what each element becomes alone, from the end: the cache still has what sums read
/// last.
template <class T>
ChannelWalk walk_for_elements(int64_t rows, int64_t channels) {
  ChannelWalk walk(rows, channels, kChannelsTogether<T>, 8, 65535, 1 << 20);
  walk.from_end = true;
  return walk;
}

/// Without initializers, which shared memory does not have.
template <class M>
struct PairOf {
  M first, second;
};
using SumPair = PairOf<double>;

/// Bytes of the partial sums of a walk.
inline size_t room_for_sums(const ChannelWalk& walk) {
  return static_cast<size_t>(walk.slices * walk.channels) * sizeof(SumPair);
}

/// Adds up the pairs of all threads of a block whose place is the same below `lanes`; the first
/// `lanes` threads get the sums.
__device__ inline SumPair add_rows(SumPair mine, unsigned lanes) {
  HN_SHARED(SumPair[kBlock], all);
  __syncthreads();  // it may still be read for the last sums
  all[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kBlock / 2; half >= lanes; half /= 2) {
    if (threadIdx.x < half) {
      all[threadIdx.x].first += all[threadIdx.x + half].first;
      all[threadIdx.x].second += all[threadIdx.x + half].second;
    }
    __syncthreads();
  }
  return all[threadIdx.x];
}

/// The pairs of each channel over a block's slice. `body.channel(c)` gives what is known of a
/// channel, `body.load<V>(at)` V elements at a place, `body.add<V>(channels, loaded, at, pairs)`
/// adds them: to f64, or in f32 for as many rows as are loaded together (Body::Number).
template <int V, class Body>
__global__ void __launch_bounds__(kBlock)
    sum_slices(const __grid_constant__ Body body, ChannelWalk walk, SumPair* parts) {
  const int64_t c = walk.channel<V>();
  const bool has_channels = c < walk.channels;
  SumPair sums[V] = {};
  if (has_channels) {
    typename Body::Channel channels[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) channels[v] = body.channel(c + v);
    typename Body::template Loaded<V> loaded[kRowsTogether];
    PairOf<typename Body::Number> some[V] = {};
    walk.for_rows(
        c, [&](int r, int64_t at) { loaded[r] = body.template load<V>(at); },
        [&](int r, int64_t at) { body.template add<V>(channels, loaded[r], at, some); },
        [&] {
          HN_UNROLL
          for (int v = 0; v < V; ++v) {
            sums[v].first += some[v].first;
            sums[v].second += some[v].second;
            some[v] = {};
          }
        });
  }
  HN_UNROLL
  for (int v = 0; v < V; ++v) {
    const SumPair sum = add_rows(sums[v], walk.lanes);
    if (has_channels && threadIdx.x < walk.lanes)
      parts[int64_t{blockIdx.y} * walk.channels + c + v] = sum;
  }
}

/// Channels of a block that merges: few, so that many threads share the slices of one.
inline constexpr unsigned kMergedChannels = 8;

/// Merges the slices of some channels a block, and calls `finish(c, sums)` for each channel.
template <class Finish>
__global__ void __launch_bounds__(kBlock)
    merge_channels(const __grid_constant__ Finish finish, const SumPair* parts, int64_t channels,
                   int64_t slices) {
  constexpr unsigned kLanes = kMergedChannels;
  const int64_t c = int64_t{blockIdx.x} * kLanes + threadIdx.x % kLanes;
  SumPair mine = {};
  HN_UNROLL_BY_4
  for (int64_t s = threadIdx.x / kLanes; c < channels && s < slices; s += kBlock / kLanes) {
    const SumPair part = parts[s * channels + c];
    mine.first += part.first;
    mine.second += part.second;
  }
  const SumPair sum = add_rows(mine, kLanes);
  if (threadIdx.x < kLanes && c < channels) finish(c, sum);
}

template <class Finish>
void finish_channels(Stream& stream, const Finish& finish, const SumPair* parts, int64_t channels,
                     int64_t slices) {
  launch(stream, merge_channels<Finish>, blocks_for(channels, kMergedChannels), kBlock, 0, finish,
         parts, channels, slices);
}

/// `body.channel(c)` and `body.load<V>(at)` as above; `body.apply<V>(channels, loaded, at)` for V
/// elements at a place.
template <int V, class Body>
__global__ void __launch_bounds__(kBlock)
    apply_channels(const __grid_constant__ Body body, ChannelWalk walk) {
  const int64_t c = walk.channel<V>();
  if (c >= walk.channels) return;
  typename Body::Channel channels[V];
  HN_UNROLL
  for (int v = 0; v < V; ++v) channels[v] = body.channel(c + v);
  typename Body::template Loaded<V> loaded[kRowsTogether];
  walk.for_rows(
      c, [&](int r, int64_t at) { loaded[r] = body.template load<V>(at); },
      [&](int r, int64_t at) { body.template apply<V>(channels, loaded[r], at); }, [] {});
}

/// T is what the walk was made for.
template <class T, class Body>
void run_sums(Stream& stream, const Body& body, const ChannelWalk& walk, SumPair* parts) {
  const auto kernel =
      walk.together == 1 ? sum_slices<1, Body> : sum_slices<kChannelsTogether<T>, Body>;
  launch(stream, kernel, walk.grid(), kBlock, 0, body, walk, parts);
}

template <class T, class Body>
void run_elements(Stream& stream, const Body& body, const ChannelWalk& walk) {
  const auto kernel =
      walk.together == 1 ? apply_channels<1, Body> : apply_channels<kChannelsTogether<T>, Body>;
  launch(stream, kernel, walk.grid(), kBlock, 0, body, walk);
}

template <int V, class T>
__device__ Together<T, V> load_together(const T* from, int64_t at) {
  return *reinterpret_cast<const Together<T, V>*>(from + at);
}
template <int V, class T>
__device__ void store_together(T* to, int64_t at, const Together<T, V>& elements) {
  *reinterpret_cast<Together<T, V>*>(to + at) = elements;
}

}  // namespace halfnote::HN_CUDA
