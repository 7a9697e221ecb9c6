// Artifacts that no compiler wrote: what the session would read past its end is refused before the
// first step.
#include <gmock/gmock.h>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "support.h"

namespace halfnote::test {
namespace {

using ::testing::HasSubstr;

struct Parts {
  std::string outputs = "float loss";
  std::string states;       // initializers
  std::string nodes;        // besides the loss
  std::string transitions;  // of the states
};

std::string artifact(const Parts& parts) {
  return R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[2] x) => (float[2] y) { float[2] y = Neg (x) }
training_info step {
   algorithm: s (float[2] x) => ()" +
         parts.outputs + ") <float unused = {0}" + parts.states + R"(> {
      float loss = ReduceSum <keepdims = 0> (x)
      float[1] one = ReduceSum <keepdims = 1> (x)
      float[2] two = Neg (x)
)" + parts.nodes +
         parts.transitions + "\n}}\n";
}

void prepare(const Parts& parts) {
  Session session(parse_model(artifact(parts), "artifact"), {.threads = 1});
  const Shape shape = {2};
  session.prepare({&shape, 1});
  EXPECT_EQ(session.attempted_steps() + session.floor_hits(), 0);
}

void expect_refused(const Parts& parts, const char* words) {
  try {
    prepare(parts);
    ADD_FAILURE() << "accepted: " << artifact(parts);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(HostileArtifact, TheLossIsTheFirstOutputAndOneNumber) {
  EXPECT_NO_THROW(prepare({}));
  EXPECT_NO_THROW(prepare({.outputs = "float[1] one"}));
  expect_refused({.outputs = ""}, "step gives no loss");
  expect_refused({.outputs = "float[2] two, float loss"}, "the loss of step");
}

TEST(HostileArtifact, WhatAStepReportsIsOneNumber) {
  for (const char* name : {"finite", "grad_norm", "learning_rate"}) {
    const std::string output = std::string("float[0] ") + name;
    expect_refused({.outputs = "float loss, " + output,
                    .states = ", float[0] none = {}",
                    .nodes = output + " = Neg (none)"},
                   name);
  }
}

TEST(HostileArtifact, StatesOfTheSessionAreOneNumber) {
  for (const char* name :
       {"loss_scale", "attempted_step", "applied_step", "\"loss_scale.floor_hits\""}) {
    const auto parts = [&](const std::string& type, const std::string& value) {
      return Parts{.states = ", " + type + " " + name + " = {" + value + "}",
                   .nodes = type + " next = Identity (" + name + ")\n",
                   .transitions = std::string("state counter ") + name + " -> next"};
    };
    EXPECT_NO_THROW(prepare(parts("int64", "0"))) << name;
    expect_refused(parts("int64[0]", ""), "its state");
    expect_refused(parts("int64[2]", "1, 2"), "its state");
  }
}

// Declared types stand in the file beside what inference finds; the importer takes them as they
// are.
TEST(HostileArtifact, StatesOfOtherTypesThanTheirNewValuesAreTheFilesFault) {
  const auto parts = [](const std::string& type, const std::string& next) {
    return Parts{.states = ", " + type + " w = {0, 1}",
                 .nodes = next + " next = Identity (w)\n",
                 .transitions = "state weight w -> next"};
  };
  EXPECT_NO_THROW(prepare(parts("float[2]", "float[2]")));
  expect_refused(parts("float[2]", "int16[2]"), "its new value \"next\" is int16[2]");
  expect_refused(parts("float[2]", "float[3]"), "its new value \"next\" is float[3]");
}

// So do the powers of the loss scale.
TEST(HostileArtifact, PowersOfTheLossScaleThatDoNotFitAreTheFilesFault) {
  const auto parts = [](const std::string& note) {
    return Parts{.states = ", float[2] w = {0, 1}" + note + "\n",
                 .nodes = "float[2] next = Add (two, two)\n",
                 .transitions = "state weight w -> next"};
  };
  EXPECT_NO_THROW(prepare(parts("")));
  expect_refused(parts("  # scale=1"), "carries the wrong power of the loss scale");
}

// All graphs read the one place that a state has.
TEST(HostileArtifact, AStateHasOneTypeInAllSteps) {
  const auto with = [](const std::string& w, const std::string& n) {
    return artifact({.states = ", float[2] w = {0, 1}",
                     .nodes = "float[2] next = Add (two, w)\n",
                     .transitions = "state weight w -> next"}) +
           R"(training_info evaluate {
   algorithm: s (float[2] x) => (float loss) <)" +
           w + R"(> {
      float loss = ReduceSum <keepdims = 0> (w)
      )" + n +
           R"( n = Neg (w)
      state weight w -> n
}}
)";
  };
  const auto make = [&](const std::string& w, const std::string& n) {
    return Session(parse_model(with(w, n), "artifact"), {.threads = 1});
  };
  EXPECT_NO_THROW(make("float[2] w = {0, 1}", "float[2]"));
  for (const auto& [w, n] : {std::pair("float[3] w = {0, 1, 2}", "float[3]"),
                             std::pair("int32[2] w = {0, 1}", "int32[2]")}) {
    try {
      make(w, n);
      ADD_FAILURE() << "accepted: " << w;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModel) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("its state w has two types"));
    }
  }
}

// A kernel copies as many bytes of each operand as the first one's type says.
TEST(HostileArtifact, OperandsAreOfTheTypesThatTheOperatorTakes) {
  const auto parts = [](const std::string& type) {
    return Parts{.outputs = "float loss, " + std::string("float[4] all"),
                 .states = ", " + type + "[2] other = {1, 2}",
                 .nodes = "float[4] all = Concat <axis = 0> (two, other)\n"};
  };
  EXPECT_NO_THROW(prepare(parts("float")));
  expect_refused(parts("uint8"), "must have the type of");
}

// Metadata are read with a stack of their own depth.
TEST(HostileArtifact, SettingsOfAnyDepthAreNoSettings) {
  constexpr size_t kDeep = 1'000'000;
  Model model = parse_model(artifact({}), "artifact");
  model.metadata["halfnote.policy"] =
      "{\"a\": " + std::string(kDeep, '[') + std::string(kDeep, ']') + "}";
  const Session session(std::move(model), {.threads = 1});
  EXPECT_EQ(session.accumulation(), 1);
}

}  // namespace
}  // namespace halfnote::test
