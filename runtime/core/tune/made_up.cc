#include "runtime/core/tune/made_up.h"

#include <cstdint>
#include <cstring>

#include "base/float16.h"

namespace halfnote {

void make_up(DType dtype, int64_t count, std::byte* to) {
  uint32_t bits = 0x9e3779b9u;
  const auto next = [&bits] {
    bits = bits * 1664525u + 1013904223u;
    return static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;
  };
  switch (dtype) {
    case DType::kF32:
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<float*>(to)[i] = next();
      break;
    case DType::kF64:
      for (int64_t i = 0; i < count; ++i)
        reinterpret_cast<double*>(to)[i] = static_cast<double>(next());
      break;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<Half*>(to)[i] = to_f16(next());
      break;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<BFloat16*>(to)[i] = to_bf16(next());
      break;
    case DType::kBool:
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<bool*>(to)[i] = true;
      break;
    default:
      std::memset(to, 0, static_cast<size_t>(count) * size_of(dtype));
  }
}

}  // namespace halfnote
