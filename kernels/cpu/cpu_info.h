// What the CPU can do, as far as a choice among kernels depends on it.
#pragma once

#include <string>

namespace halfnote::cpu {

/// The vector instructions that our own kernels are compiled for, besides the baseline.
enum class VectorIsa { kBaseline, kAvx512 };

/// The best of them that this CPU has; HALFNOTE_ISA=baseline in the environment turns the others
/// off.
VectorIsa vector_isa();

/// Are there bf16 dot products (avx512_bf16 or AMX), so that bf16 contraction is really faster than
/// f32?
bool cpu_has_native_bf16();

/// One line for people: `AMD EPYC, avx512_core_bf16 (native bf16)`.
std::string cpu_description();

/// The instruction set that oneDNN uses: `avx2`, `avx512_core_bf16`, …
std::string onednn_isa_name();

/// `oneDNN 3.2.0`.
std::string onednn_version();

}  // namespace halfnote::cpu
