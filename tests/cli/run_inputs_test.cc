// Which dim of an input counts the samples, and what is done to the numbers of a target.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Losses of the steps of a run.
std::vector<double> step_losses(const Workplace& place, const std::string& run) {
  std::vector<double> values;
  std::istringstream lines(place.read(run + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss")) values.push_back(json["loss"]);
  }
  return values;
}

/// A graph of these inputs whose loss is mean((x · w − t)²).
void write_model(const Workplace& place, const std::string& inputs, const std::string& nodes) {
  place.write("g.onnxtxt", "<ir_version: 8, opset_import: [\"\" : 17]>\ng (" + inputs +
                               ") => (float[] loss)\n<float[2,1] w = {1, -1}>\n{ " + nodes +
                               " loss = ReduceMean <keepdims = 0> (s) }\n");
  const Outcome made = place.run(
      words("compile g.onnxtxt -o g.hn.onnx -q --loss-output loss --optimizer sgd --lr 0.125"));
  ASSERT_EQ(made.code, 0) << made.err;
}

const char* const kNodes = "m = MatMul (x, w) d = Sub (m, t) s = Mul (d, d)";

/// x (6, 3, 2): samples first, then times and features; t (6, 3, 1).
void write_data(const Workplace& place) {
  std::vector<float> x, t;
  for (int i = 0; i < 36; ++i) x.push_back(static_cast<float>((i * 7) % 11) / 8);
  for (int i = 0; i < 18; ++i) t.push_back(static_cast<float>((i * 5) % 7) / 8);
  place.write("x.npy", npy("<f4", "(6, 3, 2)", floats(x)));
  place.write("t.npy", npy("<f4", "(6, 3, 1)", floats(t)));
}

const std::string kRun =
    "run g.hn.onnx --data x=x.npy,t=t.npy --batch 2 --steps 3 --no-shuffle --progress none ";

TEST(RunInputs, TimeFirstTrainsAsSamplesFirst) {
  const Workplace place;
  write_data(place);
  write_model(place, "float[batch,3,2] x, float[batch,3,1] t", kNodes);
  ASSERT_EQ(place.run(words(kRun + "--run-dir first")).code, 0);
  write_model(place, "float[3,batch,2] x, float[3,batch,1] t", kNodes);
  const Outcome outcome = place.run(words(kRun + "--run-dir later"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("x f32[3,2]: samples along axis 1"));
  ASSERT_EQ(step_losses(place, "first").size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(step_losses(place, "later")[i], step_losses(place, "first")[i], 1e-6) << i;
  }
}

TEST(RunInputs, ClassesMayStandBetweenTimeAndBatch) {
  const Workplace place;
  write_data(place);
  place.write(
      "g.onnxtxt",
      "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[3,batch,2] x) => "
      "(float[3,4,batch] y)\n<float[2,4] w = {1, 2, 3, 4, 4, 3, 2, 1}>\n{ m = MatMul (x, w) "
      "y = Transpose <perm = [0, 2, 1]> (m) }\n");
  ASSERT_EQ(place.run(words("compile g.onnxtxt -o g.hn.onnx -q --loss cross_entropy")).code, 0);
  std::string labels(18 * 8, '\0');
  for (size_t i = 0; i < 18; ++i) labels[8 * i] = static_cast<char>(i % 4);
  place.write("l.npy", npy("<i8", "(6, 3)", labels));
  const std::string run = "run g.hn.onnx --data x=x.npy,labels=l.npy --batch 2 --steps 3 ";
  const Outcome good = place.run(words(run + "--eval-data x=x.npy,labels=l.npy --run-dir r"));
  EXPECT_EQ(good.code, 0) << good.err;
  labels[8 * 7] = 4;
  place.write("l.npy", npy("<i8", "(6, 3)", labels));
  const Outcome bad = place.run(words(run + "--run-dir s"));
  EXPECT_EQ(bad.code, 5);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("sample 2"), HasSubstr("expected 0 to 3")));
}

TEST(RunInputs, AnAxisIsTakenFromTheOtherInputOrTheFlag) {
  const Workplace place;
  write_data(place);
  // Only t tells by its first dim that N counts samples; the rest says nothing, or two things.
  const std::string flipped =
      "m = MatMul (x, w) q = Transpose <perm = [1, 0, 2]> (m) d = Sub (q, t) s = Mul (d, d)";
  write_model(place, "float[3,N,2] x, float[N,3,1] t", flipped);
  EXPECT_THAT(place.run(words(kRun + "--run-dir a")).out, HasSubstr("x f32[3,2]: samples along"));
  write_model(place, "float[T,N,2] x, float[N,T,1] t", flipped);
  const Outcome unclear = place.run(words(kRun + "--run-dir b"));
  EXPECT_EQ(unclear.code, 2);
  EXPECT_THAT(unclear.err, AllOf(HasSubstr("it is not clear which dim of \"x\" counts the samples"),
                                 HasSubstr("--batch-axis x=1 if N does"),
                                 HasSubstr("--whole t if \"t\" has no batch")));
  EXPECT_FALSE(place.exists("b"));
  ASSERT_EQ(place.run(words(kRun + "--run-dir c --batch-axis x=1")).code, 0);
  write_model(place, "float[3,2,2] x, float[2,3,1] t", flipped);
  ASSERT_EQ(place.run(words(kRun + "--run-dir d --batch-axis x=1")).code, 0);
  EXPECT_EQ(step_losses(place, "a"), step_losses(place, "c"));
  EXPECT_EQ(step_losses(place, "a"), step_losses(place, "d"));
  struct Row {
    const char *flags, *message;
  };
  for (const Row& row : {Row{"x=3", "--batch-axis x: no such axis: expected 0 to 2, got 3 of f"},
                         Row{"y=1", "--batch-axis y: no such input: expected x, t"},
                         Row{"x", "--batch-axis is not understood: expected INPUT=AXIS"},
                         Row{"x=1 --whole x", "--batch-axis x does nothing here"},
                         Row{"x=1 x=0", "--batch-axis x is given twice"}}) {
    const Outcome bad = place.run(words(kRun + "--run-dir e --batch-axis " + row.flags));
    EXPECT_EQ(bad.code, 2) << row.flags;
    EXPECT_THAT(bad.err, HasSubstr(row.message));
  }
  write_model(place, "float[3,batch,2] x, float[batch,3,1] t", flipped);
  const Outcome other = place.run(words(kRun + "--run-dir e --batch-axis x=0"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--batch-axis x: that dim is no batch: expected the dim that is "
                                   "called so, got 0 of float[3,batch,2]"));
}

TEST(RunInputs, WhatIsAlikeInAllInputsIsRefusedOrTold) {
  const Workplace place;
  write_data(place);
  write_model(place, "float[3,s27,2] x, float[3,s27,1] t", kNodes);
  const Outcome unclear = place.run(words(kRun + "--run-dir a"));
  EXPECT_EQ(unclear.code, 2);
  EXPECT_THAT(unclear.err, AllOf(HasSubstr("not clear which dim of \"x\" counts the samples"),
                                 HasSubstr("--batch-axis x=1 if s27 does (time first)"),
                                 HasSubstr("--batch-axis x=0 if 3 does")));
  const Outcome later = place.run(words(kRun + "--run-dir b --batch-axis x=1"));
  ASSERT_EQ(later.code, 0) << later.err;
  EXPECT_THAT(later.out, HasSubstr("t f32[3,1]: samples along axis 1"));
  write_model(place, "float[s77,s27,2] x, float[s77,s27,1] t", kNodes);
  const Outcome told = place.run(words(kRun + "--run-dir c"));
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.err,
              HasSubstr("note: \"s77\" is taken to count the samples, as the first dim of "
                        "\"x\" float[s77,s27,2]; --batch-axis x=1 takes \"s27\""));
  write_model(place, "float[batch,s27,2] x, float[batch,s27,1] t", kNodes);
  EXPECT_EQ(place.run(words(kRun + "--run-dir d")).err, "");
}

TEST(RunInputs, ATableBesideSamplesIsFedWhole) {
  const Workplace place;
  write_data(place);
  const std::string nodes = "a = Add (x, table) m = MatMul (a, w) d = Sub (m, t) s = Mul (d, d)";
  place.write("table.npy", npy("<f4", "(3, 2)", floats({1, 2, 3, 4, 5, 6})));
  int run = 0;
  for (const char* inputs : {"float[N,3,2] x, float[3,2] table, float[N,3,1] t",
                             "float[3,2] table, float[N,3,2] x, float[N,3,1] t"}) {
    write_model(place, inputs, nodes);
    const Outcome outcome = place.run(
        words("run g.hn.onnx --data x=x.npy,table=table.npy,t=t.npy --batch 2 --steps 3 --progress "
              "none --run-dir r" +
              std::to_string(++run)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("table f32[3,2]: whole"));
  }
}

TEST(RunInputs, TheTargetOfALossKeepsItsNumbers) {
  const Workplace place;
  place.write("g.onnxtxt",
              "<ir_version: 8, opset_import: [\"\" : 17]>\ng (float[N,1,2,2] x) => (float[N,1,2,2] "
              "y)\n<float[1,1,1,1] w = {1}>\n{ y = Conv (x, w) }\n");
  ASSERT_EQ(place
                .run(words("compile g.onnxtxt -o g.hn.onnx -q --loss bce_with_logits --optimizer "
                           "sgd --lr 0.5"))
                .code,
            0);
  std::string image(16, '\x40'), mask(16, '\0');
  for (size_t i = 0; i < 16; i += 3) mask[i] = 1;
  place.write("x.npy", npy("|u1", "(4, 2, 2)", image));
  place.write("t.npy", npy("|u1", "(4, 1, 2, 2)", mask));
  const std::string run =
      "run g.hn.onnx --data x=x.npy,target=t.npy --batch 2 --steps 2 --no-shuffle --progress none ";
  const Outcome outcome = place.run(words(run + "--normalize 0.5,0.25 --run-dir r"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("target f32[1,2,2]: not scaled"));
  EXPECT_THAT(outcome.out, HasSubstr("x f32[1,2,2]: /255, normalised"));
  // By hand: x is (64 / 255 − 0.5) / 0.25 everywhere, three of the eight targets of a batch are 1.
  const double x = (64 / 255.0 - 0.5) / 0.25;
  EXPECT_NEAR(step_losses(place, "r").at(0), std::log1p(std::exp(x)) - x * 3 / 8, 1e-5);
  mask[5] = '\xff';
  place.write("t.npy", npy("|u1", "(4, 1, 2, 2)", mask));
  const Outcome bad = place.run(words(run + "--run-dir s"));
  EXPECT_EQ(bad.code, 5);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("sample 1 of \"target\" is no target of the loss"),
                             HasSubstr("expected numbers from 0 to 1, got 255 in element 1"),
                             HasSubstr("--bytes target=scale divides by 255")));
  EXPECT_EQ(place.run(words(run + "--run-dir t --bytes target=scale")).code, 0);
  // A file that names no target has none.
  std::string artifact = place.read("g.hn.onnx");
  const size_t key = artifact.find("halfnote.target"), end = artifact.find("\nbce_with", key);
  ASSERT_NE(end, std::string::npos);
  artifact[end] = ' ';
  place.write("g.hn.onnx", artifact);
  EXPECT_EQ(place.run(words(run + "--run-dir u --bytes x=scale --bytes target=scale")).code, 0);
}

TEST(RunInputs, WhatIsPrintedGoesIntoNoFileOfTheRun) {
  const Workplace place;
  place.compile("a.onnx");
  const std::string run =
      "run a.onnx --data x=x.npy,labels=labels.npy --batch 4 --steps 2 --run-dir r --progress none";
  const std::string line =
      "cd " + (place / ".").string() + " && " + program_under_test() + " " + run;
  EXPECT_NE(std::system((line + " >&- 2>&-").c_str()), 0);
  EXPECT_EQ(place.exists("r/lock") ? place.read("r/lock").find("artifact") : std::string::npos,
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::cli_test
