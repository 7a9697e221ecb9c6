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
    store_joined(to + matrix + column * rows + row, pack);
  }
}

/// Lines of the long side that a block takes of a matrix with a short one, of up to kMostShort.
constexpr int kLongLines = 128, kMostShort = 32;

/// A block takes all of the short side and many lines of the long one: on one side of the copy that
/// is one piece of memory, on the other there are pieces of kLongLines elements. A tile would be
/// mostly empty. The odd pitch is for the banks.
template <class T, bool kShortRows>
__global__ void __launch_bounds__(kThreads)
    turn_narrow(const T* from, T* to, int64_t length, Divisor narrow, Divisor strips,
                int64_t blocks) {
  HN_SHARED(T[kLongLines * (kMostShort + 1)], tile);
  const int side = static_cast<int>(narrow.value()), pitch = side | 1;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t matrix = strips.quotient(block);
    const int64_t first = (block - matrix * strips.value()) * kLongLines;
    const int lines = static_cast<int>(length - first < kLongLines ? length - first : kLongLines);
    const int64_t begin = matrix * length * side;
    const int64_t piece = begin + first * side, pieces = begin + first;
    __syncthreads();  // the strip before is still read
    for (int i = static_cast<int>(threadIdx.x); i < kLongLines * side; i += kThreads) {
      if (kShortRows) {
        const int line = i % kLongLines, at = i / kLongLines;
        if (line < lines) tile[line * pitch + at] = from[pieces + at * length + line];
      } else if (i < lines * side) {
        const int line = static_cast<int>(narrow.small_quotient(static_cast<uint32_t>(i)));
        tile[line * pitch + (i - line * side)] = from[piece + i];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kLongLines * side; i += kThreads) {
      if (!kShortRows) {
        const int line = i % kLongLines, at = i / kLongLines;
        if (line < lines) to[pieces + at * length + line] = tile[line * pitch + at];
      } else if (i < lines * side) {
        const int line = static_cast<int>(narrow.small_quotient(static_cast<uint32_t>(i)));
        to[piece + i] = tile[line * pitch + (i - line * side)];
      }
    }
  }
}

template <class T>
void turn_strips(Stream& stream, const TurnedMatrices& m, const T* from, T* to) {
  const bool short_rows = m.rows < m.columns;
  const int64_t length = std::max(m.rows, m.columns);
  const int64_t strips = (length + kLongLines - 1) / kLongLines, blocks = m.matrices * strips;
  launch(stream, short_rows ? turn_narrow<T, true> : turn_narrow<T, false>,
         static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kThreads, 0, from, to, length,
         Divisor(std::min(m.rows, m.columns)), Divisor(strips), blocks);
}

template <class T>
void turn(Stream& stream, const TurnedMatrices& m, const T* from, T* to) {
  constexpr int kMost = kPack<T>;
  const int64_t short_side = std::min(m.rows, m.columns), long_side = std::max(m.rows, m.columns);
  const bool whole = m.rows % kMost == 0 && m.columns % kMost == 0;
  const bool packs = whole && are_aligned(std::array<const void*, 2>{from, to});
  const int64_t most = packs ? kMostShort / 2 - 1 : kMostShort;  // a tile half empty pays by packs
  if (short_side <= most && long_side > kMostShort) return turn_strips(stream, m, from, to);
  const dim3 grid(blocks_for(m.columns, kSide<T>), blocks_for(m.rows, kSide<T>),
                  static_cast<unsigned>(m.matrices));
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
