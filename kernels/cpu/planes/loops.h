// Loops along an axis that is not the innermost one: a row of neighbouring positions at a time,
// class by class, in f32. What belongs to a position (maximum, sum, shift) lies in arrays of its
// own. Exponentials are those of the pointwise instructions.
#pragma once

#include <cstdint>

namespace halfnote::cpu::planes {

/// Results may lie over operands.
struct Loops {
  const char* name;
  /// most = max(most, x); NaN may be passed over: it shows in the sum of the exponentials.
  void (*larger)(const float* x, int64_t count, float* most);
  /// sums += exp(x − shift)
  void (*add_exponentials)(const float* x, int64_t count, const float* shift, double* sums);
  /// y = exp(x − shift)/sum
  void (*shares)(const float* x, int64_t count, const float* shift, const float* sum, float* y);
  /// y = x − what, rounded once.
  void (*subtract)(const float* x, int64_t count, const double* what, float* y);
  /// y = exp(x)·factor where `keep` is all ones, 0 where it is 0.
  void (*scaled_exponentials)(const float* x, int64_t count, const float* factor,
                              const uint32_t* keep, float* y);
  /// The same of x − shift, rounded once: the bits of subtract() and scaled_exponentials().
  void (*shifted_exponentials)(const float* x, int64_t count, const double* shift,
                               const float* factor, const uint32_t* keep, float* y);
  /// sums += a·b, and sums += a
  void (*add_products)(const float* a, const float* b, int64_t count, double* sums);
  void (*add)(const float* a, int64_t count, double* sums);
  /// dx = y·(dy − sum): of Softmax. dx = dy − exp(y)·sum: of LogSoftmax.
  void (*softmax_gradient)(const float* y, const float* dy, int64_t count, const float* sum,
                           float* dx);
  void (*log_softmax_gradient)(const float* y, const float* dy, int64_t count, const float* sum,
                               float* dx);
};

/// The loops for this CPU; null where it has neither AVX-512 nor AVX2 with FMA.
const Loops* loops();

/// Only on x86-64.
extern const Loops kAvx2Loops, kAvx512Loops;

}  // namespace halfnote::cpu::planes
