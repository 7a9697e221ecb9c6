// The policy file: every key reaches the options and the text in the artifact's metadata; what is
// wrong is an error that names the line.
#include <gtest/gtest.h>

#include "base/error.h"
#include "passes/compile.h"
#include "passes/policy_file.h"

namespace halfnote {
namespace {

CompileOptions parsed(std::string_view text) {
  CompileOptions options;
  parse_policy("[precision]\ndtype = \"fp16\"\n", "base.toml", options);
  parse_policy(text, "policy.toml", options);
  return options;
}

TEST(PolicyFile, EveryKeyShowsInTheMetadata) {
  const char* const policies[] = {
      "[precision]\ndtype = \"bf16\"",
      "[precision]\nallow_ops = [\"Exp\"]",
      "[precision]\nfp32_ops = [\"Conv\"]",
      "[precision]\nallow_nodes = [\"a\"]",
      "[precision]\nfp32_nodes = [\"b\"]",
      "[precision]\ncost_refinement = false",
      "[precision]\npad = false",
      "[loss_scale]\npreset = \"deepspeed\"",
      "[loss_scale]\ndynamic = false",
      "[loss_scale]\ninit = 1024",
      "[loss_scale]\nup = 4",
      "[loss_scale]\ndown = 0.25",
      "[loss_scale]\ninterval = 7",
      "[loss_scale]\nwarmup_interval = 7",
      "[loss_scale]\nhysteresis = 7",
      "[loss_scale]\nrefill = \"every_clean\"",
      "[loss_scale]\nfirst_window_extra = 7",
      "[loss_scale]\npublish_delay = 1",
      "[loss_scale]\nmin = 2",
      "[loss_scale]\nmax = 4096",
      "[train]\nloss = \"mse\"",
      "[train]\nloss_output = \"l\"",
      "[train]\nloss_input = \"i\"",
      "[train]\ntrainable = [\"w\"]",
      "[train]\nfreeze = [\"w\"]",
      "[train]\nforce_training = true",
      "[train]\naccumulate = 4",
      "[train]\nseed = 5",
      "[optimizer]\nkind = \"sgd\"",
      "[optimizer]\nlr = 0.5",
      "[optimizer]\nmomentum = 0.5",
      "[optimizer]\ndampening = 0.5",
      "[optimizer]\nbeta1 = 0.5",
      "[optimizer]\nbeta2 = 0.5",
      "[optimizer]\nepsilon = 0.5",
      "[optimizer]\nweight_decay = 0.5",
      "[optimizer]\nclip_norm = 0.5",
      "[optimizer]\nno_decay_on_1d = true",
      "[optimizer.schedule]\nkind = \"cosine\"",
      "[optimizer.schedule]\nwarmup = 3",
      "[optimizer.schedule]\ntotal = 3",
      "[optimizer.schedule]\nfinal_factor = 0.5",
      "[optimizer.schedule]\nstep_size = 3",
      "[optimizer.schedule]\ngamma = 0.5",
      "[[optimizer.group]]\npattern = \"b\"",
      "[[optimizer.group]]\npattern = \"b\"\nweight_decay = 0.5",
      "[[optimizer.group]]\npattern = \"b\"\nlr_factor = 0.5",
  };
  std::vector<std::string> texts = {describe(parsed(""))};
  for (const char* policy : policies) {
    const std::string text = describe(parsed(policy));
    for (const std::string& other : texts) EXPECT_NE(text, other) << policy;
    texts.push_back(text);
  }
}

TEST(PolicyFile, FlagsWithoutAKeyShowInTheMetadataToo) {
  CompileOptions options;
  const std::string before = describe(options);
  options.dims["batch"] = 4;
  const std::string with_dim = describe(options);
  options.skip_passes = {"pad-to-8"};
  EXPECT_NE(with_dim, before);
  EXPECT_NE(describe(options), with_dim);
}

void expect_refused(std::string_view text, std::initializer_list<std::string_view> parts) {
  try {
    parsed(text);
    ADD_FAILURE() << "taken: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    for (std::string_view part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks " << part;
    }
  }
}

TEST(PolicyFile, ErrorsNameTheLineAndTheNearestKey) {
  expect_refused("[precision]\nallow_op = []", {"policy.toml:2", "allow_op", "allow_ops"});
  expect_refused("[presicion]\n", {"policy.toml:1", "presicion", "precision"});
  expect_refused("\n[optimizer]\nlr = \"fast\"", {"policy.toml:3", "a number"});
  expect_refused("[train]\ntrainable = [1]", {"policy.toml:2", "a list of strings"});
  expect_refused("[train]\naccumulate = 1.5", {"policy.toml:2", "an integer"});
  expect_refused("train = 1", {"policy.toml:1", "a table"});
  expect_refused("[optimizer]\ngroup = 1", {"policy.toml:2", "array of tables"});
  expect_refused("[precision\n", {"policy.toml:1", "no valid TOML"});
  expect_refused("[precision]\ndtype = \"int8\"", {"fp32, fp16 or bf16", "int8"});
  expect_refused("[loss_scale]\npreset = \"pytorhc\"", {"pytorhc", "pytorch"});
}

}  // namespace
}  // namespace halfnote
