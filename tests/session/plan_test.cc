// Plans: judged by an independent checker, over the steps of tiny and of real models; views,
// refusals, and the order of saves and commits.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "compiler/ir/text.h"
#include "plan_checker.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/executor.h"
#include "runtime/core/layout.h"
#include "support.h"

namespace halfnote::test {
namespace {

using ::testing::HasSubstr;

/// Plans every step of the model for this batch and checks each.
void check_steps(const Model& model, const std::map<std::string, int64_t>& dims,
                 std::string_view kernels) {
  DeviceReadyOptions options;
  options.copies = find_weight_copies(model);
  const StateStore store(model, options.copies);
  for (const TrainingStep& step : model.training) {
    SCOPED_TRACE(step.name);
    const Graph ready = make_device_ready(step.graph, dims, options);
    const Program program = plan(ready, store, {kernels, 2});
    EXPECT_TRUE(check_plan(ready, program, store));
    EXPECT_EQ(program.steps.size() + program.views,
              ready.nodes().size() + count_layouts(program).reorders);
  }
}

TEST(Plan, StepsOfTinyModelsAreSound) {
  for (const char* optimizer : {"sgd", "momentum", "adamw"}) {
    for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int64_t accumulation : {1, 4}) {
        SCOPED_TRACE(std::string(optimizer) + " " + std::string(short_name(precision)));
        CompileOptions options = options_for(optimizer, precision);
        options.train.accumulation = accumulation;
        options.train.optimizer.clip_norm = 1;
        for (const Model& source : {mlp_model(), cnn_model()}) {
          const Model model = compile_model(source, options).model;
          for (const char* kernels : {"", "reference"}) check_steps(model, {{"N", 8}}, kernels);
        }
      }
    }
  }
}

TEST(Plan, StepsOfRealModelsAreSound) {
  const std::filesystem::path folder =
      std::filesystem::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/models";
  for (const char* name : {"mlp", "cifar_cnn", "resnet50_narrow", "gpt2", "vit"}) {
    SCOPED_TRACE(name);
    const auto json =
        nlohmann::json::parse(read_text(folder / name / "case.json", size_t{64} << 20));
    CompileOptions options;
    options.policy.dtype = DType::kBF16;
    options.train.loss_outputs = {json.at("loss_output").get<std::string>()};
    const Model model = compile_file(folder / name / "model.onnx", options).model;
    std::map<std::string, int64_t> dims;
    for (ValueId input : model.training.front().graph.inputs()) {
      for (const Dim& dim : *model.training.front().graph.value(input).type.shape) {
        if (!dim.known()) dims[dim.symbol] = 4;
      }
    }
    check_steps(model, dims, "");
  }
}

/// A graph with states, without a compiler around it.
struct Small {
  Model model;
  explicit Small(const char* text) {
    TrainingStep step;
    step.name = "step";
    step.graph = parse_graph(text, "small");
    model.training.push_back(std::move(step));
    infer();
  }
  Graph& graph() { return model.training.front().graph; }
  void infer() { model.training.front().graph = make_device_ready(graph(), {}); }
};

TEST(Plan, StatesThatSwapAreSavedFirst) {
  Small small(R"(g (float[2] x) => (float[2] y, float[2] b) <float[2] a = {1.0, 2.0},
    float[2] b = {3.0, 4.0}> {
  y = Add (a, x)
  state moment a -> b
  state moment b -> a
})");
  StateStore store(small.model);
  Program program = plan(small.graph(), store, {});
  EXPECT_TRUE(check_plan(small.graph(), program, store));
  Executor executor(std::move(program), store);
  const Tensor a = Tensor::of<float>({2}, {1, 2}), b = Tensor::of<float>({2}, {3, 4});
  executor.run(std::vector<Tensor>{Tensor::of<float>({2}, {10, 20})});
  EXPECT_TRUE(identical(store.get(*store.find("a")), b));
  EXPECT_TRUE(identical(store.get(*store.find("b")), a));
  EXPECT_TRUE(identical(executor.output(0), Tensor::of<float>({2}, {11, 22})));
  EXPECT_TRUE(identical(executor.output(1), b)) << "an output is the value before the commit";
}

TEST(Plan, AStateIsNotWrittenBeforeItsLastReader) {
  Small small(R"(g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
  next = Add (w, x)
  y = Mul (w, next)
  state weight w -> next
})");
  StateStore store(small.model);
  Program program = plan(small.graph(), store, {});
  EXPECT_TRUE(check_plan(small.graph(), program, store));
  Executor executor(std::move(program), store);
  executor.run(std::vector<Tensor>{Tensor::of<float>({2}, {10, 20})});
  EXPECT_TRUE(identical(executor.output(0), Tensor::of<float>({2}, {11, 44})));
  EXPECT_TRUE(identical(store.get(*store.find("w")), Tensor::of<float>({2}, {11, 22})));
}

TEST(Plan, AViewOfAStateKeepsItAlive) {
  Small small(R"(g (float[4] x) => (float[2,2] v, float[4] n) <float[4] w = {1.0, 2.0, 3.0, 4.0},
    int64[2] shape = {2, 2}> {
  v = Reshape (w, shape)
  n = Add (w, x)
  state weight w -> n
})");
  StateStore store(small.model);
  Program program = plan(small.graph(), store, {});
  EXPECT_EQ(program.views, 1u);
  EXPECT_EQ(program.steps.size(), 1u) << "the view is not run";
  EXPECT_TRUE(check_plan(small.graph(), program, store));
  Executor executor(std::move(program), store);
  executor.run(std::vector<Tensor>{Tensor::full(DType::kF32, {4}, 1)});
  EXPECT_TRUE(identical(executor.output(0), Tensor::of<float>({2, 2}, {1, 2, 3, 4})));
  EXPECT_TRUE(identical(executor.output(1), Tensor::of<float>({4}, {2, 3, 4, 5})));
}

/// The first rows lie where all lie; nobody writes over the others because of them.
TEST(Plan, ASliceOfTheFirstRowsIsAView) {
  Small small(
      R"(g (float[3,2] x) => (float[3,2] y, float[1,2] first) <float[2,2] w = {1.0, 2.0, 3.0, 4.0},
    int64[1] none = {0}, int64[1] one = {1}, int64[1] two = {2}> {
  s = Sinh (x)
  rows = Slice (s, none, two)
  n = Add (rows, w)
  row = Slice (s, none, one)
  y = Add (row, s)
  first = Neg (row)
  state weight w -> n
})");
  StateStore store(small.model);
  Program program = plan(small.graph(), store, {});
  EXPECT_EQ(program.views, 2u);
  EXPECT_EQ(program.steps.size() + program.views, 6u);
  EXPECT_TRUE(check_plan(small.graph(), program, store));
  Executor executor(std::move(program), store);
  executor.run(std::vector<Tensor>{Tensor::full(DType::kF32, {3, 2}, 0)});
  EXPECT_TRUE(identical(store.get(*store.find("w")), Tensor::of<float>({2, 2}, {1, 2, 3, 4})));
  EXPECT_TRUE(identical(executor.output(0), Tensor::full(DType::kF32, {3, 2}, 0)));
  executor.run(std::vector<Tensor>{Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, 6})});
  const auto expect = [](const Tensor& got, std::vector<double> wanted) {
    ASSERT_EQ(got.size(), static_cast<int64_t>(wanted.size()));
    for (int64_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got.at_as_double(i), wanted[static_cast<size_t>(i)], 1e-4) << i;
  };
  const double s1 = std::sinh(1), s2 = std::sinh(2), s3 = std::sinh(3), s4 = std::sinh(4);
  expect(store.get(*store.find("w")), {1 + s1, 2 + s2, 3 + s3, 4 + s4});
  expect(executor.output(0),
         {s1 + s1, s2 + s2, s1 + s3, s2 + s4, s1 + std::sinh(5), s2 + std::sinh(6)});
  expect(executor.output(1), {-s1, -s2});
}

/// A copy of a weight has room for the rows of zeros that products want; where it has none, a Pad
/// runs.
TEST(Plan, APadOfACopyWithRoomIsAView) {
  const Small weights(R"(g (float[3,2] d) => () <float[3,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
  w1 = Add (w, d)
  state weight w -> w1
})");
  Small small(
      R"(g (float[3,2] d) => (float16[4,2] y) <float[3,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0},
    float16[3,2] c = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, int64[4] pads = {0, 0, 1, 0}> {
  p = Pad (c, pads)
  y = Neg (p)
  w1 = Add (w, d)
  c1 = Cast <to = 10> (w1)
  state weight w -> w1
  state weight c -> c1
})");
  for (const size_t room : {size_t{16}, size_t{0}}) {
    StateStore store(weights.model, std::vector<WeightCopy>{{"w", "c", DType::kF16, room}});
    Program program = plan(small.graph(), store, {});
    EXPECT_EQ(program.views, room == 0 ? 0u : 1u);
    EXPECT_TRUE(check_plan(small.graph(), program, store));
    Executor executor(std::move(program), store);
    const std::vector<Tensor> step = {Tensor::full(DType::kF32, {3, 2}, 1)};
    for (int i = 0; i < 3; ++i) {
      executor.run(step);
      const Tensor y = executor.output(0);
      for (int64_t k = 0; k < 8; ++k)
        EXPECT_EQ(y.at_as_double(k), k < 6 ? -static_cast<double>(k + 1 + i) : 0) << i << " " << k;
    }
  }
}

TEST(Plan, ATransposeOfADimOf1IsAView) {
  Small small(R"(g (float[2,1,3] x) => (float[1,2,3] y) {
  s = Sinh (x)
  t = Transpose <perm = [1, 0, 2]> (s)
  y = Cosh (t)
})");
  const StateStore store(small.model);
  const Program program = plan(small.graph(), store, {});
  EXPECT_EQ(program.views, 1u);
  EXPECT_TRUE(check_plan(small.graph(), program, store));
}

TEST(Plan, ElementwiseChainsRunInPlace) {
  Small small(R"(g (float[1024] x) => (float[1024] y) {
  a = Sinh (x)
  b = Cosh (a)
  c = Tan (b)
  y = Sinh (c)
})");
  const StateStore store(small.model);
  const Program program = plan(small.graph(), store, {});
  EXPECT_TRUE(check_plan(small.graph(), program, store));
  EXPECT_EQ(program.in_place, 3u) << "all but the first, which reads the caller's input";
  EXPECT_EQ(program.arena_bytes, 4096u);
}

TEST(Plan, FusedChainsAreOneStepAndRunInPlace) {
  Small small(R"(g (float[1024] x) => (float[1024] y) {
  s = Sinh (x)
  a = Relu (s)
  b = Neg (a)
  y = Mul (b, s)
})");
  const StateStore store(small.model);
  const Program program = plan(small.graph(), store, {});
  EXPECT_TRUE(check_plan(small.graph(), program, store));
  ASSERT_EQ(program.steps.size(), 2u);
  EXPECT_EQ(program.steps[1].op, "ai.halfnote.Pointwise");
  EXPECT_EQ(program.in_place, 1u);
  EXPECT_EQ(program.arena_bytes, 4096u);
}

TEST(Plan, TheCheckerFindsABadPlan) {
  Small small(R"(g (float[64] x) => (float[64] y) {
  a = Sinh (x)
  b = Cosh (a)
  y = Add (a, b)
})");
  const StateStore store(small.model);
  Program program = plan(small.graph(), store, {});
  ASSERT_TRUE(check_plan(small.graph(), program, store));
  program.steps[1].outputs[0] = program.steps[0].outputs[0];  // b over a, which is read again
  program.steps[2].inputs[1] = program.steps[0].outputs[0];
  EXPECT_FALSE(check_plan(small.graph(), program, store));
}

TEST(Plan, NoKernelNamesEveryNodeAndEveryReason) {
  // No kernel has a name that starts so: every node of the graph fails, with what was tried.
  Small small(R"(g (float[4,4] x) => (float[4,4] y) {
  a = Relu (x)
  y = MatMul (a, a)
})");
  const StateStore store(small.model);
  try {
    plan(small.graph(), store, {"no-such-kernel", 1});
    FAIL() << "planned without kernels";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("2 nodes have no kernel"));
    EXPECT_THAT(error.what(), HasSubstr("Relu"));
    EXPECT_THAT(error.what(), HasSubstr("MatMul"));
    for (const char* op : {"Relu", "MatMul"}) {
      for (const KernelRow* row : cpu_kernels().rows_of("", op))
        EXPECT_THAT(error.what(), HasSubstr(std::string(row->name) + ": not asked"));
    }
  }
  KernelCall call;
  call.op = "Relu";
  call.inputs = {{DType::kF32, {2}, {}, nullptr}};
  const std::string text =
      no_kernel(call, {{"onednn.eltwise", "first reason"}, {"reference", "second reason"}}).what();
  EXPECT_THAT(text, HasSubstr("onednn.eltwise: first reason"));
  EXPECT_THAT(text, HasSubstr("reference: second reason"));
}

TEST(Plan, AnOpenDimIsRefusedByName) {
  Model model = compile_model(mlp_model(), options_for("sgd")).model;
  try {
    make_device_ready(model.training.front().graph, {});
    FAIL() << "planned with an open dim";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("N"));
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

TEST(DeviceReady, RunsItsPassesUnderTheManager) {
  const Model model = compile_model(mlp_model(), options_for("sgd", DType::kBF16)).model;
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "device_ready_dumps";
  std::filesystem::remove_all(folder);
  const Graph ready = make_device_ready(model.training.front().graph, {{"N", 4}},
                                        {{"take-out-padding", "sweep-sizes"}, folder.string()});
  EXPECT_TRUE(std::filesystem::exists(folder / "01-take-out-padding.onnxtxt"));
  const std::string last = read_text(folder / "11-sweep-sizes.onnxtxt", 1 << 20);
  EXPECT_THAT(last, HasSubstr("[4,"));  // the batch is bound
  EXPECT_FALSE(std::filesystem::exists(folder / "02-infer-sizes.onnxtxt"));
  EXPECT_GT(ready.node_count(), 0u);
}

TEST(DeviceReady, RefusesAnUnknownPass) {
  const Model model = compile_model(mlp_model(), options_for("sgd")).model;
  try {
    make_device_ready(model.training.front().graph, {{"N", 4}}, {{"sweep-size"}, "."});
    FAIL() << "an unknown pass";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("did you mean sweep-sizes?"));
  }
}

TEST(DeviceReady, NamesThePassOfAnError) {
  const Model model = compile_model(mlp_model(), options_for("sgd")).model;
  try {
    make_device_ready(model.training.front().graph, {});
    FAIL() << "an open dim";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bind-all-dims"));
  }
}

}  // namespace
}  // namespace halfnote::test
