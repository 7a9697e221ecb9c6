// Windows and Fourier transforms.
#include "compiler/ops/families.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kGenerated = "made from counts: no gradient exists";
constexpr std::string_view kSpectral = "not in this release: gradients of Fourier transforms";

OperatorRow spectral(std::string_view name, Legality legality, ScaleRule scale,
                     std::string_view reason) {
  return {.name = name,
          .precision = kFp32,
          .legality = legality,
          .scale = scale,
          .no_gradient = reason};
}

}  // namespace

std::vector<OperatorRow> signal_rows() {
  return {
      spectral("BlackmanWindow", {17, 17}, ScaleRule::kNone, kGenerated),
      spectral("DFT", {17, 17}, ScaleRule::kFirst, kSpectral),
      spectral("HammingWindow", {17, 17}, ScaleRule::kNone, kGenerated),
      spectral("HannWindow", {17, 17}, ScaleRule::kNone, kGenerated),
      spectral("MelWeightMatrix", {17, 17}, ScaleRule::kNone, kGenerated),
      spectral("STFT", {17, 17}, ScaleRule::kFirst, kSpectral),
  };
}

}  // namespace halfnote
