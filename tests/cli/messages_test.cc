// What a message must say so that a stranger can act on it: which file, sample, node, and a hint
// that helps.
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kHeader = "<ir_version: 10, opset_import: [\"\" : 23]>\n";
constexpr const char* kWeights =
    "float[6,3] w = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1, 1, 2, 3, 4, 5, 6}";

/// Compiles a model given as text with output `loss`, and trains it.
Outcome train_model(const Workplace& place, const std::string& text, const std::string& more,
                    const std::string& flags = "") {
  place.write("m.onnxtxt", kHeader + text);
  const Outcome compiled =
      place.run(words("compile m.onnxtxt -q --loss-output loss -o m.onnx" + flags));
  return compiled.code != 0 ? compiled : place.run(words("run m.onnx " + more));
}

TEST(Messages, ALabelIsNamedByItsSample) {
  // The labels are computed, so only the loss itself sees that one is no class.
  const Workplace place;
  const std::string model = std::string("g (float[N,6] x, int64[N] labels) => (float loss) < ") +
                            kWeights +
                            ", int64[1] zero = {0} >\n{ h = MatMul (x, w) l = Add (labels, zero)\n"
                            "  loss = SoftmaxCrossEntropyLoss (h, l) }\n";
  const Outcome outcome = train_model(
      place, model, "--epochs 1 --batch 22 --threads 1 --data x=x.npy,labels=wrong.npy");
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("wrong.npy"),
                                 HasSubstr("sample 5 of \"labels\": label 3 is no class"),
                                 HasSubstr("expected 0 to 2, got 3")));
}

TEST(Messages, ClassWeightsThatALossRefusesAreNamed) {
  const Workplace place;
  const auto compile = [&](const std::string& weights, const std::string& nodes) {
    place.write("m.onnxtxt",
                kHeader + std::string("g (float[N,6] x, int64[N] labels) => (float loss) < ") +
                    kWeights + ", " + weights + " >\n{ h = MatMul (x, w)\n" + nodes + " }\n");
    return place.run(words("compile m.onnxtxt -q --loss-output loss -o m.onnx")).err;
  };
  for (const char* loss :
       {"loss = SoftmaxCrossEntropyLoss (h, labels, balance)",
        "p = LogSoftmax (h) loss = NegativeLogLikelihoodLoss (p, labels, balance)"}) {
    EXPECT_THAT(compile("float[4] balance = {1, 2, 1, 1}", loss),
                AllOf(HasSubstr("the class weights \"balance\" do not fit the scores"),
                      HasSubstr("expected shape [3], got [4]"), HasSubstr("one weight for each")));
    EXPECT_THAT(compile("float[3] balance = {1, 2, 1}", loss),
                AllOf(HasSubstr("the class weights \"balance\" of a loss cannot be trained"),
                      HasSubstr("--freeze 'balance'")));
  }
}

TEST(Messages, AnIndexThatIsNoLabelIsNotCalledOne) {
  const Workplace place;
  const std::string model =
      "g (int64[N] labels, float[N,6] x) => (float loss) < float[3,6] w = {1, 2, 3, 4, 5, 6, 6, 5, "
      "4, 3, 2, 1, 1, 2, 3, 4, 5, 6} >\n{ e = Gather (w, labels) d = Sub (e, x) s = Mul (d, d)\n"
      "  loss = ReduceMean <keepdims: int = 0> (s) }\n";
  const Outcome outcome = train_model(
      place, model, "--epochs 1 --batch 22 --threads 1 --data x=x.npy,labels=wrong.npy");
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("sample 5 of \"labels\": 3 is out of range"), HasSubstr("Gather"),
                    HasSubstr("[-3, 3), got 3"), Not(HasSubstr("class"))));
}

TEST(Messages, ABatchThatTheDataCannotFillIsOneOfTheData) {
  const Workplace place;
  place.compile("big.hn.onnx", {});
  for (const char* length : {" --epochs 1", " --steps 3"}) {
    const Outcome outcome = place.run(words(
        "run big.hn.onnx --data x=x.npy,labels=labels.npy --batch 100000" + std::string(length)));
    EXPECT_EQ(outcome.code, 5) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("too few samples for one batch")) << length;
  }
}

TEST(Messages, StepsThatChangeNothingAreToldBefore) {
  const Workplace place;
  place.compile("acc.hn.onnx", words("--accumulate 4"));
  const std::string run = std::string("run acc.hn.onnx ") + kTrain;
  const Outcome none = place.run(words(run + " --steps 3"));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("before its first update"), HasSubstr("at least 4 steps")));
  const Outcome some = place.run(words(run + " --steps 7 --run-dir r"));
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.err, AllOf(HasSubstr("the last 3 of 7"), HasSubstr("--steps 4")));
  const Outcome whole = place.run(words(run + " --steps 8 --run-dir w"));
  EXPECT_EQ(whole.err, "");
  const Outcome again = place.run(words(run + " --steps 4 --run-dir w --resume"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("nothing is left to train: the run has done 8 steps of 4"));
}

TEST(Messages, ARunFolderWithoutACheckpointIsNoDeadEnd) {
  const Workplace place;
  place.compile("a.hn.onnx", words("--lr 1e30 --optimizer sgd"));
  const std::string run =
      std::string("run a.hn.onnx --steps 8 --save-every 0 --run-dir r ") + kTrain;
  const Outcome first = place.run(words(run));
  EXPECT_EQ(first.code, 6) << first.err;
  EXPECT_THAT(first.err,
              AllOf(HasSubstr("the loss is "), HasSubstr("compile again"), Not(HasSubstr("-nan"))));
  EXPECT_THAT(place.run(words(run)).err, HasSubstr("begin it again by --resume"));
  const Outcome resumed = place.run(words(run + " --resume"));
  EXPECT_EQ(resumed.code, 6);
  EXPECT_THAT(resumed.err, HasSubstr("begins again"));
}

TEST(Messages, AFullDiskBehindTheTableEndsTheRunBeforeIt) {
  const Workplace place;
  place.compile("a.hn.onnx");
  Launch launch;
  launch.output = "/dev/full";
  const Outcome outcome =
      place.run(words(std::string("run a.hn.onnx --steps 2 --run-dir r ") + kTrain), launch);
  EXPECT_EQ(outcome.code, 8) << outcome.err;
  EXPECT_FALSE(place.exists("r/model.onnx"));
  EXPECT_FALSE(place.exists("r/checkpoints"));
}

TEST(Messages, APlaceThatCannotBeWrittenIsToldBeforeTheWork) {
  const Workplace place;
  for (const char* output : {"-o none/a.onnx", "-o /dev/full", "-o a.onnx --report none/r.json"}) {
    const auto before = place.list();
    const Outcome outcome =
        place.run(words(std::string("compile tiny.onnxtxt -q --loss cross_entropy --dump-after "
                                    "insert-casts --dump-folder dumps ") +
                        output));
    EXPECT_EQ(outcome.code, 8) << outcome.err;
    EXPECT_EQ(place.list(), before) << output << ": a pass has run";
  }
  place.compile("a.onnx");
  const Outcome outcome =
      place.run(words(std::string("run a.onnx --steps 1 --export /dev/full ") + kTrain));
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr("cannot be written"));
  EXPECT_FALSE(place.exists("runs"));
}

TEST(Messages, ALossThatNeverWasFiniteBlamesNoLearningRate) {
  const Workplace place;
  const Outcome outcome = train_model(
      place,
      std::string("g (float[N,6] x) => (float loss) < ") + kWeights +
          ", float[1] minus = {-1} >\n{ h = MatMul (x, w) a = Abs (h) n = Mul (a, minus)\n"
          "  s = Sqrt (n) loss = ReduceMean <keepdims: int = 0> (s) }\n",
      "--steps 60 --batch 4 --threads 1 --data x=x.npy");
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("the forward pass itself"), Not(HasSubstr("learning rate"))));
}

TEST(Messages, AWeightThatIsNotFiniteIsNamed) {
  const Workplace place;
  const Outcome outcome =
      train_model(place,
                  "g (float[N,6] x) => (float loss) < float[6,1] bad = {1, 2, 3, 4, nan, 6} >\n"
                  "{ h = MatMul (x, bad) loss = ReduceMean <keepdims: int = 0> (h) }\n",
                  "--steps 60 --batch 4 --threads 1 --data x=x.npy");
  EXPECT_EQ(outcome.code, 6) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("\"bad\" held a NaN or Inf before the first step"));
}

TEST(Messages, AFixedBatchIsNotToldToTakeAnother) {
  const Workplace place;
  Launch limited;
  limited.memory_limit = uint64_t{64} << 30;
  place.write("m.onnxtxt",
              std::string(kHeader) +
                  "g (float[4,6] x) => (float loss) < float[6,1] w = {1, 2, 3, 4, 5, 6}"
                  ", int64[4] shape = {1, 1048576, 131072, 1}, int64[2] axes = {1, 2} >\n"
                  "{ h = MatMul (x, w) u = Unsqueeze (h, axes) y = Expand (u, shape) t = Tanh (y)\n"
                  "  loss = ReduceMean <keepdims: int = 0> (t) }\n");
  ASSERT_EQ(place.run(words("compile m.onnxtxt -q --loss-output loss -o m.onnx")).code, 0);
  const Outcome outcome = place.run(words("run m.onnx --steps 1 --data x=x.npy"), limited);
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("fixes its batch"), Not(HasSubstr("--batch"))));
}

TEST(Messages, ADeepSpeedFileIsNamed) {
  const Workplace place;
  place.write("ds.json", "{\"fp16\": {\"enabled\": 3}}");
  const Outcome outcome =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy -o a.onnx --deepspeed ds.json"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("ds.json: "), HasSubstr("fp16.enabled")));
}

TEST(Messages, OperandsThatDoNotFitAreShown) {
  const Workplace place;
  place.write("m.onnxtxt", std::string(kHeader) + "g (float[4,5] x) => (float[4,3] y) < " +
                               kWeights + " >\n{ [odd] y = MatMul (x, w) }\n");
  const Outcome outcome = place.run(words("compile m.onnxtxt --inference -o a.onnx"));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("m.onnxtxt"), HasSubstr("odd"), HasSubstr("[4,5]"),
                                 HasSubstr("[6,3]")));
}

TEST(Messages, WhatStopsTheGradientIsNamed) {
  const Workplace place;
  const Outcome outcome =
      train_model(place,
                  std::string("g (float[N,6] x) => (float loss) < ") + kWeights +
                      " >\n{ h = MatMul (x, w) [steps] r = Round (h)\n"
                      "  loss = ReduceMean <keepdims: int = 0> (r) }\n",
                  "");
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("no weight has a gradient"), HasSubstr("Round"), HasSubstr("steps")));
}

TEST(Messages, AllThatStopsGradientsIsNamedAsInTheFile) {
  const Workplace place;
  const Outcome outcome =
      train_model(place,
                  std::string("g (float[N,6] x) => (float loss) < ") + kWeights +
                      " >\n{ h = MatMul (x, w) s = Sigmoid (h) [one] d = Bernoulli (s)\n"
                      "  [other] e = Bernoulli (d) [best] k = ArgMax <axis: int = 1> (h)\n"
                      "  f = Cast <to: int = 1> (k) [places] n = NonZero (h)\n"
                      "  m = Cast <to: int = 1> (n) a = ReduceSum <keepdims: int = 0> (e)\n"
                      "  b = ReduceSum <keepdims: int = 0> (f)\n"
                      "  c = ReduceSum <keepdims: int = 0> (m) loss = Sum (a, b, c) }\n",
                  "");
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("ArgMax"), HasSubstr("best"), HasSubstr("NonZero"),
                                 HasSubstr("places"), HasSubstr("2 nodes; draws whole numbers"),
                                 HasSubstr("one, other"), Not(HasSubstr("Less"))));
}

TEST(Messages, NumbersOfThePolicyStandAsTheyWereWritten) {
  const Workplace place;
  place.compile("a.onnx", words("--lr 0.001 --optimizer adamw --report r.json"));
  const auto report = nlohmann::json::parse(place.read("r.json"));
  EXPECT_EQ(report["policy"]["optimizer"]["lr"].dump(), "0.001");
}

TEST(Messages, NoShuffleKeepsTheOrderOfTheData) {
  const Workplace place;
  place.compile("a.onnx");
  const auto first_loss = [&](const std::string& name, const std::string& more) {
    const Outcome outcome = place.run(
        words(std::string("run a.onnx --steps 3 -q --run-dir ") + name + " " + kTrain + more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::string lines = place.read(name + "/metrics.jsonl");
    return nlohmann::json::parse(lines.substr(0, lines.find('\n')))["loss"].get<double>();
  };
  EXPECT_NE(first_loss("s1", " --seed 1"), first_loss("s2", " --seed 2"));
  EXPECT_EQ(first_loss("n1", " --seed 1 --no-shuffle"), first_loss("n2", " --seed 2 --no-shuffle"));
  const Outcome outcome = place.run(
      words(std::string("run a.onnx --steps 6 -q --resume --run-dir n1 --seed 1 ") + kTrain));
  EXPECT_EQ(outcome.code, 9);
  EXPECT_THAT(outcome.err, HasSubstr("order of samples"));
}

TEST(Messages, OutputsNeverTakeThePlaceOfInputs) {
  const Workplace place;
  place.compile("a.onnx");
  place.write("data.npy", place.read("x.npy"));
  const auto before = place.list();
  for (const char* flags :
       {"--export a.onnx", "--export ./a.onnx", "--profile=a.onnx", "--export p --profile=p"}) {
    const Outcome outcome =
        place.run(words("run a.onnx --steps 1 " + std::string(kTrain) + " " + flags));
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr("are the same file"));
    EXPECT_EQ(place.list(), before) << flags;
  }
}

TEST(Messages, NumbersOutOfRangeAreRefused) {
  const Workplace place;
  for (const char* flags :
       {"--warmup -1", "--schedule step --schedule-step-size 1 --schedule-gamma -2"}) {
    const Outcome outcome =
        place.run(words(std::string("compile tiny.onnxtxt --loss cross_entropy ") + flags));
    EXPECT_EQ(outcome.code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr("0 or more"));
  }
  place.write("p.toml", "[[optimizer.groups]]\npattern = \".*\"\nlr_factor = -2\n");
  const Outcome group =
      place.run(words("compile tiny.onnxtxt --loss cross_entropy --policy p.toml"));
  EXPECT_EQ(group.code, 2) << group.err;
  place.compile("a.onnx");
  const Outcome threads =
      place.run(words("run a.onnx --steps 1 --threads 100000 " + std::string(kTrain)));
  EXPECT_EQ(threads.code, 2) << threads.err;
  EXPECT_FALSE(place.exists("runs"));
}

}  // namespace
}  // namespace halfnote::cli_test
