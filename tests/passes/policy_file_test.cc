// The policy file: every key reaches the options and the text in the artifact's metadata; what is
// wrong is an error that names the line.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "passes/compile.h"
#include "passes/policy_file.h"
#include "passes/precision/presets.h"
#include "passes/settings.h"

namespace halfnote {
namespace {

CompileOptions parsed(std::string_view text) {
  CompileOptions options;
  parse_policy("[precision]\ndtype = \"fp16\"\n", "base.toml", options);
  parse_policy(text, "policy.toml", options);
  return options;
}

/// One key each.
const char* const kPolicies[] = {
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
    "[loss_scale]\non_floor = \"raise\"",
    "[train]\nloss = \"mse\"",
    "[train]\nloss_output = \"l\"",
    "[train]\nloss_input = \"i\"",
    "[train]\ntrainable = [\"w\"]",
    "[train]\nfreeze = [\"w\"]",
    "[train]\ntie = [\"a=b\"]",
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
    "[optimizer]\nalpha = 0.5",
    "[optimizer]\ncentered = true",
    "[optimizer]\nlr_decay = 0.5",
    "[optimizer]\ninitial_accumulator = 0.5",
    "[optimizer]\nmin_ratio = 0.5",
    "[optimizer]\nmax_ratio = 0.5",
    "[optimizer]\ndecay_rate = -0.5",
    "[optimizer]\nclip_threshold = 0.5",
    "[optimizer]\nepsilon_param = 0.5",
    "[optimizer]\nrelative_step = false",
    "[optimizer]\nscale_parameter = false",
    "[optimizer.schedule]\nwarmup_kind = \"log\"",
    "[optimizer.schedule]\nwarmup_factor = 0.5",
    "[optimizer.schedule]\ndelay = 7",
    "[optimizer.schedule]\ndecay_start = 7",
    "[train]\nhuber_delta = 0.5",
    "[train]\nlabel_smoothing = 0.5",
    "[train]\nignore_index = 0",
    "[train]\nmicro_batch = 5",
    "[optimizer]\nno_decay_on_1d = true",
    "[optimizer.schedule]\nkind = \"cosine\"",
    "[optimizer.schedule]\nwarmup = 3",
    "[optimizer.schedule]\ntotal = 3",
    "[optimizer.schedule]\nfinal_factor = 0.5",
    "[optimizer.schedule]\nstep_size = 3",
    "[optimizer.schedule]\ngamma = 0.5",
    "[optimizer.schedule]\nslope = 0.5",
    "[optimizer.schedule]\nstaircase = true",
    "[optimizer.schedule]\nzero_first = true",
    "[[optimizer.group]]\npattern = \"b\"",
    "[[optimizer.group]]\npattern = \"b\"\nweight_decay = 0.5",
    "[[optimizer.group]]\npattern = \"b\"\nlr_factor = 0.5",
};

TEST(PolicyFile, EveryKeyShowsInTheMetadata) {
  std::vector<std::string> texts = {describe(parsed(""))};
  for (const char* policy : kPolicies) {
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

/// A megabyte of `a.a.a…` overflowed the stack of the TOML parser.
TEST(PolicyFile, AKeyOfAMegabyteIsRefused) {
  std::string key = "a";
  for (int i = 0; i < 400'000; ++i) key += ".a";
  for (const std::string& text :
       {key + " = 1\n", "[" + key + "]\n", "x = {" + key + " = 1}\n", "[[" + key + "]]\n"}) {
    expect_refused(text, {"policy.toml", "too many parts", "at most 8"});
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
  expect_refused("[precision]\ndtype = \"int8\"", {"policy.toml:2", "fp32, fp16 or bf16", "int8"});
  expect_refused("[loss_scale]\npreset = \"pytorhc\"", {"policy.toml:2", "pytorhc", "pytorch"});
  expect_refused("[precision]\n\nlike = \"pytorhc\"", {"policy.toml:3", "pytorhc"});
}

TEST(PolicyFile, WrongTypesSayWhatCame) {
  expect_refused("[train]\nloss = 1", {"policy.toml:2", "expected a string, got the number 1"});
  expect_refused("[train]\nseed = 1.5", {"an integer, got the number 1.5"});
  expect_refused("[optimizer]\nlr = \"fast\"", {"a number, got the string \"fast\""});
  expect_refused("[train]\nfreeze = [\"a\", 2]", {"got a list with the number 2"});
  expect_refused("[precision]\npad = []", {"true or false, got a list of strings"});
  expect_refused("[optimizer]\nschedule = true", {"a table, got true"});
}

TEST(PolicyFile, ValuesThatCannotBeNameTheLine) {
  const std::pair<const char*, std::vector<std::string_view>> rows[] = {
      {"[optimizer]\nlr = 0.1\nbeta1 = 3.0", {"policy.toml:3", "beta1\" is out of range", "got 3"}},
      {"[optimizer]\nkind = \"adma\"", {"policy.toml:2", "names no optimizer", "adam"}},
      {"[optimizer]\nmax_ratio = 1.0\nmin_ratio = 2.0", {"policy.toml:2", "max_ratio"}},
      {"[optimizer.schedule]\nkind = \"cosin\"", {"policy.toml:2", "learning-rate schedule"}},
      {"[optimizer.schedule]\nkind = \"cosine\"\ntotal = -4", {"policy.toml:3", "got -4"}},
      {"[optimizer.schedule]\nwarmup_kind = \"quick\"", {"policy.toml:2", "kind of warm-up"}},
      {"[optimizer.schedule]\ngamma = -3.0", {"policy.toml:2", "gamma", "got -3"}},
      {"[[optimizer.group]]\npattern = \"b\"\n[[optimizer.group]]\npattern = \"c\"\n"
       "lr_factor = -2.0",
       {"policy.toml:5", "lr_factor", "got -2"}},
      {"[loss_scale]\non_floor = \"raze\"", {"policy.toml:2", "on_floor", "\"raze\""}},
      {"[loss_scale]\nmin = 4.0\nmax = 2.0",
       {"policy.toml:3", "at least \"loss_scale.min\" of policy.toml:2 (4)", "got 2"}},
      {"[train]\nloss = \"msee\"", {"policy.toml:2", "names no loss", "mse"}},
      {"[train]\nloss = \"mse\"\nlabel_smoothing = 0.5", {"policy.toml:3", "cross_entropy"}},
      {"[train]\nmicro_batch = -1", {"policy.toml:2", "micro_batch", "got -1"}},
  };
  for (const auto& [text, parts] : rows) {
    try {
      check_settings(parsed(text));
      ADD_FAILURE() << "taken: " << text;
    } catch (const SettingError& error) {
      for (std::string_view part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what() << "\nlacks " << part;
      }
    }
  }
}

TEST(PolicyFile, AWrongSettingWithoutAFileHasNoPlace) {
  CompileOptions options;
  options.train.optimizer.beta1 = 3;
  try {
    check_settings(options);
    ADD_FAILURE() << "taken";
  } catch (const SettingError& error) {
    EXPECT_EQ(error.key(), "optimizer.beta1");
    EXPECT_EQ(error.place().file, "");
  }
}

// --- presets -------------------------------------------------------------------------------------

/// `2¹⁶` or a plain number.
float number(std::string text) {
  static const std::pair<const char*, const char*> kDigits[] = {
      {"⁰", "0"}, {"¹", "1"}, {"²", "2"}, {"³", "3"}, {"⁴", "4"},
      {"⁵", "5"}, {"⁶", "6"}, {"⁷", "7"}, {"⁸", "8"}, {"⁹", "9"}};
  std::string exponent;
  for (size_t at = 1; at < text.size();) {
    bool found = false;
    for (const auto& [power, digit] : kDigits) {
      if (text.compare(at, std::strlen(power), power) != 0) continue;
      exponent += digit;
      at += std::strlen(power);
      found = true;
      break;
    }
    if (!found) break;
  }
  return exponent.empty() ? std::stof(text) : std::exp2(std::stof(exponent));
}

/// The cells of the rows of the docs' table, by the name in the first.
std::map<std::string, std::vector<std::string>> documented_presets() {
  std::ifstream file(std::filesystem::path(HALFNOTE_SOURCE_DIR) / "docs/loss-scaling.md");
  std::map<std::string, std::vector<std::string>> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    inside |= line == "## Presets";
    if (!inside || !line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    std::istringstream stream(line.substr(1));
    for (std::string cell; std::getline(stream, cell, '|');) {
      cell.erase(0, cell.find_first_not_of(' '));
      cell.erase(cell.find_last_not_of(' ') + 1);
      cells.push_back(cell);
    }
    const size_t end = cells[0].find('`', 1);
    rows.emplace(cells[0].substr(1, end - 1), cells);
  }
  return rows;
}

TEST(Presets, AreAsTheDocsSay) {
  const auto rows = documented_presets();
  EXPECT_EQ(rows.size(), scaler_presets().size());
  for (const ScalerPreset& preset : scaler_presets()) {
    const auto found = rows.find(std::string(preset.name));
    ASSERT_NE(found, rows.end()) << preset.name;
    const std::vector<std::string>& cells = found->second;
    ASSERT_EQ(cells.size(), 12u) << preset.name;
    const LossScaler& s = preset.scaler;
    const std::vector<float> numbers = {s.init,
                                        s.up,
                                        s.down,
                                        static_cast<float>(s.interval),
                                        static_cast<float>(s.hysteresis),
                                        static_cast<float>(s.first_window_extra),
                                        static_cast<float>(s.publish_delay),
                                        static_cast<float>(s.warmup_interval),
                                        s.min,
                                        s.max};
    constexpr size_t kCells[] = {1, 2, 3, 4, 5, 7, 8, 9, 10, 11};
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(number(cells[kCells[i]]), numbers[i]) << preset.name << ", column " << kCells[i];
    }
    EXPECT_EQ(cells[6], s.refill) << preset.name;
  }
}

TEST(Presets, KerasHasTwoNames) {
  EXPECT_EQ(scaler_preset("keras3"), scaler_preset("keras"));
  EXPECT_EQ(scaler_preset("deepspeed").on_floor, "raise");
  EXPECT_EQ(scaler_preset("pytorch").on_floor, "hold");
  EXPECT_EQ(scaler_preset("halfnote").on_floor, "diagnose");
}

}  // namespace
}  // namespace halfnote
