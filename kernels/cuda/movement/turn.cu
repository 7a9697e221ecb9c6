#include "kernels/cuda/movement/turn.h"

#include <algorithm>

#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kNarrow = 8;
constexpr int64_t kMostMatrices = 65535, kMostTiles = 65535;

/// Of a tile of elements of so many bytes: the side, and how many elements are moved at once.
template <class T>
constexpr int kSide = sizeof(T) <= 2 ? 64 : 32;
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T)) < 8 ? 16 / static_cast<int>(sizeof(T)) : 8;

/// A block a tile. A thread reads a pack of V elements of a row of the source, and writes a pack of
/// a row of the result: the numbers of rows and columns are multiples of V. The odd pitch of the
/// tile has a warp's elements of a column lie in different banks.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    turn_tiles(const T* from, T* to, int64_t rows, int64_t columns) {
  constexpr int kEdge = kSide<T>, kPacks = kEdge / V;
  HN_SHARED(T[kEdge][kEdge + (sizeof(T) < 4 ? 4 / sizeof(T) : 1)], tile);
  const int64_t matrix = int64_t{blockIdx.z} * rows * columns;
  const int64_t first_row = int64_t{blockIdx.y} * kEdge, first_column = int64_t{blockIdx.x} * kEdge;
  for (int i = static_cast<int>(threadIdx.x); i < kEdge * kPacks; i += kThreads) {
    const int r = i / kPacks, c = i % kPacks * V;
    const int64_t row = first_row + r, column = first_column + c;
    if (row >= rows || column >= columns) continue;
    const auto pack = load_packed<V>(from + matrix + row * columns + column);
    for (int j = 0; j < V; ++j) tile[r][c + j] = pack.of[j];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kEdge * kPacks; i += kThreads) {
    const int c = i / kPacks, r = i % kPacks * V;
    const int64_t row = first_row + r, column = first_column + c;
    if (row >= rows || column >= columns) continue;
    Packed<T, V> pack;
    for (int j = 0; j < V; ++j) pack.of[j] = tile[r + j][c];
    store_packed(to + matrix + column * rows + row, pack);
  }
}

template <class T>
void turn(Stream& stream, const TurnedMatrices& m, const T* from, T* to) {
  constexpr int kMost = kPack<T>;
  const dim3 grid(blocks_for(m.columns, kSide<T>), blocks_for(m.rows, kSide<T>),
                  static_cast<unsigned>(m.matrices));
  const bool whole = m.rows % kMost == 0 && m.columns % kMost == 0;
  const bool packs = whole && are_aligned(std::array<const void*, 2>{from, to});
  launch(stream, packs ? turn_tiles<T, kMost> : turn_tiles<T, 1>, grid, dim3(kThreads), 0, from, to,
         m.rows, m.columns);
}

}  // namespace

bool turns_in_tiles(const TurnedMatrices& m) {
  return std::min(m.rows, m.columns) >= kNarrow && m.matrices <= kMostMatrices &&
         m.rows <= kMostTiles * kSide<uint64_t>;
}

void turn_matrices(Stream& stream, size_t element_bytes, const TurnedMatrices& m, const void* from,
                   void* to) {
  const auto run = [&]<class T>(T /*element*/) {
    turn(stream, m, static_cast<const T*>(from), static_cast<T*>(to));
  };
  switch (element_bytes) {
    case 1:
      return run(uint8_t{});
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    default:
      return run(uint64_t{});
  }
}

}  // namespace halfnote::HN_CUDA
