// How blocks share out (rows, channels), a row being the channels of a pixel: a thread has some
// channels side by side and goes down its rows, so that neighbours read neighbours and what a
// channel needs stays in registers. Sums are taken in two stages, in an order that the shape alone
// decides: a block leaves one pair a channel for its slice of rows, a second kernel merges them.
#pragma once

#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// Channels side by side that a thread takes where their number allows it.
inline constexpr int kChannelsTogether = 4;

/// V elements that are loaded and stored at once.
template <class T, int V>
struct alignas(sizeof(T) * V) Together {
  T of[V];
};

struct ChannelWalk {
  int64_t rows = 0, channels = 0;
  int64_t slice = 1, slices = 1;  // rows of a block, and such slices
  unsigned lanes = 1;             // threads side by side, a power of two up to 32

  /// Slices are at least `least` rows a thread long, and at most `most` in number.
  ChannelWalk(int64_t rows_of_all, int64_t channels_of_all, int64_t least, int64_t most)
      : rows(rows_of_all), channels(channels_of_all) {
    while (lanes < 32 && int64_t{lanes} * together() < channels) lanes *= 2;
    slice = std::max(least * step(), (rows + most - 1) / most);
    slice = (slice + step() - 1) / step() * step();
    slices = (rows + slice - 1) / slice;
  }
  int together() const { return channels % kChannelsTogether == 0 ? kChannelsTogether : 1; }
  /// Rows that a block reads at once.
  __host__ __device__ int64_t step() const { return kBlock / lanes; }
  dim3 grid() const {
    const int64_t width = int64_t{lanes} * together();
    return {static_cast<unsigned>((channels + width - 1) / width), static_cast<unsigned>(slices)};
  }
  /// The first channel of a thread; it has none if that is behind the last.
  template <int V>
  __device__ int64_t channel() const {
    return (int64_t{blockIdx.x} * lanes + threadIdx.x % lanes) * V;
  }
  /// Calls `body(at)` with the place of the thread's channels in each of its rows.
  template <class Body>
  __device__ void for_rows(int64_t channel, const Body& body) const {
    const int64_t begin = int64_t{blockIdx.y} * slice;
    const int64_t end = begin + slice < rows ? begin + slice : rows;
    for (int64_t row = begin + threadIdx.x / lanes; row < end; row += step()) {
      body(row * channels + channel);
    }
  }
};

/// A walk for sums: enough blocks for a GPU, few slices to merge.
inline ChannelWalk walk_for_sums(int64_t rows, int64_t channels) {
  return {rows, channels, 8, 512};
}
/// A walk for what each element becomes alone.
inline ChannelWalk walk_for_elements(int64_t rows, int64_t channels) {
  return {rows, channels, 8, 65535};
}

/// Without initializers, which shared memory does not have.
struct SumPair {
  double first, second;
};

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
/// channel, `body.add<V>(channels, at, pairs)` adds V elements at a place.
template <int V, class Body>
__global__ void __launch_bounds__(kBlock)
    sum_slices(const __grid_constant__ Body body, ChannelWalk walk, SumPair* parts) {
  const int64_t c = walk.channel<V>();
  const bool has_channels = c < walk.channels;
  SumPair sums[V] = {};
  if (has_channels) {
    typename Body::Channel channels[V];
    for (int v = 0; v < V; ++v) channels[v] = body.channel(c + v);
    walk.for_rows(c, [&](int64_t at) { body.template add<V>(channels, at, sums); });
  }
  for (int v = 0; v < V; ++v) {
    const SumPair sum = add_rows(sums[v], walk.lanes);
    if (has_channels && threadIdx.x < walk.lanes)
      parts[int64_t{blockIdx.y} * walk.channels + c + v] = sum;
  }
}

/// Merges the slices of 32 channels a block, and calls `finish(c, sums)` for each channel.
template <class Finish>
__global__ void __launch_bounds__(kBlock)
    merge_channels(const __grid_constant__ Finish finish, const SumPair* parts, int64_t channels,
                   int64_t slices) {
  constexpr unsigned kLanes = 32;
  const int64_t c = int64_t{blockIdx.x} * kLanes + threadIdx.x % kLanes;
  SumPair mine = {};
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
  launch(stream, merge_channels<Finish>, blocks_for(channels, 32), kBlock, 0, finish, parts,
         channels, slices);
}

/// `body.channel(c)` as above; `body.apply<V>(channels, at)` for V elements at a place.
template <int V, class Body>
__global__ void __launch_bounds__(kBlock)
    apply_channels(const __grid_constant__ Body body, ChannelWalk walk) {
  const int64_t c = walk.channel<V>();
  if (c >= walk.channels) return;
  typename Body::Channel channels[V];
  for (int v = 0; v < V; ++v) channels[v] = body.channel(c + v);
  walk.for_rows(c, [&](int64_t at) { body.template apply<V>(channels, at); });
}

template <class Body>
void run_sums(Stream& stream, const Body& body, const ChannelWalk& walk, SumPair* parts) {
  const auto kernel =
      walk.together() == 1 ? sum_slices<1, Body> : sum_slices<kChannelsTogether, Body>;
  launch(stream, kernel, walk.grid(), kBlock, 0, body, walk, parts);
}

template <class Body>
void run_elements(Stream& stream, const Body& body, const ChannelWalk& walk) {
  const auto kernel =
      walk.together() == 1 ? apply_channels<1, Body> : apply_channels<kChannelsTogether, Body>;
  launch(stream, kernel, walk.grid(), kBlock, 0, body, walk);
}

template <int V, class T>
__device__ Together<T, V> load_together(const T* from, int64_t at) {
  return *reinterpret_cast<const Together<T, V>*>(from + at);
}

}  // namespace halfnote::HN_CUDA
