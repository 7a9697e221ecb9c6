// The rule of the dynamic loss scale (docs/loss-scaling.md): a superset of the rules of PyTorch,
// Keras, ONNX Runtime, MXNet, DeepSpeed, Megatron and Apex. One thread runs it after the finite
// check; the host reads nothing.
#pragma once

#include "kernels/math/host_device.h"

namespace halfnote::math {

enum class HysteresisRefill { kOnGrowth, kEveryClean };

struct LossScaleRule {
  float up = 2, down = 0.5f;
  int32_t interval = 2000;  // clean steps until the scale grows; 0: never
  int32_t hysteresis = 1;   // overflows until it shrinks
  HysteresisRefill refill = HysteresisRefill::kOnGrowth;
  int32_t first_window_extra = 0;  // more clean steps after the start or an overflow
  bool publish_delay = false;      // a new scale comes into use one update later
  int32_t warmup_interval = 0;     // the interval until the first overflow; 0: as `interval`
  float min = 1, max = 16777216;   // 0: no bound
};

struct LossScaleState {
  float scale = 65536;
  int32_t growth = 0;  // clean steps in the window; after a growth it starts at first_window_extra
  int32_t hysteresis = 1;  // overflows left
  float pending = 65536;  // the scale after the next update if publish_delay is set, else the scale
  int32_t clean = 0;      // 0 until the first overflow, then -1
  int64_t skips = 0;      // overflows in all
  int32_t skips_in_row = 0;
  int32_t floor_hits = 0;  // overflows that should have shrunk a scale that was at `min` already
};

/// The state before the first step.
HN_HD inline LossScaleState initial_loss_scale(const LossScaleRule& rule, float scale) {
  return {scale, 0, rule.hysteresis, scale, 0, 0, 0, 0};
}

/// A bound stops the scale but never moves it the other way; a product that is not finite is not
/// taken.
HN_HD inline float grown_scale(const LossScaleRule& rule, float scale) {
  const float grown = scale * rule.up;
  if (!(grown - grown == 0)) return scale;
  if (rule.max > 0 && grown > rule.max) return scale > rule.max ? scale : rule.max;
  return grown;
}

HN_HD inline float shrunk_scale(const LossScaleRule& rule, float scale) {
  const float shrunk = scale * rule.down;
  if (rule.min > 0 && shrunk < rule.min) return scale < rule.min ? scale : rule.min;
  return shrunk;
}

/// The state after a step whose gradients were finite or not; `scale` is what the next step uses.
HN_HD inline LossScaleState update_loss_scale(const LossScaleRule& rule, LossScaleState state,
                                              bool finite) {
  float scale = rule.publish_delay ? state.pending : state.scale;
  const float published = scale;
  if (!finite) {
    state.clean = -1;
    state.growth = 0;
    ++state.skips;
    ++state.skips_in_row;
    state.hysteresis = state.hysteresis > 1 ? state.hysteresis - 1 : 0;
    if (state.hysteresis == 0) {
      if (rule.min > 0 && scale <= rule.min) ++state.floor_hits;
      scale = shrunk_scale(rule, scale);
    }
  } else {
    state.skips_in_row = 0;
    const bool warm_up = state.clean >= 0 && rule.warmup_interval > 0;
    const int32_t interval = warm_up ? rule.warmup_interval : rule.interval;
    if (rule.refill == HysteresisRefill::kEveryClean) state.hysteresis = rule.hysteresis;
    if (interval > 0 && ++state.growth >= interval + rule.first_window_extra) {
      state.growth = rule.first_window_extra;
      state.hysteresis = rule.hysteresis;
      scale = grown_scale(rule, scale);
    }
  }
  state.pending = scale;
  state.scale = rule.publish_delay ? published : scale;
  return state;
}

}  // namespace halfnote::math
