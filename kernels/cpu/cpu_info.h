// What the CPU can do, as far as a choice among kernels depends on it.
#pragma once

#include <string>
#include <string_view>

namespace halfnote::cpu {

/// The vector instructions that our own kernels are compiled for, besides the baseline. AVX2 is
/// with FMA, AVX-512 with BW, DQ and VL.
enum class VectorIsa { kBaseline, kAvx2, kAvx512 };

/// The best of them that this CPU has, or what HALFNOTE_ISA (baseline, avx2, avx512) in the
/// environment names: all that chooses among kernels, and oneDNN, then keeps to it. Kernels that
/// are not compiled for AVX2 have their baseline form there. Throws Error(kUsage) of a name that is
/// none, Error(kDevice) of instructions that this CPU lacks.
VectorIsa vector_isa();
/// The same for a wish (empty: none).
VectorIsa vector_isa_for(std::string_view wish);

/// Has oneDNN keep to vector_isa() where HALFNOTE_ISA is set; to be called before anything else of
/// oneDNN. It goes no further down than SSE4.1.
void limit_onednn();

/// Instructions that multiply bf16 and add up in f32: none; avx512_bf16's dot products, where they
/// do fewer multiply-adds a cycle than f32 FMAs; the same where they do more; tiles of AMX.
enum class Bf16Dots { kNone, kSlow, kFast, kTiles };

/// What this CPU has. Intel's cores do one 512-bit dot product of avx512_bf16 in the time of four
/// FMAs (measured on one without AMX: 41 multiply-adds/ns, and 85 with FMAs), AMD's in that of one:
/// so kSlow is an Intel CPU without AMX. HALFNOTE_BF16=f32 in the environment says kSlow of
/// all that have any, HALFNOTE_BF16=dots kFast.
Bf16Dots bf16_dots();

/// Is contraction really faster in bf16 than in f32?
bool cpu_has_native_bf16();

/// One line for people: `AMD EPYC, avx512_core_bf16 (native bf16)`.
std::string cpu_description();

/// The instruction set that oneDNN uses: `avx2`, `avx512_core_bf16`, …
std::string onednn_isa_name();

/// `oneDNN 3.2.0`.
std::string onednn_version();

}  // namespace halfnote::cpu
