// The discrete Fourier transform of one line in f64.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

namespace halfnote::cpu {

using Complex = std::complex<double>;

/// All `length` powers of the root that a transform turns by, each from its own angle.
std::vector<Complex> roots_of_unity(int64_t length, bool inverse);
/// What a length is taken apart into: 4 as often as it goes, then primes.
std::vector<int64_t> factors_of(int64_t length);

/// Transforms of one length and direction: the length is taken apart into factors, so that n
/// elements cost n times the sum of these. Roots of unity are computed once.
class Fourier {
 public:
  Fourier(int64_t length, bool inverse);
  int64_t length() const { return length_; }
  /// Elements of `room` that run() needs.
  int64_t room() const { return factors_.empty() ? 0 : largest_; }
  /// y[k] = Σ x[i]·root^(ik); inverse: divided by the length. `x` and `y` hold `length` elements
  /// and do not overlap.
  void run(const Complex* x, Complex* y, Complex* room) const;

 private:
  void part(const Complex* x, int64_t stride, Complex* y, size_t level, Complex* room) const;
  void join(Complex* y, int64_t parts, int64_t length, Complex* room) const;

  int64_t length_;
  bool inverse_;
  int64_t largest_ = 1;
  std::vector<int64_t> factors_;
  std::vector<Complex> roots_;
};

}  // namespace halfnote::cpu
