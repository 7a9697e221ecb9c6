// Cast and CastLike between all numeric types and bool.
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

Prepared prepare_cast(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  return for_any_type(call.inputs[0].dtype, [&]<class From>() {
    return for_any_type(call.outputs[0].dtype,
                        [&]<class To>() { return cast_kernel(call, cast_block<From, To>); });
  });
}

}  // namespace

std::vector<KernelRow> cast_rows() {
  return {
      {"", "Cast", "reference", prepare_cast},
      {"", "CastLike", "reference", prepare_cast},
  };
}

}  // namespace halfnote::cpu
