// "Scaled by S" as a unit: hand-made steps in which a gradient is unscaled twice, clipped before it
// is unscaled, or leaks out scaled. Each is a compile error that says which value and why; the
// right forms pass.
#include "passes/precision/scale_units.h"

#include "compiler/ir/text.h"
#include "support.h"

namespace halfnote::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A step with a scaled gradient `g` of `w`; `nodes` do the rest.
Graph step_with(std::string_view nodes, std::string_view outputs = "") {
  return parse_graph("step (float[2] x) => (" + std::string(outputs) + R"() <
   float loss_scale = {1024},  # scale=1
   float[2] w = {1, 2},  # trainable
   float lr = {0.5},
   float[2] sum = {0, 0}  # scale=1
> {
   [g] float[2] g = Mul (x, loss_scale)  # role=backward
   [inverse] float inverse = Reciprocal (loss_scale)  # role=scaling
)" + std::string(nodes) + "}\n",
                     "step");
}

std::string message_of(std::string_view nodes, std::string_view outputs = "") {
  Graph graph = step_with(nodes, outputs);
  return error_of([&] { check_scale_units(graph); }, ErrorCode::kInternal);
}

TEST(ScaleUnits, OneUnscaleIsRight) {
  Graph graph = step_with(R"(
   [plain] float[2] plain = Mul (g, inverse)  # role=scaling
   [update] float[2] w_new = ai.halfnote.SGD (w, plain, lr)  # role=optimizer
   state weight w -> w_new
)");
  check_scale_units(graph);
  EXPECT_EQ(graph.value(graph.find("g")).scale_power, 1);
  EXPECT_EQ(graph.value(graph.find("inverse")).scale_power, -1);
  EXPECT_EQ(graph.value(graph.find("plain")).scale_power, 0);
}

TEST(ScaleUnits, AnUnscaleByDivisionIsRight) {
  Graph graph = step_with(R"(
   [plain] float[2] plain = Div (g, loss_scale)
   [update] float[2] w_new = ai.halfnote.SGD (w, plain, lr)  # role=optimizer
   state weight w -> w_new
)");
  check_scale_units(graph);
  EXPECT_EQ(graph.value(graph.find("plain")).scale_power, 0);
}

TEST(ScaleUnits, SumsOfScaledGradientsKeepTheUnit) {
  Graph graph = step_with(R"(
   [next] float[2] next = Add (sum, g)
   state accumulator sum -> next
)");
  check_scale_units(graph);
  EXPECT_EQ(graph.value(graph.find("next")).scale_power, 1);
}

TEST(ScaleUnits, ADoubleUnscaleIsAnError) {
  EXPECT_THAT(message_of(R"(
   [once] float[2] once = Mul (g, inverse)
   [twice] float[2] twice = Mul (once, inverse)
   [update] float[2] w_new = ai.halfnote.SGD (w, twice, lr)  # role=optimizer
   state weight w -> w_new
)"),
              AllOf(HasSubstr("operand \"twice\""), HasSubstr("expected S^0, got S^-1"),
                    HasSubstr("unscaled twice"), HasSubstr("update")));
}

TEST(ScaleUnits, AClipBeforeTheUnscaleIsAnError) {
  EXPECT_THAT(message_of(R"(
   [norm] float norm = ai.halfnote.GlobalNorm (g)  # role=optimizer
   [plain] float[2] plain = Mul (g, inverse)
   [clipped] float[2] clipped = Div (plain, norm)
   [update] float[2] w_new = ai.halfnote.SGD (w, clipped, lr)  # role=optimizer
   state weight w -> w_new
)"),
              AllOf(HasSubstr("operand \"g\""), HasSubstr("expected S^0, got S^1"),
                    HasSubstr("not unscaled"), HasSubstr("GlobalNorm")));
}

TEST(ScaleUnits, AScaledGradientInTheOptimizerIsAnError) {
  EXPECT_THAT(message_of(R"(
   [update] float[2] w_new = ai.halfnote.SGD (w, g, lr)  # role=optimizer
   state weight w -> w_new
)"),
              AllOf(HasSubstr("operand \"g\""), HasSubstr("not unscaled")));
}

TEST(ScaleUnits, AScaledOutputIsAnError) {
  EXPECT_THAT(message_of("", "float[2] g"),
              AllOf(HasSubstr("output \"g\""), HasSubstr("expected S^0, got S^1")));
}

TEST(ScaleUnits, AScaledValueInAStateIsAnError) {
  EXPECT_THAT(message_of("   state moment w -> g\n"),
              AllOf(HasSubstr("the new value of state \"w\""), HasSubstr("S^1")));
}

TEST(ScaleUnits, AnUnscaledGradientInAScaledSumIsAnError) {
  EXPECT_THAT(message_of(R"(
   [plain] float[2] plain = Mul (g, inverse)
   [next] float[2] next = Add (sum, plain)
   state accumulator sum -> next
)"),
              AllOf(HasSubstr("operand \"plain\""), HasSubstr("expected S^1, got S^0")));
}

TEST(ScaleUnits, AScaledValueInANonlinearOpIsAnError) {
  EXPECT_THAT(message_of("   [e] float[2] e = Exp (g)\n"),
              AllOf(HasSubstr("operand \"g\""), HasSubstr("Exp")));
}

/// The gradient of what has no elements is a zero without a scale, and so is all that follows from
/// it.
TEST(ScaleUnits, WhatComesOfZerosFitsAnyUnit) {
  Graph graph = step_with(R"(
   [zero] float[2] zero = Constant <value: tensor = float[2] {0, 0}> ()
   [back] float[2] back = Neg (zero)  # role=backward
   [plain] float[2] plain = Mul (back, inverse)  # role=scaling
   [update] float[2] w_new = ai.halfnote.SGD (w, plain, lr)  # role=optimizer
   state weight w -> w_new
)");
  check_scale_units(graph);
}

TEST(ScaleUnits, ZerosFitAnyUnit) {
  Graph graph = step_with(R"(
   [zero] float[2] zero = Constant <value: tensor = float[2] {0, 0}> ()
   [masked] float[2] masked = Add (g, zero)
   [next] float[2] next = Add (sum, masked)
   state accumulator sum -> next
)");
  check_scale_units(graph);
  EXPECT_EQ(graph.value(graph.find("masked")).scale_power, 1);
}

}  // namespace
}  // namespace halfnote::test
