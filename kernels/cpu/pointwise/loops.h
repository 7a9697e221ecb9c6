// The loops of the pointwise instructions: f32 in, f32 out, over a tile that lies in the
// first-level cache. Compiled for the
// baseline, for AVX2 with FMA and for AVX-512; all give the same bits.
#pragma once

#include <cstdint>

#include "base/ops/pointwise.h"

namespace halfnote::cpu::pointwise {

/// y[i] = op(in[0][i], in[1][i], …); y may be one of the operands. `parameters` are those of
/// the step.
using Loop = void (*)(const float* const* in, float* y, int64_t count, const float* parameters);

/// What all elements of an update by Adam share: math::AdamStep<float>, whose bits the loop gives.
struct AdamNumbers {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon;
  float decay, keep, step_size, second_root, late_keep;
};

/// The new tensors may lie over the old ones.
struct AdamLines {
  const float *param, *grad, *m, *v;
  float *new_param, *new_m, *new_v;
};

/// A group of steps (fused.cc) all of one type; null where a type has no loop.
struct FusedLoop {
  Loop f32 = nullptr, bf16 = nullptr;
};
inline constexpr size_t kFusedLoops = 6;

/// See Loops::spread.
inline constexpr int64_t kSpread = 16;

struct Loops {
  const char* name;
  const Loop* of;  // in the order of PointwiseOp; null for Dropout (stateful/keep.h) and sums
  const FusedLoop* fused;  // in the order of the groups; null if there are none
  /// Rounds to bf16 and back; y may be x.
  void (*round_bf16)(const float* x, float* y, int64_t count);
  void (*from_bool)(const uint8_t* x, float* y, int64_t count);
  /// Anything but 0 is true.
  void (*to_bool)(const float* x, uint8_t* y, int64_t count);
  void (*fill)(float value, float* y, int64_t count);
  /// Row r of `length` elements of y, one row after the other, is x[r·step]. kSpread of it are
  /// written: `length` is at most that, and as much room is behind the last row.
  void (*spread)(const float* x, int64_t step, int64_t rows, int64_t length, float* y);
  void (*spread_bf16)(const uint16_t* x, int64_t step, int64_t rows, int64_t length, float* y);
  /// sums += x
  void (*add_to_sums)(const float* x, int64_t count, double* sums);

  /// count > 0. NaN may be passed over: it shows in the sum of the exponentials.
  float (*maximum)(const float* x, int64_t count);
  /// Σ exp(x − shift)
  double (*sum_exponentials)(const float* x, int64_t count, float shift);
  /// y = exp(x)·factor; y may be x.
  void (*scaled_exponentials)(const float* x, int64_t count, float factor, float* y);
  /// y = x − what, rounded once; y may be x.
  void (*subtract)(const float* x, int64_t count, double what, float* y);
  /// y = exp(z)·factor with z = x − shift, rounded once: the bits of subtract() and
  /// scaled_exponentials(); y may be x.
  void (*shifted_exponentials)(const float* x, int64_t count, double shift, float factor, float* y);
  double (*sum_squares)(const float* x, int64_t count);
  /// Does an element have all bits of `exponent` set, as infinities and NaN have?
  bool (*any_special_32)(const uint32_t* x, int64_t count, uint32_t exponent);
  bool (*any_special_16)(const uint16_t* x, int64_t count, uint16_t exponent);
  void (*adam)(const AdamNumbers& numbers, const AdamLines& at, int64_t count);
};

/// The vector loops for this CPU; null where it has neither AVX-512 nor AVX2 with FMA.
const Loops* vector_loops();

/// Those of the reference of programs: functions as the references of the single ops have them.
const Loops& reference_loops();

/// The formulas of the vector loops on any CPU.
extern const Loops kBaselineLoops;
/// Only on x86-64.
extern const Loops kAvx2Loops, kAvx512Loops;

}  // namespace halfnote::cpu::pointwise
