// The loops for AVX-512. Everything that is included from elsewhere stands before the change of
// target; no function takes or returns a vector but those that are always inlined.
#include "kernels/cpu/blocked/loops.h"

#include <limits>

#include "base/float16.h"
#include "kernels/cpu/cpu_info.h"

#if defined(__x86_64__)

#include <immintrin.h>

// GCC 12 takes the undefined operands in its own header for mistakes (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu::blocked {

namespace {

constexpr int64_t kC = kBlockChannels;

struct Doubles16 {
  __m512d low, high;
};

#define INLINE [[gnu::always_inline]] inline

INLINE __m512 load(const float* x) { return _mm512_loadu_ps(x); }
INLINE __m512 load(const Half* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
INLINE __m512 load(const BFloat16* x) {
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

INLINE void store(__m512 value, float* to) { _mm512_storeu_ps(to, value); }
INLINE void store(__m512 value, Half* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/// To nearest, ties to even; a NaN keeps its upper bits and becomes quiet.
INLINE void store(__m512 value, BFloat16* to) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_blend_epi32(nan, rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}

INLINE Doubles16 widen(__m512 x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
          _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
INLINE __m512 narrow(const Doubles16& x) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(x.low)), _mm512_cvtpd_ps(x.high),
                            1);
}
INLINE Doubles16 load(const double* x) { return {_mm512_loadu_pd(x), _mm512_loadu_pd(x + 8)}; }
INLINE void store(const Doubles16& x, double* to) {
  _mm512_storeu_pd(to, x.low);
  _mm512_storeu_pd(to + 8, x.high);
}
INLINE Doubles16 add(const Doubles16& a, const Doubles16& b) {
  return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)};
}

/// Four partial sums of f32, joined in f64.
struct Sum {
  __m512 part[4] = {};
  INLINE Doubles16 total() const {
    return add(add(widen(part[0]), widen(part[1])), add(widen(part[2]), widen(part[3])));
  }
};

template <class T>
void piece_moments(const T* x, int64_t lines, Moments16& to) {
  // Differences from the first line: a mean far from 0 costs no accuracy.
  const __m512 shift = load(x);
  Sum sum;
  int64_t i = 0;
  for (; i + 4 <= lines; i += 4) {
    for (int64_t p = 0; p < 4; ++p) {
      sum.part[p] = _mm512_add_ps(sum.part[p], _mm512_sub_ps(load(x + (i + p) * kC), shift));
    }
  }
  for (; i < lines; ++i) {
    sum.part[0] = _mm512_add_ps(sum.part[0], _mm512_sub_ps(load(x + i * kC), shift));
  }
  const auto count = static_cast<double>(lines);
  const Doubles16 total = sum.total();
  const Doubles16 mean = add(widen(shift), {_mm512_div_pd(total.low, _mm512_set1_pd(count)),
                                            _mm512_div_pd(total.high, _mm512_set1_pd(count))});
  // Distances from the rounded mean; its rounding error is taken out again at the end.
  const __m512 center = narrow(mean);
  Sum square;
  const auto line = [&](int64_t at, int64_t p) __attribute__((always_inline)) {
    const __m512 distance = _mm512_sub_ps(load(x + at * kC), center);
    square.part[p] = _mm512_fmadd_ps(distance, distance, square.part[p]);
  };
  for (i = 0; i + 4 <= lines; i += 4) {
    for (int64_t p = 0; p < 4; ++p) line(i + p, p);
  }
  for (; i < lines; ++i) line(i, 0);
  double squares[kC], centers[kC];
  store(square.total(), squares);
  store(widen(center), centers);
  store(mean, to.mean);
  to.count = count;
  for (int64_t c = 0; c < kC; ++c) {
    const double error = to.mean[c] - centers[c];
    const double exact = squares[c] - count * error * error;
    to.squares[c] = exact > 0 || exact != exact ? exact : 0;
  }
}

template <class T>
void moments(const void* data, int64_t lines, Moments16& moments) {
  const T* x = static_cast<const T*>(data);
  for (int64_t i = 0; i < lines; i += kLines) {
    Moments16 piece;
    piece_moments(x + i * kC, lines - i < kLines ? lines - i : kLines, piece);
    moments.merge(piece);
  }
}

template <class T>
void normalize(const void* from, int64_t lines, const Scale16& scale, void* to) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  const Doubles16 mean = load(scale.mean), factor = load(scale.factor), shift = load(scale.shift);
  if constexpr (std::is_same_v<T, float>) {
    for (int64_t i = 0; i < lines; ++i) {
      const Doubles16 v = widen(load(x + i * kC));
      store(narrow({_mm512_fmadd_pd(_mm512_sub_pd(v.low, mean.low), factor.low, shift.low),
                    _mm512_fmadd_pd(_mm512_sub_pd(v.high, mean.high), factor.high, shift.high)}),
            y + i * kC);
    }
  } else {
    const __m512 m = narrow(mean), f = narrow(factor), s = narrow(shift);
    for (int64_t i = 0; i < lines; ++i) {
      store(_mm512_fmadd_ps(_mm512_sub_ps(load(x + i * kC), m), f, s), y + i * kC);
    }
  }
}

template <class T>
void piece_gradient_sums(const T* dy, const T* x, int64_t lines, __m512 mean, double* sum,
                         double* product) {
  Sum sums, products;
  const auto line = [&](int64_t at, int64_t p) __attribute__((always_inline)) {
    const __m512 g = load(dy + at * kC);
    sums.part[p] = _mm512_add_ps(sums.part[p], g);
    products.part[p] = _mm512_fmadd_ps(g, _mm512_sub_ps(load(x + at * kC), mean), products.part[p]);
  };
  int64_t i = 0;
  for (; i + 4 <= lines; i += 4) {
    for (int64_t p = 0; p < 4; ++p) line(i + p, p);
  }
  for (; i < lines; ++i) line(i, 0);
  store(add(load(sum), sums.total()), sum);
  store(add(load(product), products.total()), product);
}

template <class T>
void gradient_sums(const void* dy, const void* x, int64_t lines, const float* mean, double* sum,
                   double* product) {
  const __m512 center = load(mean);
  for (int64_t i = 0; i < lines; i += kLines) {
    piece_gradient_sums(static_cast<const T*>(dy) + i * kC, static_cast<const T*>(x) + i * kC,
                        lines - i < kLines ? lines - i : kLines, center, sum, product);
  }
}

template <class T>
void normalize_gradient(const void* from, const void* at, int64_t lines, const Gradient16& by,
                        void* to) {
  const T *dy = static_cast<const T*>(from), *x = static_cast<const T*>(at);
  T* dx = static_cast<T*>(to);
  const __m512 mean = load(by.mean), factor = load(by.factor), offset = load(by.offset),
               slope = load(by.slope);
  for (int64_t i = 0; i < lines; ++i) {
    const __m512 g = _mm512_sub_ps(load(dy + i * kC), offset);
    const __m512 distance = _mm512_sub_ps(load(x + i * kC), mean);
    store(_mm512_mul_ps(factor, _mm512_fnmadd_ps(distance, slope, g)), dx + i * kC);
  }
}

template <class T>
void add_lines(const void* from, int64_t lines, double* sums) {
  const T* x = static_cast<const T*>(from);
  const __m512d zero = _mm512_setzero_pd();
  Doubles16 part[4] = {load(sums), {zero, zero}, {zero, zero}, {zero, zero}};
  int64_t i = 0;
  for (; i + 4 <= lines; i += 4) {
    for (int64_t p = 0; p < 4; ++p) part[p] = add(part[p], widen(load(x + (i + p) * kC)));
  }
  for (; i < lines; ++i) part[0] = add(part[0], widen(load(x + i * kC)));
  store(add(add(part[0], part[1]), add(part[2], part[3])), sums);
}

/// Where `value` is the new maximum: larger, or the first NaN.
INLINE __mmask16 beats(__m512 value, __m512 best) {
  const __mmask16 known = _mm512_cmp_ps_mask(best, best, _CMP_ORD_Q);
  return _mm512_mask_cmp_ps_mask(known, value, best, _CMP_NLE_UQ);
}

/// Calls `body(output, pixels, taps)` for every window; `taps` is a constant in the common case.
template <class Body>
INLINE void for_windows(const Windows& w, const Body& body) {
  if (w.taps == 4) {
    for (int64_t i = 0; i < w.count; ++i) body(i, w.pixels + 4 * i, int64_t{4});
    return;
  }
  for (int64_t i = 0; i < w.count; ++i) {
    body(i, w.pixels + w.starts[i], int64_t{w.starts[i + 1]} - w.starts[i]);
  }
}

template <class T>
void maximum(const void* from, const Windows& windows, void* to) {
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  for_windows(
      windows, [&](int64_t output, const int32_t* pixels, int64_t taps)
                   __attribute__((always_inline)) {
                     __m512 best = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
                     if (taps > 0) best = load(x + pixels[0] * kC);
                     for (int64_t t = 1; t < taps; ++t) {
                       const __m512 value = load(x + pixels[t] * kC);
                       best = _mm512_mask_mov_ps(best, beats(value, best), value);
                     }
                     store(best, y + output * kC);
                   });
}

/// The tap of the maximum, lane by lane.
template <class T>
INLINE __m512i place_of_maximum(const T* x, const int32_t* pixels, int64_t taps) {
  __m512 best = load(x + pixels[0] * kC);
  __m512i where = _mm512_setzero_si512();
  for (int64_t t = 1; t < taps; ++t) {
    const __m512 value = load(x + pixels[t] * kC);
    const __mmask16 better = beats(value, best);
    best = _mm512_mask_mov_ps(best, better, value);
    where = _mm512_mask_mov_epi32(where, better, _mm512_set1_epi32(static_cast<int>(t)));
  }
  return where;
}

template <class T>
void maximum_gradient(const void* from, const void* at, const Windows& windows, float* dx) {
  const T *dy = static_cast<const T*>(from), *x = static_cast<const T*>(at);
  for_windows(
      windows, [&](int64_t output, const int32_t* pixels, int64_t taps)
                   __attribute__((always_inline)) {
                     if (taps == 0) return;
                     const __m512i where = place_of_maximum(x, pixels, taps);
                     const __m512 value = load(dy + output * kC);
                     for (int64_t t = 0; t < taps; ++t) {
                       float* line = dx + pixels[t] * kC;
                       const __mmask16 here =
                           _mm512_cmpeq_epi32_mask(where, _mm512_set1_epi32(static_cast<int>(t)));
                       const __m512 old = load(line);
                       store(_mm512_mask_add_ps(old, here, old, value), line);
                     }
                   });
}

/// The lanes of `mask` of a line, 0 in the others.
INLINE void copy_lanes(const float* from, __mmask16 mask, float* to) {
  _mm512_storeu_ps(to, _mm512_maskz_loadu_ps(mask, from));
}
template <class T>
INLINE void copy_lanes(const T* from, __mmask16 mask, T* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_loadu_epi16(mask, from));
}

template <class T>
void maximum_gradient_apart(const void* from, const void* at, const Windows& windows, void* to) {
  const T *dy = static_cast<const T*>(from), *x = static_cast<const T*>(at);
  T* dx = static_cast<T*>(to);
  for_windows(
      windows, [&](int64_t output, const int32_t* pixels, int64_t taps)
                   __attribute__((always_inline)) {
                     if (taps == 0) return;
                     const __m512i where = place_of_maximum(x, pixels, taps);
                     for (int64_t t = 0; t < taps; ++t) {
                       const __mmask16 here =
                           _mm512_cmpeq_epi32_mask(where, _mm512_set1_epi32(static_cast<int>(t)));
                       copy_lanes(dy + output * kC, here, dx + pixels[t] * kC);
                     }
                   });
}

template <class T>
void store_lines(const float* from, int64_t lines, void* to) {
  for (int64_t i = 0; i < lines; ++i) store(load(from + i * kC), static_cast<T*>(to) + i * kC);
}

INLINE __m512i load_bits(const uint32_t* x) { return _mm512_loadu_si512(x); }
INLINE __m512i load_bits(const uint16_t* x) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
INLINE void store_bits(__m512i value, uint32_t* to) { _mm512_storeu_si512(to, value); }
INLINE void store_bits(__m512i value, uint16_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(value));
}

/// Turns a square of 16 × 16.
INLINE void turn(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {  // pairs of rows: two elements of each column side by side
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // fours
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {  // quarters of 128 bits, from rows i, i + 4, i + 8, i + 12
    const __m512i a = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    t[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    t[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

template <class Bits>
void to_lines(const void* from, int64_t pixels, void* to) {
  const Bits* planes = static_cast<const Bits*>(from);
  Bits* lines = static_cast<Bits*>(to);
  int64_t i = 0;
  for (; i + kC <= pixels; i += kC) {
    __m512i rows[kC];
    for (int64_t c = 0; c < kC; ++c) rows[c] = load_bits(planes + c * pixels + i);
    turn(rows);
    for (int64_t p = 0; p < kC; ++p) store_bits(rows[p], lines + (i + p) * kC);
  }
  for (; i < pixels; ++i) {
    for (int64_t c = 0; c < kC; ++c) lines[i * kC + c] = planes[c * pixels + i];
  }
}

template <class Bits>
void to_planes(const void* from, int64_t pixels, void* to) {
  const Bits* lines = static_cast<const Bits*>(from);
  Bits* planes = static_cast<Bits*>(to);
  int64_t i = 0;
  for (; i + kC <= pixels; i += kC) {
    __m512i rows[kC];
    for (int64_t p = 0; p < kC; ++p) rows[p] = load_bits(lines + (i + p) * kC);
    turn(rows);
    for (int64_t c = 0; c < kC; ++c) store_bits(rows[c], planes + c * pixels + i);
  }
  for (; i < pixels; ++i) {
    for (int64_t c = 0; c < kC; ++c) planes[c * pixels + i] = lines[i * kC + c];
  }
}

template <class T, class Bits>
constexpr Loops kLoopsOf = {
    moments<T>,     normalize<T>,   gradient_sums<T>,    normalize_gradient<T>,
    add_lines<T>,   maximum<T>,     maximum_gradient<T>, maximum_gradient_apart<T>,
    store_lines<T>, to_lines<Bits>, to_planes<Bits>,
};

#undef INLINE

}  // namespace

}  // namespace halfnote::cpu::blocked

#pragma GCC pop_options

#endif  // __x86_64__

namespace halfnote::cpu::blocked {

void Moments16::merge(const Moments16& other) {
  const double total = count + other.count;
  for (int64_t c = 0; c < kBlockChannels; ++c) {
    const double distance = other.mean[c] - mean[c];
    mean[c] += distance * (other.count / total);
    squares[c] += other.squares[c] + distance * distance * (count * other.count / total);
  }
  count = total;
}

const Loops* loops_for(DType dtype) {
#if defined(__x86_64__)
  if (vector_isa() != VectorIsa::kAvx512) return nullptr;
  if (dtype == DType::kF32) return &kLoopsOf<float, uint32_t>;
  if (dtype == DType::kF16) return &kLoopsOf<Half, uint16_t>;
  if (dtype == DType::kBF16) return &kLoopsOf<BFloat16, uint16_t>;
#endif
  return nullptr;
}

}  // namespace halfnote::cpu::blocked
