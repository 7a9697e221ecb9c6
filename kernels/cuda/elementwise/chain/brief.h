// Numbers whose results are rounded to 16 bits. The formulas of kernels/math compute with them as
// with float, but functions and quotients take fewer instructions and are a few units in the last
// place of f32 off: a chain of such elements waits for memory then, not for arithmetic.
#pragma once

#include "kernels/cuda/instructions.h"
#include "kernels/math/host_device.h"

namespace halfnote::HN_CUDA::generated {

struct Brief {
  float value;

  Brief() = default;
  __device__ Brief(float x) : value(x) {}
  __device__ Brief(double x) : value(static_cast<float>(x)) {}
  __device__ Brief(int x) : value(static_cast<float>(x)) {}

  __device__ friend Brief operator+(Brief a, Brief b) { return a.value + b.value; }
  __device__ friend Brief operator-(Brief a, Brief b) { return a.value - b.value; }
  __device__ friend Brief operator*(Brief a, Brief b) { return a.value * b.value; }
  __device__ friend Brief operator-(Brief a) { return -a.value; }
  __device__ friend bool operator<(Brief a, Brief b) { return a.value < b.value; }
  __device__ friend bool operator>(Brief a, Brief b) { return a.value > b.value; }
  __device__ friend bool operator<=(Brief a, Brief b) { return a.value <= b.value; }
  __device__ friend bool operator>=(Brief a, Brief b) { return a.value >= b.value; }
  __device__ friend bool operator!=(Brief a, Brief b) { return a.value != b.value; }
};

// What a GPU has an instruction for, within 2 units in the last place.
#ifdef __CUDACC_RTC__
__device__ inline Brief operator/(Brief a, Brief b) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a.value), "f"(b.value));
  return quotient;
}
/// 1 / x, for x from 2^-126 to 2^126.
__device__ inline Brief inverse(Brief x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x.value));
  return y;
}
__device__ inline Brief fused(Brief a, Brief b, Brief c) { return fmaf(a.value, b.value, c.value); }
/// Not outside of -end and end; NaN stays.
__device__ inline Brief clamped(Brief x, float end) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x.value), "f"(end));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(y), "f"(-end));
  return y;
}
__device__ inline Brief fabs(Brief x) { return fabsf(x.value); }
#else
inline Brief operator/(Brief a, Brief b) { return a.value / b.value; }
inline Brief inverse(Brief x) { return 1 / x.value; }
inline Brief fused(Brief a, Brief b, Brief c) { return std::fma(a.value, b.value, c.value); }
inline Brief fabs(Brief x) { return std::fabs(x.value); }
inline Brief clamped(Brief x, float end) { return x > end ? end : x < -end ? -end : x.value; }
#endif

/// The last coefficient is that of the highest power.
template <int N>
__device__ inline Brief polynomial(Brief x, const float (&coefficients)[N]) {
  Brief y = coefficients[N - 1];
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int i = N - 2; i >= 0; --i) y = fused(y, x, coefficients[i]);
  return y;
}

__device__ inline Brief exp2(Brief x) { return fast_exp2(x.value); }
__device__ inline Brief exp(Brief x) { return exp2(x * 1.4426950408889634); }

/// x times a polynomial in x², on [0, 2.75²] taken to [-1, 1]; behind that it is 1 in 16 bits.
/// 2^-21 of its value off.
__device__ inline Brief erf(Brief x) {
  constexpr float kEnd = 2.75f;
  const Brief at = clamped(x, kEnd);
  return at * polynomial(fused(at * at, 2 / (kEnd * kEnd), -1),
                         {0.5111947655677795f, -0.24273815751075745f, 0.15773802995681763f,
                          -0.10078205913305283f, 0.05923755466938019f, -0.031524453312158585f,
                          0.014982666820287704f, -0.006167795974761248f, 0.0024781322572380304f,
                          -0.0011770930141210556f, 0.0003582552308216691f});
}

/// exp(-x²) times a polynomial in t = 1 / (1 + 0.4·|x|), 2^-20 of its value off, and what f32
/// leaves of x² in the exponent.
__device__ inline Brief erfc(Brief x) {
  const Brief size = fabs(x), t = inverse(fused(size, 0.4f, 1));
  const Brief tail =
      exp(-size * size) * t *
      polynomial(t, {0.22542665898799896f, 0.23015891015529633f, 0.17403468489646912f,
                     0.30763015151023865f, -0.2010280042886734f, 0.5123520493507385f,
                     -0.3021598756313324f, 0.05358503758907318f});
  return x < 0 ? 2 - tail : tail;
}

/// By exp(-2|x|); near zero, where that would cancel, its series. 2^-21 of its value off.
__device__ inline Brief tanh(Brief x) {
  const Brief size = fabs(x), e = exp2(size * -2.8853900817779268);
  const Brief far = (1 - e) * inverse(1 + e), square = x * x;
  const Brief near = x * polynomial(square, {1.0f, -0.3333333333333333f, 0.13333333333333333f,
                                             -0.05396825396825397f});
  return size < 0.25f ? near : x < 0 ? -far : far;
}

/// Divides by one number again and again. `scale` is there for those whose inverse is out of range.
struct SameDivisor {
  Brief scale, inverse;
  __device__ explicit SameDivisor(Brief y)
      : scale(fabs(y) > 0x1p100f    ? 0x1p-24f
              : fabs(y) < 0x1p-100f ? 0x1p24f
                                    : 1.0f),
        inverse(generated::inverse(y * scale)) {}
  __device__ Brief quotient(Brief x) const { return x * scale * inverse; }
};

}  // namespace halfnote::HN_CUDA::generated
