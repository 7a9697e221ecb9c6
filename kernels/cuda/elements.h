// The operand of a reduction, a scatter or an op along an axis: floats of a type known to the
// compiler, or integers of any width, of which there is one kernel.
#pragma once

#include <limits>

#include "kernels/cuda/any_number.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// Is an operand read for its order, or for arithmetic?
enum class Use { kOrder, kSum };

/// Floats of type T, computed in their math precision.
template <class T>
struct Floats {
  using M = Math<T>;
  using Sum = double;
  const T* data;

  static Floats of(const void* data, DType, Use) { return {static_cast<const T*>(data)}; }
  __device__ M operator[](int64_t at) const { return load_number(data[at]); }
  __device__ void copy(int64_t at, void* to, int64_t place) const {
    static_cast<T*>(to)[place] = data[at];
  }
  /// Writes what such elements were merged to.
  __device__ void write(void* to, int64_t place, M value) const {
    static_cast<T*>(to)[place] = store_number<T>(value);
  }
};

/// Integers and bool, computed in i64. In an order u64 is read with its sign bit flipped, which
/// makes the largest u64 the largest i64.
struct Integers {
  using M = int64_t;
  using Sum = int64_t;
  const void* data;
  DType dtype;
  int64_t flip;

  static Integers of(const void* data, DType dtype, Use use) {
    const bool flips = use == Use::kOrder && dtype == DType::kU64;
    return {data, dtype, flips ? std::numeric_limits<int64_t>::min() : 0};
  }
  __device__ M operator[](int64_t at) const { return load_whole<M>(data, dtype, at) ^ flip; }
  __device__ void copy(int64_t at, void* to, int64_t place) const {
    store_whole(to, dtype, place, load_whole<M>(data, dtype, at));
  }
  __device__ void write(void* to, int64_t place, M value) const {
    store_whole(to, dtype, place, value ^ flip);
  }
};

/// Calls `body.template operator()<X>()` with X as above.
template <class Body>
Prepared for_elements(DType dtype, Body&& body) {
  if (is_whole(dtype) || dtype == DType::kBool) return body.template operator()<Integers>();
  return for_float_type(dtype, [&]<class T>() { return body.template operator()<Floats<T>>(); });
}

}  // namespace halfnote::HN_CUDA
