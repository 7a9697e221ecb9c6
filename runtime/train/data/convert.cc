// The arithmetic of a Route, one sample at a time. All of it is in f32.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/float16.h"
#include "runtime/train/data/route.h"

namespace halfnote {
namespace {

template <class From>
float load_one(From value) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) return to_f32(value);
  if constexpr (!std::is_same_v<From, Half> && !std::is_same_v<From, BFloat16>)
    return static_cast<float>(value);
}

template <class From>
void load_as(const Tensor& from, int64_t first, std::span<float> to) {
  const From* elements = from.data<From>().data() + first;
  for (size_t i = 0; i < to.size(); ++i) to[i] = load_one(elements[i]);
}

/// Elements first … first + to.size() as f32.
void load(const Route& route, const Tensor& from, int64_t first, std::span<float> to) {
  switch (from.dtype()) {
    case DType::kU8:
      load_as<uint8_t>(from, first, to);
      for (float& value : to) value /= route.divisor();
      return;
    case DType::kF16:
      return load_as<Half>(from, first, to);
    case DType::kBF16:
      return load_as<BFloat16>(from, first, to);
    case DType::kF64:
      return load_as<double>(from, first, to);
    default:
      return load_as<float>(from, first, to);
  }
}

void store(std::span<const float> from, DType dtype, std::byte* to) {
  if (dtype == DType::kF16) return convert(from, {reinterpret_cast<Half*>(to), from.size()});
  if (dtype == DType::kBF16) return convert(from, {reinterpret_cast<BFloat16*>(to), from.size()});
  if (dtype == DType::kF64) {
    auto* wide = reinterpret_cast<double*>(to);
    std::copy(from.begin(), from.end(), wide);
    return;
  }
  std::copy(from.begin(), from.end(), reinterpret_cast<float*>(to));
}

/// All planes of a sample as f32. `plane` has room for one source plane.
void convert_planes(const Route& route, const Tensor& from, int64_t sample, std::span<float> to,
                    std::span<float> plane) {
  const auto pixels = static_cast<size_t>(route.height * route.width);
  const int64_t from_pixels = route.from_height * route.from_width;
  for (size_t channel = 0; channel < static_cast<size_t>(route.channels); ++channel) {
    const int64_t source = std::min(static_cast<int64_t>(channel), route.from_channels - 1);
    const int64_t first = (sample * route.from_channels + source) * from_pixels;
    const std::span<float> out = to.subspan(channel * pixels, pixels);
    if (!route.table.empty()) {
      const float* table = route.table.data() + 256 * channel;
      const uint8_t* elements = from.data<uint8_t>().data() + first;
      for (size_t i = 0; i < pixels; ++i) out[i] = table[elements[i]];
      continue;
    }
    load(route, from, first, route.resized ? plane : out);
    if (route.resized) route.resizer.apply(plane, out);
    if (route.mean.empty()) continue;
    for (float& value : out) value = route.normalised(channel, value);
  }
}

void convert_floats(const Route& route, const Tensor& from, int64_t sample, std::byte* to,
                    std::vector<float>& scratch) {
  const auto elements = static_cast<size_t>(route.elements());
  const auto from_pixels = static_cast<size_t>(route.from_height * route.from_width);
  const size_t wanted = elements + from_pixels;
  if (scratch.size() < wanted) scratch.resize(wanted);
  const std::span<float> plane(scratch.data() + elements, from_pixels);
  if (route.input.dtype == DType::kF32) {
    convert_planes(route, from, sample, {reinterpret_cast<float*>(to), elements}, plane);
    return;
  }
  const std::span<float> wide(scratch.data(), elements);
  convert_planes(route, from, sample, wide, plane);
  store(wide, route.input.dtype, to);
}

/// Calls `body(T{})` with an integer element type.
template <class Body>
auto visit_integer(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kU8:
      return body(uint8_t{});
    case DType::kI8:
      return body(int8_t{});
    case DType::kU16:
      return body(uint16_t{});
    case DType::kI16:
      return body(int16_t{});
    case DType::kU32:
      return body(uint32_t{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kU64:
      return body(uint64_t{});
    case DType::kI64:
      return body(int64_t{});
    default:
      break;
  }
  throw Error(ErrorCode::kUnsupported, "no conversion of this integer type")
      .expected("8 to 64 bits", std::string(short_name(dtype)));
}

template <class From, class To>
void convert_integers(std::span<const From> from, To* to, const DataField& field, int64_t sample,
                      DType dtype) {
  for (size_t i = 0; i < from.size(); ++i) {
    if (std::in_range<To>(from[i])) {
      to[i] = static_cast<To>(from[i]);
      continue;
    }
    throw Error(
        ErrorCode::kData,
        fmt::format("a number of \"{}\" does not fit its input, sample {}", field.name, sample))
        .expected(std::string(short_name(dtype)), std::to_string(from[i]));
  }
}

void convert_integers(const Route& route, const DataField& field, int64_t sample, std::byte* to) {
  const auto count = static_cast<size_t>(route.elements());
  visit_integer(field.dtype(), [&](auto from_zero) {
    using From = decltype(from_zero);
    const auto from = field.data.data<From>().subspan(static_cast<size_t>(sample) * count, count);
    visit_integer(route.input.dtype, [&](auto to_zero) {
      convert_integers(from, reinterpret_cast<decltype(to_zero)*>(to), field, sample,
                       route.input.dtype);
    });
  });
}

}  // namespace

void convert_sample(const Route& route, const Dataset& data, int64_t sample, std::byte* to,
                    std::vector<float>& scratch) {
  const DataField& field = data.fields()[route.field];
  if (route.kind == Route::Kind::kFloat)
    return convert_floats(route, field.data, sample, to, scratch);
  try {
    if (route.kind == Route::Kind::kInteger) return convert_integers(route, field, sample, to);
  } catch (Error& error) {
    throw error.within({data.origin(), {}, {}});
  }
  const size_t bytes = static_cast<size_t>(route.elements()) * size_of(field.dtype());
  if (bytes > 0) std::memcpy(to, field.data.bytes() + static_cast<size_t>(sample) * bytes, bytes);
}

}  // namespace halfnote
