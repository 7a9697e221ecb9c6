// Windows and Fourier transforms.
#include "compiler/ops/families.h"
#include "compiler/ops/signal/parts.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kGenerated = "made from counts: no gradient exists";

OperatorRow generated(std::string_view name) {
  return {.name = name, .precision = kFp32, .legality = {17, 17}, .no_gradient = kGenerated};
}

}  // namespace

std::vector<OperatorRow> signal_rows() {
  return {
      generated("BlackmanWindow"),
      {.name = "DFT",
       .precision = kFp32,
       .legality = {17, 17},
       .scale = ScaleRule::kFirst,
       .gradient = signal::dft_gradient},
      generated("HammingWindow"),
      generated("HannWindow"),
      generated("MelWeightMatrix"),
      {.name = "STFT",
       .precision = kFp32,
       .legality = {17, 17},
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .lower = signal::lower_stft,
       .note = "written as the DFT of windowed frames, where frame_step is a constant"},
  };
}

}  // namespace halfnote
