// halfnote compile with the settings of other frameworks: --like, --deepspeed, Keras' names, the
// new losses and optimizers, and the warning where nothing was converted.
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

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
  EXPECT_EQ(config["policy"]["optimizer"]["kind"], "deepspeed_lamb");
  EXPECT_EQ(config["policy"]["loss_scale"]["preset"], "deepspeed");
  EXPECT_EQ(config["policy"]["accumulation"], 2);
}

TEST(Settings, AccumulateOverADeepSpeedFileKeepsTheSamplesOfAnUpdate) {
  const Workplace place;
  place.write("ds.json", R"({"train_batch_size": 12, "gradient_accumulation_steps": 4})");
  const std::string compile =
      "compile tiny.onnxtxt -o ds.hn.onnx --loss cross_entropy --deepspeed ds.json --accumulate ";
  ASSERT_EQ(place.run(words(compile + "2")).code, 0);
  const Outcome ran =
      place.run(words("run ds.hn.onnx --data x=x.npy,labels=labels.npy --threads 1 --steps 2"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto config = nlohmann::json::parse(place.read("runs/ds-1/config.json"));
  EXPECT_EQ(config["batch"], 6);
  EXPECT_EQ(config["policy"]["accumulation"], 2);
  const Outcome odd = place.run(words(compile + "5"));
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("a divisor of its \"train_batch_size\", 12, got 5"));
}

TEST(Settings, ErrorsOfADeepSpeedFileNameItAndTheKey) {
  const Workplace place;
  place.write("ds.json", R"({"fp16": {"enabled": true, "loss_scale_windwo": 5}})");
  const Outcome outcome =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --deepspeed ds.json --plan"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("ds.json"));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean loss_scale_window?"));
  place.write("betas.json", R"({"optimizer": {"type": "Adam", "params": {"betas": [3, 0.9]}}})");
  const Outcome betas =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --deepspeed betas.json --plan"));
  EXPECT_EQ(betas.code, 2);
  EXPECT_THAT(betas.err, HasSubstr("betas.json: \"optimizer.params.betas\" is out of range"));
  place.write("cut.json", "{");
  const Outcome cut =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --deepspeed cut.json --plan"));
  EXPECT_THAT(cut.err,
              HasSubstr("cut.json: the DeepSpeed file is no valid JSON: line 1, column 2"));
  EXPECT_THAT(cut.err, Not(HasSubstr("json.exception")));
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

TEST(Settings, FlagsThatWouldDoNothingAreRefused) {
  struct Row {
    const char *line, *flag, *belongs_to;
  };
  const Row rows[] = {
      {"--loss cross_entropy --loss-scale 1024", "--loss-scale", "--precision fp16"},
      {"--loss cross_entropy --precision bf16 --loss-scale pytorch", "--loss-scale", "got --prec"},
      {"--loss cross_entropy --huber-delta 2", "--huber-delta", "--loss huber"},
      {"--loss mse --label-smoothing 0", "--label-smoothing", "--loss cross_entropy, nll"},
      {"--loss mse --optimizer sgd --beta1 0.8", "--beta1", "--optimizer adam, adamw"},
      {"--loss mse --optimizer lion --epsilon 1e-6", "--epsilon", "got --optimizer lion"},
      {"--loss mse --momentum 0.5", "--momentum", "momentum, nesterov, rmsprop"},
      {"--loss mse --no-relative-step", "--no-relative-step", "--optimizer adafactor"},
      {"--loss mse --optimizer none --lr 0.1", "--lr", "any but none"},
      {"--loss mse --schedule-steps 9", "--schedule-steps", "--schedule linear, cosine"},
      {"--loss mse --schedule cosine --schedule-steps 9 --schedule-gamma 0.5", "--schedule-gamma",
       "--schedule step"},
      {"--inference --lr 0.1", "--lr", "--inference"},
      {"--loss mse --ignore-index 0", "--ignore-index", "--loss cross_entropy, nll"},
      {"--loss cross_entropy --precision fp32 --like keras", "--like", "--precision fp16, bf16"},
      {"--loss cross_entropy --fp32-op Gemm", "--fp32-op", "got --precision fp32"},
      {"--loss cross_entropy --allow-node .*", "--allow-node", "--precision"},
      {"--inference --no-pad", "--no-pad", "--precision"},
      {"--policy sgd.toml --beta1 0.5", "--beta1", "got --optimizer sgd"},
      {"--inference --loss mse", "--loss", "--inference"},
      {"--inference --trainable .*", "--trainable", "--inference"},
      {"--inference --seed 3", "--seed", "--inference"},
      {"--loss-output loss --loss-input logits", "--loss-input", "got --loss none"},
      {"--loss mse --no-decay .*", "--no-decay", "--weight-decay above 0"},
      {"--loss mse --dump-folder out", "--dump-folder", "--dump-after"},
      {"--loss mse --verbose", "--verbose", "without --quiet"},
      {"--loss cross_entropy --plan -o x.onnx", "--output", "-o without --plan"},
      {"--loss mse --schedule-steps 9", "--schedule-steps", "one_cycle"},
  };
  const Workplace place;
  place.write("sgd.toml", "[train]\nloss = \"cross_entropy\"\n[optimizer]\nkind = \"sgd\"\n");
  const auto before = place.list();
  for (const Row& row : rows) {
    const Outcome outcome = place.run(words(std::string("compile tiny.onnxtxt -q ") + row.line));
    EXPECT_EQ(outcome.code, 2) << row.line;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(row.flag) + " does nothing")) << row.line;
    EXPECT_THAT(outcome.err, HasSubstr(row.belongs_to)) << row.line;
    EXPECT_EQ(place.list(), before) << row.line;
  }
}

/// Scripts give every command a seed: it is told, not refused.
TEST(Settings, ASeedThatNothingReadsIsTold) {
  const Workplace place;
  const std::string line = "compile tiny.onnxtxt --loss cross_entropy -o a.onnx";
  EXPECT_THAT(place.run(words(line)).err, Not(HasSubstr("--seed")));
  const Outcome compiled = place.run(words(line + " --seed 3"));
  EXPECT_EQ(compiled.code, 0) << compiled.err;
  EXPECT_THAT(compiled.err, HasSubstr("warning: --seed does nothing here"));
  place.write("drawn.onnxtxt",
              "<ir_version: 10, opset_import: [\"\" : 23]>\n"
              "g (float[N,6] x) => (float[N,3] y) {\n"
              "w = RandomNormal <shape = [6, 3]> ()\ny = MatMul (x, w)\n}\n");
  EXPECT_THAT(place.run(words("compile drawn.onnxtxt --loss mse --seed 3 -o d.onnx")).err,
              Not(HasSubstr("--seed")));
  place.write(
      "dropout.onnxtxt",
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "g (float[N,6] x) => (float[N,2] y) <\n"
      "float[6,2] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, float r = {0.5}, bool t = {1}> {\n"
      "d = Dropout (x, r, t)\ny = MatMul (d, w)\n}\n");
  EXPECT_THAT(place.run(words("compile dropout.onnxtxt --loss mse --seed 3 -o p.onnx")).err,
              Not(HasSubstr("--seed")));
  const std::string run = std::string("run a.onnx --steps 1 --seed 3 --progress none ") + kTrain;
  EXPECT_THAT(place.run(words(run)).err, Not(HasSubstr("--seed")));
  const Outcome in_order = place.run(words(run + " --no-shuffle"));
  EXPECT_EQ(in_order.code, 0) << in_order.err;
  EXPECT_THAT(in_order.err, HasSubstr("warning: --seed does nothing here: samples are taken in"));
}

/// The decay is that of the artifact's own optimizer.
TEST(Settings, AFlagThatAnArtifactsOptimizerReadsIsNoIdleOne) {
  const Workplace place;
  const std::string line = "compile " HALFNOTE_SOURCE_DIR
                           "/tests/fixtures/ort_training/mlp_adamw_decay --no-decay .*bias -q -o ";
  const Outcome outcome = place.run(words(line + "own.onnx"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(place.run(words(line + "other.onnx --optimizer sgd")).code, 2);
}

TEST(Settings, FlagsOfRunThatWouldDoNothingAreRefused) {
  struct Row {
    const char *line, *flag, *wanted;
  };
  const Row rows[] = {
      {"--eval-every 2", "--eval-every", "--eval-data, or data with a test split"},
      {"--dump-folder out", "--dump-folder", "--dump-after"},
      {"--progress plain --quiet", "--progress", "without --quiet"},
      {"--bytes keep", "--bytes", "data of type u8"},
      {"--whole all --no-shuffle", "--no-shuffle", "inputs that are fed whole"},
  };
  Workplace place;
  place.compile("artifact.onnx");
  const auto before = place.list();
  for (const Row& row : rows) {
    const Outcome outcome = place.run(words(
        std::string("run artifact.onnx --steps 1 --data x=x.npy,labels=labels.npy ") + row.line));
    EXPECT_EQ(outcome.code, 2) << row.line << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(row.flag) + " does nothing")) << row.line;
    EXPECT_THAT(outcome.err, HasSubstr(row.wanted)) << row.line;
    EXPECT_EQ(place.list(), before) << row.line;
  }
  place.write("ids.onnxtxt",
              "<ir_version: 10, opset_import: [\"\" : 23]>\n"
              "g (int64[N] ids) => (float[N,3] y) <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> "
              "{ y = Gather (w, ids) }\n");
  ASSERT_EQ(place.run(words("compile ids.onnxtxt --loss cross_entropy -q")).code, 0);
  const Outcome outcome = place.run(
      words("run ids.hn.onnx --steps 1 --data ids=labels.npy,labels=labels.npy --normalize 0,1"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--normalize does nothing here: expected an input of floats"));
  EXPECT_EQ(place.run(words("ops conv --presets")).code, 2);
}

TEST(Settings, KeysOfAFileAndFlagsThatAreReadAreNoIdleOnes) {
  const Workplace place;
  place.write("all.toml",
              "[loss_scale]\ninit = 8.0\n[train]\nhuber_delta = 2.0\n[optimizer]\n"
              "kind = \"sgd\"\nbeta1 = 0.5\n");
  for (const char* line :
       {"--policy all.toml", "--policy all.toml --optimizer adam --beta1 0.8 --epsilon 1e-6",
        "--precision fp16 --loss-scale 1024", "--like keras --loss-scale pytorch",
        "--optimizer rmsprop --momentum 0.5 --centered --rms-alpha 0.9", "--warmup 3",
        "--schedule step --schedule-step-size 2 --schedule-gamma 0.5"}) {
    const Outcome outcome = place.run(
        words(std::string("compile tiny.onnxtxt -q --plan --loss cross_entropy ") + line));
    EXPECT_EQ(outcome.code, 0) << line << ": " << outcome.err;
  }
}

TEST(Settings, ARuleOfAPolicyFileIsNamedByItsLine) {
  const Workplace place;
  const std::string head = "[train]\nloss = \"cross_entropy\"\n[precision]\ndtype = \"bf16\"\n";
  place.write("node.toml", head + "fp32_nodes = [\n  \"nothing-like-it\"]\n");
  place.write("op.toml", head + "allow_ops = [\"Softmx\"]\n");
  place.write("type.toml", head + "[optimizer]\nlr = \"fast\"\n");
  const Outcome node = place.run(words("compile tiny.onnxtxt --policy node.toml --plan"));
  EXPECT_EQ(node.code, 2);
  EXPECT_THAT(node.err, HasSubstr("node.toml:6: \"precision.fp32_nodes\" matches nothing"));
  EXPECT_THAT(node.err, HasSubstr("`halfnote inspect MODEL --nodes`"));
  const Outcome op = place.run(words("compile tiny.onnxtxt --policy op.toml --plan"));
  EXPECT_EQ(op.code, 2);
  EXPECT_THAT(op.err, HasSubstr("op.toml:5: \"precision.allow_ops\" names no operator"));
  const Outcome type = place.run(words("compile tiny.onnxtxt --policy type.toml --plan"));
  EXPECT_EQ(type.code, 2);
  EXPECT_THAT(type.err, HasSubstr("type.toml:6: key \"optimizer.lr\" has the wrong type"));
  place.write("kind.toml", head + "[optimizer.schedule]\nkind = \"cosin\"\n");
  const Outcome kind = place.run(words("compile tiny.onnxtxt --policy kind.toml --plan"));
  EXPECT_EQ(kind.code, 2);
  EXPECT_THAT(
      kind.err,
      HasSubstr("kind.toml:6: \"optimizer.schedule.kind\" names no learning-rate schedule"));
  // A flag that takes the key's place is to blame itself.
  const Outcome both =
      place.run(words("compile tiny.onnxtxt --policy kind.toml --schedule cosinus --plan"));
  EXPECT_THAT(both.err, Not(HasSubstr("kind.toml")));
  EXPECT_THAT(both.err, HasSubstr("got \"cosinus\""));
  const Outcome flag = place.run(
      words("compile tiny.onnxtxt --loss cross_entropy --precision bf16 --fp32-node zzz --plan"));
  EXPECT_THAT(flag.err, HasSubstr("--fp32-node matches nothing"));
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
  EXPECT_THAT(outcome.out, HasSubstr("torch.autocast for CUDA, and GradScaler"));
}

TEST(Settings, WordsInCapitalsAreUnderstoodByTheHint) {
  const Workplace place;
  place.write("ds.json", R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 8})");
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"--precision BF16", "did you mean bf16?"},
      {"--optimizer AdamW", "did you mean adamw?"},
      {"--deepspeed ds.json", "expected a multiple of 8, got 30"}};
  for (const auto& [flags, said] : rows) {
    const Outcome outcome =
        place.run(words("compile tiny.onnxtxt -o z.onnx --loss cross_entropy " + flags));
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(said));
  }
}

}  // namespace
}  // namespace halfnote::cli_test
