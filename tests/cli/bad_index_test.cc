// Labels and indices out of range: which field and sample a run names, on the CPU and on a device.
#include <algorithm>
#include <cstring>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kDevices[] = {"cpu", "cuda-emulated"};

std::string bytes_of(const std::vector<int64_t>& numbers) {
  std::string bytes(numbers.size() * sizeof(int64_t), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

/// 12 samples, each `width` zeros, but for some elements.
std::string zeros_but(int64_t width, const std::vector<std::pair<size_t, int64_t>>& elements) {
  std::vector<int64_t> numbers(static_cast<size_t>(12 * width));
  for (const auto& [at, number] : elements) numbers[at] = number;
  const std::string shape = width == 1 ? "(12,)" : "(12, " + std::to_string(width) + ")";
  return npy("<i8", shape, bytes_of(numbers));
}

/// Trains the model `m.onnxtxt`, of batches of 4 in order, and gives what ends it, without the
/// sentence about checkpoints, which differs: a device may have changed the states.
std::string message_of(const Workplace& place, const std::string& inputs, const std::string& nodes,
                       const std::string& data, const std::string& device) {
  place.write("m.onnxtxt", "<ir_version: 10, opset_import: [\"\" : 23]>\ng (" + inputs +
                               ") => (float loss) <\n"
                               "  float[3,2] small = {1, 2, 3, 4, 5, 6},\n"
                               "  float[9,2] large = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, "
                               "7, 8, 9},\n  float[2,3] w = {1, 2, 3, 4, 5, 6},\n"
                               "  int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, "
                               "int64[1] three = {3}, float[2] start = {0, 0} >\n{ " +
                               nodes + " }\n");
  const Outcome compiled =
      place.run(words("compile m.onnxtxt -q --loss-output loss -o m.onnx --optimizer sgd"));
  if (compiled.code != 0) return compiled.err;
  const Outcome outcome =
      place.run(words("run m.onnx --epochs 1 --batch 4 --no-shuffle -q "
                      "--threads 1 --data " +
                      data + " --device " + device));
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  const std::string& text = outcome.err;
  return text.substr(0, std::min(text.find("; what was trained"), text.find('\n')));
}

/// The message of the CPU, which that of a device must be.
std::string message_of(const Workplace& place, const std::string& inputs, const std::string& nodes,
                       const std::string& data) {
  std::string told[2];
  for (const size_t k : {0, 1}) told[k] = message_of(place, inputs, nodes, data, kDevices[k]);
  EXPECT_EQ(told[0], told[1]);
  return told[0];
}

/// Whole floats may feed labels: they are looked at before the first step as integers are.
TEST(BadIndex, LabelsOfFloatsAreLookedAtBeforeTheFirstStep) {
  const Workplace place;
  for (const float label : {3.0F, -1.0F, 1.5F}) {
    std::vector<float> labels(12, 1.0F);
    labels[11] = label;
    std::string bytes(labels.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), labels.data(), bytes.size());
    place.write("t.npy", npy("<f4", "(12,)", bytes));
    place.write("x.npy", npy("<f4", "(12, 2)", std::string(12 * 2 * sizeof(float), '\0')));
    const std::string told =
        message_of(place, "float[N,2] x, int64[N] t",
                   "s = MatMul (x, w) loss = SoftmaxCrossEntropyLoss (s, t)", "x=x.npy,t=t.npy");
    EXPECT_THAT(told, HasSubstr("label out of range in \"t\", sample 11"));
  }
}

/// Exporters take the shape of a view from other inputs, or from what the model computes.
TEST(BadIndex, TheShapeOfAViewMayComeFromAnywhere) {
  const Workplace place;
  place.write("ids.npy", zeros_but(1, {{7, 5}}));
  place.write("x.npy", npy("<f4", "(12, 2)", std::string(12 * 2 * sizeof(float), '\0')));
  for (const std::string of : {"x", "h"}) {
    const std::string told =
        message_of(place, "int64[N] ids, float[N,2] x",
                   "h = MatMul (x, w) k = Shape (" + of +
                       ") n = Slice (k, zero, one) v = Reshape (ids, n)\n"
                       "  [first] e = Gather (small, v) q = MatMul (e, w) s = Add (q, h)\n"
                       "  loss = ReduceMean <keepdims: int = 0> (s)",
                   "ids=ids.npy,x=x.npy");
    EXPECT_THAT(told, HasSubstr("sample 7 of \"ids\": 5 is out of range for the Gather"));
  }
}

/// The second column may hold a 7, the first one may not: the sample of the second is innocent.
TEST(BadIndex, TheColumnThatTheNodeReadsIsLookedAt) {
  const Workplace place;
  place.write("ids.npy", zeros_but(2, {{2 * 8 + 1, 7}, {2 * 9 + 0, 7}}));
  const std::string told =
      message_of(place, "int64[N,2] ids",
                 "a = Slice (ids, zero, one, one) b = Slice (ids, one, two, one)\n"
                 "  [first] e = Gather (small, a) [second] f = Gather (large, b) s = Add (e, f)\n"
                 "  loss = ReduceMean <keepdims: int = 0> (s)",
                 "ids=ids.npy");
  EXPECT_THAT(told, HasSubstr("sample 9 of \"ids\": 7 is out of range for the Gather"));
}

/// As a double it would be another number.
TEST(BadIndex, ALargeNumberIsToldInAllItsDigits) {
  const Workplace place;
  place.write("ids.npy", zeros_but(1, {{7, 9007199254740993}}));
  const std::string told = message_of(
      place, "int64[N] ids", "e = Gather (small, ids) loss = ReduceMean <keepdims: int = 0> (e)",
      "ids=ids.npy");
  EXPECT_THAT(told, HasSubstr("\"ids\": 9007199254740993 is out of range for the Gather"));
}

TEST(BadIndex, TheFieldThatTheNodeReadsIsNamed) {
  const Workplace place;
  place.write("ids.npy", zeros_but(1, {{9, 7}}));
  place.write("other.npy", zeros_but(1, {{8, 7}}));
  const std::string told =
      message_of(place, "int64[N] other, int64[N] ids",
                 "e = Gather (small, ids) f = Gather (large, other) s = Add (e, f)\n"
                 "  loss = ReduceMean <keepdims: int = 0> (s)",
                 "other=other.npy,ids=ids.npy");
  EXPECT_THAT(told, HasSubstr("ids.npy: sample 9 of \"ids\": 7 is out of range for the Gather"));
}

/// 3 + 4 is no index of a table of 3 rows; the 7 of sample 8 has nothing to do with it.
TEST(BadIndex, WhatTheModelComputesNamesNoSample) {
  const Workplace place;
  place.write("ids.npy", zeros_but(1, {{9, 3}}));
  place.write("more.npy", zeros_but(1, {{9, 4}}));
  place.write("other.npy", zeros_but(1, {{8, 7}}));
  const std::string told = message_of(place, "int64[N] ids, int64[N] more, int64[N] other",
                                      "[sum] i = Add (ids, more) [find] e = Gather (small, i)\n"
                                      "  f = Gather (large, other) s = Add (e, f)\n"
                                      "  loss = ReduceMean <keepdims: int = 0> (s)",
                                      "ids=ids.npy,more=more.npy,other=other.npy");
  EXPECT_THAT(told, AllOf(HasSubstr("node \"find\" (Gather): index out of range"),
                          HasSubstr("[-3, 3), got 7"),
                          HasSubstr("the model computes it in node \"sum\" (Add): which sample it "
                                    "comes from cannot be told"),
                          Not(HasSubstr("other")), Not(HasSubstr("sample 8"))));
}

/// -1 - 9 is no index of 9 rows, and -1 - 8 is one.
TEST(BadIndex, AnOffsetLeadsToTheElementThatIsStored) {
  const Workplace place;
  place.write("ids.npy", zeros_but(1, {{8, 8}, {9, 9}}));
  place.write("other.npy", zeros_but(1, {{1, -10}}));
  const std::string told =
      message_of(place, "int64[N] other, int64[N] ids",
                 "n = Neg (ids) i = Sub (n, one) e = Gather (large, i)\n"
                 "  o = Abs (other) c = Equal (o, zero) f = Cast <to: int = 1> (c)\n"
                 "  u = Unsqueeze (f, one) s = Add (e, u)\n"
                 "  loss = ReduceMean <keepdims: int = 0> (s)",
                 "other=other.npy,ids=ids.npy");
  EXPECT_THAT(told, HasSubstr("sample 9 of \"ids\": -10, which the model makes of 9, is out of "
                              "range for the Gather"));
}

TEST(BadIndex, FieldsThatAreJoinedAreToldApart) {
  const Workplace place;
  place.write("ids.npy", zeros_but(2, {{2 * 4, 2}}));
  place.write("more.npy", zeros_but(2, {{2 * 9 + 1, 7}}));
  place.write("other.npy", zeros_but(4, {{4 * 8, 7}}));
  const std::string told =
      message_of(place, "int64[N,4] other, int64[N,2] ids, int64[N,2] more",
                 "j = Concat <axis: int = 1> (ids, more) e = Gather (small, j)\n"
                 "  f = Gather (large, other) s = Add (e, f)\n"
                 "  loss = ReduceMean <keepdims: int = 0> (s)",
                 "other=other.npy,ids=ids.npy,more=more.npy");
  EXPECT_THAT(told, HasSubstr("sample 9 of \"more\": 7 is out of range for the Gather"));
}

/// The labels are those of the sample but for the first: the positions of a language model.
TEST(BadIndex, LabelsThatAreLeftOutMayBeAnything) {
  const Workplace place;
  place.write("context.npy", zeros_but(2, {}));
  place.write("ids.npy", zeros_but(3, {{3 * 4, 7}, {3 * 9 + 2, 4}}));
  const std::string told = message_of(
      place, "int64[N,2] context, int64[N,3] ids",
      "l = Slice (ids, one, three, one) e = Gather (small, context) h = MatMul (e, w)\n"
      "  t = Transpose <perm: ints = [0, 2, 1]> (h) loss = SoftmaxCrossEntropyLoss (t, l)",
      "context=context.npy,ids=ids.npy");
  EXPECT_THAT(told, HasSubstr("sample 9 of \"ids\": label 4 is no class"));
}

TEST(BadIndex, ComputedLabelsHaveAPosition) {
  const Workplace place;
  place.write("context.npy", zeros_but(1, {}));
  place.write("ids.npy", zeros_but(1, {{9, 2}}));
  for (const char* ignores : {"", " <ignore_index: int = -7>"}) {
    const std::string told =
        message_of(place, "int64[N] context, int64[N] ids",
                   "e = Gather (small, context) h = MatMul (e, w) [twice] l = Add (ids, ids)\n"
                   "  loss = SoftmaxCrossEntropyLoss" +
                       std::string(ignores) + " (h, l)",
                   "context=context.npy,ids=ids.npy");
    EXPECT_THAT(
        told, AllOf(HasSubstr("label 4 at position 1 is no class"),
                    HasSubstr(*ignores == 0 ? "expected 0 to 2, got 4"
                                            : "expected 0 to 2 or ignore_index -7, got 4"),
                    HasSubstr("computes it in node \"twice\" (Add)"), Not(HasSubstr("sample 9"))));
  }
}

TEST(BadIndex, ANodeInABranchIsNamedAndItsSampleToo) {
  const Workplace place;
  place.write("ids.npy", zeros_but(1, {{9, 7}}));
  place.write("flag.npy", npy("|b1", "(1,)", std::string(1, '\x01')));
  const std::string model =
      "f = Squeeze (flag)\n"
      "  e = If (f) <then_branch = t () => (float[N,2] a) { [inner] a = Gather (small, %) },\n"
      "    else_branch = o () => (float[N,2] b) { b = Gather (large, ids) }>\n"
      "  loss = ReduceMean <keepdims: int = 0> (e)";
  const auto told = [&](const std::string& indices) {
    std::string nodes = model;
    nodes.replace(nodes.find('%'), 1, "i");
    return message_of(place, "bool[1] flag, int64[N] ids", "i = " + indices + " " + nodes,
                      "flag=flag.npy,ids=ids.npy");
  };
  EXPECT_THAT(told("Identity (ids)"),
              HasSubstr("sample 9 of \"ids\": 7 is out of range for the Gather"));
  EXPECT_THAT(told("Add (ids, ids)"),
              AllOf(HasSubstr("node \"inner\" (Gather)"), HasSubstr("got 14"),
                    HasSubstr("computes it in node \"i\" (Add)")));
}

TEST(BadIndex, ATripOfALoopIsNamed) {
  const Workplace place;
  place.write("ids.npy", zeros_but(3, {{3 * 9 + 1, 7}}));
  const auto told = [&](const std::string& ids) {
    return message_of(
        place, "int64[N,3] ids",
        "both = Add (ids, ids) h, e = Scan <num_scan_inputs: int = 1, scan_input_axes: ints = [1],"
        "\n    body = b (float[2] c, int64[N] i) => (float[2] d, float[N,2] r)\n"
        "    { d = Identity (c) [inner] r = Gather (small, i) }> (start, " +
            ids + ")\n  loss = ReduceMean <keepdims: int = 0> (e)",
        "ids=ids.npy");
  };
  EXPECT_THAT(told("ids"), HasSubstr("sample 9 of \"ids\": 7 is out of range for the Gather"));
  EXPECT_THAT(told("both"), AllOf(HasSubstr("node \"h/1/inner\" (Gather)"), HasSubstr("got 14")));
}

/// All labels are looked at before the first step, also where a device counts the correct ones by
/// itself and nobody reads the scores.
TEST(BadIndex, ALabelOfTheLastSampleEndsARunBeforeItsFirstStep) {
  const Workplace place;
  place.write("context.npy", zeros_but(1, {}));
  place.write("ids.npy", zeros_but(1, {{11, 3}}));
  const std::string told = message_of(place, "int64[N] context, int64[N] ids",
                                      "e = Gather (small, context) h = MatMul (e, w)\n"
                                      "  loss = SoftmaxCrossEntropyLoss (h, ids)",
                                      "context=context.npy,ids=ids.npy");
  EXPECT_THAT(told, HasSubstr("label out of range in \"ids\", sample 11: expected 0 to 2, got 3"));
  place.compile("tiny.onnx");
  for (const char* device : kDevices) {
    const Outcome outcome =
        place.run(words("run tiny.onnx --steps 1 --batch 4 --run-dir r --threads 1 --data "
                        "x=x.npy,labels=wrong.npy --no-shuffle --device " +
                        std::string(device)));
    EXPECT_EQ(outcome.code, 5) << device;
    EXPECT_THAT(outcome.err, HasSubstr("label out of range in \"labels\", sample 5"));
    EXPECT_FALSE(place.exists("r")) << device;
  }
}

/// A device looks at what a Slice takes before its step, so that what was trained can be saved.
TEST(BadIndex, ADeviceKeepsWhatWasTrainedBeforeASlicedIndex) {
  const Workplace place;
  place.write("ids.npy", zeros_but(2, {{2 * 9, 7}}));
  const std::string nodes =
      "a = Slice (ids, zero, one, one) t = Transpose <perm: ints = [1, 0]> (a)\n"
      "  e = Gather (small, t) loss = ReduceMean <keepdims: int = 0> (e)";
  for (const char* device : kDevices) {
    message_of(place, "int64[N,2] ids", nodes, "ids=ids.npy", device);
    const Outcome outcome = place.run(
        words("run m.onnx --epochs 1 --batch 4 --no-shuffle -q --threads 1 --data ids=ids.npy "
              "--device " +
              std::string(device)));
    EXPECT_THAT(outcome.err, HasSubstr("what was trained up to step 2 is saved")) << device;
  }
}

}  // namespace
}  // namespace halfnote::cli_test
