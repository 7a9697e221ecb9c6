// A DeepSpeed file taken as it is: what it sets, what it refuses, and that the compiled model then
// moves its loss scale and its learning rate as DeepSpeed does.
#include "passes/deepspeed_file.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "kernels/math/loss_scale.h"
#include "support.h"

namespace halfnote::test {
namespace {

CompileOptions parsed(std::string_view text) {
  CompileOptions options;
  EXPECT_TRUE(parse_deepspeed(text, "ds.json", options).empty());
  return options;
}

std::string refusal(std::string_view text) {
  try {
    CompileOptions options;
    parse_deepspeed(text, "ds.json", options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

constexpr std::string_view kCase = R"({"train_batch_size": 64, "gradient_accumulation_steps": 4,
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2,
           "min_loss_scale": 1}})";

/// deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale, without its exception.
class DeepSpeedScaler {
 public:
  double update(bool overflow) {
    if (overflow) {
      if (delayed_shift_ == 1 || hysteresis_ == 1) {
        scale_ = std::max(scale_ / 2, min_);
      } else {
        --hysteresis_;
      }
      last_overflow_ = iteration_;
    } else {
      if (consecutive_) hysteresis_ = delayed_shift_;
      const int64_t stable = iteration_ - last_overflow_ - 1;
      if (stable > 0 && stable % window_ == 0) {
        if (!consecutive_) hysteresis_ = delayed_shift_;
        scale_ *= 2;
      }
    }
    ++iteration_;
    return scale_;
  }
  DeepSpeedScaler(double scale, double min, int64_t window, int64_t hysteresis, bool consecutive)
      : scale_(scale),
        min_(min),
        window_(window),
        delayed_shift_(hysteresis),
        hysteresis_(hysteresis),
        consecutive_(consecutive) {}

 private:
  double scale_, min_;
  int64_t window_, delayed_shift_, hysteresis_;
  bool consecutive_;
  int64_t iteration_ = 0, last_overflow_ = -1;
};

/// Bursts of overflows between clean stretches, some longer than the window.
bool is_planted(int64_t step) {
  return step % 1700 == 40 || step % 1700 == 41 || step % 1700 == 44 || step == 2300 ||
         (step > 5000 && step < 5030);
}

math::LossScaleRule rule_of(const LossScaler& s) {
  math::LossScaleRule rule;
  rule.up = s.up;
  rule.down = s.down;
  rule.interval = static_cast<int32_t>(s.interval);
  rule.hysteresis = static_cast<int32_t>(s.hysteresis);
  if (s.refill == "every_clean") rule.refill = math::HysteresisRefill::kEveryClean;
  rule.first_window_extra = static_cast<int32_t>(s.first_window_extra);
  rule.publish_delay = s.publish_delay != 0;
  rule.warmup_interval = static_cast<int32_t>(s.warmup_interval);
  rule.min = s.min;
  rule.max = s.max;
  return rule;
}

TEST(DeepSpeed, TheCaseSetsPrecisionBatchAndScaler) {
  const CompileOptions options = parsed(kCase);
  EXPECT_EQ(options.policy.dtype, DType::kF16);
  EXPECT_EQ(options.train.accumulation, 4);
  EXPECT_EQ(options.train.micro_batch, 16);
  EXPECT_EQ(options.policy.scaler.init, 65536);
  EXPECT_EQ(options.policy.scaler.interval, 1000);
  EXPECT_EQ(options.policy.scaler.hysteresis, 2);
  EXPECT_EQ(options.policy.scaler.min, 1);
  EXPECT_TRUE(options.policy.scaler.dynamic);
}

TEST(DeepSpeed, TheRuleFollowsDeepSpeedsOver10000Steps) {
  for (const char* more : {"", R"(, "consecutive_hysteresis": true)"}) {
    const std::string text =
        R"({"fp16": {"enabled": true, "loss_scale_window": 1000, "hysteresis": 2)" +
        std::string(more) + "}}";
    const LossScaler scaler = parsed(text).policy.scaler;
    DeepSpeedScaler want(65536, 1, 1000, 2, *more != 0);
    math::LossScaleState state = math::initial_loss_scale(rule_of(scaler), scaler.init);
    for (int64_t step = 0; step < 10000; ++step) {
      state = math::update_loss_scale(rule_of(scaler), state, !is_planted(step));
      ASSERT_EQ(state.scale, want.update(is_planted(step))) << "step " << step << more;
    }
  }
}

TEST(DeepSpeed, TheCompiledCaseReproducesTheScaleTrace) {
  CompileOptions options = parsed(kCase);
  options.train.loss = "cross_entropy";
  options.train.optimizer.kind = "sgd";
  options.train.optimizer.lr = 1e-3f;
  Session session = reference_session(mlp_model(), options);
  const std::vector<Tensor> good = mlp_batch(16, 1);
  const std::vector<Tensor> bad = {
      Tensor::full(DType::kF32, {16, 6}, std::numeric_limits<double>::infinity()), good[1]};
  DeepSpeedScaler want(65536, 1, 1000, 2, false);
  int64_t applied = 0;
  for (int64_t step = 0; step < 2400; ++step) {
    // One bad micro-batch of the four is enough, whichever it is.
    StepResult result;
    for (int64_t micro = 0; micro < 4; ++micro) {
      result = session.step(is_planted(step) && micro == step % 4 ? bad : good);
      EXPECT_EQ(result.updated, micro == 3);
    }
    ASSERT_EQ(result.applied, !is_planted(step)) << "step " << step;
    ASSERT_EQ(result.loss_scale, want.update(is_planted(step))) << "step " << step;
    applied += result.applied;
  }
  EXPECT_EQ(session.applied_steps(), applied);
}

TEST(DeepSpeed, StaticScaleAndBf16) {
  const LossScaler fixed =
      parsed(R"({"fp16": {"enabled": true, "loss_scale": 128}})").policy.scaler;
  EXPECT_FALSE(fixed.dynamic);
  EXPECT_EQ(fixed.init, 128);
  EXPECT_EQ(parsed(R"({"bf16": {"enabled": true}})").policy.dtype, DType::kBF16);
  EXPECT_EQ(parsed(R"({"fp16": {"enabled": false}})").policy.dtype, DType::kF32);
  EXPECT_EQ(parsed(R"({"fp16": {"enabled": true, "initial_scale_power": 8}})").policy.scaler.init,
            256);
}

TEST(DeepSpeed, TheThirdBatchSizeFollowsFromTwo) {
  const CompileOptions a =
      parsed(R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8})");
  EXPECT_EQ(a.train.accumulation, 4);
  const CompileOptions b =
      parsed(R"({"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2})");
  EXPECT_EQ(b.train.micro_batch, 8);
  EXPECT_EQ(b.train.accumulation, 2);
  EXPECT_EQ(parsed(R"({"train_batch_size": 32})").train.micro_batch, 32);
}

TEST(DeepSpeed, Optimizers) {
  const Optimizer adam = parsed(R"({"gradient_clipping": 1.0, "optimizer": {"type": "Adam",
      "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}})")
                             .train.optimizer;
  EXPECT_EQ(adam.kind, "adamw") << "adam_w_mode is DeepSpeed's default";
  EXPECT_EQ(adam.beta1, 0.8f);
  EXPECT_EQ(adam.clip_norm, 1.0f);
  EXPECT_EQ(parsed(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})")
                .train.optimizer.kind,
            "adam");
  const Optimizer inside =
      parsed(R"({"optimizer": {"type": "Lamb", "params": {"eps_inside_sqrt": false}}})")
          .train.optimizer;
  EXPECT_EQ(inside.kind, "deepspeed_lamb");
  const Optimizer lamb =
      parsed(R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.3}}})").train.optimizer;
  EXPECT_EQ(lamb.kind, "deepspeed_lamb");
  EXPECT_EQ(lamb.max_ratio, 0.3f);
  EXPECT_EQ(lamb.min_ratio, 0.01f);
  EXPECT_EQ(parsed(R"({"optimizer": {"type": "SGD", "params": {"lr": 1, "momentum": 0.9,
      "nesterov": true}}})")
                .train.optimizer.kind,
            "nesterov");
}

/// DeepSpeed's engine: which class it takes, and that class's default decay.
TEST(DeepSpeed, AdamDecouplesAndDecaysAsTheClassThatDeepSpeedTakes) {
  struct Row {
    const char *type, *params, *kind;
    float decay;
  };
  const Row rows[] = {
      {"Adam", "", "adamw", 0},
      {"AdamW", "", "adamw", 0},
      {"Adam", R"("adam_w_mode": false)", "adam", 0},
      {"AdamW", R"("adam_w_mode": false)", "adamw", 0},
      {"Adam", R"("torch_adam": true)", "adamw", 0.01f},
      {"AdamW", R"("torch_adam": true)", "adamw", 0.01f},
      {"Adam", R"("torch_adam": true, "adam_w_mode": false)", "adam", 0},
      {"AdamW", R"("torch_adam": true, "adam_w_mode": false)", "adamw", 0.01f},
      {"AdamW", R"("torch_adam": true, "weight_decay": 0.5)", "adamw", 0.5f},
      {"Adam", R"("torch_adam": true, "weight_decay": 0)", "adamw", 0},
      {"Adam", R"("weight_decay": 0.5)", "adamw", 0.5f},
  };
  for (const Row& row : rows) {
    const Optimizer o = parsed(R"({"optimizer": {"type": ")" + std::string(row.type) +
                               R"(", "params": {)" + row.params + "}}}")
                            .train.optimizer;
    EXPECT_EQ(o.kind, row.kind) << row.type << row.params;
    EXPECT_EQ(o.weight_decay, row.decay) << row.type << row.params;
  }
}

struct RateCase {
  const char* type;
  const char* params;
  /// DeepSpeed's rate of a step that follows `iteration` (-1: none).
  double (*rate)(double iteration);
};

void expect_rates(std::span<const RateCase> cases) {
  for (const RateCase& test : cases) {
    SCOPED_TRACE(test.type);
    CompileOptions options =
        parsed(R"({"optimizer": {"type": "SGD", "params": {"lr": 0.01}}, "scheduler": {"type": ")" +
               std::string(test.type) + R"(", "params": {)" + test.params + "}}}");
    options.train.loss = "cross_entropy";
    Session session = reference_session(mlp_model(), options);
    for (int step = 0; step < 14; ++step) {
      // Some ten f32 roundings, and a cosine good to a few ulp of 1.
      EXPECT_NEAR(*session.step(mlp_batch(4, 1)).learning_rate, test.rate(step - 1),
                  0.01 * 16 * 0x1p-24)
          << "step " << step;
    }
  }
}

TEST(DeepSpeed, WarmUpsGiveTheRatesOfEachStep) {
  const RateCase cases[] = {
      {"WarmupLR", R"("warmup_min_lr": 0.001, "warmup_max_lr": 0.01, "warmup_num_steps": 5)",
       [](double i) {
         const double gamma = i < 0 ? 0 : i < 5 ? std::log(i + 1) / std::log(5.0) : 1;
         return 0.001 + 0.009 * gamma;
       }},
      {"WarmupDecayLR",
       R"("warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 4,
          "warmup_type": "linear", "total_num_steps": 12)",
       [](double i) {
         if (i < 0) return 0.0;
         return 0.01 * (i < 4 ? i / 4 : std::max(0.0, (12 - i) / 8));
       }},
      {"WarmupCosineLR",
       R"("total_num_steps": 12, "warmup_num_steps": 4, "warmup_min_ratio": 0.1,
          "cos_min_ratio": 0.2, "warmup_type": "linear")",
       [](double i) {
         if (i < 0) return 0.0;  // before the scheduler has started
         if (i < 4) return 0.01 * (0.1 + 0.9 * i / 4);
         const double share = std::min(1.0, (i - 4 + 1) / 8);
         return 0.01 * (0.2 + 0.8 * (1 + std::cos(M_PI * share)) / 2);
       }},
      {"WarmupLR", R"("warmup_num_steps": 4, "warmup_type": "linear")",
       [](double i) { return 0.01 * std::clamp(i / 4, 0.0, 1.0); }},
      {"WarmupCosineLR", R"("total_num_steps": 10, "warmup_num_steps": 3, "warmup_min_ratio": 0.5)",
       [](double i) {
         if (i < 0) return 0.0;
         if (i < 3) return 0.01 * (0.5 + 0.5 * std::log(i + 1) / std::log(3.0));
         const double share = std::min(1.0, (i - 3 + 1) / 7);
         return 0.01 * (1e-4 + (1 - 1e-4) * (1 + std::cos(M_PI * share)) / 2);
       }},
  };
  expect_rates(cases);
}

TEST(DeepSpeed, RangeTestsAndCyclesGiveTheRatesOfEachStep) {
  const RateCase cases[] = {
      {"LRRangeTest",
       R"("lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 5,
          "lr_range_test_step_rate": 4)",
       [](double i) { return 0.001 * (1 + 4 * (i + 1) / 5); }},
      {"LRRangeTest",
       R"("lr_range_test_min_lr": 0.001, "lr_range_test_step_size": 5,
          "lr_range_test_staircase": true)",
       [](double i) { return 0.001 * (1 + std::floor((i + 1) / 5)); }},
      {"OneCycle",
       R"("cycle_min_lr": 0.001, "cycle_max_lr": 0.01, "cycle_first_step_size": 3,
          "cycle_second_step_size": 5, "decay_lr_rate": 0.5, "decay_step_size": 2,
          "cycle_momentum": false)",
       [](double i) {
         if (i >= 8) return 0.001 / (1 + 0.5 * (i - 8 + 1) / 2);
         const double x = (i + 1) / 8 - std::floor((i + 1) / 8), ratio = 3.0 / 8;
         return 0.001 + 0.009 * (x <= ratio ? x / ratio : (x - 1) / (ratio - 1));
       }},
      {"OneCycle",
       R"("cycle_min_lr": 0, "cycle_max_lr": 0.01, "cycle_first_step_size": 4,
          "cycle_second_step_size": null, "decay_lr_rate": 0.5, "cycle_momentum": false)",
       [](double i) { return i >= 7 ? 0.0 : 0.01 * (1 - std::abs(i + 1 - 4) / 4); }},
  };
  expect_rates(cases);
}

TEST(DeepSpeed, RefusesWhatItCannotKeep) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(R"({"fp16": {"enabeld": true}})"), HasSubstr("did you mean enabled?"));
  EXPECT_THAT(refusal(R"({"train_batch_sise": 8})"), HasSubstr("did you mean train_batch_size?"));
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
              HasSubstr("are both true"));
  EXPECT_THAT(refusal(R"({"train_batch_size": "auto"})"), HasSubstr("Hugging Face"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 10, "gradient_accumulation_steps": 4})"),
              HasSubstr("contradict"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "Adan"}})"), HasSubstr("did you mean Adam?"));
  EXPECT_THAT(refusal(R"({"scheduler": {"type": "OneCicle"}})"),
              HasSubstr("did you mean OneCycle"));
  EXPECT_THAT(refusal(R"({"gradient_clipping": -1})"), HasSubstr("a number from 0"));
  for (const char* text : {"[]", "[1]", "8", "null"}) {
    EXPECT_THAT(refusal(text),
                HasSubstr("ds.json: the DeepSpeed file holds no object: expected an "
                          "object of settings, as {\"train_batch_size\": 64}, got "));
  }
  EXPECT_THAT(refusal(R"({"train_batch_size": 8, "train_batch_size": 16})"),
              HasSubstr("ds.json: the key \"train_batch_size\" stands twice; keep one of them"));
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true, "loss_scale": 0, "enabled": false}})"),
              HasSubstr("the key \"fp16.enabled\" stands twice"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "SGD", "params": {"lr": 1, "lr": 2}}})"),
              HasSubstr("the key \"optimizer.params.lr\" stands twice"));
  EXPECT_THAT(refusal("{"), HasSubstr("no valid JSON"));
  // 2^64 - 1 and 2^40 each: the first is no int64, the product of the others neither.
  EXPECT_THAT(refusal(R"({"train_batch_size": 18446744073709551615})"), HasSubstr("whole number"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 8, "gradient_accumulation_steps": 1099511627776,
                          "train_micro_batch_size_per_gpu": 1099511627776})"),
              HasSubstr("whole number"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 1e999})"), HasSubstr("no valid JSON"));
  // The value of an error message is printed by recursion.
  EXPECT_THAT(refusal("{\"fp16\": " + std::string(400'000, '[') + std::string(400'000, ']') + "}"),
              HasSubstr("nests too deep"));
  CompileOptions options;
  EXPECT_EQ(parse_deepspeed(R"({"steps_per_print": 10})", "ds.json", options).size(), 1u);
}

/// Adam's betas stay as they are here; DeepSpeed leaves those of an optimizer without any alone,
/// too.
TEST(DeepSpeed, ACycleOfTheMomentumIsRefusedWhereItWouldDoSomething) {
  using testing::HasSubstr;
  const auto file = [](const char* type, const char* more) {
    return R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
      "cycle_max_lr": 1)" +
           std::string(more) + R"(}}, "optimizer": {"type": ")" + type + R"("}})";
  };
  EXPECT_THAT(refusal(file("Adam", "")),
              testing::AllOf(HasSubstr("\"scheduler.params.cycle_momentum\" is not supported"),
                             HasSubstr("write \"cycle_momentum\": false")));
  EXPECT_EQ(parsed(file("Adam", R"(, "cycle_momentum": false, "cycle_min_mom": 0.7)"))
                .train.optimizer.schedule.kind,
            "one_cycle");
  CompileOptions options;
  EXPECT_THAT(parse_deepspeed(file("SGD", ""), "ds.json", options),
              testing::ElementsAre(HasSubstr("has no betas")));
  EXPECT_THAT(refusal(file("SGD", R"(, "cycle_first_stair_count": 4)")),
              HasSubstr("\"scheduler.params.cycle_first_stair_count\" is not supported"));
  EXPECT_THAT(refusal(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1}}})"),
              HasSubstr("\"scheduler.params.cycle_max_lr\" has a value it cannot have"));
  EXPECT_THAT(refusal(R"({"scheduler": {"type": "LRRangeTest",
                          "params": {"lr_range_test_min_lr": [0.1, 0.2]}}})"),
              HasSubstr("expected a number from 0"));
}

TEST(DeepSpeed, TheSchedulersRateHoldsWhereverItStands) {
  const char* const scheduler =
      R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})";
  const char* const optimizer = R"("optimizer": {"type": "Adam", "params": {"lr": 0.25}})";
  const std::string comma = ", ";
  EXPECT_EQ(parsed("{" + (scheduler + comma) + optimizer + "}").train.optimizer.lr, 0.5f);
  EXPECT_EQ(parsed("{" + (optimizer + comma) + scheduler + "}").train.optimizer.lr, 0.5f);
}

TEST(DeepSpeed, EveryStageOfZeroTrainsTheSame) {
  using testing::HasSubstr;
  CompileOptions options;
  for (int stage = 1; stage <= 3; ++stage) {
    const std::string text = R"({"zero_optimization": {"stage": )" + std::to_string(stage) + "}}";
    EXPECT_THAT(parse_deepspeed(text, "ds.json", options),
                testing::ElementsAre(HasSubstr("the numbers are the same")));
  }
  const auto notes = parse_deepspeed(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
          "stage3_max_live_parameters": 1e9, "zero_quantized_weights": false,
          "zenflow": null, "zeropp_loco_param": {}}})",
      "ds.json", options);
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_THAT(notes[0], HasSubstr("\"zero_optimization.offload_optimizer\""));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": 4}})"), HasSubstr("0, 1, 2 or 3"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": 1.5}})"), HasSubstr("a whole number"));
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": 2, "reduce_buket_size": 5}})"),
              HasSubstr("did you mean reduce_bucket_size?"));
  for (const char* key : {"zero_quantized_weights", "zero_quantized_gradients",
                          "zero_quantized_nontrainable_weights"}) {
    EXPECT_THAT(refusal(R"({"zero_optimization": {")" + std::string(key) + "\": true}}"),
                HasSubstr("are not quantized: expected false, got true"));
  }
  EXPECT_THAT(refusal(R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})"),
              HasSubstr("\"zero_optimization.zenflow\" is not supported"));
}

TEST(DeepSpeed, TakesTheOlderNameOfBf16) {
  EXPECT_EQ(parsed(R"({"bfloat16": {"enabled": true}})").policy.dtype, DType::kBF16);
  EXPECT_THAT(refusal(R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": true}})"),
              testing::HasSubstr("two names of one section: expected one of them, got both"));
  EXPECT_THAT(refusal(R"({"bfloat16": {"enabled": true}, "fp16": {"enabled": true}})"),
              testing::HasSubstr("are both true"));
}

TEST(DeepSpeed, RefusesScalesThatDoNotFit) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true, "min_loss_scale": 131072}})"),
              HasSubstr("\"fp16.min_loss_scale\" has a value it cannot have: expected at most the "
                        "first scale, 65536, got 131072"));
  parsed(R"({"fp16": {"enabled": true, "min_loss_scale": 131072, "loss_scale": 8}})");
  EXPECT_THAT(refusal(R"({"fp16": {"enabled": true, "loss_scale": 1e39}})"),
              HasSubstr("\"fp16.loss_scale\" has a value it cannot have: expected a number of at "
                        "most 3.4e38 (FP32), got 1e+39"));
}

TEST(DeepSpeed, EveryDocumentedKeyIsTakenNotedOrRefusedByName) {
  using testing::HasSubstr;
  parsed(R"({"fp16": {"enabled": true, "auto_cast": true, "fp16_master_weights_and_grads": false},
             "zero_optimization": {"stage": 0}, "amp": {"enabled": false, "opt_level": "O1"},
             "progressive_layer_drop": {}, "data_types": {"grad_accum_dtype": "fp32"},
             "dataloader_drop_last": true, "torch_autocast": null})");
  parsed(R"({"bf16": {"enabled": true, "immediate_grad_update": false, "check_grad_overflow": true,
                      "bf16_optimizer_states": false, "bf16_master_weights_and_grads": false}})");
  CompileOptions options;
  const auto notes = parse_deepspeed(R"({"zero_optimization": {"stage": 0, "overlap_comm": true},
                          "activation_checkpointing": {"cpu_checkpointing": false},
                          "wall_clock_breakdown": false})",
                                     "ds.json", options);
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_THAT(notes[0], HasSubstr("\"zero_optimization.overlap_comm\""));
  EXPECT_THAT(refusal(R"({"amp": {"enabled": true}})"), HasSubstr("--like apex-O1"));
  EXPECT_THAT(refusal(R"({"torch_autocast": {"enabled": true, "dtype": "bfloat16"}})"),
              HasSubstr("--like pytorch"));
  EXPECT_THAT(refusal(R"({"sparse_attention": {"enabled": 1}})"),
              HasSubstr("\"sparse_attention\""));
  EXPECT_THAT(refusal(R"({"activation_checkpointing": 7})"),
              HasSubstr("\"activation_checkpointing\" has a value it cannot have: expected an "
                        "object, got 7"));
  parsed(R"({"tensorboard": null})");
  EXPECT_THAT(refusal(R"({"quantize_training": "auto"})"), HasSubstr("\"quantize_training\""));
  EXPECT_THAT(refusal(R"({"data_types": {"grad_accum_dtype": "bf16"}})"),
              HasSubstr("\"data_types.grad_accum_dtype\" is not supported"));
  EXPECT_THAT(refusal(R"({"dataloader_drop_last": false})"), HasSubstr("left out"));
  EXPECT_THAT(refusal(R"({"bf16": {"bf16_optimizer_states": true}})"), HasSubstr("FP32 here"));
}

}  // namespace
}  // namespace halfnote::test
