// Frameworks by name: the op lists of each and its loss scaler, together (--like).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ops/operator.h"
#include "passes/options.h"

namespace halfnote {

/// What a framework does differently from halfnote's own table.
struct LikePreset {
  std::string_view name;
  std::string_view scaler;  // a scaler preset
  /// The whole model is 16-bit (`model.half()`): every op that the op-set allows, but those in
  /// `fp32`, the loss and the optimizer. Else only the ops listed differ.
  bool everything = false;
  std::vector<std::string_view> low, fp32, follow;
  std::string_view what;
};

std::span<const LikePreset> like_presets();

/// The preset of this name, whatever its case; throws Error(kUsage) with the closest name.
const LikePreset& like_preset(std::string_view name);

/// Takes over a framework's lists and scaler. A policy in FP32 becomes f16: the frameworks' rules
/// are about 16 bit; --precision, read later, wins.
void apply_like(std::string_view name, Policy& policy);

/// The class that the preset gives an op (ONNX's, or the gradient `<Op>Grad` of one) of class
/// `own`; nothing where it leaves the op as it is.
std::optional<PrecisionClass> like_class(const LikePreset& preset, std::string_view op,
                                         PrecisionClass own);

}  // namespace halfnote
