#include "kernels/cuda/channels_last/transpose.h"

#include "kernels/cuda/movement/turn.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kTile = 32, kTileRows = 8;

/// From so many rows or columns on a tile pays: of fewer it would be mostly empty.
constexpr int64_t kNarrow = 16;

__device__ void turn_element(const Transposition& p, int64_t batch, int64_t row, int64_t column) {
  float value = p.load(batch, row, column);
  if (p.bias.data != nullptr) value += p.bias.load<float>(column);
  p.to.write((batch * p.columns + column) * p.to_line + row, value);
}

/// A column a thread: neighbours read neighbours, and write lines that follow each other.
struct TurnColumn {
  Transposition p;
  Divisor columns;
  __device__ void operator()(int64_t i) const {
    const int64_t batch = columns.quotient(i), column = i - batch * columns.value();
    for (int64_t row = 0; row < p.to_line; ++row) turn_element(p, batch, row, column);
  }
};

/// A row a thread.
struct TurnRow {
  Transposition p;
  Divisor rows;  // of the result's lines
  __device__ void operator()(int64_t i) const {
    const int64_t batch = rows.quotient(i), row = i - batch * rows.value();
    for (int64_t column = 0; column < p.columns; ++column) turn_element(p, batch, row, column);
  }
};

__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_padded(const __grid_constant__ Transposition p, int64_t tiles, Divisor across,
                     Divisor down) {
  HN_SHARED(float[kTile][kTile + 1], tile);
  const int lane = static_cast<int>(threadIdx.x) % kTile;
  const int line = static_cast<int>(threadIdx.x) / kTile;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t strip = across.quotient(t), batch = down.quotient(strip);
    const int64_t column = (t - strip * across.value()) * kTile;
    const int64_t row = (strip - batch * down.value()) * kTile;
    __syncthreads();  // the tile before is still read
    for (int r = line; r < kTile && row + r < p.to_line; r += kTileRows) {
      if (column + lane >= p.columns) break;
      tile[r][lane] = p.load(batch, row + r, column + lane);
    }
    __syncthreads();
    for (int c = line; c < kTile && column + c < p.columns; c += kTileRows) {
      if (row + lane >= p.to_line) break;
      float value = tile[lane][c];
      if (p.bias.data != nullptr) value += p.bias.load<float>(column + c);
      p.to.write((batch * p.columns + column + c) * p.to_line + row + lane, value);
    }
  }
}

/// Does it only move bits?
bool is_plain(const Transposition& p) {
  return p.from.dtype == p.to.dtype && p.bias.data == nullptr && p.filled == p.batches &&
         p.from_line == p.columns && p.to_line == p.rows;
}

}  // namespace

void transpose(Stream& stream, const Transposition& p) {
  const TurnedMatrices plain{p.batches, p.rows, p.columns};
  if (is_plain(p) && turns_in_tiles(plain)) {
    turn_matrices(stream, size_of(p.from.dtype), plain, p.from.data, p.to.data);
    return;
  }
  if (p.to_line < kNarrow) {
    for_each(stream, p.batches * p.columns, TurnColumn{p, Divisor(p.columns)});
    return;
  }
  if (p.columns < kNarrow) {
    for_each(stream, p.batches * p.to_line, TurnRow{p, Divisor(p.to_line)});
    return;
  }
  const int64_t across = (p.columns + kTile - 1) / kTile, down = (p.to_line + kTile - 1) / kTile;
  const int64_t tiles = p.batches * across * down;
  launch(stream, transpose_padded, static_cast<unsigned>(std::min(tiles, kMaxBlocks)),
         kTile * kTileRows, 0, p, tiles, Divisor(across), Divisor(down));
}

}  // namespace halfnote::HN_CUDA
