// Channel blocks in plans: which values are kept so, where reorders stand, and that results do not
// change.
#include "runtime/core/layout.h"

#include <gmock/gmock.h>

#include "compiler/ir/text.h"
#include "kernels/cpu/cpu_info.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/executor.h"
#include "tests/session/plan_checker.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

using ::testing::ElementsAre;

/// Convolutions take channel blocks where oneDNN has AVX-512 too.
bool has_blocks() {
  return fits_channel_blocks({DType::kF32, {1, 16, 2, 2}, {}, nullptr}) &&
         cpu::onednn_isa_name().starts_with("avx512");
}

constexpr const char* kResidual = R"(g (bfloat16[2,32,8,8] x, bfloat16[32,32,3,3] w1,
  bfloat16[32,32,3,3] w2, bfloat16[32,32,1,1] w3) => (bfloat16[2,32,1,1] y) {
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1)
  b = Relu (a)
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w2)
  d = Add (c, x)
  e = Relu (d)
  f = Conv <kernel_shape = [1, 1]> (e, w3)
  y = GlobalAveragePool (f)
})";

struct Planned {
  Model model;
  StateStore store;
  Program program;
};

Planned planned(const char* text, std::string_view kernels = "") {
  Planned result;
  TrainingStep step;
  step.name = "step";
  step.graph = make_device_ready(parse_graph(text, "layouts"), {});
  result.model.training.push_back(std::move(step));
  result.store = StateStore(result.model);
  result.program = plan(result.model.training.front().graph, result.store, {kernels, 2});
  EXPECT_TRUE(check_plan(result.model.training.front().graph, result.program, result.store));
  return result;
}

std::vector<std::string> row_names(const Program& program) {
  std::vector<std::string> rows;
  for (const ProgramStep& step : program.steps) rows.emplace_back(step.row->name);
  return rows;
}

TEST(Layout, ARegionIsBlockedFromConvolutionToConvolution) {
  if (!has_blocks()) GTEST_SKIP() << "no convolutions on channel blocks on this CPU";
  const Planned residual = planned(kResidual);
  const LayoutCounts counts = count_layouts(residual.program);
  // x is reordered once, for the convolution and for the sum; the last result stays plain, since
  // the pool reads it so and the convolution may write it so.
  EXPECT_EQ(counts.reorders, 1u) << ::testing::PrintToString(row_names(residual.program));
  EXPECT_EQ(counts.blocked_steps, 5u) << ::testing::PrintToString(row_names(residual.program));
  EXPECT_EQ(residual.program.steps[0].op, "Reorder");
  EXPECT_EQ(residual.program.steps[0].node, "x in channel blocks");
}

TEST(Layout, ResultsAreThoseOfTheReference) {
  std::vector<Tensor> inputs;
  for (const Shape& shape :
       {Shape{2, 32, 8, 8}, Shape{32, 32, 3, 3}, Shape{32, 32, 3, 3}, Shape{32, 32, 1, 1}}) {
    inputs.push_back(uniform(shape, inputs.size() + 1).cast_to(DType::kBF16));
  }
  std::vector<Tensor> results;
  for (const char* kernels : {"", "reference"}) {
    Planned residual = planned(kResidual, kernels);
    Executor executor(std::move(residual.program), residual.store);
    executor.run(inputs);
    results.push_back(executor.output(0).cast_to(DType::kF32));
  }
  // Three convolutions, each rounded to bf16 (2^-9 of values up to 300, which the mean evens out).
  for (int64_t i = 0; i < results[0].size(); ++i) {
    EXPECT_NEAR(results[0].at_as_double(i), results[1].at_as_double(i), 300 * 0x1p-8) << i;
  }
}

TEST(Layout, WhatIsReadPlainOnBothSidesStaysPlain) {
  const Planned lone = planned(R"(g (bfloat16[2,32,8,8] x, bfloat16[32,32,3,3] w)
    => (bfloat16[2,2048] y) {
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
  b = Relu (a)
  y = Flatten (b)
})");
  EXPECT_EQ(count_layouts(lone.program).reorders, 0u);
  EXPECT_EQ(count_layouts(lone.program).blocked_steps, 0u);
  const Planned none = planned(R"(g (float[2,32,8,8] x) => (float[2,32,8,8] y) {
  a = Relu (x)
  y = MatMul (a, a)
})");
  EXPECT_EQ(count_layouts(none.program).blocked_steps, 0u) << "no convolution asks for it";
}

TEST(Layout, OnlyTheReferenceMeansPlain) {
  const Planned residual = planned(kResidual, "reference");
  EXPECT_EQ(count_layouts(residual.program).blocked_steps, 0u);
  EXPECT_EQ(count_layouts(residual.program).reorders, 0u);
}

/// Values 0, 1, 2, … of one byte each.
struct Chain {
  std::vector<std::vector<ValueId>> reads, writes;
  std::vector<BlockedOperands> blocked;
  std::vector<LayoutValue> values;

  explicit Chain(size_t count) : values(count, LayoutValue{1, false}) {}
  void add(std::vector<uint32_t> from, std::vector<uint32_t> to, BlockedOperands operands) {
    const auto ids = [](const std::vector<uint32_t>& list) {
      std::vector<ValueId> found;
      for (const uint32_t i : list) found.push_back(ValueId{i});
      return found;
    };
    reads.push_back(ids(from));
    writes.push_back(ids(to));
    blocked.push_back(operands);
  }
  std::vector<bool> choose() {
    std::vector<LayoutStep> steps;
    for (size_t i = 0; i < reads.size(); ++i) steps.push_back({reads[i], writes[i], blocked[i]});
    return choose_blocked(steps, values);
  }
};

constexpr BlockedOperands kConv{0b1, 0b1, false, true};
constexpr BlockedOperands kElements{0b1, 0b1, true, false};

TEST(ChooseBlocked, ARegionGoesTogether) {
  Chain chain(5);
  chain.add({0}, {1}, kConv);
  chain.add({1}, {2}, kElements);
  chain.add({2}, {3}, kConv);
  chain.add({3}, {4}, {});  // knows plain tensors only
  EXPECT_THAT(chain.choose(), ElementsAre(false, true, true, false, false));
}

TEST(ChooseBlocked, AResultThatMustBePlainKeepsItsElementsPlain) {
  Chain chain(4);
  chain.add({0}, {1}, kConv);
  chain.add({1}, {2}, kElements);
  chain.add({2}, {3}, kConv);
  chain.values[2].stays_plain = chain.values[3].stays_plain = true;
  EXPECT_THAT(chain.choose(), ElementsAre(false, false, false, false));
}

TEST(ChooseBlocked, OneReorderForTwoReadersPays) {
  Chain chain(3);
  chain.add({0}, {1}, kConv);
  EXPECT_THAT(chain.choose(), ElementsAre(false, true, false))
      << "one reader: inside of the kernel";
  chain.add({0}, {2}, kConv);
  chain.values[1].stays_plain = chain.values[2].stays_plain = true;
  EXPECT_THAT(chain.choose(), ElementsAre(true, false, false));
}

}  // namespace
}  // namespace halfnote::test
