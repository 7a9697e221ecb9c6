// Whole training steps whose products have epilogues: which are asked for, that a step has fewer
// launches, and that it trains as without them. By default there is none of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/cuda/libraries/lt_request.h"
#include "runtime/core/device_ready.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"
#include "tests/cuda/random_batch.h"
#include "tests/environment.h"

namespace halfnote::epilogue_training {
namespace {

struct Fixture {
  const char* model;
  const char* loss;
};
constexpr Fixture kMlp = {"mlp", "13"}, kGpt2 = {"gpt2", "422"};

CompileResult compiled(const Fixture& fixture, DType precision, int64_t accumulate = 1) {
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.accumulation = accumulate;
  options.train.loss_outputs = {fixture.loss};
  options.train.optimizer.kind = "sgd";
  options.train.optimizer.lr = 0.05f;
  const std::filesystem::path folder =
      std::filesystem::path(test::source_folder()) / "tests/fixtures/models" / fixture.model;
  return compile_file(folder / "model.onnx", options);
}

/// Nodes of each op in the step (the first one) as it is planned for a GPU.
std::map<std::string, int> nodes_for_gpu(const Fixture& fixture, DType precision, const Pays& pays,
                                         int64_t accumulate = 1) {
  const Model model = compiled(fixture, precision, accumulate).model;
  const Graph& step = model.training.front().graph;
  std::vector<Shape> shapes;
  for (const ValueId input : step.inputs()) {
    shapes.emplace_back();
    for (const Dim& dim : *step.value(input).type.shape)
      shapes.back().push_back(dim.known() ? dim.value : 4);
  }
  DeviceReadyOptions options;
  options.for_cpu = false;
  options.pays = pays;
  const Graph ready = make_device_ready(step, dims_from_shapes(step, shapes), options);
  std::map<std::string, int> count;
  for (const NodeId id : ready.nodes()) {
    const Node& node = ready.node(id);
    ++count[node.op];
    if (node.op == "Gemm" && ready.input(id, 2).valid() && ready.state_of(ready.input(id, 2)))
      ++count["Gemm into a sum"];
  }
  return count;
}

bool always(const Exchange& /*exchange*/) { return true; }

TEST(EpilogueTraining, ProductsOfGpt2AndAnMlp) {
  auto gpt2 = nodes_for_gpu(kGpt2, DType::kBF16, always);
  EXPECT_EQ(gpt2["GemmActivation"], 2) << "a layer each";
  EXPECT_EQ(gpt2["GemmActivationGrad"], 2);
  EXPECT_EQ(gpt2["GemmSums"], 8) << "of four linear layers each";
  auto mlp = nodes_for_gpu(kMlp, DType::kBF16, always);
  EXPECT_EQ(mlp["GemmActivation"], 2);
  EXPECT_EQ(mlp["GemmActivationGrad"], 2);
  auto sums = nodes_for_gpu(kGpt2, DType::kBF16, always, 2);
  EXPECT_EQ(sums["Gemm into a sum"], 8);
}

TEST(EpilogueTraining, NothingWithoutAMeasurement) {
  for (const Fixture& fixture : {kGpt2, kMlp}) {
    for (const Pays& pays : {Pays(), Pays([](const Exchange&) { return false; })}) {
      const auto nodes = nodes_for_gpu(fixture, DType::kBF16, pays);
      for (const char* op : {"GemmActivation", "GemmActivationGrad", "GemmSums"})
        EXPECT_EQ(nodes.count(op), 0u) << fixture.model << " " << op;
    }
  }
}

/// What is asked about is one question: the same inputs and results by name, fewer nodes or sums in
/// place.
TEST(EpilogueTraining, AsksAboutGraphsOfTheSameInputsAndResults) {
  int asked = 0;
  int sums_in_place = 0;
  const Pays check = [&](const Exchange& exchange) {
    const auto& [now, instead, states] = exchange;
    ++asked;
    sums_in_place += static_cast<int>(states.size());
    for (const auto& [input, output] : states)
      EXPECT_EQ(now.value(now.inputs()[input]).type, now.value(now.outputs()[output]).type);
    const auto names = [](const Graph& graph, std::span<const ValueId> values) {
      std::vector<std::string> all;
      for (const ValueId value : values)
        all.push_back(graph.value(value).name + " " + to_string(graph.value(value).type));
      return all;
    };
    EXPECT_EQ(names(now, now.inputs()), names(instead, instead.inputs()));
    EXPECT_EQ(names(now, now.outputs()), names(instead, instead.outputs()));
    EXPECT_GE(now.outputs().size(), 1u);
    return asked % 2 == 0;
  };
  nodes_for_gpu(kGpt2, DType::kBF16, check);
  nodes_for_gpu(kMlp, DType::kF32, check);
  EXPECT_EQ(sums_in_place, 0);
  nodes_for_gpu(kGpt2, DType::kF16, check, 2);
  EXPECT_GE(asked, 30);
  EXPECT_EQ(sums_in_place, 8) << "the accumulators of four linear layers each";
}

struct Trained {
  std::vector<double> losses;
  uint64_t launches = 0;  // of the graphs, as they are captured
  std::vector<Tensor> weights;
};

Trained train(const Fixture& fixture, DType precision, int64_t accumulate, bool epilogues,
              KernelChoices* choices = nullptr, bool tune = false) {
  const Variable wish("HALFNOTE_EPILOGUES", epilogues ? "always" : nullptr);
  SessionOptions options;
  options.device = test::tested_device();
  options.threads = 1;
  options.choices = choices;
  options.tune = tune;
  Session session(compiled(fixture, precision, accumulate).model, options);
  Trained run;
  for (uint32_t step = 0; step < 4 * accumulate; ++step)
    run.losses.push_back(session.step(test::random_batch(session, 4, step % 3)).loss);
  run.launches = session.device_counters().launches;
  for (const StateEntry& entry : session.state().entries()) {
    if (entry.kind == StateKind::kWeight) run.weights.push_back(session.state().get(entry));
  }
  return run;
}

/// The largest distance between weights, in units of the largest weight.
double distance(const Trained& a, const Trained& b) {
  double largest = 0, most = 0;
  for (size_t w = 0; w < a.weights.size(); ++w) {
    for (int64_t i = 0; i < a.weights[w].size(); ++i) {
      const double x = a.weights[w].at_as_double(i);
      largest = std::max(largest, std::fabs(x));
      most = std::max(most, std::fabs(x - b.weights[w].at_as_double(i)));
    }
  }
  return most / largest;
}

TEST(EpilogueTraining, TrainsAsWithoutThem) {
  for (const Fixture& fixture : {kMlp, kGpt2}) {
    for (const int64_t accumulate : {1, 2}) {
      // Four updates: sums of products are rounded once less, or in another order.
      for (const auto& [precision, bar] :
           {std::pair(DType::kF32, 1e-5), {DType::kF16, 4e-3}, {DType::kBF16, 3e-2}}) {
        SCOPED_TRACE(std::string(fixture.model) + " in " + std::string(short_name(precision)) +
                     ", micro-batches " + std::to_string(accumulate));
        const Trained plain = train(fixture, precision, accumulate, false),
                      fused = train(fixture, precision, accumulate, true);
        EXPECT_LT(fused.launches, plain.launches);
        for (size_t i = 0; i < plain.losses.size(); ++i)
          EXPECT_NEAR(fused.losses[i], plain.losses[i], bar * plain.losses[0]) << "step " << i;
        EXPECT_LE(distance(plain, fused), bar);
      }
    }
  }
}

/// --tune measures every exchange that the pass proposes, and the plan file decides from then on.
TEST(EpilogueTraining, IsDecidedByThePlanFile) {
  const auto device = test::open_tested_device();
  const TunedMachine machine = machine_of(*device);
  for (const int64_t accumulate : {1, 2}) {
    KernelChoices measured(machine);
    train(kMlp, DType::kBF16, accumulate, false, &measured, true);
    nlohmann::json plan = nlohmann::json::parse(measured.to_json());
    ASSERT_GE(plan["fusions"].size(), 3u);
    const auto trained = [&](bool pays) {
      for (nlohmann::json& fusion : plan["fusions"]) fusion["pays"] = pays;
      KernelChoices choices =
          KernelChoices::parse(plan.dump(), "p.json", machine, device->kernels());
      return train(kMlp, DType::kBF16, accumulate, false, &choices);
    };
    const Trained all = trained(true), none = trained(false),
                  plain = train(kMlp, DType::kBF16, accumulate, false);
    EXPECT_LT(all.launches, none.launches);
    EXPECT_EQ(none.launches, plain.launches);
    if (test::tested_device() != "cuda-emulated") continue;
    EXPECT_EQ(none.losses, plain.losses) << "its algorithms are all the same";
  }
}

TEST(EpilogueTraining, RequestsAreLegal) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "requests are recorded there";
  std::vector<cuda_emulated::MatmulCall> calls;
  cuda_emulated::record_matmuls(&calls);
  for (const Fixture& fixture : {kMlp, kGpt2}) train(fixture, DType::kBF16, 1, true);
  cuda_emulated::record_matmuls(nullptr);
  std::map<libraries::Epilogue, int> count;
  for (const cuda_emulated::MatmulCall& made : calls) {
    ++count[made.request.epilogue];
    EXPECT_EQ(libraries::illegal_request(made.request, made.operands), "");
    EXPECT_GE(made.request.alignment, 16u);
  }
  using enum libraries::Epilogue;
  for (const auto epilogue : {kRelu, kGelu, kReluGrad, kGeluGrad, kSumsOfA})
    EXPECT_GT(count[epilogue], 0);
}

/// What the library lacks is left as it is.
TEST(EpilogueTraining, WhereTheLibraryHasNoneAllStays) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "for the emulated library";
  cuda_emulated::refuse_matmuls(
      [](const libraries::LtRequest& r) { return r.epilogue != libraries::Epilogue::kNone; });
  const Trained plain = train(kMlp, DType::kBF16, 1, false),
                asked = train(kMlp, DType::kBF16, 1, true);
  cuda_emulated::refuse_matmuls(nullptr);
  EXPECT_EQ(plain.launches, asked.launches);
  EXPECT_EQ(plain.losses, asked.losses);
}

}  // namespace
}  // namespace halfnote::epilogue_training
