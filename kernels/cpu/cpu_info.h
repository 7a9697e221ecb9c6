// What the CPU can do, as far as a choice among kernels depends on it.
#pragma once

#include <string>

#include "base/system/vector_isa.h"

namespace halfnote::cpu {

using halfnote::vector_isa;  // base/system/vector_isa.h
using halfnote::VectorIsa;

/// Has oneDNN keep to vector_isa() where HALFNOTE_ISA is set, and off AMX where HALFNOTE_BF16 is.
/// To be called before anything else of oneDNN, which goes no further down than SSE4.1.
void limit_onednn();

/// Instructions that multiply bf16 and add up in f32: none; avx512_bf16's dot products, where they
/// do fewer multiply-adds a cycle than f32 FMAs; the same where they do more; tiles of AMX.
enum class Bf16Dots { kNone, kSlow, kFast, kTiles };

/// What this CPU has. Intel's cores do one 512-bit dot product of avx512_bf16 in the time of four
/// FMAs (measured on one without AMX: 41 multiply-adds/ns, and 85 with FMAs), AMD's in that of one:
/// so kSlow is an Intel CPU without AMX. HALFNOTE_BF16=f32 in the environment says kSlow of
/// all that have any, HALFNOTE_BF16=dots kFast; with either, oneDNN leaves AMX alone too.
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
