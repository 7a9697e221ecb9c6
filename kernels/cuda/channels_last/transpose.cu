#include "kernels/cuda/channels_last/transpose.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kTile = 32, kTileRows = 8;

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

}  // namespace

void transpose(Stream& stream, const Transposition& p) {
  const int64_t across = (p.columns + kTile - 1) / kTile, down = (p.to_line + kTile - 1) / kTile;
  const int64_t tiles = p.batches * across * down;
  launch(stream, transpose_padded, static_cast<unsigned>(std::min(tiles, kMaxBlocks)),
         kTile * kTileRows, 0, p, tiles, Divisor(across), Divisor(down));
}

}  // namespace halfnote::HN_CUDA
