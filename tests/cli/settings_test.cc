// halfnote compile with the settings of other frameworks: --like, --deepspeed, Keras' names, the
// new losses and optimizers, and the warning where nothing was converted.
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;

nlohmann::json policy_of(const Workplace& place, const std::string& run) {
  return nlohmann::json::parse(place.read(run + "/config.json"))["policy"];
}

TEST(Settings, ADeepSpeedFileGivesRunItsBatch) {
  const Workplace place;
  place.write("ds.json", R"({"train_batch_size": 10, "gradient_accumulation_steps": 2,
      "gradient_clipping": 1.0, "fp16": {"enabled": true, "hysteresis": 2}, "steps_per_print": 5,
      "optimizer": {"type": "Lamb", "params": {"lr": 0.002}}})");
  const Outcome compiled = place.run(
      words("compile tiny.onnxtxt -o ds.hn.onnx --loss cross_entropy --deepspeed ds.json"));
  ASSERT_EQ(compiled.code, 0) << compiled.err;
  EXPECT_THAT(compiled.err, HasSubstr("\"steps_per_print\" has no meaning here"));
  const Outcome ran =
      place.run(words("run ds.hn.onnx --data x=x.npy,labels=labels.npy --threads 1 --steps 4"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto config = nlohmann::json::parse(place.read("runs/ds-1/config.json"));
  EXPECT_EQ(config["batch"], 5);
  EXPECT_EQ(config["policy"]["optimizer"]["kind"], "lamb");
  EXPECT_EQ(config["policy"]["loss_scale"]["preset"], "deepspeed");
  EXPECT_EQ(config["policy"]["accumulation"], 2);
}

TEST(Settings, ErrorsOfADeepSpeedFileNameItAndTheKey) {
  const Workplace place;
  place.write("ds.json", R"({"fp16": {"enabled": true, "loss_scale_windwo": 5}})");
  const Outcome outcome =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --deepspeed ds.json --plan"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("ds.json"));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean loss_scale_window?"));
  EXPECT_EQ(place.run(words("compile tiny.onnxtxt --loss mse --deepspeed none.json --plan")).code,
            place.run(words("compile tiny.onnxtxt --loss mse --policy none.toml --plan")).code);
}

TEST(Settings, LikeAFrameworkTrains) {
  const Workplace place;
  place.compile("like.hn.onnx", words("--like keras --optimizer rmsprop --centered"));
  ASSERT_EQ(place.run(words("run like.hn.onnx " + std::string(kTrain) + " --steps 3")).code, 0);
  const auto policy = policy_of(place, "runs/like-1");
  EXPECT_EQ(policy["precision"], "f16");
  EXPECT_EQ(policy["like"], "keras");
  EXPECT_EQ(policy["loss_scale"]["preset"], "keras");
  EXPECT_EQ(policy["optimizer"]["centered"], true);
}

TEST(Settings, NothingConvertedIsSaidOnStderr) {
  const Workplace place;
  const Outcome none =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --precision mixed_bfloat16 "
                      "--fp32-node .* --plan"));
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.err, HasSubstr("warning: nothing was converted to 16 bit"));
  EXPECT_THAT(none.err, HasSubstr("policy: --fp32-node .*"));
  const Outcome all =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --precision bf16 --plan"));
  EXPECT_EQ(all.err, "");
}

TEST(Settings, PresetsListTheFrameworks) {
  const Workplace place;
  const Outcome outcome = place.run(words("ops --presets"));
  EXPECT_THAT(outcome.out, HasSubstr("apex-O2"));
  EXPECT_THAT(outcome.out, HasSubstr("torch.autocast and GradScaler"));
}

}  // namespace
}  // namespace halfnote::cli_test
