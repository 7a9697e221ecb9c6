// The windows of a pool, with one to three spatial dims (padded with leading ones to three).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "kernels/cpu/support.h"

namespace halfnote::cpu {

struct PoolGeometry {
  using Dims = std::array<int64_t, 3>;
  int64_t planes = 0;  // N·C
  Dims in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1};
  Dims pad_begin{0, 0, 0}, pad_end{0, 0, 0};

  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }

  /// Window elements of output `at` that lie within the input and its padding; those that ceil_mode
  /// lets hang over the end do not count.
  int64_t padded_count(const Dims& at) const;
};

/// Reads the attributes of a pool whose input and output have the given shapes; the reason why it
/// cannot be done, or an empty string.
std::string plan_pool(const KernelCall& call, const Shape& in, const Shape& out,
                      PoolGeometry& geometry);

/// Calls `body(position, at)` for each output position of a plane, in order.
template <class Body>
void for_outputs(const PoolGeometry& g, Body&& body) {
  int64_t position = 0;
  for (int64_t d = 0; d < g.out[0]; ++d) {
    for (int64_t h = 0; h < g.out[1]; ++h) {
      for (int64_t w = 0; w < g.out[2]; ++w) body(position++, PoolGeometry::Dims{d, h, w});
    }
  }
}

/// Calls `body(tap, index)` for each element of the window of output `at`: the how manieth of the
/// window it is, row-major, and its index in the plane; elements in the padding are left out.
/// (constexpr: nvcc takes such functions for the device too.)
template <class Body>
constexpr void for_taps(const PoolGeometry& g, const PoolGeometry::Dims& at, Body&& body) {
  const auto place = [&](size_t d, int64_t k) {
    return at[d] * g.stride[d] - g.pad_begin[d] + k * g.dilation[d];
  };
  for (int64_t kd = 0; kd < g.kernel[0]; ++kd) {
    const int64_t d = place(0, kd);
    if (d < 0 || d >= g.in[0]) continue;
    for (int64_t kh = 0; kh < g.kernel[1]; ++kh) {
      const int64_t h = place(1, kh);
      if (h < 0 || h >= g.in[1]) continue;
      for (int64_t kw = 0; kw < g.kernel[2]; ++kw) {
        const int64_t w = place(2, kw);
        if (w < 0 || w >= g.in[2]) continue;
        body((kd * g.kernel[1] + kh) * g.kernel[2] + kw, (d * g.in[1] + h) * g.in[2] + w);
      }
    }
  }
}

/// The same without the tap.
template <class Body>
constexpr void for_window(const PoolGeometry& g, const PoolGeometry::Dims& at, Body&& body) {
  for_taps(g, at, [&](int64_t, int64_t index) { body(index); });
}

/// Does `candidate` replace the maximum so far? The first of equals stays; the first NaN wins over
/// all.
template <class M>
constexpr bool is_new_maximum(M candidate, M best) {
  return !(candidate <= best) && best == best;
}

/// The maximum of no elements.
template <class T>
T lowest() {
  if constexpr (std::is_integral_v<T>) {
    return std::numeric_limits<T>::lowest();
  } else {
    return store<T>(-std::numeric_limits<Math<T>>::infinity());
  }
}

}  // namespace halfnote::cpu
