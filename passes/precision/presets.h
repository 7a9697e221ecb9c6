// Loss-scale presets: the rules of other frameworks, by name.
#pragma once

#include <span>
#include <string_view>

#include "passes/options.h"

namespace halfnote {

struct ScalerPreset {
  std::string_view name;
  LossScaler scaler;
  std::string_view what;
};

std::span<const ScalerPreset> scaler_presets();

/// The preset of this name; throws Error(kUsage) with the closest name.
const LossScaler& scaler_preset(std::string_view name);

}  // namespace halfnote
