// Mixed radix, decimation in time: the transforms of every p-th element, joined by transforms of
// length p.
#include "kernels/cpu/signal/fourier.h"

#include <algorithm>
#include <numbers>

namespace halfnote::cpu {

namespace {

/// Without the look for infinities that std::complex takes.
Complex times(const Complex& a, const Complex& b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

}  // namespace

std::vector<Complex> roots_of_unity(int64_t length, bool inverse) {
  const double turn = (inverse ? 2 : -2) * std::numbers::pi / static_cast<double>(length);
  std::vector<Complex> roots;
  roots.reserve(static_cast<size_t>(length));
  for (int64_t k = 0; k < length; ++k)
    roots.push_back(std::polar(1.0, turn * static_cast<double>(k)));
  return roots;
}

std::vector<int64_t> factors_of(int64_t length) {
  std::vector<int64_t> factors;
  int64_t left = length;
  for (int64_t factor = 4; left > 1;) {
    if (left % factor == 0) {
      factors.push_back(factor);
      left /= factor;
    } else if (factor * factor > left && factor > 4) {
      factor = left;
    } else {
      factor = factor == 4 ? 2 : factor == 2 ? 3 : factor + 2;
    }
  }
  return factors;
}

Fourier::Fourier(int64_t length, bool inverse)
    : length_(length),
      inverse_(inverse),
      factors_(factors_of(length)),
      roots_(roots_of_unity(length, inverse)) {
  for (const int64_t factor : factors_) largest_ = std::max(largest_, factor);
}

void Fourier::run(const Complex* x, Complex* y, Complex* room) const {
  part(x, 1, y, 0, room);
  if (!inverse_) return;
  for (int64_t k = 0; k < length_; ++k) y[k] /= static_cast<double>(length_);
}

/// The transform of what stands `stride` apart in x, as the factors from `level` on take it apart.
void Fourier::part(const Complex* x, int64_t stride, Complex* y, size_t level,
                   Complex* room) const {
  if (level == factors_.size()) {
    y[0] = x[0];
    return;
  }
  const int64_t parts = factors_[level], each = length_ / stride / parts;
  for (int64_t r = 0; r < parts; ++r)
    part(x + r * stride, stride * parts, y + r * each, level + 1, room);
  join(y, parts, each, room);
}

/// `parts` transforms of `each` elements become one.
void Fourier::join(Complex* y, int64_t parts, int64_t each, Complex* room) const {
  const int64_t step = length_ / (parts * each), turn = length_ / parts;
  const auto turned = [&](int64_t r, int64_t k) {
    return times(y[r * each + k], roots_[static_cast<size_t>(r * k * step)]);
  };
  for (int64_t k = 0; k < each; ++k) {
    if (parts == 2) {
      const Complex a = y[k], b = turned(1, k);
      y[k] = a + b;
      y[each + k] = a - b;
    } else if (parts == 4) {
      const Complex a = y[k], b = turned(1, k), c = turned(2, k), d = turned(3, k);
      const Complex odd = b - d, quarter = inverse_ ? Complex(-odd.imag(), odd.real())
                                                    : Complex(odd.imag(), -odd.real());
      y[k] = a + c + (b + d);
      y[each + k] = a - c + quarter;
      y[2 * each + k] = a + c - (b + d);
      y[3 * each + k] = a - c - quarter;
    } else {
      for (int64_t r = 0; r < parts; ++r) room[r] = turned(r, k);
      for (int64_t q = 0; q < parts; ++q) {
        Complex sum = room[0];
        for (int64_t r = 1, at = q; r < parts; ++r, at = at + q < parts ? at + q : at + q - parts)
          sum += times(room[r], roots_[static_cast<size_t>(at * turn)]);
        y[q * each + k] = sum;
      }
    }
  }
}

}  // namespace halfnote::cpu
