// Windows and Fourier transforms.
#include "compiler/ops/families.h"
#include "compiler/ops/signal/parts.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kGenerated = "made from counts: no gradient exists";

OperatorRow generated(std::string_view name, uint32_t size_inputs) {
  return {.name = name,
          .precision = kFp32,
          .legality = {17, 17},
          .no_gradient = kGenerated,
          .size_inputs = size_inputs};
}

}  // namespace

std::vector<OperatorRow> signal_rows() {
  return {
      generated("BlackmanWindow", 0b1),
      {.name = "DFT",
       .precision = kFp32,
       .legality = {17, 17},
       .scale = ScaleRule::kFirst,
       .gradient = signal::dft_gradient,
       .size_inputs = 0b110},
      generated("HammingWindow", 0b1),
      generated("HannWindow", 0b1),
      generated("MelWeightMatrix", 0b11),
      {.name = "STFT",
       .precision = kFp32,
       .legality = {17, 17},
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .size_inputs = 0b1010,
       .lower = signal::lower_stft,
       .note = "written as the DFT of windowed frames, where frame_step is a constant"},
  };
}

}  // namespace halfnote
