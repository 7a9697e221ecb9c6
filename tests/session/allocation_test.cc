// A step allocates nothing, the memory that a session predicts is what it takes, and with less of
// it (activations computed again) a session trains to the same bits.
#include <gmock/gmock.h>

#include "compiler/ir/text.h"
#include "compiler/onnx/import.h"
#include "count_new.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/pages.h"
#include "runtime/train/labels/checked_inputs.h"
#include "support.h"

namespace halfnote::test {
namespace {

class Allocation : public ::testing::TestWithParam<DType> {};

CompileOptions options_of(DType precision, int64_t accumulation) {
  CompileOptions options = options_for("adamw", precision);
  options.train.optimizer.clip_norm = 1;
  options.train.optimizer.schedule = {.kind = "cosine", .warmup = 2, .total = 10};
  options.train.accumulation = accumulation;
  return options;
}

TEST_P(Allocation, AStepAllocatesNothing) {
  for (const int64_t accumulation : {1, 2}) {
    Session session = reference_session(cnn_model(), options_of(GetParam(), accumulation), 2);
    const std::vector<Tensor> batch = cnn_batch(8, 1), other = cnn_batch(4, 2);
    for (int i = 0; i < 4; ++i) {
      session.step(batch);
      session.step(other);
    }
    double loss = 0;
    size_t count = 0;
    {
      const Probe probe;
      for (int i = 0; i < 4; ++i) {
        loss += session.step(batch).loss;
        loss += session.step(other).loss;  // another signature, prepared before
      }
      count = probe.count();
    }
    EXPECT_EQ(count, 0u);
    EXPECT_GT(loss, 0);
  }
}

/// What a device's step wants in range is looked at in every step.
TEST(Allocation, ALookAtIndicesAllocatesNothing) {
  Model model = parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]> g (int64[N,8] ids) => (float[N,2,2] y) "
      "<float[3,2]"
      " w = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}, int64[1] three = {3}>"
      " { s = Slice (ids, one, three, one) y = Gather (w, s) }",
      "g");
  infer_graph(model.graph);
  std::vector<CheckedInput> checked = find_checked_inputs(model.graph);
  ASSERT_EQ(checked.size(), 1u);
  checked[0].prepare(std::vector<Shape>{{5, 8}});
  const std::vector<Tensor> good = {Tensor::full(DType::kI64, {5, 8}, 2)};
  size_t count = 0;
  {
    const Probe probe;
    checked[0].check(good);
    count = probe.count();
  }
  EXPECT_EQ(count, 0u);
  EXPECT_THROW(checked[0].check(std::vector<Tensor>{Tensor::full(DType::kI64, {5, 8}, 3)}), Error);
}

TEST_P(Allocation, OnlyOneDnnItselfAllocates) {
  // The library makes a small table of arguments in each call of a primitive, which we cannot
  // prevent. Everything else (our fast kernels, the executor) allocates nothing.
  constexpr int64_t kRows = 256;  // enough that the library multiplies f32
  const Model model = compile_model(cnn_model(), options_of(GetParam(), 1)).model;
  StateStore store(model);
  const Graph ready = make_device_ready(model.training.front().graph, {{"N", kRows}});
  Executor executor(plan(ready, store, {{}, 2}), store);
  const std::vector<Tensor> batch = cnn_batch(kRows, 1);
  size_t seen = 0, ours = 0, library_steps = 0;
  executor.observe([&](const ProgramStep& step, const KernelBuffers&) {
    const bool library = step.row->name.starts_with("onednn");
    if (!library) ours += Probe::now() - seen;
    library_steps += library ? 1 : 0;
    seen = Probe::now();
  });
  for (int i = 0; i < 3; ++i) executor.run(batch);
  size_t rest = 0;
  {
    const Probe probe;
    seen = ours = library_steps = 0;
    executor.run(batch);
    rest = probe.count() - seen;
  }
  // Products of f32 as small as these are our own.
  if (GetParam() != DType::kF32) {
    EXPECT_GT(library_steps, 0u) << "the plan has kernels of the library";
  }
  EXPECT_EQ(ours, 0u);
  EXPECT_EQ(rest, 0u) << "saves and commits";
}

INSTANTIATE_TEST_SUITE_P(All, Allocation, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(short_name(test.param)); });

TEST(Allocation, PredictedMemoryIsWhatIsTaken) {
  // The executor takes one block of pages for the arena, the store one for the state; blocks above
  // 2 MiB are rounded up to that.
  constexpr size_t kRounding = size_t{2} << 20;
  const Model model = compile_model(cnn_model(), options_for("adamw")).model;
  {
    const Probe probe;
    const size_t before = held_page_bytes();
    const StateStore store(model);
    EXPECT_LT(probe.bytes(), 40u * 1024) << "names, types and shapes of some 40 entries";
    const size_t taken = held_page_bytes() - before;
    EXPECT_GE(taken, store.bytes());
    EXPECT_LT(taken, store.bytes() + kRounding);
  }
  Session session(model, {.threads = 1, .kernels = "reference", .dims = {}});
  const std::vector<Tensor> batch = cnn_batch(64, 1);
  session.step(batch);
  const Program* program = session.program("step");
  ASSERT_NE(program, nullptr);
  const MemoryUse use = session.memory();
  EXPECT_EQ(use.state, session.state().bytes());
  EXPECT_EQ(use.arena, program->arena_bytes);
  EXPECT_EQ(use.constants, program->constant_bytes);
  EXPECT_EQ(use.total(), use.state + use.arena + use.constants);
  Program copy;
  copy.arena_bytes = program->arena_bytes;
  {
    const Probe probe;
    const size_t before = held_page_bytes();
    Executor executor(std::move(copy), session.state());
    EXPECT_EQ(held_page_bytes(), before) << "a plan takes nothing";
    executor.allocate();
    EXPECT_LE(probe.bytes(), 64u) << "the arena is the one block it takes, beside who owns it";
    const size_t taken = held_page_bytes() - before;
    EXPECT_GE(taken, program->arena_bytes);
    EXPECT_LT(taken, program->arena_bytes + kRounding);
  }
}

/// A short training within a limit on memory.
struct LimitedRun {
  std::vector<double> losses;
  std::vector<Tensor> states;
  size_t arena = 0;
  std::optional<Recomputation> again;
};

LimitedRun train_limited(const Model& compiled, const std::vector<Tensor>& batch,
                         SessionOptions::Memory memory) {
  SessionOptions options;
  options.threads = 2;
  options.memory = memory;
  Session session(compiled, options);
  LimitedRun run;
  for (int i = 0; i < 3; ++i) run.losses.push_back(session.step(batch).loss);
  run.states = states_of(session);
  run.arena = session.memory().arena;
  run.again = session.recomputation();
  return run;
}

TEST(Memory, LessOfItGivesTheSameBits) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool deep : {true, false}) {
      SCOPED_TRACE(std::string(short_name(precision)) + (deep ? " cnn" : " mlp"));
      const Model model =
          compile_model(deep ? cnn_model() : mlp_model(), options_for("adamw", precision)).model;
      const std::vector<Tensor> batch = deep ? cnn_batch(64, 5) : mlp_batch(512, 5);
      const LimitedRun plain = train_limited(model, batch, {});
      EXPECT_FALSE(plain.again);
      for (const double share : {0.8, 0.5}) {
        SCOPED_TRACE(share);
        const LimitedRun small = train_limited(model, batch, {share, 0});
        EXPECT_EQ(small.losses, plain.losses);
        expect_same(small.states, plain.states);
        ASSERT_TRUE(small.again);
        EXPECT_EQ(small.again->before, plain.arena);
        EXPECT_EQ(small.again->after, small.arena);
        EXPECT_LE(small.arena, plain.arena);
      }
    }
  }
}

TEST(Memory, ReachesWhatIsAskedOfADeepModel) {
  const Model source =
      import_model(std::string(HALFNOTE_SOURCE_DIR) + "/samples/fashion_mnist/model.onnxtxt");
  const Model model = compile_model(source, options_for("sgd", DType::kF32)).model;
  const std::vector<Tensor> batch = {uniform({64, 1, 28, 28}, 5), Tensor(DType::kI64, {64})};
  const LimitedRun plain = train_limited(model, batch, {});
  const LimitedRun small = train_limited(model, batch, {0.9, 0});
  ASSERT_TRUE(small.again);
  EXPECT_LE(small.arena, small.again->limit);
  EXPECT_THAT(small.again->what, testing::HasSubstr("computed again"));
  const LimitedRun bytes =
      train_limited(model, batch, {0, static_cast<int64_t>(small.again->limit)});
  EXPECT_EQ(bytes.arena, small.arena);
}

TEST(Memory, EnoughOfItChangesNothing) {
  const Model model = compile_model(mlp_model(), options_for("sgd")).model;
  const LimitedRun small = train_limited(model, mlp_batch(64, 5), {0, int64_t{1} << 40});
  ASSERT_TRUE(small.again);
  EXPECT_EQ(small.again->before, small.again->after);
  EXPECT_EQ(small.again->what, "");
}

}  // namespace
}  // namespace halfnote::test
