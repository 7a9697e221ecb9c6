// What the pass absorb-transposes (absorb_transposes.cc) leaves alone by size.
#pragma once

#include <cstdint>

namespace halfnote {

/// ONNX MatMul of f32 up to so many multiply-adds keep their form, by which the CPU knows a forward
/// product that it sums in f64; their transposes cost little.
inline constexpr int64_t kSmallProduct = int64_t{1} << 17;

}  // namespace halfnote
