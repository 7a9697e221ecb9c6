// Cast and CastLike between all numeric types and bool. To and from the types of 8 bits and fewer
// that no processor computes in, an element goes through double, which holds them all.
#include "kernels/cpu/elementwise/cast.h"

#include "base/low_bit.h"
#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/convert.h"

namespace halfnote::cpu {

namespace {

using CastBlock = void (*)(const std::byte* from, std::byte* to, int64_t count);

template <class From, class To>
void cast_block(const std::byte* from, std::byte* to, int64_t count) {
  const std::span<const From> source(reinterpret_cast<const From*>(from),
                                     static_cast<size_t>(count));
  const std::span<To> target(reinterpret_cast<To*>(to), static_cast<size_t>(count));
  if constexpr ((math::is_16bit<From> && std::is_same_v<To, float>) ||
                (math::is_16bit<To> && std::is_same_v<From, float>)) {
    convert(source, target);
  } else {
    for (size_t i = 0; i < source.size(); ++i) target[i] = math::convert_element<To>(source[i]);
  }
}

Prepared cast_kernel(const KernelCall& call, CastBlock cast) {
  const auto from_size = static_cast<int64_t>(size_of(call.inputs[0].dtype));
  const auto to_size = static_cast<int64_t>(size_of(call.outputs[0].dtype));
  const auto body = [=, count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      cast(buffers.inputs[0] + begin * from_size, buffers.outputs[0] + begin * to_size,
           end - begin);
    });
  };
  return make_kernel(body);
}

using ReadElement = double (*)(const std::byte* from, DType dtype, int64_t index);
using WriteElement = void (*)(double value, std::byte* to, int64_t index);

double read_code(const std::byte* from, DType dtype, int64_t index) {
  return read_low_bit(dtype, std::to_integer<uint8_t>(from[index]));
}

template <class T>
double read_number(const std::byte* from, DType, int64_t index) {
  return math::convert_element<double>(reinterpret_cast<const T*>(from)[index]);
}

template <class T>
void write_number(double value, std::byte* to, int64_t index) {
  reinterpret_cast<T*>(to)[index] = math::convert_element<T>(value);
}

Prepared low_bit_kernel(const KernelCall& call, ReadElement read, WriteElement write) {
  return make_kernel([=, from = call.inputs[0].dtype, to = call.outputs[0].dtype,
                      rules = cast_rules(call), count = call.inputs[0].size(),
                      threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double value = read(buffers.inputs[0], from, i);
        if (write != nullptr) {
          write(value, buffers.outputs[0], i);
        } else {
          buffers.outputs[0][i] =
              std::byte{write_low_bit(to, value, rules.overflow, rules.rounding)};
        }
      }
    });
  });
}

Prepared prepare_low_bit(const KernelCall& call) {
  const DType from = call.inputs[0].dtype, to = call.outputs[0].dtype;
  if (is_low_bit(from) && is_low_bit(to)) return low_bit_kernel(call, read_code, nullptr);
  return for_any_type(is_low_bit(from) ? to : from, [&]<class T>() {
    return is_low_bit(from) ? low_bit_kernel(call, read_code, write_number<T>)
                            : low_bit_kernel(call, read_number<T>, nullptr);
  });
}

Prepared prepare_cast(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (is_low_bit(call.inputs[0].dtype) || is_low_bit(call.outputs[0].dtype)) {
    return prepare_low_bit(call);
  }
  return for_any_type(call.inputs[0].dtype, [&]<class From>() {
    return for_any_type(call.outputs[0].dtype,
                        [&]<class To>() { return cast_kernel(call, cast_block<From, To>); });
  });
}

}  // namespace

CastRules cast_rules(const KernelCall& call) {
  const bool saturate = attributes_of(call).get_int("saturate", 1) != 0;
  const std::string word = attributes_of(call).get_string("round_mode", "up");
  return {saturate ? Overflow::kSaturate : Overflow::kInfinity,
          word == "down"      ? PowerRounding::kDown
          : word == "nearest" ? PowerRounding::kNearest
                              : PowerRounding::kUp};
}

std::vector<KernelRow> cast_rows() {
  return {
      {"", "Cast", "reference", prepare_cast},
      {"", "CastLike", "reference", prepare_cast},
  };
}

}  // namespace halfnote::cpu
