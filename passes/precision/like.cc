#include "passes/precision/like.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "passes/precision/presets.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

// Only what differs from the operator table. "follow" is an op that these systems run in whatever
// type arrives. The lists are those of torch.amp (CUDA), Apex O1, TensorFlow's grappler, MXNet's,
// Paddle's and MegEngine's AMP.
const std::vector<LikePreset>& likes() {
  static const std::vector<LikePreset> kPresets = {
      {"pytorch",
       "pytorch",
       false,
       {"PRelu"},
       {"GroupNormalization", "LayerNormalization", "RMSNormalization"},
       // InstanceNormalization is none of them: PyTorch writes group_norm with it below op-set 21.
       {"Acosh", "Asinh", "Atanh", "Cos", "GridSample", "ReduceMean", "Sin"},
       "torch.autocast for CUDA, and GradScaler"},
      {"apex-O1",
       "apex",
       false,
       {"PRelu"},
       {"Gelu", "GroupNormalization", "LayerNormalization"},
       {},
       "Apex amp, opt_level O1"},
      {"apex-O2", "apex", true, {}, {}, {}, "Apex amp, opt_level O2: the model in half"},
      {"tensorflow",
       "tfkeras",
       false,
       {},
       {},
       {"Log", "LogSoftmax", "Reciprocal", "ReduceProd", "Softmax", "Softplus"},
       "TensorFlow's auto_mixed_precision graph rewrite"},
      {"keras", "keras", true, {}, {}, {}, "Keras 3, policy mixed_float16: every layer"},
      {"tfkeras", "tfkeras", true, {}, {}, {}, "tf.keras, policy mixed_float16: every layer"},
      {"mxnet",
       "mxnet",
       false,
       {},
       {"Elu", "GroupNormalization", "LayerNormalization", "Selu", "TopK"},
       {"Acosh", "Asinh", "Cos", "GlobalAveragePool", "GridSample", "MaxRoiPool", "Resize",
        "RoiAlign", "Sin"},
       "MXNet AMP"},
      {"paddle",
       "paddle",
       false,
       {"MaxPool", "RotaryEmbedding"},
       {"GroupNormalization", "LayerNormalization", "ScatterElements", "ScatterND"},
       {},
       "Paddle AMP, level O1"},
      {"megengine", "megengine", false, {}, {"Div"}, {}, "MegEngine AMP"},
      {"ort", "ort", true, {}, {}, {}, "ONNX Runtime training: all but the loss"},
      {"deepspeed", "deepspeed", true, {}, {}, {}, "DeepSpeed fp16: the model in half"},
      {"megatron", "megatron", true, {}, {"Softmax"}, {}, "Megatron: softmax of attention in FP32"},
      {"jmp", "jmp", true, {}, {}, {}, "JMP, params=float32, compute=float16, output=float32"},
  };
  return kPresets;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool contains(const std::vector<std::string_view>& list, std::string_view op) {
  return std::find(list.begin(), list.end(), op) != list.end();
}

}  // namespace

std::span<const LikePreset> like_presets() { return likes(); }

const LikePreset& like_preset(std::string_view name) {
  std::vector<std::string> names;
  std::string list;
  for (const LikePreset& preset : likes()) {
    if (lower(preset.name) == lower(name)) return preset;
    names.emplace_back(preset.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const std::string_view near = closest(name, names);
  throw SettingError(
      "precision.like",
      {"{precision.like} names no framework", "one of " + list, "\"" + std::string(name) + "\"",
       near.empty() ? "`halfnote ops --presets` says what each does"
                    : "did you mean " + std::string(near) + "?"});
}

void apply_like(std::string_view name, Policy& policy) {
  const LikePreset& preset = like_preset(name);
  policy.like = preset.name;
  policy.scaler = scaler_preset(preset.scaler);
  if (policy.dtype == DType::kF32) policy.dtype = DType::kF16;
}

std::optional<PrecisionClass> like_class(const LikePreset& preset, std::string_view op,
                                         PrecisionClass own) {
  constexpr std::string_view kGrad = "Grad";
  const bool chosen = own == PrecisionClass::kAllow || own == PrecisionClass::kFp32 ||
                      own == PrecisionClass::kInfer || own == PrecisionClass::kClear;
  if (!chosen) return std::nullopt;
  if (op.size() > kGrad.size() && op.ends_with(kGrad)) op.remove_suffix(kGrad.size());
  if (contains(preset.fp32, op)) return PrecisionClass::kFp32;
  if (contains(preset.low, op)) return PrecisionClass::kAllow;
  if (contains(preset.follow, op)) return PrecisionClass::kInfer;
  if (preset.everything && own != PrecisionClass::kClear) return PrecisionClass::kAllow;
  return std::nullopt;
}

}  // namespace halfnote
