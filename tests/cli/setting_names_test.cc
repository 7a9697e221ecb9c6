// What a command says of a setting that it cannot take: it calls it as the user did (a flag, a key
// of a policy file with its line, a key of a DeepSpeed file), says what came and what is expected.
#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kCompile = "compile tiny.onnxtxt --loss cross_entropy --plan -q ";

/// The error of a compilation with this policy file, called p.toml, and flags.
std::string policy_error(const Workplace& place, const std::string& text,
                         const std::string& flags = {}) {
  place.write("p.toml", text);
  const Outcome outcome = place.run(
      words(std::string(kCompile) + "--policy p.toml" + (flags.empty() ? "" : " ") + flags));
  EXPECT_EQ(outcome.code, 2) << text;
  return outcome.err;
}

std::string deepspeed_error(const Workplace& place, const std::string& text,
                            const std::string& flags = {}) {
  place.write("ds.json", text);
  const Outcome outcome = place.run(
      words(std::string(kCompile) + "--deepspeed ds.json" + (flags.empty() ? "" : " ") + flags));
  EXPECT_EQ(outcome.code, 2) << text;
  return outcome.err;
}

std::string flag_error(const Workplace& place, const std::string& flags) {
  const Outcome outcome = place.run(words(std::string(kCompile) + flags));
  EXPECT_EQ(outcome.code, 2) << flags;
  return outcome.err;
}

constexpr const char* kUsageError = "halfnote: error (usage): ";

/// A policy file, and the error that it gives.
const std::pair<const char*, const char*> kPolicies[] = {
    {"[optimizer.schedule]\nkind = \"step\"\nstep_size = 0",
     "p.toml:2: \"optimizer.schedule.kind\" step needs a size of steps: expected "
     "\"optimizer.schedule.step_size\" of p.toml:3 above 0, got 0"},
    {"[optimizer.schedule]\nkind = \"step\"\nstep_size = -3",
     "p.toml:3: \"optimizer.schedule.step_size\" is out of range: expected a number of 0 or "
     "more, "
     "got -3"},
    {"[optimizer.schedule]\nkind = \"cosine\"",
     "p.toml:2: \"optimizer.schedule.kind\" cosine needs its number of steps: expected "
     "\"optimizer.schedule.total\" above \"optimizer.schedule.warmup\" (0), got 0"},
    {"[optimizer.schedule]\nkind = \"linear\"\nwarmup = 9\ntotal = 5",
     "p.toml:4: \"optimizer.schedule.kind\" of p.toml:2 linear needs its number of steps: "
     "expected \"optimizer.schedule.total\" above \"optimizer.schedule.warmup\" of p.toml:3 (9), "
     "got 5"},
    {"[precision]\ndtype = \"fp16\"\n[loss_scale]\ninit = 0",
     "p.toml:4: \"loss_scale.init\" is out of range: expected a finite number above 0, got 0"},
    {"[precision]\ndtype = \"fp16\"\n[loss_scale]\nmin = 100.0\nmax = 10.0",
     "p.toml:5: \"loss_scale.max\" is out of range: expected 0 (no bound), or at least "
     "\"loss_scale.min\" of p.toml:4 (100), got 10"},
    {"[precision]\ndtype = \"fp16\"\n[loss_scale]\nrefill = \"often\"",
     "p.toml:4: \"loss_scale.refill\" is out of range: expected on_growth or every_clean, got "
     "\"often\""},
    {"[precision]\ndtype = \"fp16\"\n[loss_scale]\nwarmup_interval = -1",
     "p.toml:4: \"loss_scale.warmup_interval\" is out of range: expected 0 or more, got -1"},
    {"[loss_scale]\nup = 1e308",
     "p.toml:2: \"loss_scale.up\" is out of range: expected a number of at most 3.4e38 (FP32), "
     "got 1e+308"},
    {"[optimizer]\nlr = 1e-60",
     "p.toml:2: \"optimizer.lr\" is out of range: expected 0, or a number of at least 1.4e-45 "
     "(FP32), got 1e-60"},
    {"[train]\naccumulate = 0",
     "p.toml:2: \"train.accumulate\" is out of range: expected 1 to 16777216 micro-batches, "
     "got 0"},
    {"[train]\naccumulate = 99999999999",
     "p.toml:2: \"train.accumulate\" is out of range: expected 1 to 16777216 micro-batches, "
     "got 99999999999"},
    {"[[optimizer.group]]\nlr_factor = 0.1",
     "p.toml:1: \"optimizer.group[0].pattern\" is missing: the group takes no parameter: "
     "expected "
     "a pattern for whole names, got none; pattern = \".*\" takes all"},
    {"[[optimizer.group]]\npattern = \"(\"",
     "p.toml:2: \"optimizer.group[0].pattern\" is no regular expression: expected RE2 syntax"},
    {"[[optimizer.group]]\npattern = \"nomatch\"",
     "p.toml:2: \"optimizer.group[0].pattern\" matches no parameter of its own: expected a "
     "pattern that matches a trainable initializer, got \"nomatch\""},
    {"[train]\nfreeze = [\"zzz\"]",
     "p.toml:2: \"train.freeze\" matches no float initializer: expected a pattern for a whole "
     "name, got \"zzz\""},
    {"[train]\nlabel_smoothing = 2.0",
     "p.toml:2: \"train.label_smoothing\" is out of range: expected a number in [0, 1], got 2"},
    {"[precision]\nlike = \"pytorhc\"",
     "p.toml:2: \"precision.like\" names no framework: expected one of pytorch, "},
    {"[precision]\ndtype = \"fp17\"",
     "p.toml:2: \"precision.dtype\" names no precision: expected fp32, fp16 or bf16"},
    {"[precision]\ndtype = 16",
     "p.toml:2: key \"precision.dtype\" has the wrong type: expected a string, got the number "
     "16"},
    {"[precision]\ndtpe = \"bf16\"",
     "p.toml:2: unknown key \"precision.dtpe\"; did you mean dtype?"},
    {"[precision]\ndtype = \"bf16\"\nfp32_ops = [\"Gemm\"]\nallow_ops = [\"Gemm\"]",
     "p.toml:4: op Gemm stands in both lists: expected one of the two rules, got "
     "\"precision.fp32_ops\" \"Gemm\" (p.toml:3) and \"precision.allow_ops\" \"Gemm\" "
     "(p.toml:4); take one of them away"},
};

TEST(SettingNames, APolicyFileIsToldItsLineAndItsKey) {
  const Workplace place;
  for (const auto& [text, message] : kPolicies) {
    EXPECT_THAT(policy_error(place, text), StartsWith(std::string(kUsageError) + message)) << text;
  }
}

TEST(SettingNames, TwoRulesThatContradictAreNamedWithTheirLines) {
  const Workplace place;
  const std::string error = policy_error(
      place, "[precision]\ndtype = \"bf16\"\nfp32_nodes = [\".*\"]\nallow_nodes = [\"logits\"]\n");
  EXPECT_THAT(error, StartsWith(std::string(kUsageError) + "p.toml:4: node \""));
  EXPECT_THAT(error, HasSubstr("got \"precision.fp32_nodes\" \".*\" (p.toml:3) and "
                               "\"precision.allow_nodes\" \"logits\" (p.toml:4)"));
}

TEST(SettingNames, ADeepSpeedFileIsToldItsOwnKeys) {
  const Workplace place;
  const std::pair<const char*, const char*> rows[] = {
      {R"({"scheduler": {"type": "WarmupDecayLR",
           "params": {"total_num_steps": 5, "warmup_num_steps": 10}}})",
       "ds.json: \"scheduler.params.total_num_steps\" has a value it cannot have: expected more "
       "than \"scheduler.params.warmup_num_steps\" (10), got 5"},
      {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10}}})",
       "ds.json: \"scheduler.params.total_num_steps\" has a value it cannot have: expected more "
       "than \"scheduler.params.warmup_num_steps\" (10), got null"},
      {R"({"optimizer": {"type": "Adam", "params": {"betas": [3, 0.9]}}})",
       "ds.json: \"optimizer.params.betas\" is out of range: expected a number in [0, 1), got 3"},
      {R"({"optimizer": {"type": "SGD", "params": {"momentum": 1.5}}})",
       "ds.json: \"optimizer.params.momentum\" is out of range: expected a number in [0, 1), got "
       "1.5"},
      {R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.1, "min_coeff": 0.5}}})",
       "ds.json: \"optimizer.params.max_coeff\" is out of range: expected 0 (no bound), or at "
       "least "
       "\"optimizer.params.min_coeff\" (0.5), got 0.1"},
      {R"({"optimizer": {"type": "SGD", "params": {"lr": 1e39}}})",
       "ds.json: \"optimizer.params.lr\" has a value it cannot have: expected a number of at most "
       "3.4e38 (FP32), got 1e+39"},
      {R"({"fp16": {"enabled": true, "loss_scale": 1e39}})",
       "ds.json: \"fp16.loss_scale\" has a value it cannot have: expected a number of at most "
       "3.4e38 (FP32), got 1e+39"},
      {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
       "ds.json: \"fp16.enabled\" and \"bf16.enabled\" are both true: expected one of them, got "
       "both"},
      {R"({"train_batch_size": 32, "gradient_accumulation_steps": 5})",
       "ds.json: the batch sizes contradict each other: expected \"train_batch_size\" = "},
  };
  for (const auto& [text, message] : rows) {
    EXPECT_THAT(deepspeed_error(place, text), StartsWith(std::string(kUsageError) + message))
        << text;
  }
}

TEST(SettingNames, FlagsAreToldByTheirNames) {
  const Workplace place;
  const std::pair<const char*, const char*> rows[] = {
      {"--lr -1", "--lr is out of range: expected a number of 0 or more, got -1"},
      {"--schedule cosine",
       "--schedule cosine needs its number of steps: expected --schedule-steps above --warmup (0), "
       "got 0"},
      {"--schedule step",
       "--schedule step needs a size of steps: expected --schedule-step-size "
       "above 0, got 0"},
      {"--schedule wave", "--schedule names no learning-rate schedule: expected constant, "},
      {"--optimizer adamv", "--optimizer names no optimizer: expected sgd, "},
      {"--like pytorhc", "--like names no framework: expected one of pytorch, "},
      {"--precision fp17", "--precision names no precision: expected fp32, "},
      {"--precision fp16 --loss-scale inf",
       "--loss-scale is out of range: expected a finite number above 0, got inf"},
      {"--precision fp16 --loss-scale pytorhc", "--loss-scale names no preset of loss scaling"},
      {"--precision fp16 --loss-scale 1e-400", "--loss-scale is no number that FP32 holds"},
      {"--accumulate 0",
       "--accumulate is out of range: expected 1 to 16777216 micro-batches, "
       "got 0"},
      {"--accumulate 99999999999",
       "--accumulate is out of range: expected 1 to 16777216 micro-batches, got 99999999999"},
      {"--weight-decay 0.1 --no-decay (", "--no-decay is no regular expression: expected RE2"},
      {"--weight-decay 0.1 --no-decay zzz", "--no-decay matches no parameter of its own"},
      {"--precision bf16 --fp32-op Gemm --allow-op Gemm",
       "op Gemm stands in both lists: expected one of the two rules, got --fp32-op \"Gemm\" and "
       "--allow-op \"Gemm\""},
  };
  for (const auto& [flags, message] : rows) {
    EXPECT_THAT(flag_error(place, flags), HasSubstr(message)) << flags;
  }
}

TEST(SettingNames, AFlagOverAFileIsToBlameItself) {
  const Workplace place;
  const std::string policy = "[optimizer.schedule]\nkind = \"cosine\"\nwarmup = 7\ntotal = 9\n";
  EXPECT_THAT(policy_error(place, policy, "--schedule-steps 3"),
              StartsWith(std::string(kUsageError) +
                         "\"optimizer.schedule.kind\" of p.toml:2 cosine needs its number of "
                         "steps: expected --schedule-steps above \"optimizer.schedule.warmup\" of "
                         "p.toml:3 (7), got 3"));
  EXPECT_THAT(policy_error(place, "[loss_scale]\ninit = 0", "--precision fp16 --loss-scale nan"),
              AllOf(HasSubstr("--loss-scale is out of range"), Not(HasSubstr("p.toml"))));
  EXPECT_THAT(deepspeed_error(place, R"({"optimizer": {"type": "Adam"}})", "--beta1 2"),
              AllOf(HasSubstr("--beta1 is out of range"), Not(HasSubstr("ds.json"))));
}

TEST(SettingNames, NumbersOfFlagsAreReadWholeOrRefused) {
  const Workplace place;
  const std::string wanted = "--lr has a value that it cannot have: expected ";
  const std::pair<const char*, std::string> rows[] = {
      {"1e-400", wanted + "0, or a number of at least 1.4e-45 (FP32), got \"1e-400\""},
      {"1e-46", wanted + "0, or a number of at least 1.4e-45 (FP32), got \"1e-46\""},
      {"1e999", wanted + "a number of at most 3.4e38 (FP32), got \"1e999\""},
      {"1e39", wanted + "a number of at most 3.4e38 (FP32), got \"1e39\""},
      {"nan", "--lr is out of range: expected a number of 0 or more, got nan"},
      {"inf", "--lr is out of range: expected a number of 0 or more, got inf"},
      {"0x1p-3", wanted + "a number, as in 0.001 or 1e-3, got \"0x1p-3\""},
      {"1_000", wanted + "a number, as in 0.001 or 1e-3, got \"1_000\""},
      {" 1", wanted + "a number, as in 0.001 or 1e-3, got \" 1\""},
      {"1 ", wanted + "a number, as in 0.001 or 1e-3, got \"1 \""},
      {"1,5", wanted + "a number, as in 0.001 or 1e-3, got \"1,5\""},
      {"abc", wanted + "a number, as in 0.001 or 1e-3, got \"abc\""},
      {"--5", wanted + "a number"},
  };
  for (const auto& [text, message] : rows) {
    std::vector<std::string> arguments = words(kCompile);
    arguments.push_back("--lr=" + std::string(text));
    const Outcome outcome = place.run(arguments);
    EXPECT_EQ(outcome.code, 2) << text;
    EXPECT_THAT(outcome.err, StartsWith(kUsageError + message)) << text;
  }
}

TEST(SettingNames, WholeNumbersOfFlagsAreReadWholeOrRefused) {
  const Workplace place;
  place.compile("a.onnx");
  const std::string run = "run a.onnx --data x=x.npy,labels=labels.npy ";
  const std::pair<std::string, const char*> commands[] = {
      {kCompile, "--warmup"},
      {kCompile, "--seed"},
      {kCompile, "--accumulate"},
      {kCompile, "--timeout"},
      {kCompile, "--max-nodes"},
      {kCompile, "--max-memory"},
      {kCompile, "--ignore-index"},
      {run, "--epochs"},
      {run, "--steps"},
      {run, "--batch"},
      {run, "--seed"},
      {run, "--threads"},
      {run, "--keep"},
      {run, "--log-every"},
      {run, "--limit-samples"},
  };
  for (const auto& [command, flag] : commands) {
    for (const char* text : {"1.5", "1e3", "0x10", "1_000", " 1", "99999999999999999999", "nan"}) {
      std::vector<std::string> arguments = words(command);
      arguments.push_back(std::string(flag) + "=" + text);
      const Outcome outcome = place.run(arguments);
      EXPECT_EQ(outcome.code, 2) << flag << " " << text << outcome.err;
      EXPECT_THAT(outcome.err, StartsWith(std::string(kUsageError) + flag +
                                          " has a value that it cannot have: expected a whole "
                                          "number"))
          << text;
      EXPECT_THAT(outcome.err, HasSubstr("got \"" + std::string(text) + "\"")) << flag;
    }
  }
  EXPECT_FALSE(place.exists("runs"));
}

}  // namespace
}  // namespace halfnote::cli_test
