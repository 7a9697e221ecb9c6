// The arithmetic of a Route, one sample at a time. All of it is in f32. Between floats and other
// types only what is exact is converted: 2.0 is a label, 2.5 is none.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
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

/// Calls `body(T{})` with an integer element type, or bool.
template <class Body>
auto visit_integer(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kBool:
      return body(bool{});
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
  throw Error(ErrorCode::kUnsupported, "no conversion of this type")
      .expected("bool, an integer of 8 to 64 bits, or a float", std::string(short_name(dtype)));
}

/// The same, or with a float.
template <class Body>
auto visit_number(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF16:
      return body(Half{});
    case DType::kBF16:
      return body(BFloat16{});
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    default:
      return visit_integer(dtype, body);
  }
}

/// The integers that a float type holds: of so many significant bits, below a power of 2.
struct Integers {
  int bits = 24, power = 128;
  std::string_view type = "FP32";
};

/// What is normalised or resized is computed in FP32, and rounded to the input's type after that.
Integers integers_of(const Route& route) {
  if (!route.mean.empty() || route.resized) return {};
  if (route.input.dtype == DType::kF16) return {11, 16, "f16"};
  if (route.input.dtype == DType::kBF16) return {8, 128, "bf16"};
  return {};
}

template <class From>
bool fits(From value, const Integers& range) {
  auto bits = static_cast<uint64_t>(value);
  if (value < From{}) bits = ~bits + 1;
  const int width = std::bit_width(bits);
  return bits == 0 || (width - std::countr_zero(bits) <= range.bits && width <= range.power);
}

Error no_fit(const DataField& field, int64_t sample, const std::string& got, std::string wanted) {
  return Error(ErrorCode::kData, fmt::format("a number of \"{}\" does not fit its input, sample {}",
                                             field.name, sample))
      .expected(std::move(wanted), got);
}

template <class From>
void load_exactly(const Integers& range, const DataField& field, int64_t sample, int64_t first,
                  std::span<float> to) {
  const From* elements = field.data.data<From>().data() + first;
  for (size_t i = 0; i < to.size(); ++i) {
    if (!fits(elements[i], range)) {
      throw no_fit(field, sample, fmt::format("{}", elements[i]),
                   fmt::format("a number of at most {} significant bits{}, as {} holds", range.bits,
                               range.power < 64 ? " below 65536" : "", range.type))
          .hint("scale the numbers, or round them: the array's astype(\"float32\") does");
    }
    to[i] = static_cast<float>(elements[i]);
  }
}

/// Elements first … first + to.size() as f32.
void load(const Route& route, const DataField& field, int64_t sample, int64_t first,
          std::span<float> to) {
  const Tensor& from = field.data;
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
    case DType::kF32:
      return load_as<float>(from, first, to);
    default:
      return visit_integer(from.dtype(), [&](auto zero) {
        load_exactly<decltype(zero)>(integers_of(route), field, sample, first, to);
      });
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

/// Where a sample stands: the field, or what was read of it; `at` counts samples there, `number` in
/// the data.
struct Sample {
  const DataField& field;
  int64_t at, number;
};

/// All planes of a sample as f32. `plane` has room for one source plane.
void convert_planes(const Route& route, const Sample& sample, std::span<float> to,
                    std::span<float> plane) {
  const DataField& field = sample.field;
  const auto pixels = static_cast<size_t>(route.height * route.width);
  const int64_t from_pixels = route.from_height * route.from_width;
  for (size_t channel = 0; channel < static_cast<size_t>(route.channels); ++channel) {
    const int64_t source = std::min(static_cast<int64_t>(channel), route.from_channels - 1);
    const int64_t first = (sample.at * route.from_channels + source) * from_pixels;
    const std::span<float> out = to.subspan(channel * pixels, pixels);
    if (!route.table.empty()) {
      const float* table = route.table.data() + 256 * channel;
      const uint8_t* elements = field.data.data<uint8_t>().data() + first;
      for (size_t i = 0; i < pixels; ++i) out[i] = table[elements[i]];
      continue;
    }
    load(route, field, sample.number, first, route.resized ? plane : out);
    if (route.resized) route.resizer.apply(plane, out);
    if (route.mean.empty()) continue;
    for (float& value : out) value = route.normalised(channel, value);
  }
}

void convert_floats(const Route& route, const Sample& sample, std::byte* to,
                    std::vector<float>& scratch) {
  const auto elements = static_cast<size_t>(route.elements());
  const auto from_pixels = static_cast<size_t>(route.from_height * route.from_width);
  const size_t wanted = elements + from_pixels;
  if (scratch.size() < wanted) scratch.resize(wanted);
  const std::span<float> plane(scratch.data() + elements, from_pixels);
  if (route.input.dtype == DType::kF32) {
    convert_planes(route, sample, {reinterpret_cast<float*>(to), elements}, plane);
    return;
  }
  const std::span<float> wide(scratch.data(), elements);
  convert_planes(route, sample, wide, plane);
  store(wide, route.input.dtype, to);
}

/// The same number in another type, if it is one there.
template <class To, class From>
std::optional<To> same_number(From value) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return same_number<To>(to_f32(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    if (value != From{0} && value != From{1}) return std::nullopt;
    return value == From{1};
  } else if constexpr (std::is_same_v<From, bool>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_floating_point_v<From>) {
    const double number = value, end = std::ldexp(1.0, std::numeric_limits<To>::digits);
    const double first = std::is_signed_v<To> ? -end : 0;
    if (!(number >= first && number < end && std::trunc(number) == number)) return std::nullopt;
    return static_cast<To>(number);
  } else {
    return std::in_range<To>(value) ? std::optional(static_cast<To>(value)) : std::nullopt;
  }
}

template <class From>
std::string number_text(From value) {
  if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
    return fmt::format("{}", to_f32(value));
  else
    return fmt::format("{}", value);
}

template <class To, class From>
void convert_numbers(std::span<const From> from, To* to, const DataField& field, int64_t sample,
                     DType dtype) {
  for (size_t i = 0; i < from.size(); ++i) {
    const std::optional<To> number = same_number<To>(from[i]);
    if (!number) {
      const bool is_bool = dtype == DType::kBool;
      throw no_fit(field, sample, number_text(from[i]),
                   std::string(short_name(dtype)) + (is_bool ? ", which is 0 or 1" : ""))
          .hint(std::is_integral_v<From> || is_bool
                    ? ""
                    : "if they are labels, round the array and store it as integers; if they are "
                      "not, --map INPUT=FIELD names another field");
    }
    to[i] = *number;
  }
}

void convert_numbers(const Route& route, const Sample& sample, std::byte* to) {
  const DataField& field = sample.field;
  const auto count = static_cast<size_t>(route.elements());
  visit_number(field.dtype(), [&](auto from_zero) {
    using From = decltype(from_zero);
    const auto from =
        field.data.data<From>().subspan(static_cast<size_t>(sample.at) * count, count);
    visit_integer(route.input.dtype, [&](auto to_zero) {
      using To = decltype(to_zero);
      convert_numbers(from, reinterpret_cast<To*>(to), field, sample.number, route.input.dtype);
    });
  });
}

/// Reads a sample of a field in a file.
const DataField& read_sample(const Route& route, const Dataset& data, int64_t number,
                             ConvertRoom& room) {
  const DataField& field = data.fields()[route.field];
  DataField& one = room.samples[route.field];
  if (!one.data.defined()) {
    Shape shape = field.data.shape();
    shape[0] = 1;
    one = {field.name, Tensor(field.dtype(), std::move(shape)), false};
  }
  const size_t bytes = one.data.byte_size();
  std::byte* to = one.data.mutable_bytes();
  size_t done = 0;
  while (done < bytes) {
    const auto at = static_cast<off_t>(route.place->offset + static_cast<size_t>(number) * bytes);
    const ssize_t got =
        ::pread(route.place->descriptor, to + done, bytes - done, at + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot read sample {} of \"{}\"", number, field.name))
          .expected(fmt::format("{} bytes", bytes),
                    got < 0 ? std::string(std::strerror(errno))
                            : fmt::format("{}: the file became shorter", done));
    }
    done += static_cast<size_t>(got);
  }
  return one;
}

}  // namespace

void convert_sample(const Route& route, const Dataset& data, int64_t number, std::byte* to,
                    ConvertRoom& room) {
  try {
    const bool in_file = route.place.has_value();
    const Sample sample{
        in_file ? read_sample(route, data, number, room) : data.fields()[route.field],
        in_file ? 0 : number, number};
    if (route.kind == Route::Kind::kFloat) return convert_floats(route, sample, to, room.floats);
    if (route.kind == Route::Kind::kNumber) return convert_numbers(route, sample, to);
    const Tensor& from = sample.field.data;
    const size_t bytes = static_cast<size_t>(route.elements()) * size_of(from.dtype());
    if (bytes > 0) std::memcpy(to, from.bytes() + static_cast<size_t>(sample.at) * bytes, bytes);
  } catch (Error& error) {
    throw error.within({data.origin(), {}, {}});
  }
}

}  // namespace halfnote
