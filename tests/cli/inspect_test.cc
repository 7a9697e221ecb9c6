// halfnote inspect, ops and the help texts.
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Inspect : public testing::Test {
 protected:
  void SetUp() override { place_.compile("tiny.hn.onnx", words("--precision bf16")); }
  std::string inspect(const std::string& more) {
    const Outcome outcome = place_.run(words("inspect tiny.hn.onnx " + more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
  Workplace place_;
};

TEST_F(Inspect, Summary) {
  const std::string text = inspect("");
  for (const char* part :
       {"training artifact of halfnote", "ai.onnx 23", "float[N,6] x", "float[N,3] logits",
        "parameters", "contractions   100.0 %", "precision      bf16",
        "loss           cross_entropy", "optimizer      adamw, lr 0.001"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(Inspect, NodesAndCasts) {
  EXPECT_THAT(inspect("--nodes"), HasSubstr("allow list: Gemm"));
  const std::string evaluate = inspect("--nodes --graph evaluate");
  EXPECT_THAT(evaluate, StartsWith("evaluate\n"));
  EXPECT_THAT(evaluate, Not(HasSubstr("\nstep\n")));
  const std::string casts = inspect("--casts");
  EXPECT_THAT(casts, HasSubstr("w1"));
  EXPECT_THAT(casts, HasSubstr("f32 -> bf16"));
  EXPECT_THAT(casts, HasSubstr("36·N B  for h"));  // 6 elements of 4 + 2 bytes
  const std::string bound = inspect("--casts --dim N=10");
  EXPECT_THAT(bound, HasSubstr("360 B"));
  EXPECT_THAT(bound, Not(HasSubstr("symbolic")));
}

TEST_F(Inspect, JsonIsJson) {
  const auto json = nlohmann::json::parse(inspect("--format json"));
  EXPECT_TRUE(json["nodes"].is_array());
  EXPECT_DOUBLE_EQ(json["contraction_flops_share_16bit"].get<double>(), 1.0);
}

TEST_F(Inspect, TextElidesLargeConstants) {
  const std::string text = inspect("--format text");
  EXPECT_THAT(text, HasSubstr("training_info"));
  EXPECT_THAT(text, HasSubstr("{...}"));
  EXPECT_THAT(inspect("--format text --graph graph"), Not(HasSubstr("training_info")));
}

TEST_F(Inspect, DotIsBalancedAndColoured) {
  const std::string dot = inspect("--format dot");
  EXPECT_THAT(dot, StartsWith("digraph \"step\" {"));
  EXPECT_THAT(dot, HasSubstr("palegreen"));
  EXPECT_EQ(std::count(dot.begin(), dot.end(), '{'), std::count(dot.begin(), dot.end(), '}'));
  EXPECT_EQ(std::count(dot.begin(), dot.end(), '"') % 2, 0);
  EXPECT_THAT(inspect("--format dot --graph evaluate"), StartsWith("digraph \"evaluate\" {"));
}

TEST_F(Inspect, DotEscapesNames) {
  place_.write("odd.onnxtxt",
               "<ir_version: 10, opset_import: [\"\" : 23]>\n"
               "g (float[2] \"a\\\"b\\\\c\\x0ad\") => (float[2] y) "
               "{ y = Relu (\"a\\\"b\\\\c\\x0ad\") }\n");
  const Outcome outcome = place_.run(words("inspect odd.onnxtxt --format dot"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(R"(a\"b\\c\\x0ad)"));
}

TEST_F(Inspect, DiffNamesEveryChangeWithItsReason) {
  const std::string diff = inspect("--diff tiny.onnxtxt");
  EXPECT_THAT(diff, HasSubstr("graph: "));
  EXPECT_THAT(diff, HasSubstr("\nstep: "));
  EXPECT_THAT(diff, testing::ContainsRegex("retyped  h +Gemm +f32 -> bf16 +allow list: Gemm"));
  EXPECT_THAT(diff, testing::ContainsRegex("added +w1.bf16 +Cast +f32 -> bf16 of w1"));
  EXPECT_THAT(diff, testing::ContainsRegex("added +AdamW +ai.halfnote.AdamW +optimizer of "));
  EXPECT_THAT(diff, testing::ContainsRegex("casts +w1 +f32 -> bf16"));
}

TEST_F(Inspect, DiffAsJsonIsJson) {
  const auto json = nlohmann::json::parse(inspect("--diff tiny.onnxtxt --format json"));
  ASSERT_GE(json.size(), 2u);
  EXPECT_EQ(json[0]["graph"], "graph");
  EXPECT_FALSE(json[0]["changes"].empty());
  for (const auto& change : json[1]["changes"]) EXPECT_NE(change["kind"], "") << change;
}

TEST_F(Inspect, FormatsThatDoNotGoTogetherAreRefused) {
  for (const char* more : {"--diff tiny.onnxtxt --format dot", "--nodes --format json",
                           "--casts --format text", "--why w1 --format json"}) {
    const Outcome outcome = place_.run(words(std::string("inspect tiny.hn.onnx ") + more));
    EXPECT_EQ(outcome.code, 2) << more;
    EXPECT_THAT(outcome.err, HasSubstr("--format")) << more;
    EXPECT_EQ(outcome.out, "") << more;
  }
}

TEST_F(Inspect, DiffAgainstItselfIsEmpty) {
  const Outcome outcome = place_.run(words("inspect tiny.onnxtxt --diff tiny.onnxtxt"));
  EXPECT_EQ(outcome.out, "graph: 4 unchanged, 0 retyped, 0 replaced, 0 added, 0 removed\n");
}

TEST_F(Inspect, WhyTellsDecisionGradientAndKernels) {
  const std::string symbolic = inspect("--why h");
  for (const char* part : {"(Gemm)", "class       allow", "precision   bf16: allow list: Gemm",
                           "gradient    yes", "bind the symbolic dims"}) {
    EXPECT_THAT(symbolic, HasSubstr(part));
  }
  const std::string bound = inspect("--why h --dim N=4");
  EXPECT_THAT(bound, HasSubstr("runs it on the cpu"));
  EXPECT_THAT(bound, Not(HasSubstr("bind the symbolic dims")));
}

TEST_F(Inspect, WhyOfACastOfOursDoesNotCallItTheModels) {
  const std::string facts = inspect("--why w1.bf16");
  EXPECT_THAT(facts, HasSubstr("cast inserted"));
  EXPECT_THAT(facts, Not(HasSubstr("the model's own")));
}

TEST_F(Inspect, WhyOfACastNamesItsReadersAndWhatTheyWant) {
  EXPECT_THAT(inspect("--why w1.bf16 --graph step"),
              HasSubstr("  reader      h (Gemm) wants bf16: allow list: Gemm\n"));
  EXPECT_THAT(inspect("--why logits.f32 --graph step"),
              HasSubstr("(SoftmaxCrossEntropyLoss) wants f32: "));
  EXPECT_THAT(inspect("--why h"), Not(HasSubstr("  reader ")));
}

TEST_F(Inspect, WhyInOneGraph) {
  const std::string facts = inspect("--why h --graph evaluate");
  EXPECT_THAT(facts, StartsWith("evaluate: h (Gemm)\n"));
  EXPECT_THAT(facts, Not(HasSubstr("step: h")));
  const Outcome missing = place_.run(words("inspect tiny.hn.onnx --why grad/w1 --graph evaluate"));
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no node of evaluate is named \"grad/w1\""));
}

// Its math is f32 inside, so it is decided as an operator that follows its neighbours.
TEST_F(Inspect, ANormalizationIn16BitShowsTheClassThatWasApplied) {
  std::string matrix, scale;
  for (int i = 0; i < 256; ++i) matrix += i == 0 ? "0.5" : ", 0.5";
  for (int i = 0; i < 16; ++i) scale += i == 0 ? "1" : ", 1";
  place_.write("norm.onnxtxt",
               "<ir_version: 10, opset_import: [\"\" : 23]>\n"
               "g (float[N,16] x) => (float[N,16] y) <float[16,16] w = {" +
                   matrix + "}, float[16] b = {" + scale +
                   "}> {\n  a = MatMul (x, w)\n  n = LayerNormalization (a, b)\n"
                   "  y = MatMul (n, w)\n}\n");
  const auto compiled = [&](const std::string& more) {
    const Outcome outcome = place_.run(
        words("compile norm.onnxtxt -o norm.hn.onnx --inference --precision fp16 --quiet" + more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return place_.run(words("inspect norm.hn.onnx --why n")).out;
  };
  const std::string facts = compiled("");
  EXPECT_THAT(facts, HasSubstr("class       infer (an fp32 operator"));
  EXPECT_THAT(facts, HasSubstr("(its operands are f16)"));
  EXPECT_THAT(place_.run(words("inspect norm.hn.onnx --nodes")).out, HasSubstr(" infer "));
  const std::string pinned = compiled(" --like pytorch");
  EXPECT_THAT(pinned, HasSubstr("class       fp32\n"));
  EXPECT_THAT(pinned,
              HasSubstr("like pytorch, fp32 list: LayerNormalization (its operands are f32)"));
}

TEST_F(Inspect, SummaryTellsTheSchedule) {
  place_.compile("s.hn.onnx",
                 words("--precision fp16 --optimizer lamb --weight-decay 0.5 --accumulate 2 "
                       "--label-smoothing 0.25 --schedule cosine --schedule-steps 9 --warmup 3"));
  const std::string text = place_.run(words("inspect s.hn.onnx")).out;
  EXPECT_THAT(text, HasSubstr("precision      f16, loss scale halfnote"));
  EXPECT_THAT(text, HasSubstr("loss           cross_entropy, label smoothing 0.25"));
  EXPECT_THAT(text, HasSubstr("lamb, lr 0.001, weight decay 0.5, micro-batches 2"));
  EXPECT_THAT(text, HasSubstr("schedule       cosine, until step 9, warm-up 3"));
}

TEST_F(Inspect, TellsTheKernelsOfADevice) {
  place_.write("g.onnxtxt",
               "<ir_version: 10, opset_import: [\"\" : 23]>\n"
               "g (float[4,6] x) => (float[4,6] y) { y = Softmax (x) }\n");
  const auto why = [&](const std::string& more) {
    return place_.run(words("inspect g.onnxtxt --why y" + more));
  };
  EXPECT_THAT(why("").out, HasSubstr(" runs it on the cpu"));
  EXPECT_THAT(why("").out, HasSubstr("run may fuse it with its neighbours"));
  EXPECT_THAT(why(" --device cuda-emulated").out,
              HasSubstr("own.softmax runs it on cuda-emulated"));
  EXPECT_EQ(why(" --device gpu").code, 2);
  EXPECT_THAT(why(" --device gpu").err, HasSubstr("cuda-emulated"));
  const Outcome idle = place_.run(words("inspect g.onnxtxt --device cuda-emulated"));
  EXPECT_EQ(idle.code, 2);
  EXPECT_THAT(idle.err, HasSubstr("--device does nothing here"));
}

TEST(Ops, ListsTheKernelsOfADevice) {
  const Workplace place;
  const std::string cpu = place.run(words("ops Softmax")).out,
                    device = place.run(words("ops Softmax --device cuda-emulated")).out;
  EXPECT_THAT(cpu, HasSubstr("kernels on the cpu, best first"));
  EXPECT_THAT(device, HasSubstr("kernels on cuda-emulated, best first"));
  EXPECT_THAT(device, HasSubstr("own.softmax"));
  EXPECT_THAT(cpu, Not(HasSubstr("own.softmax")));
  EXPECT_EQ(place.run(words("ops --passes --device cuda-emulated")).code, 2);
}

TEST(Ops, ListsOperatorsPassesAndPresets) {
  const Workplace place;
  const std::string ops = place.run(words("ops")).out;
  EXPECT_THAT(ops, HasSubstr("\nSoftmax "));
  EXPECT_THAT(ops, HasSubstr("\nai.halfnote.AdamW "));
  const std::string softmax = place.run(words("ops softmax")).out;
  EXPECT_THAT(softmax, HasSubstr("ai.halfnote.SoftmaxGrad"));
  EXPECT_THAT(softmax, Not(HasSubstr("MatMul")));
  EXPECT_THAT(place.run(words("ops --passes")).out, HasSubstr("assign-precision"));
  const std::string presets = place.run(words("ops --presets")).out;
  EXPECT_THAT(presets, HasSubstr("deepspeed"));
  EXPECT_THAT(presets, HasSubstr("2^16"));
}

TEST(Help, NamesEveryVerbAndOptionIsExplained) {
  const Workplace place;
  const std::string help = place.run({"--help"}).out;
  for (const char* verb : {"compile", "run", "inspect", "ops"}) {
    EXPECT_THAT(help, HasSubstr(std::string("\n  ") + verb + " "));
    const Outcome own = place.run({verb, "--help"});
    EXPECT_EQ(own.code, 0);
    EXPECT_THAT(own.out, HasSubstr(std::string("Usage: halfnote ") + verb));
  }
  EXPECT_THAT(help, HasSubstr("Exit codes"));
  const std::string run = place.run(words("run --help")).out;
  for (const char* option :
       {"--data",       "--eval-data", "--epochs",      "--steps",     "--batch",
        "--dim",        "--normalize", "--resize",      "--map",       "--limit-samples",
        "--seed",       "--threads",   "--device",      "--run-dir",   "--resume",
        "--save-every", "--keep",      "--eval-every",  "--log-every", "--progress",
        "--kernels",    "--export",    "--plan-memory", "--memory "}) {
    EXPECT_THAT(run, HasSubstr(option));
  }
}

}  // namespace
}  // namespace halfnote::cli_test
