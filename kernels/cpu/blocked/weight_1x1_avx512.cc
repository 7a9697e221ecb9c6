// The loops for AVX-512. bf16 lines are packed in pairs, (pixel p, pixel p + 1) of each channel
// side by side, as the dot products of the instruction set take them.
#include "kernels/cpu/blocked/weight_1x1.h"

#include <algorithm>

#include "base/float16.h"
#include "kernels/cpu/cpu_info.h"

#if defined(__x86_64__)

#include <immintrin.h>

// GCC 12 takes the undefined operands in its own header for mistakes (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")

namespace halfnote::cpu::blocked {

namespace {

constexpr int64_t kC = kBlockChannels;
constexpr int64_t kRows = 8;  // filters of the innermost tile: 8 × 2 sums in registers

#define INLINE [[gnu::always_inline]] inline

INLINE __m512i widened(const uint16_t* line) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line)));
}

void pack_bf16(const PixelLines& from, void* to) {
  auto* pairs = static_cast<uint32_t*>(to);
  for (int64_t b = 0; b < from.blocks; ++b, pairs += kTilePixels / 2 * kC) {
    const auto* data = static_cast<const uint16_t*>(from.data) + b * from.block * kC;
    for (int64_t i = 0; i < from.count; i += 2) {
      __m512i both = widened(data + from.lines[i] * kC);
      if (i + 1 < from.count) {
        const __m512i odd = widened(data + from.lines[i + 1] * kC);
        both = _mm512_or_si512(both, _mm512_slli_epi32(odd, 16));
      }
      _mm512_storeu_si512(pairs + i / 2 * kC, both);
    }
  }
}

void pack_f32(const PixelLines& from, void* to) {
  auto* lines = static_cast<float*>(to);
  for (int64_t b = 0; b < from.blocks; ++b, lines += kTilePixels * kC) {
    const auto* data = static_cast<const float*>(from.data) + b * from.block * kC;
    for (int64_t i = 0; i < from.count; ++i) {
      _mm512_storeu_ps(lines + i * kC, _mm512_loadu_ps(data + from.lines[i] * kC));
    }
  }
}

/// One step over k: a pixel of f32, a pair of bf16. Both are 32 bits a channel.
struct F32Step {
  static constexpr int64_t kPixels = 1;
  INLINE static __m512 add(__m512 sum, const float* a, __m512 b) {
    return _mm512_fmadd_ps(_mm512_set1_ps(*a), b, sum);
  }
};
struct BF16Step {
  static constexpr int64_t kPixels = 2;
  INLINE static __m512 add(__m512 sum, const float* a, __m512 b) {
    const __m512 pair = _mm512_set1_ps(*a);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(b));
  }
};

/// kRows filters by `columns` blocks of channels.
template <class Step, int64_t columns>
INLINE void tile(const float* a, const float* b, int64_t b_block, int64_t steps, float* sums,
                 int64_t stride) {
  __m512 sum[kRows][columns];
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < columns; ++c) sum[r][c] = _mm512_loadu_ps(sums + r * stride + c * kC);
  }
  for (int64_t k = 0; k < steps; ++k) {
    __m512 line[columns];
    for (int64_t c = 0; c < columns; ++c) line[c] = _mm512_loadu_ps(b + c * b_block + k * kC);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < columns; ++c)
        sum[r][c] = Step::add(sum[r][c], a + k * kC + r, line[c]);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < columns; ++c) _mm512_storeu_ps(sums + r * stride + c * kC, sum[r][c]);
  }
}

/// Brings lines nearer, a part at a time.
class Fetcher {
 public:
  Fetcher(const PixelLines& lines, int64_t line_bytes, int64_t parts)
      : lines_(lines),
        bytes_(line_bytes),
        part_((lines.count * lines.blocks + parts - 1) / parts) {}
  INLINE void fetch_part() {
    for (int64_t n = 0; n < part_ && block_ < lines_.blocks; ++n) {
      const int64_t line = lines_.lines[at_] + block_ * lines_.block;
      _mm_prefetch(static_cast<const char*>(lines_.data) + line * bytes_, _MM_HINT_T0);
      if (++at_ < lines_.count) continue;
      at_ = 0;
      ++block_;
    }
  }

 private:
  const PixelLines& lines_;
  int64_t bytes_, part_, at_ = 0, block_ = 0;
};

template <class Step>
void multiply(const void* dy, int64_t filter_blocks, const void* x, int64_t channel_blocks,
              int64_t pixels, float* sums, int64_t stride, const PixelLines* next) {
  constexpr int64_t kBlock = kTilePixels / Step::kPixels * kC;
  constexpr int64_t kLineBytes = kC * 4 / Step::kPixels;
  const int64_t steps = (pixels + Step::kPixels - 1) / Step::kPixels;
  const int64_t parts = (channel_blocks + 1) / 2 * filter_blocks * (kC / kRows);
  Fetcher next_dy(next[0], kLineBytes, parts), next_x(next[1], kLineBytes, parts);
  const auto *a = static_cast<const float*>(dy), *b = static_cast<const float*>(x);
  for (int64_t c = 0; c < channel_blocks; c += 2) {
    for (int64_t f = 0; f < filter_blocks * kC; f += kRows) {
      next_dy.fetch_part();
      next_x.fetch_part();
      const float* rows = a + f / kC * kBlock + f % kC;
      float* to = sums + f * stride + c * kC;
      if (c + 1 < channel_blocks) {
        tile<Step, 2>(rows, b + c * kBlock, kBlock, steps, to, stride);
      } else {
        tile<Step, 1>(rows, b + c * kBlock, kBlock, steps, to, stride);
      }
    }
  }
}

constexpr WeightLoops kF32Loops = {kTilePixels * kC * 4, pack_f32, multiply<F32Step>};
constexpr WeightLoops kBF16Loops = {kTilePixels * kC * 2, pack_bf16, multiply<BF16Step>};

#undef INLINE

}  // namespace

}  // namespace halfnote::cpu::blocked

#pragma GCC pop_options

#endif  // __x86_64__

namespace halfnote::cpu::blocked {

const WeightLoops* weight_loops_for(DType dtype) {
#if defined(__x86_64__)
  if (vector_isa() != VectorIsa::kAvx512) return nullptr;
  if (dtype == DType::kF32) return &kF32Loops;
  if (dtype == DType::kBF16 && bf16_dots() == Bf16Dots::kFast) return &kBF16Loops;
#endif
  return nullptr;
}

}  // namespace halfnote::cpu::blocked
