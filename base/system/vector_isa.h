// Which vector instructions our own loops use.
#pragma once

#include <cstdint>
#include <string_view>

namespace halfnote {

/// What loops are compiled for besides the baseline. AVX2 is with FMA, AVX-512 with BW, DQ and VL.
enum class VectorIsa : uint8_t { kBaseline, kAvx2, kAvx512 };

/// The best of them that this CPU has, or what HALFNOTE_ISA (baseline, avx2, avx512) in the
/// environment names: all that chooses among loops, and oneDNN, then keeps to it. What is not
/// compiled for AVX2 has its baseline form there. Throws Error(kUsage) of a name that is none,
/// Error(kDevice) of instructions that this CPU lacks.
VectorIsa vector_isa();
/// The same for a wish (empty: none).
VectorIsa vector_isa_for(std::string_view wish);
/// Does the environment name one?
bool is_vector_isa_named();

}  // namespace halfnote
