// Kernels over many tensors at once, however many there are: a table in the device's memory says
// where each tensor is (a segment), and for each block of a launch which part of which it takes.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"
#include "kernels/cuda/table_kernel.h"

namespace halfnote::HN_CUDA {

/// Elements of a block where a tensor is walked over element by element.
inline constexpr int64_t kChunk = 16384;
inline int64_t chunks_of(int64_t count, int64_t length = kChunk) {
  return (count + length - 1) / length;
}
/// The same for so many elements in all: few are cut shorter, so that all of a GPU has a part. A
/// block goes over its own in turns, each of which waits for memory.
inline int64_t chunk_length(int64_t elements) {
  return elements < kChunk * kMultiprocessors * 4 ? kChunk / 4 : kChunk;
}

/// What a block does: part `index` of segment `segment`.
struct Chunk {
  int32_t segment, index;
};

/// How the table of a kernel is cut up: the segments, then the chunks of each launch. The
/// segments are structs of plain members.
class TableForm {
 public:
  /// `counts[k]`: how many chunks launch k makes of each segment.
  TableForm(size_t segment_bytes, std::vector<std::vector<int64_t>> counts)
      : segment_bytes_(segment_bytes), counts_(std::move(counts)) {
    offsets_.push_back(segment_bytes_ * counts_.front().size());
    for (const std::vector<int64_t>& launch : counts_) {
      int64_t all = 0;
      for (const int64_t count : launch) all += count;
      offsets_.push_back(offsets_.back() + static_cast<size_t>(all) * sizeof(Chunk));
    }
  }

  size_t bytes() const { return offsets_.back(); }
  unsigned blocks(size_t launch) const {
    return static_cast<unsigned>((offsets_[launch + 1] - offsets_[launch]) / sizeof(Chunk));
  }
  template <class Segment>
  void write(std::span<const Segment> segments, std::byte* to) const {
    static_assert(sizeof(Segment) % alignof(Chunk) == 0);
    std::copy_n(segments.data(), segments.size(), reinterpret_cast<Segment*>(to));
    for (size_t k = 0; k < counts_.size(); ++k) {
      auto* chunk = reinterpret_cast<Chunk*>(to + offsets_[k]);
      for (size_t s = 0; s < counts_[k].size(); ++s) {
        for (int64_t i = 0; i < counts_[k][s]; ++i)
          *chunk++ = {static_cast<int32_t>(s), static_cast<int32_t>(i)};
      }
    }
  }
  template <class Segment>
  const Segment* segments(const KernelBuffers& buffers) const {
    return reinterpret_cast<const Segment*>(buffers.table);
  }
  const Chunk* chunks(const KernelBuffers& buffers, size_t launch = 0) const {
    return reinterpret_cast<const Chunk*>(buffers.table + offsets_[launch]);
  }

 private:
  size_t segment_bytes_;
  std::vector<std::vector<int64_t>> counts_;
  std::vector<size_t> offsets_;  // of the chunks of each launch; the last one is the end
};

/// Elements i to i + V − 1 of an array that is aligned.
template <int V>
struct WholePack {
  int64_t i;

  __device__ bool has(int) const { return true; }
  template <class T>
  __device__ Packed<T, V> load(const T* from) const {
    return load_packed<V>(from + i);
  }
  template <class T>
  __device__ void store(T* to, const Packed<T, V>& pack) const {
    store_packed(to + i, pack);
  }
};

/// The first `count` of them, one by one. The others are read as 0.
template <int V>
struct PartOfPack {
  int64_t i;
  int64_t count;

  __device__ bool has(int k) const { return k < count; }
  template <class T>
  __device__ Packed<T, V> load(const T* from) const {
    Packed<T, V> pack = {};
    HN_UNROLL
    for (int k = 0; k < V; ++k) {
      if (has(k)) pack.of[k] = from[i + k];
    }
    return pack;
  }
  template <class T>
  __device__ void store(T* to, const Packed<T, V>& pack) const {
    HN_UNROLL
    for (int k = 0; k < V; ++k) {
      if (has(k)) to[i + k] = pack.of[k];
    }
  }
};

/// Calls `body(place)` for all packs of V elements of a chunk, each on some thread of the block,
/// which is the same one whether the arrays are aligned or not. `place`: WholePack or PartOfPack.
/// `kAhead`: rounds that read before the first of them has computed. `length`: of all chunks.
template <int V, int kAhead = 1, class Body>
__device__ __forceinline__ void walk_chunk(int64_t chunk, int64_t count, bool aligned,
                                           const Body& body, int64_t length = kChunk) {
  const int64_t begin = chunk * length;
  const int64_t size = begin + length < count ? length : count - begin;
  const int64_t packs = aligned ? size / V : 0;
  int64_t p = threadIdx.x;
  if constexpr (kAhead == 4) {
    HN_UNROLL_BY_4
    for (; p < packs; p += kBlock) body(WholePack<V>{begin + p * V});
  } else {
    for (; p < packs; p += kBlock) body(WholePack<V>{begin + p * V});
  }
  for (; p * V < size; p += kBlock) {
    const int64_t rest = size - p * V;
    body(PartOfPack<V>{begin + p * V, rest < V ? rest : V});
  }
}

/// May all of these be read and written in packs? The first element of each is one of an array.
inline bool aligned_for_packs(std::initializer_list<const void*> pointers) {
  return std::ranges::all_of(
      pointers, [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

}  // namespace halfnote::HN_CUDA
