// The array conversions of float16.h, one row per instruction set. All rows give the same bits as
// the scalar functions (NaN included), so which one runs is only a matter of speed; the tests
// compare every row that this CPU has.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/float16.h"

namespace halfnote {

struct FloatConverters {
  std::string_view name;
  bool (*supported)();
  void (*f32_to_f16)(const float* from, Half* to, size_t count);
  void (*f32_to_bf16)(const float* from, BFloat16* to, size_t count);
  void (*f16_to_f32)(const Half* from, float* to, size_t count);
  void (*bf16_to_f32)(const BFloat16* from, float* to, size_t count);
};

/// Every row compiled in, best first; the last one, `scalar`, is supported everywhere.
std::span<const FloatConverters> float_converters();

}  // namespace halfnote
