#include "passes/precision/presets.h"

#include <vector>

#include "base/error.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

constexpr float k2_15 = 32768.0f;
constexpr float k2_16 = 65536.0f;
constexpr float k2_24 = 16777216.0f;
constexpr float k2_32 = 4294967296.0f;

/// The common rule: ×2 after `interval` clean steps, ÷2 after an overflow.
LossScaler plain(const char* name, float init, int64_t interval, float min, float max) {
  LossScaler s;
  s.preset = name;
  s.init = init;
  s.interval = interval;
  s.warmup_interval = 0;
  s.min = min;
  s.max = max;
  s.on_floor = "hold";
  return s;
}

LossScaler with_hysteresis(LossScaler s, int64_t count, const char* refill, int64_t extra = 0) {
  s.hysteresis = count;
  s.refill = refill;
  s.first_window_extra = extra;
  return s;
}

/// DeepSpeed ends the run when the scale cannot shrink any more.
LossScaler raising(LossScaler s) {
  s.on_floor = "raise";
  return s;
}

LossScaler mxnet() {
  LossScaler s = plain("mxnet", k2_16, 2000, 0, k2_24);
  s.publish_delay = 1;
  return s;
}

LossScaler fixed() {
  LossScaler s = plain("static", k2_16, 2000, 0, 0);
  s.dynamic = false;
  s.up = s.down = 1;
  return s;
}

// A bound of 0 is no bound.
const std::vector<ScalerPreset>& scalers() {
  static const std::vector<ScalerPreset> kPresets = {
      {"halfnote", LossScaler{},
       "2^16, interval 2000, 100 until the first overflow, between 1 and 2^24"},
      {"pytorch", plain("pytorch", k2_16, 2000, 0, 0), "torch.amp.GradScaler"},
      {"keras", plain("keras", k2_15, 2000, 0, 0), "Keras 3 LossScaleOptimizer"},
      {"tfkeras", plain("tfkeras", k2_15, 2000, 1, 0), "tf.keras LossScaleOptimizer"},
      {"ort", plain("ort", k2_16, 2000, 1, k2_24), "ONNX Runtime DynamicLossScaler"},
      {"paddle", plain("paddle", k2_16, 2000, 1, 0), "Paddle GradScaler"},
      {"megengine", plain("megengine", 16.0f, 2000, 0, 0), "MegEngine GradScaler"},
      {"jmp", plain("jmp", k2_15, 2000, 1, 0), "JMP DynamicLossScale"},
      {"apex", plain("apex", k2_16, 2000, 0, k2_24), "Apex amp"},
      {"apex_hysteresis",
       with_hysteresis(plain("apex_hysteresis", k2_16, 2000, 0, 0), 2, "every_clean"),
       "Apex update_scale_hysteresis"},
      {"deepspeed",
       raising(with_hysteresis(plain("deepspeed", k2_16, 1000, 1, 0), 2, "on_growth", 1)),
       "DeepSpeed fp16"},
      {"deepspeed_consecutive",
       raising(
           with_hysteresis(plain("deepspeed_consecutive", k2_16, 1000, 1, 0), 2, "every_clean", 1)),
       "DeepSpeed fp16 with consecutive_hysteresis"},
      {"megatron", with_hysteresis(plain("megatron", k2_32, 1000, 1, 0), 2, "on_growth"),
       "Megatron DynamicGradScaler"},
      {"mxnet", mxnet(), "MXNet LossScaler: a new scale is used one step later"},
      {"static", fixed(), "init for ever; overflowing steps are skipped"},
  };
  return kPresets;
}

}  // namespace

std::span<const ScalerPreset> scaler_presets() { return scalers(); }

const LossScaler& scaler_preset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ScalerPreset& preset : scalers()) {
    if (preset.name == (name == "keras3" ? "keras" : name)) return preset.scaler;
    names.push_back(preset.name);
  }
  const std::string_view near = closest(name, names);
  throw SettingError("loss_scale.preset",
                     {"{loss_scale.preset} names no preset of loss scaling",
                      "one of pytorch, keras, deepspeed, … (docs/loss-scaling.md)",
                      "\"" + std::string(name) + "\"",
                      near.empty() ? "`halfnote ops --presets` lists them"
                                   : "did you mean " + std::string(near) + "?"});
}

}  // namespace halfnote
