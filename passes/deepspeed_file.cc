// DeepSpeed's own defaults hold for every key that is left out of a section that is there.
//
//   {"train_batch_size": 64, "gradient_accumulation_steps": 4, "fp16": {"enabled": true}}
//       ──▶  precision f16, scaler deepspeed, 4 micro-batches of 16 samples
#include "passes/deepspeed_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "passes/deepspeed/json.h"
#include "passes/deepspeed/keys.h"
#include "passes/deepspeed/scheduler.h"
#include "passes/nesting.h"
#include "passes/precision/presets.h"

namespace halfnote {
namespace {

int to_lower(char c) { return std::tolower(static_cast<unsigned char>(c)); }

using namespace deepspeed;

constexpr size_t kMaxBytes = size_t{1} << 20;

class JsonReader {
 public:
  JsonReader(std::string_view file, CompileOptions& options) : file_(file), options_(options) {}

  std::vector<std::string> run(const Json& root) {
    if (!root.is_object()) {
      throw Error(ErrorCode::kUsage, "the DeepSpeed file holds no object")
          .at({std::string(file_), {}, {}})
          .expected("an object of settings, as {\"train_batch_size\": 64}", start_of(root));
    }
    if (root.contains("bf16") && root.contains("bfloat16")) {
      throw Error(ErrorCode::kUsage, "\"bf16\" and \"bfloat16\" are two names of one section")
          .at({std::string(file_), {}, {}})
          .expected("one of them", "both")
          .hint("\"bfloat16\" is the older name");
    }
    read(root, "", top_keys());
    // Behind the optimizer, wherever it stands: it takes the place of the optimizer's rate.
    if (!scheduler_.is_null()) {
      const auto names =
          read_scheduler(file_, scheduler_, "scheduler", options_.train.optimizer, notes_);
      for (const auto& [key, name] : names) source("optimizer." + key, name);
    }
    set_precision();
    set_batch();
    options_.train.optimizer.clip_norm = static_cast<float>(clipping_);
    source("optimizer.clip_norm", "gradient_clipping");
    return std::move(notes_);
  }

 private:
  void read(const Json& object, const std::string& prefix, const Keys& keys) {
    read_keys(file_, object, prefix, keys);
  }

  /// Messages on the setting name a key of this file.
  void source(const std::string& key, std::string name) {
    options_.sources[key] = {std::string(file_), std::move(name)};
  }

  /// A key without meaning in one process on one device.
  Setter ignored() {
    return [this](const Json&, const std::string& key) {
      notes_.push_back("DeepSpeed's \"" + key + "\" has no meaning here");
    };
  }

  /// A key that is only taken where it switches nothing on.
  Setter refused(std::string_view why) {
    return [why](const Json& value, const std::string& key) {
      const Json on = value.is_object() ? value.value("enabled", Json(false)) : value;
      only(false, std::string(why))(on.is_null() ? Json(false) : on, key);
    };
  }

  /// The same for a section that is on where it says anything.
  static Setter unless_off(std::string_view why) {
    return [why](const Json& value, const std::string& key) {
      const bool off = value.is_null() || (value.is_object() && value.empty());
      if (!off) only(false, std::string(why))(value, key);
    };
  }

  /// What the stages share out over processes, or move to another memory, is whole and here.
  void zero_optimization(const Json& object, const std::string& prefix) {
    int64_t stage = 0;
    Keys keys = {{"stage", count(stage, 0)}};
    for (const std::string_view key : kIdleZeroKeys) keys.emplace(key, ignored());
    for (const auto& [key, why] : kRefusedZeroKeys) keys.emplace(key, unless_off(why));
    read(object, prefix, keys);
    if (stage > 3) wrong(prefix + ".stage", "0, 1, 2 or 3", stage);
    if (stage > 0) {
      notes_.push_back(
          fmt::format("\"{}.stage\" {} shares nothing out in one process: the numbers are the same",
                      prefix, stage));
    }
  }

  void data_types(const Json& object, const std::string& prefix) {
    Setter sums = only("fp32", "gradients are accumulated in FP32 here");
    read(object, prefix, {{"grad_accum_dtype", [sums](const Json& value, const std::string& key) {
                             if (!value.is_null()) sums(value, key);
                           }}});
  }

  Keys top_keys() {
    Keys keys = {
        {"train_batch_size", count(batch_, 1)},
        {"train_micro_batch_size_per_gpu", count(micro_, 1)},
        {"gradient_accumulation_steps", count(accumulation_, 1)},
        {"gradient_clipping", number(clipping_, 0)},
        {"prescale_gradients", only(false, "there is one process")},
        {"gradient_predivide_factor", only(1.0, "there is one process")},
        {"fp16", section([this](const Json& j, const std::string& k) { fp16(j, k); })},
        {"bf16", section([this](const Json& j, const std::string& k) { bf16(j, k); })},
        {"optimizer", section([this](const Json& j, const std::string& k) { optimizer(j, k); })},
        {"scheduler", section([this](const Json& j, const std::string&) { scheduler_ = j; })},
        {"bfloat16", section([this](const Json& j, const std::string& k) { bf16(j, k); })},
        {"data_types", section([this](const Json& j, const std::string& k) { data_types(j, k); })},
        {"dataloader_drop_last", only(true, "a batch that the data do not fill is left out")},
        {"zero_optimization",
         section([this](const Json& j, const std::string& k) { zero_optimization(j, k); })},
    };
    for (const std::string_view key : kIdleDeepSpeedKeys) keys.emplace(key, ignored());
    for (const std::string_view key : kIdleDeepSpeedSections) {
      keys.emplace(key, [all = section(ignored())](const Json& value, const std::string& name) {
        if (!value.is_null()) all(value, name);
      });
    }
    for (const auto& [key, why] : kRefusedDeepSpeedKeys) keys.emplace(key, refused(why));
    return keys;
  }

  void fp16(const Json& object, const std::string& prefix) {
    LossScaler& s = fp16_scaler_ = scaler_preset("deepspeed");
    double fixed = 0, least = 1;
    int64_t power = 16;
    bool consecutive = false, casts = false;
    read(object, prefix,
         {{"enabled", flag(fp16_)},
          {"auto_cast", flag(casts)},  // inputs of 16-bit nodes are cast in the graph anyway
          {"loss_scale", number(fixed, 0)},
          {"initial_scale_power", count(power, 0)},
          {"loss_scale_window", count(s.interval, 1)},
          {"hysteresis", count(s.hysteresis, 1)},
          {"consecutive_hysteresis", flag(consecutive)},
          {"min_loss_scale", number(least, 0)},
          {"fp16_master_weights_and_grads", only(false, "master weights are FP32 here")}});
    if (power > 127) wrong(prefix + ".initial_scale_power", "at most 127", power);
    s.init = std::ldexp(1.0f, static_cast<int>(power));
    s.min = static_cast<float>(least);
    // DeepSpeed would take a scale below its minimum up to it where a gradient overflows.
    if (fixed == 0 && s.min > s.init) {
      wrong(prefix + ".min_loss_scale", fmt::format("at most the first scale, {:g}", s.init),
            least);
    }
    if (consecutive) {
      s.refill = "every_clean";
      s.preset = "deepspeed_consecutive";
    }
    source("loss_scale.init", prefix + (fixed > 0 ? ".loss_scale" : ".initial_scale_power"));
    source("loss_scale.min", prefix + ".min_loss_scale");
    if (fixed > 0) {
      s = scaler_preset("static");
      s.init = static_cast<float>(fixed);
    }
  }

  void bf16(const Json& object, const std::string& prefix) {
    bool immediate = false;
    read(object, prefix,
         {{"enabled", flag(bf16_)},
          {"immediate_grad_update", flag(immediate)},  // sums are FP32 either way
          {"check_grad_overflow", only(true, "a step that is not finite is always skipped")},
          {"bf16_master_weights_and_grads", only(false, "master weights are FP32 here")},
          {"bf16_optimizer_states", only(false, "optimizer states are FP32 here")}});
  }

  void set_precision() {
    if (fp16_ && bf16_) {
      throw Error(ErrorCode::kUsage, "\"fp16.enabled\" and \"bf16.enabled\" are both true")
          .at({std::string(file_), {}, {}})
          .expected("one of them", "both")
          .hint("set one of them to false");
    }
    options_.policy.dtype = fp16_ ? DType::kF16 : bf16_ ? DType::kBF16 : DType::kF32;
    if (fp16_) options_.policy.scaler = fp16_scaler_;
  }

  /// train_batch_size = micro-batch · accumulation; what is left out follows from the rest.
  void set_batch() {
    if (accumulation_ == 0 && batch_ > 0 && micro_ > 0 && batch_ % micro_ == 0) {
      accumulation_ = batch_ / micro_;
    }
    if (accumulation_ == 0) accumulation_ = 1;
    if (micro_ == 0 && batch_ % accumulation_ == 0) micro_ = batch_ / accumulation_;
    if (accumulation_ == 1 && micro_ > 0 && batch_ % micro_ != 0) {
      throw Error(ErrorCode::kUsage,
                  "\"train_batch_size\" is no multiple of \"train_micro_batch_size_per_gpu\"")
          .at({std::string(file_), {}, {}})
          .expected(fmt::format("a multiple of {}", micro_), std::to_string(batch_));
    }
    if (batch_ > 0 && micro_ * accumulation_ != batch_) {
      throw Error(ErrorCode::kUsage, "the batch sizes contradict each other")
          .at({std::string(file_), {}, {}})
          .expected(
              "\"train_batch_size\" = \"train_micro_batch_size_per_gpu\" · "
              "\"gradient_accumulation_steps\", in one process",
              micro_ > 0 ? fmt::format("{} and {} · {}", batch_, micro_, accumulation_)
                         : fmt::format("{} and {} steps", batch_, accumulation_));
    }
    source("train.accumulate", "gradient_accumulation_steps");
    source("train.micro_batch", "train_micro_batch_size_per_gpu");
    options_.train.accumulation = accumulation_;
    options_.train.micro_batch = micro_;
    options_.train.update_batch = batch_;
  }

  void optimizer(const Json& object, const std::string& prefix) {
    std::string type;
    Json params = Json::object();
    read(object, prefix,
         {{"type", text(type)},
          {"params", section([&](const Json& j, const std::string&) { params = j; })},
          {"legacy_fusion", ignored()}});
    const std::map<std::string, std::function<void(const Json&, const std::string&)>> kinds = {
        {"Adam", [this](const Json& j, const std::string& k) { adam(j, k, "adam"); }},
        {"AdamW", [this](const Json& j, const std::string& k) { adam(j, k, "adamw"); }},
        {"Lamb", [this](const Json& j, const std::string& k) { lamb(j, k); }},
        {"Lion", [this](const Json& j, const std::string& k) { lion(j, k); }},
        {"Adagrad", [this](const Json& j, const std::string& k) { adagrad(j, k); }},
        {"SGD", [this](const Json& j, const std::string& k) { sgd(j, k); }},
        {"RMSprop", [this](const Json& j, const std::string& k) { rmsprop(j, k); }},
    };
    // DeepSpeed takes the names of optimizers, but not those of schedulers, in any case.
    const auto found = std::ranges::find_if(kinds, [&](const auto& kind) {
      return std::ranges::equal(kind.first, type, {}, to_lower, to_lower);
    });
    if (found == kinds.end()) {
      std::vector<std::string> names;
      for (const auto& [name, setter] : kinds) names.push_back(name);
      unknown_type(file_, prefix, type, names);
    }
    found->second(params, prefix + ".params");
    source("optimizer.kind", prefix + ".type");
    for (const auto& [key, name] : kParamNames) {
      source(std::string("optimizer.") + key, fmt::format("{}.params.{}", prefix, name));
    }
  }

  /// Our keys of an optimizer, and DeepSpeed's.
  static constexpr std::array<std::pair<const char*, const char*>, 11> kParamNames = {{
      {"lr", "lr"},
      {"beta1", "betas"},
      {"beta2", "betas"},
      {"epsilon", "eps"},
      {"weight_decay", "weight_decay"},
      {"momentum", "momentum"},
      {"alpha", "alpha"},
      {"lr_decay", "lr_decay"},
      {"initial_accumulator", "initial_accumulator_value"},
      {"min_ratio", "min_coeff"},
      {"max_ratio", "max_coeff"},
  }};

  /// The optimizer's settings from numbers read as doubles.
  struct Params {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
  };

  Keys with(Params& p, Keys more) {
    more.emplace("lr", number(p.lr, 0));
    more.emplace("weight_decay", number(p.decay, 0));
    return more;
  }

  Optimizer& set(const char* kind, const Params& p) {
    Optimizer& o = options_.train.optimizer;
    o.kind = kind;
    o.chosen = true;
    o.lr = static_cast<float>(p.lr);
    o.weight_decay = static_cast<float>(p.decay);
    return o;
  }

  void set_betas(Optimizer& o, const Params& p) {
    o.beta1 = static_cast<float>(p.beta1);
    o.beta2 = static_cast<float>(p.beta2);
  }

  /// DeepSpeed's "Adam" decouples the weight decay unless adam_w_mode is false, its "AdamW" always.
  /// The default of the decay is that of the class it takes: FusedAdam, or with torch_adam
  /// torch.optim's, of which only AdamW has one above 0.
  void adam(const Json& params, const std::string& prefix, const std::string& type) {
    Params p;
    bool decoupled = true, torch = false;
    read(params, prefix,
         with(p, {{"betas", pair_of(p.beta1, p.beta2)},
                  {"eps", number(p.eps, 0)},
                  {"adam_w_mode", flag(decoupled)},
                  {"torch_adam", flag(torch)},
                  {"set_grad_none", ignored()},
                  {"bias_correction", only(true, "Adam corrects the bias here")},
                  {"amsgrad", only(false, "there is no AMSGrad here")}}));
    decoupled |= type == "adamw";
    if (torch && decoupled && !params.contains("weight_decay")) p.decay = 0.01;
    Optimizer& o = set(decoupled ? "adamw" : "adam", p);
    set_betas(o, p);
    o.epsilon = static_cast<float>(p.eps);
  }

  void lamb(const Json& params, const std::string& prefix) {
    Params p;
    double most = 10, least = 0.01;
    read(params, prefix,
         with(p, {{"betas", pair_of(p.beta1, p.beta2)},
                  {"eps", number(p.eps, 0)},
                  {"max_coeff", number(most, 0)},
                  {"min_coeff", number(least, 0)},
                  {"eps_inside_sqrt", only(false, "epsilon is added to the root here")},
                  {"bias_correction", only(true, "the rate corrects the bias here")},
                  {"max_grad_norm", only(0, "use gradient_clipping")},
                  {"amsgrad", only(false, "there is no AMSGrad here")}}));
    Optimizer& o = set("deepspeed_lamb", p);
    set_betas(o, p);
    o.epsilon = static_cast<float>(p.eps);
    o.min_ratio = static_cast<float>(least);
    o.max_ratio = static_cast<float>(most);
  }

  void lion(const Json& params, const std::string& prefix) {
    Params p;
    p.beta2 = 0.99;
    read(params, prefix, with(p, {{"betas", pair_of(p.beta1, p.beta2)}}));
    set_betas(set("lion", p), p);
  }

  void adagrad(const Json& params, const std::string& prefix) {
    Params p{.lr = 1e-2, .eps = 1e-10};
    double lr_decay = 0, first = 0;
    read(params, prefix,
         with(p, {{"eps", number(p.eps, 0)},
                  {"lr_decay", number(lr_decay, 0)},
                  {"initial_accumulator_value", number(first, 0)}}));
    Optimizer& o = set("adagrad", p);
    o.epsilon = static_cast<float>(p.eps);
    o.lr_decay = static_cast<float>(lr_decay);
    o.initial_accumulator = static_cast<float>(first);
  }

  void sgd(const Json& params, const std::string& prefix) {
    Params p;
    double momentum = 0, dampening = 0;
    bool nesterov = false;
    read(params, prefix,
         with(p, {{"momentum", number(momentum, 0)},
                  {"dampening", number(dampening)},
                  {"nesterov", flag(nesterov)}}));
    Optimizer& o = set(momentum == 0 ? "sgd" : nesterov ? "nesterov" : "momentum", p);
    o.momentum = static_cast<float>(momentum);
    o.dampening = static_cast<float>(dampening);
  }

  void rmsprop(const Json& params, const std::string& prefix) {
    Params p{.lr = 1e-2};
    double alpha = 0.99, momentum = 0;
    bool centered = false;
    read(params, prefix,
         with(p, {{"alpha", number(alpha, 0)},
                  {"eps", number(p.eps, 0)},
                  {"momentum", number(momentum, 0)},
                  {"centered", flag(centered)}}));
    Optimizer& o = set("rmsprop", p);
    o.alpha = static_cast<float>(alpha);
    o.epsilon = static_cast<float>(p.eps);
    o.momentum = static_cast<float>(momentum);
    o.centered = centered;
  }

  std::string_view file_;
  CompileOptions& options_;
  std::vector<std::string> notes_;
  Json scheduler_;
  bool fp16_ = false, bf16_ = false;
  LossScaler fp16_scaler_;
  int64_t batch_ = 0, micro_ = 0, accumulation_ = 0;
  double clipping_ = 0;
};

}  // namespace

std::vector<std::string> parse_deepspeed(std::string_view text, std::string_view file_name,
                                         CompileOptions& options) {
  if (json_nests_deeper(text)) {
    throw Error(ErrorCode::kUsage, "the DeepSpeed file nests too deep")
        .at({std::string(file_name), {}, {}})
        .expected(fmt::format("at most {} levels", kMaxJsonDepth), "more");
  }
  Json root;
  try {
    root = Json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kUsage,
                "the DeepSpeed file is no valid JSON: " + json_problem(error.what()))
        .at({std::string(file_name), {}, {}});
  }
  if (const std::string key = repeated_json_key(text); !key.empty()) {
    throw Error(ErrorCode::kUsage, "the key \"" + key + "\" stands twice")
        .at({std::string(file_name), {}, {}})
        .hint("keep one of them (DeepSpeed refuses such a file, too)");
  }
  try {
    return JsonReader(file_name, options).run(root);
  } catch (Error& error) {
    throw error.within({.file = std::string(file_name)});
  }
}

std::vector<std::string> load_deepspeed(const std::filesystem::path& file,
                                        CompileOptions& options) {
  return parse_deepspeed(read_text(file, kMaxBytes), file.string(), options);
}

}  // namespace halfnote
