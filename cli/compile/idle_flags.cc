// A setting that is dropped without a word is taken for one that works: who gives --beta1 to sgd
// believes in a momentum. So each flag that only some choice of another one reads has its row here.
#include "cli/compile/idle_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "passes/settings.h"

namespace halfnote::cli {
namespace {

using Choices = std::vector<std::string_view>;

struct IdleRow {
  std::string_view flag, belongs_to;
  Choices choices;  // of `belongs_to` that read the flag; empty: all but `none`
};

const std::vector<IdleRow>& rows() {
  static const Choices k16Bit = {"fp16", "bf16"};
  static const Choices kBetas = {"adam", "adamw", "hf_adamw", "lamb", "deepspeed_lamb", "lion"};
  static const std::vector<IdleRow> kRows = {
      {"--loss-scale", "--precision", {"fp16"}},
      {"--like", "--precision", k16Bit},
      {"--allow-op", "--precision", k16Bit},
      {"--fp32-op", "--precision", k16Bit},
      {"--allow-node", "--precision", k16Bit},
      {"--fp32-node", "--precision", k16Bit},
      {"--no-pad", "--precision", k16Bit},
      {"--no-cost-refinement", "--precision", k16Bit},
      {"--huber-delta", "--loss", {"huber"}},
      {"--label-smoothing", "--loss", {"cross_entropy", "nll"}},
      {"--ignore-index", "--loss", {"cross_entropy", "nll"}},
      {"--class-axis", "--loss", {"cross_entropy", "nll"}},
      {"--momentum", "--optimizer", {"momentum", "nesterov", "rmsprop"}},
      {"--beta1", "--optimizer", kBetas},
      {"--beta2", "--optimizer", kBetas},
      {"--epsilon",
       "--optimizer",
       {"adam", "adamw", "hf_adamw", "adagrad", "rmsprop", "lamb", "deepspeed_lamb", "adafactor"}},
      {"--rms-alpha", "--optimizer", {"rmsprop"}},
      {"--centered", "--optimizer", {"rmsprop"}},
      {"--lr-decay", "--optimizer", {"adagrad"}},
      {"--initial-accumulator", "--optimizer", {"adagrad"}},
      {"--min-trust-ratio", "--optimizer", {"lamb", "deepspeed_lamb"}},
      {"--max-trust-ratio", "--optimizer", {"lamb", "deepspeed_lamb"}},
      {"--no-relative-step", "--optimizer", {"adafactor"}},
      {"--no-scale-parameter", "--optimizer", {"adafactor"}},
      {"--lr", "--optimizer", {}},
      {"--weight-decay", "--optimizer", {}},
      {"--no-decay", "--optimizer", {}},
      {"--grad-clip", "--optimizer", {}},
      {"--loss-input", "--loss", {}},
      {"--schedule", "--optimizer", {}},
      {"--warmup", "--optimizer", {}},
      {"--schedule-steps", "--schedule", {"linear", "cosine", "one_cycle"}},
      {"--schedule-step-size", "--schedule", {"step", "range_test", "one_cycle"}},
      {"--schedule-gamma", "--schedule", {"step"}},
  };
  return kRows;
}

std::string_view chosen(std::string_view flag, const CompileOptions& options) {
  if (flag == "--loss") return options.train.loss;
  if (flag == "--schedule") return options.train.optimizer.schedule.kind;
  if (flag == "--optimizer") return options.train.optimizer.kind;
  const DType dtype = options.policy.dtype;
  return dtype == DType::kF16 ? "fp16" : dtype == DType::kBF16 ? "bf16" : "fp32";
}

/// What only a training step reads, besides the rows.
constexpr std::array<std::string_view, 8> kOfTraining = {
    "--loss",      "--loss-output", "--optimizer", "--accumulate",
    "--trainable", "--freeze",      "--seed",      "--force-training"};

bool reads(const IdleRow& row, std::string_view choice) {
  if (row.choices.empty()) return !choice.empty() && choice != "none";
  return std::find(row.choices.begin(), row.choices.end(), choice) != row.choices.end();
}

[[noreturn]] void refuse_beside_inference(std::string_view flag) {
  throw Error(ErrorCode::kUsage, fmt::format("{} does nothing with --inference", flag))
      .hint(fmt::format("take {} or --inference away", flag));
}

void refuse_for_inference(const CLI::App& verb, std::string_view flag) {
  if (verb.count(std::string(flag)) > 0) refuse_beside_inference(flag);
}

/// Does the model come with an optimizer of its own, whose decay is not known yet (the training
/// artifacts of ONNX Runtime)?
bool brings_optimizer(const CLI::App& verb, const CompileOptions& options) {
  const std::string model = verb.get_option("model")->as<std::string>();
  std::error_code error;
  const bool artifacts =
      std::filesystem::is_directory(model, error) || model.ends_with("training_model.onnx");
  return artifacts && !options.train.optimizer.chosen;
}

/// Flags that wait for another flag, or for a number of it.
void refuse_lonely_flags(const CLI::App& verb, const CompileOptions& options) {
  const auto refuse = [](const char* flag, const char* wanted, std::string got) {
    throw Error(ErrorCode::kUsage, fmt::format("{} does nothing here", flag))
        .expected(wanted, std::move(got))
        .hint(fmt::format("take {} away", flag));
  };
  if (verb.count("--dump-folder") > 0 && options.dump_after.empty()) {
    refuse("--dump-folder", "--dump-after with it", "none");
  }
  if (verb.count("--plan") > 0 && verb.count("--output") > 0) {
    refuse("--output", "-o without --plan, which writes no artifact", "both");
  }
  if (verb.count("--verbose") > 0 && verb.count("--quiet") > 0) {
    refuse("--verbose", "--verbose without --quiet", "both");
  }
  const Optimizer& optimizer = options.train.optimizer;
  const bool decays = optimizer.weight_decay != 0 ||
                      std::any_of(optimizer.groups.begin(), optimizer.groups.end(),
                                  [](const auto& group) { return group.weight_decay != 0.0f; });
  if (verb.count("--no-decay") > 0 && !decays && !brings_optimizer(verb, options)) {
    refuse("--no-decay", "--weight-decay above 0", "0");
  }
}

}  // namespace

void refuse_idle_flags(const CLI::App& verb, const CompileOptions& options) {
  if (options.inference_only) {
    for (const std::string_view flag : kOfTraining) refuse_for_inference(verb, flag);
    if (verb.get_option("--emit")->as<std::string>() == "step") {
      refuse_beside_inference("--emit step");
    }
    for (const IdleRow& row : rows()) {
      const bool trains = row.belongs_to != "--precision" || row.flag == "--loss-scale";
      if (trains) refuse_for_inference(verb, row.flag);
    }
  }
  check_settings(options);  // an unknown kind, or a number out of range, is told first
  for (const IdleRow& row : rows()) {
    const std::string_view choice = chosen(row.belongs_to, options);
    if (verb.count(std::string(row.flag)) == 0 || reads(row, choice)) continue;
    const std::string wanted = row.choices.empty()
                                   ? std::string("any but none")
                                   : fmt::format("{}", fmt::join(row.choices, ", "));
    const std::string got = choice.empty() ? "none" : std::string(choice);
    throw Error(ErrorCode::kUsage, fmt::format("{} does nothing here", row.flag))
        .expected(fmt::format("{} {}", row.belongs_to, wanted),
                  fmt::format("{} {}", row.belongs_to, got))
        .hint(fmt::format("take {} away, or choose another {}", row.flag, row.belongs_to));
  }
  refuse_lonely_flags(verb, options);
}

}  // namespace halfnote::cli
