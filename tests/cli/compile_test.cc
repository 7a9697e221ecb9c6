// halfnote compile: what it writes, and what it refuses to write.
#include <nlohmann/json.hpp>

#include "runtime/train/checkpoint/safetensors.h"
#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

void expect_refused(const Workplace& place, const std::string& line, int code,
                    const std::string& part) {
  const std::vector<std::string> before = place.list();
  const Outcome outcome = place.run(words(line));
  EXPECT_EQ(outcome.code, code) << line << "\n" << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(part)) << line;
  EXPECT_EQ(place.list(), before) << line << " left a file";
}

TEST(Compile, AnEmittedStepComesWithItsStates) {
  const Workplace place;
  const Outcome outcome = place.run(
      words("compile tiny.onnxtxt -o s.onnx --emit step --loss cross_entropy --precision fp16"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("wrote s.onnx, s.states.safetensors"));
  const SafetensorsFile states(place / "s.states.safetensors");
  std::vector<std::string> names;
  for (const auto& entry : states.entries()) names.push_back(entry.name);
  EXPECT_THAT(names, testing::IsSupersetOf({"w1", "w1.m", "w1.v", "loss_scale", "applied_step"}));
}

TEST(Compile, AnAccumulatingStepIsTwoModels) {
  const Workplace place;
  const Outcome outcome = place.run(
      words("compile tiny.onnxtxt -o s.onnx --emit step --loss cross_entropy --accumulate 2"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("wrote s.onnx, s.apply.onnx, s.states.safetensors"));
  EXPECT_TRUE(place.exists("s.apply.onnx"));
}

TEST(Compile, OutputsNeverTakeThePlaceOfInputs) {
  const Workplace place;
  place.write("p.toml", "[train]\nloss = \"cross_entropy\"\n");
  const std::string source = place.read("tiny.onnxtxt");
  expect_refused(place, "compile tiny.onnxtxt --loss cross_entropy -o tiny.onnxtxt", 2,
                 "same file");
  expect_refused(place, "compile tiny.onnxtxt --loss cross_entropy -o ./tiny.onnxtxt", 2,
                 "same file");
  expect_refused(place, "compile tiny.onnxtxt --policy p.toml --report p.toml -o a.onnx", 2,
                 "same file");
  expect_refused(place, "compile tiny.onnxtxt --loss cross_entropy --report a.onnx -o a.onnx", 2,
                 "same file");
  EXPECT_EQ(place.read("tiny.onnxtxt"), source);
}

TEST(Compile, AnArtifactIsNoSource) {
  const Workplace place;
  place.compile("a.onnx");
  expect_refused(place, "compile a.onnx --loss cross_entropy --precision bf16 -o b.onnx", 3,
                 "compiled by halfnote already");
}

TEST(Compile, WrongNumbersAreRefused) {
  const Workplace place;
  const std::string base = "compile tiny.onnxtxt -o a.onnx --loss cross_entropy ";
  expect_refused(place, base + "--dim M=4", 2, "one of N");
  expect_refused(place, base + "--precision fp16 --loss-scale inf", 2, "finite");
  expect_refused(place, base + "--precision fp16 --loss-scale 1e40", 2, "got \"1e40\"");
  expect_refused(place, base + "--lr nan", 2, "lr is out of range");
  expect_refused(place, base + "--lr -1", 2, "lr is out of range");
  expect_refused(place, base + "--optimizer nesterov --momentum 2", 2, "momentum is out of range");
  expect_refused(place, base + "--grad-clip -1", 2, "--grad-clip is out of range");
  expect_refused(place, base + "--precision bf16 --fp32-node nothing", 2, "matches nothing");
}

TEST(Compile, FlagsWinOverThePolicy) {
  const Workplace place;
  place.write("p.toml", "[precision]\nfp32_ops = [\"Gemm\"]\n[train]\nloss = \"cross_entropy\"\n");
  const Outcome outcome = place.run(
      words("compile tiny.onnxtxt --policy p.toml --precision bf16 --allow-op Gemm --report r.json "
            "-o a.onnx"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(place.read("r.json"));
  EXPECT_EQ(report["policy"]["allow_ops"], nlohmann::json({"Gemm"}));
  EXPECT_TRUE(report["policy"]["fp32_ops"].empty());
  EXPECT_EQ(report["contraction_flops_share_16bit"], 1.0);
}

/// Constants whose folding takes minutes: 40 products of 2000 x 2000 on the reference kernel.
std::string slow_model() {
  std::string text =
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "main (float[2] x) => (float[2] y) {\n"
      "   s = Constant <value_ints: ints = [2000, 2000]> ()\n"
      "   a0 = ConstantOfShape <value: tensor = float[1] {0.01}> (s)\n";
  for (int i = 0; i < 40; ++i) {
    text += "   a" + std::to_string(i + 1) + " = MatMul (a" + std::to_string(i) + ", a0)\n";
  }
  return text + "   r = ReduceMean <keepdims: int = 0> (a40)\n   y = Mul (x, r)\n}\n";
}

TEST(Compile, EndsWhenItsTimeIsUp) {
  const Workplace place;
  place.write("slow.onnxtxt", slow_model());
  expect_refused(place, "compile slow.onnxtxt --inference --timeout 1 -o a.onnx", 3, "--timeout");
}

TEST(Compile, DumpsMakeTheirFolder) {
  const Workplace place;
  const Outcome outcome = place.run(
      words("compile tiny.onnxtxt -o a.onnx --loss cross_entropy --dump-after insert-casts "
            "--dump-folder some/dumps"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(place.list("some/dumps").size(), 1u);
}

TEST(Run, IsRefusedBeforeItStarts) {
  const Workplace place;
  place.compile("a.onnx");
  const std::string base = std::string("run a.onnx --steps 1 ") + kTrain;
  expect_refused(place, base + " --kernels nope", 2, "--kernels names no kernel");
  expect_refused(place, base + " --export nowhere/x.onnx", 8, "cannot be written");
  expect_refused(place, std::string("run a.onnx --steps 0 ") + kTrain, 2, "at least 1");
}

TEST(Run, APlanNeedsNoLengthAndNoMemory) {
  const Workplace place;
  place.compile("a.onnx");
  const Outcome outcome = place.run(words(std::string("run a.onnx --plan-memory ") + kTrain));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("activations"));
}

}  // namespace
}  // namespace halfnote::cli_test
