// Passes on 200 random models: the exact ones change no bit of any output, the rounding ones stay
// within their bound, each leaves a graph that verifies and whose text is read back as it is, and
// finds nothing to do a second time.
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"
#include "random_graph.h"
#include "support.h"

namespace halfnote::test {
namespace {

constexpr uint64_t kModels = 200;

void expect_round_trip(const Model& model) {
  const std::string text = print(model);
  EXPECT_EQ(print(parse_model(text, "again")), text);
}

/// Runs one pass; both sides must agree. Returns whether it changed the model.
bool expect_exact(Model& model, const CompileOptions& options, const char* pass) {
  SCOPED_TRACE(pass);
  const Results before = execute(model);
  const Ran ran = run_rows(model, options, {row_of(pass)});
  verify(model, {.typed = true});
  EXPECT_EQ(expect_agreement(before, execute(model), 0), static_cast<int>(before.size()));
  expect_round_trip(model);
  return ran.changed;
}

TEST(RandomGraphs, AreWellFormedAndTheSameForTheSameSeed) {
  for (uint64_t seed = 0; seed < kModels; ++seed) {
    SCOPED_TRACE(seed);
    const Model model = random_model(seed);
    verify(model, {.typed = true});
    EXPECT_FALSE(model.graph.outputs().empty());
    EXPECT_EQ(print(model), print(random_model(seed)));
    expect_round_trip(model);
  }
}

TEST(RandomGraphs, CanonicalPassesAreExactBitForBit) {
  const char* const kPasses[] = {"infer-shapes", "fold-constants", "canonicalize",
                                 "eliminate-common", "eliminate-dead"};
  std::map<std::string, int> changed;
  for (uint64_t seed = 0; seed < kModels && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Model model = random_model(seed);
    for (const char* pass : kPasses) {
      changed[pass] += expect_exact(model, {}, pass);
      EXPECT_FALSE(run_rows(model, {}, {row_of(pass)}).changed) << pass << " a second time";
    }
  }
  for (const char* pass :
       {"fold-constants", "canonicalize", "eliminate-common", "eliminate-dead"}) {
    EXPECT_GE(changed[pass], 20) << pass << " had too little to do for this test to say anything";
  }
}

TEST(RandomGraphs, CanonicalPassesAreExactInAnotherOrderToo) {
  const char* const kPasses[] = {"eliminate-dead", "eliminate-common", "canonicalize",
                                 "fold-constants"};
  for (uint64_t seed = 0; seed < kModels && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Model model = random_model(seed);
    for (const char* pass : kPasses) expect_exact(model, {}, pass);
  }
}

/// Inputs up to 2 and weights up to 1, at most 12 nodes of which products add 5 terms: the bound
/// counts 16 rounded operations of half a step each way, on the largest number of a tensor. Chains
/// that multiply values grow, and their errors with them; both are relative to that number.
double bound_of(DType dtype) { return 32.0 * (dtype == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048); }

TEST(RandomGraphs, PrecisionPassesKeepTypesAndStayNear) {
  int lowered = 0;
  for (uint64_t seed = 0; seed < kModels && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CompileOptions options;
    options.inference_only = true;
    options.policy.dtype = seed % 2 == 0 ? DType::kBF16 : DType::kF16;
    Model model = random_model(seed);
    run_rows(model, options, rows_before("assign-precision"));
    const Results exact = execute(model);
    expect_exact(model, options, "assign-precision");
    lowered += run_rows(model, options, {row_of("insert-casts")}).changed;
    verify(model, {.typed = true});
    expect_round_trip(model);
    for (const char* pass : {"clean-casts", "sweep-casts", "pad-to-8", "clean-padding",
                             "sweep-padding", "emulate-16bit"}) {
      expect_exact(model, options, pass);
    }
    EXPECT_EQ(expect_agreement(exact, execute(model), bound_of(options.policy.dtype)),
              static_cast<int>(exact.size()));
  }
  EXPECT_GE(lowered, 50);
}

}  // namespace
}  // namespace halfnote::test
