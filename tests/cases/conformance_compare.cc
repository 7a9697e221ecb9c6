#include "tests/cases/conformance_compare.h"

#include <fmt/format.h>

#include <cmath>

#include "base/low_bit.h"

namespace halfnote::cases {
namespace {

const char* kind_of(const Datum& datum) {
  return datum.is_tensor()     ? "a tensor"
         : datum.is_sequence() ? "a sequence"
         : datum.is_optional() ? "an optional value"
                               : "nothing";
}

std::string describe(const Tensor& tensor) {
  return std::string(short_name(tensor.dtype())) + to_string(tensor.shape());
}

/// Any element of a real type as a double; 64-bit integers are compared as they are.
double value_of(const Tensor& tensor, int64_t index) {
  const std::byte code = tensor.bytes()[index];
  if (is_low_bit(tensor.dtype()))
    return read_low_bit(tensor.dtype(), std::to_integer<uint8_t>(code));
  return tensor.at_as_double(index);
}

bool is_close(double got, double want, const Tolerance& tolerance) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want);
  if (got == want) return true;
  if (std::isinf(got) || std::isinf(want)) return false;
  return std::fabs(got - want) <= tolerance.absolute + tolerance.relative * std::fabs(want);
}

std::string compare_floats(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  int64_t wrong = 0, first = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    if (is_close(value_of(got, i), value_of(want, i), tolerance)) continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return {};
  return fmt::format("{} of {} elements differ, element {} is {} and not {}", wrong, want.size(),
                     first, value_of(got, first), value_of(want, first));
}

std::string compare_exact(const Tensor& got, const Tensor& want) {
  if (want.dtype() == DType::kString) {
    return got.string_data() == want.string_data() ? "" : "strings differ";
  }
  const auto unit = static_cast<int64_t>(size_of(want.dtype()));
  for (int64_t i = 0; i < want.size(); ++i) {
    const bool same =
        std::equal(got.bytes() + i * unit, got.bytes() + (i + 1) * unit, want.bytes() + i * unit);
    if (!same) return fmt::format("element {} differs", i);
  }
  return {};
}

std::string compare_tensors(const Tensor& got, const Tensor& want, const Tolerance& tolerance) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape()) {
    return fmt::format("{} and not {}", describe(got), describe(want));
  }
  return is_float(want.dtype()) ? compare_floats(got, want, tolerance) : compare_exact(got, want);
}

}  // namespace

std::string compare(const Datum& got, const Datum& want, const Tolerance& tolerance) {
  if (got.kind != want.kind) return fmt::format("{} and not {}", kind_of(got), kind_of(want));
  if (want.is_tensor()) return compare_tensors(got.tensor, want.tensor, tolerance);
  if (got.elements.size() != want.elements.size()) {
    return fmt::format("{} elements and not {}", got.elements.size(), want.elements.size());
  }
  for (size_t i = 0; i < want.elements.size(); ++i) {
    std::string difference = compare(got.elements[i], want.elements[i], tolerance);
    if (!difference.empty()) return fmt::format("element {}: {}", i, difference);
  }
  return {};
}

}  // namespace halfnote::cases
