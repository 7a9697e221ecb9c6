// Joins the rows of the quantized family, and reads and writes its elements.
#include <cmath>

#include "kernels/cpu/families.h"
#include "kernels/cpu/quantized/parts.h"
#include "kernels/math/convert.h"

namespace halfnote::cpu {

namespace {

/// Calls `body.template operator()<T>()` with T for a type that a processor computes in.
template <class Body>
void with_type(DType dtype, Body&& body) {
  for_any_type(dtype, [&]<class T>() {
    body.template operator()<T>();
    return Prepared::no({});
  });
}

struct Bounds {
  DType dtype;
  double low, high;
};
constexpr Bounds kBounds[] = {
    {DType::kU8, 0, 255},         {DType::kI8, -128, 127}, {DType::kU16, 0, 65535},
    {DType::kI16, -32768, 32767}, {DType::kU4, 0, 15},     {DType::kI4, -8, 7},
    {DType::kU2, 0, 3},           {DType::kI2, -2, 1},
};

}  // namespace

bool is_element(DType dtype) {
  return is_low_bit(dtype) || is_integer(dtype) || is_float(dtype) || dtype == DType::kBool;
}

double read_element(const std::byte* from, DType dtype, int64_t index) {
  if (is_low_bit(dtype)) return read_low_bit(dtype, std::to_integer<uint8_t>(from[index]));
  double value = 0;
  with_type(dtype, [&]<class T>() {
    value = math::convert_element<double>(reinterpret_cast<const T*>(from)[index]);
  });
  return value;
}

void write_quantized(double value, std::byte* to, DType dtype, int64_t index, Overflow overflow) {
  for (const Bounds& bounds : kBounds) {
    if (bounds.dtype == dtype) value = std::clamp(value, bounds.low, bounds.high);
  }
  if (is_low_bit(dtype)) {
    to[index] = std::byte{write_low_bit(dtype, value, overflow)};
    return;
  }
  with_type(dtype,
            [&]<class T>() { reinterpret_cast<T*>(to)[index] = math::convert_element<T>(value); });
}

double quantized(double value, double zero_point) { return std::nearbyint(value) + zero_point; }

std::vector<KernelRow> quantized_kernels() {
  std::vector<KernelRow> all = linear_rows();
  const std::vector<KernelRow> products = product_rows();
  all.insert(all.end(), products.begin(), products.end());
  return all;
}

}  // namespace halfnote::cpu
