// Kernels by measurement on a device: what is a candidate, what a plan file says of libraries'
// algorithms, and that its choice is what runs.
#include "runtime/core/tune/tuner.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/libraries/dnn_request.h"
#include "kernels/cuda/libraries/lt_algorithm.h"
#include "kernels/cuda/table.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/device_run.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

using libraries::LtAlgorithm;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAre;

bool is_emulated() { return test::tested_device() == "cuda-emulated"; }

/// A bias for each column, which the library may add: 6 by 40 times 40 by 8.
Call biased_product(DType dtype = DType::kBF16) {
  return {"",
          "Gemm",
          {random(dtype, {6, 40}), random(dtype, {40, 8}, -1, 1, 2), random(dtype, {8}, -1, 1, 3)},
          {},
          {{dtype, {6, 8}}}};
}

Call small_conv() {
  Attributes attributes;
  attributes.set("pads", std::vector<int64_t>{1, 1, 1, 1});
  return {"",
          "Conv",
          {random(DType::kBF16, {2, 8, 5, 4}), random(DType::kBF16, {16, 8, 3, 3}, -1, 1, 2)},
          attributes,
          {{DType::kBF16, {2, 16, 5, 4}}}};
}

/// A convolution of single elements, with a bias that the library adds, and its gradients.
Call pointwise_conv() {
  return {"",
          "Conv",
          {random(DType::kBF16, {2, 8, 5, 4}), random(DType::kBF16, {16, 8, 1, 1}, -1, 1, 2),
           random(DType::kBF16, {16}, -1, 1, 3)},
          {},
          {{DType::kBF16, {2, 16, 5, 4}}}};
}
Call pointwise_input() {
  return {"ai.halfnote",
          "ConvGradInput",
          {random(DType::kF16, {2, 16, 5, 4}), random(DType::kF16, {16, 8, 1, 1}, -1, 1, 2)},
          {},
          {{DType::kF16, {2, 8, 5, 4}}}};
}
Call pointwise_weight() {
  return {"ai.halfnote",
          "ConvGradWeight",
          {random(DType::kBF16, {2, 16, 5, 4}), random(DType::kBF16, {2, 8, 5, 4}, -1, 1, 2)},
          {},
          {{DType::kBF16, {16, 8, 1, 1}}}};
}

std::vector<std::string> names_of(const std::vector<MeasuredKernel>& measured) {
  std::vector<std::string> names;
  for (const MeasuredKernel& one : measured) names.push_back(one.kernel);
  return names;
}

template <class Body>
Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was refused";
  return Error(ErrorCode::kInternal, "none");
}

TEST(CudaTune, AnAlgorithmIsItsName) {
  const LtAlgorithm all[] = {{},
                             {66, 20, 36, 1, 0, 0, 0, 0, 2},
                             {.id = 21, .tile = 15, .stages = 3, .split_k = 12, .reduction = 2},
                             {-1, 4294967295u, 1, -1, 7, 1, 9, 65535, 65535}};
  for (const LtAlgorithm& a : all) {
    const std::string name = name_of(a);
    EXPECT_EQ(libraries::lt_algorithm(name), a) << name;
    EXPECT_EQ(name.find(' '), std::string::npos) << "a plan file puts a space before it";
  }
  EXPECT_EQ(name_of(all[1]), "lt:66:tile20:stages36:split1:sum0:swizzle0:option0:inner0:cluster2");
  const std::string good = name_of(all[2]);
  for (const std::string& bad :
       {std::string(), std::string("lt"), good + " ", good + "0x", good.substr(0, good.size() - 1),
        "lt:+" + good.substr(3), "lt:0" + good.substr(3), "LT" + good.substr(2),
        std::string("lt:1:tile-1:stages0:split1:sum0:swizzle0:option0:inner0:cluster0"),
        std::string("lt:1:tile1:stages0:split1:sum0:swizzle0:option0:inner0:cluster65536")}) {
    EXPECT_EQ(libraries::lt_algorithm(bad), std::nullopt) << bad;
  }
}

/// Parts of a sum are added in a fixed order, and none is rounded to 16 bits.
TEST(CudaTune, ASplitSumIsRoundedOnce) {
  libraries::LtRequest request;
  request.compute = DType::kF32;
  struct Case {
    DType d;
    uint32_t reduction;
    bool allowed;
  };
  for (const Case& c : {Case{DType::kBF16, 0, true},
                        {DType::kBF16, libraries::kLtSumInPlace, false},
                        {DType::kBF16, libraries::kLtSumInComputeType, true},
                        {DType::kBF16, libraries::kLtSumInOutputType, false},
                        {DType::kF32, libraries::kLtSumInPlace, false},
                        {DType::kF32, libraries::kLtSumInComputeType, true},
                        {DType::kF32, libraries::kLtSumInOutputType, true},
                        {DType::kF32, 8, false}}) {
    request.d.dtype = c.d;
    EXPECT_EQ(libraries::is_allowed({.split_k = 2, .reduction = c.reduction}, request), c.allowed)
        << short_name(c.d) << " " << c.reduction;
  }
}

TEST(CudaTune, EveryAlgorithmIsACandidateAndNoFallback) {
  const auto device = test::open_tested_device();
  const Call product = biased_product(), convolution = small_conv();
  const std::vector<std::string> of_product =
      names_of(measure_kernels(kernel_call(product), device.get()));
  EXPECT_THAT(of_product, testing::Each(testing::AnyOf(StartsWith("blas.matmul lt:"),
                                                       StartsWith("blas.matmul spread/lt:"))));
  const std::vector<std::string> of_conv =
      names_of(measure_kernels(kernel_call(convolution), device.get()));
  EXPECT_THAT(of_conv, testing::Each(StartsWith("dnn.conv 0/eng")));
  if (!is_emulated()) return;
  EXPECT_EQ(of_product.size(), 6u) << "three, with the bias in the product and before it";
  EXPECT_THAT(of_conv, UnorderedElementsAre("dnn.conv 0/eng1_k2=0", "dnn.conv 0/eng1_k2=1"));
  const Call pointwise = pointwise_conv();
  EXPECT_THAT(names_of(measure_kernels(kernel_call(pointwise), device.get())),
              UnorderedElementsAre("dnn.conv bias/eng1_k2=0", "dnn.conv bias/eng1_k2=1",
                                   StartsWith("dnn.conv bias/lt:1:tile15"),
                                   StartsWith("dnn.conv bias/lt:1:tile20")))
      << "a convolution of single elements may be a product";
  Call f32 = small_conv();
  for (Tensor& input : f32.inputs) input = input.cast_to(DType::kF32);
  f32.outputs[0].dtype = DType::kF32;
  EXPECT_EQ(measure_kernels(kernel_call(f32), device.get()).size(), 4u) << "in both layouts";
  // One row that takes it, and no algorithms: nothing to choose.
  const Call f64 = biased_product(DType::kF64);
  EXPECT_THAT(names_of(measure_kernels(kernel_call(f64), device.get())),
              testing::Each(StartsWith("blas.matmul")));
  const Call unary = {"", "Relu", {random(DType::kF32, {3})}, {}, {{DType::kF32, {3}}}};
  EXPECT_TRUE(measure_kernels(kernel_call(unary), device.get()).empty());
  const Call empty = {"",
                      "MatMul",
                      {random(DType::kF32, {0, 4}), random(DType::kF32, {4, 3})},
                      {},
                      {{DType::kF32, {0, 3}}}};
  EXPECT_TRUE(measure_kernels(kernel_call(empty), device.get()).empty());
}

/// With each of its algorithms a call gives what it gives without, and the library is asked for it.
TEST(CudaTune, TheChosenAlgorithmRuns) {
  for (const Call& call : {biased_product(), biased_product(DType::kF32), small_conv(),
                           pointwise_conv(), pointwise_input(), pointwise_weight()}) {
    const auto device = test::open_tested_device();
    KernelChoices choices(machine_of(*device));
    const KernelCall asked = kernel_call(call);
    const std::vector<Tensor> wanted = on_cpu(call);
    for (const MeasuredKernel& one : measure_kernels(asked, device.get())) {
      SCOPED_TRACE(one.kernel);
      EXPECT_GT(one.ms, 0);
      choices.set(key_of(asked), {one});
      const KernelChoice choice = choose_kernel(asked, {{}, &choices, false, device.get()});
      ASSERT_NE(choice.kernel, nullptr);
      EXPECT_EQ(MeasuredKernel::name(choice.row->name, choice.algorithm), one.kernel);
      std::vector<MatmulCall> products;
      std::vector<std::string> engines;
      record_matmuls(&products);
      record_engines(&engines);
      const std::vector<Tensor> got =
          test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs);
      record_matmuls(nullptr);
      record_engines(nullptr);
      test::expect_near(got[0], wanted[0], one.kernel, 1e-5);
      if (!is_emulated()) continue;
      for (const MatmulCall& product : products) engines.push_back(product.algorithm);
      ASSERT_EQ(engines.size(), 1u);
      EXPECT_TRUE(one.kernel.ends_with(engines[0])) << engines[0];
      const bool spread = one.kernel.find("spread/") != std::string::npos;
      if (products.empty()) continue;
      const bool has_bias = call.inputs.size() == 3 && !spread;
      EXPECT_EQ(products[0].request.has_bias, has_bias);
    }
  }
}

TEST(CudaTune, RefusesAnAlgorithmThatTheLibraryDoesNotTake) {
  const auto device = test::open_tested_device();
  const std::string lt = name_of(LtAlgorithm{.id = 999999, .tile = 7});
  struct Case {
    Call call;
    std::string algorithm;
  };
  const Call stack = {"",
                      "MatMul",
                      {random(DType::kF32, {2, 1, 5, 9}), random(DType::kF32, {3, 9, 7})},
                      {},
                      {{DType::kF32, {2, 3, 5, 7}}}};
  for (const Case& c :
       {Case{biased_product(), "blas.matmul " + lt}, Case{biased_product(), "blas.matmul nonsense"},
        Case{biased_product(), "blas.matmul spread/" + lt}, Case{stack, "blas.matmul " + lt},
        Case{small_conv(), "dnn.conv 0/eng99_k1=1"}, Case{small_conv(), "dnn.conv 7/eng1_k2=0"},
        Case{small_conv(), "dnn.conv eng1_k2=0"}, Case{small_conv(), "dnn.conv 0/" + lt},
        Case{small_conv(), "dnn.conv"}, Case{pointwise_conv(), "dnn.conv bias/" + lt}}) {
    KernelChoices choices(machine_of(*device));
    const KernelCall call = kernel_call(c.call);
    choices.set(key_of(call), {{c.algorithm, 1}});
    const Error error = error_of([&] { choose_kernel(call, {{}, &choices, false, device.get()}); });
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << c.algorithm;
    EXPECT_THAT(error.what(), HasSubstr("measure again with --tune")) << c.algorithm;
  }
}

TEST(CudaTune, PlanFilesAreOfOneDevice) {
  const auto device = test::open_tested_device();
  const TunedMachine machine = machine_of(*device);
  const Call product = biased_product();
  const KernelCall call = kernel_call(product);
  KernelChoices choices(machine);
  const std::string algorithm =
      "blas.matmul lt:66:tile20:stages36:split1:sum0:swizzle0:option0:inner0:cluster2";
  choices.set(key_of(call), {{algorithm, 0.25}, {"blas.matmul spread/lt:1", 0.5}});
  choices.set_unmeasured({"Conv", "f32[1]", ""}, "no room");
  choices.set_fusion({"Gemm", "f32[2]", ""}, {true, 1, 2});
  const KernelTable& table = device->kernels();
  const std::string text = choices.to_json();
  KernelChoices again = KernelChoices::parse(text, "p.json", machine, table);
  EXPECT_EQ(again.to_json(), text);
  EXPECT_EQ(again.digest(), choices.digest());
  EXPECT_EQ(again.find(key_of(call)), algorithm);
  EXPECT_EQ(again.unmeasured().size(), 1u);
  ASSERT_NE(again.find_fusion({"Gemm", "f32[2]", ""}), nullptr);
  EXPECT_TRUE(again.find_fusion({"Gemm", "f32[2]", ""})->pays);
  EXPECT_EQ(again.size(), 1u);

  const auto refused = [&](const char* name, const nlohmann::ordered_json& value) {
    auto json = nlohmann::ordered_json::parse(text);
    json[name] = value;
    return error_of([&] { KernelChoices::parse(json.dump(), "p.json", machine, table); }).code();
  };
  EXPECT_EQ(refused("device", "another GPU"), ErrorCode::kUsage);
  EXPECT_EQ(refused("library", "cuDNN 8"), ErrorCode::kUsage);
  EXPECT_EQ(refused("fusions", 3), ErrorCode::kData);
  EXPECT_EQ(refused("fusions", {{{"op", "Gemm"}, {"operands", ""}, {"attributes", ""}}}),
            ErrorCode::kData);
  EXPECT_EQ(refused("unmeasured", {{{"op", "Gemm"}, {"operands", ""}, {"attributes", ""}}}),
            ErrorCode::kData);
  // An algorithm of a row that has none, and a row that the device lacks.
  for (const char* kernel : {"own.matmul lt:1", "onednn.matmul"}) {
    EXPECT_EQ(refused("kernels",
                      {{{"op", "Gemm"}, {"operands", ""}, {"attributes", ""}, {"kernel", kernel}}}),
              ErrorCode::kData)
        << kernel;
  }
  EXPECT_EQ(error_of([&] { KernelChoices::parse(text, "p.json", this_machine(1)); }).code(),
            ErrorCode::kUsage);
}

TEST(CudaTune, Tf32IsAnotherCall) {
  const Call product = biased_product(DType::kF32);
  KernelCall call = kernel_call(product);
  const CallKey plain = key_of(call);
  call.tf32 = true;
  EXPECT_NE(key_of(call), plain);
}

/// Operands for which there is no room leave the call to the table, and the plan file says so.
TEST(CudaTune, WhatCannotBeMeasuredIsNoted) {
  EmulatedDevice small(size_t{1} << 20);  // less than a workspace
  const Call product = biased_product();
  const KernelCall call = kernel_call(product);
  KernelChoices choices(machine_of(small));
  const KernelChoice choice = choose_kernel(call, {{}, &choices, true, &small});
  ASSERT_NE(choice.kernel, nullptr);
  EXPECT_EQ(choice.algorithm, "");
  ASSERT_EQ(choices.unmeasured().size(), 1u);
  EXPECT_EQ(choices.unmeasured().begin()->first, key_of(call));
  EXPECT_THAT(choices.unmeasured().begin()->second, HasSubstr("out of memory"));
  EXPECT_EQ(choices.size(), 0u);
  EXPECT_NO_THROW(small.allocate((size_t{1} << 20) - 4096)) << "what measuring took is held";
}

/// The fusion that a plan file has: op, operands, pays.
nlohmann::json only_fusion(const KernelChoices& choices) {
  const auto plan = nlohmann::json::parse(choices.to_json());
  EXPECT_EQ(plan.at("fusions").size(), 1u);
  return plan.at("fusions").at(0);
}

TEST(CudaTune, AFusionPaysWhereItWasMeasuredFaster) {
  const auto device = test::open_tested_device();
  KernelChoices choices(machine_of(*device));
  const Call fused = biased_product(),
             product = {"", "MatMul", {fused.inputs[0], fused.inputs[1]}, {}, {fused.outputs[0]}};
  const Tensor z(DType::kBF16, {6, 8});
  const Call sum = {"", "Add", {z, fused.inputs[2]}, {}, {fused.outputs[0]}};
  const std::vector<LinkedCall> apart = {{kernel_call(product), {0, 1}, {4}},
                                         {kernel_call(sum), {4, 2}, {3}}};
  const std::vector<LinkedCall> one = {{kernel_call(fused), {0, 1, 2}, {3}}};
  const KernelSource normal{{}, &choices, false, device.get()},
      tuning{{}, &choices, true, device.get()};
  EXPECT_FALSE(exchange_pays(apart, one, normal)) << "nothing was measured";
  EXPECT_FALSE(exchange_pays(apart, one, {{}, nullptr, true, device.get()}));
  EXPECT_FALSE(exchange_pays(apart, one, {{}, &choices, true, nullptr})) << "on the CPU";
  EXPECT_EQ(nlohmann::json::parse(choices.to_json()).count("fusions"), 0u);

  const bool pays = exchange_pays(apart, one, tuning);
  const nlohmann::json noted = only_fusion(choices);
  EXPECT_EQ(noted.at("op"), "Gemm for MatMul, Add");
  EXPECT_EQ(noted.at("operands"),
            "bf16[6,40] bf16[40,8] bf16[8] -> bf16[6,8] (0 1 2 -> 3) for "
            "bf16[6,40] bf16[40,8] -> bf16[6,8] (0 1 -> 4), "
            "bf16[6,8] bf16[8] -> bf16[6,8] (4 2 -> 3)");
  EXPECT_EQ(noted.at("pays"), pays);
  const double fused_ms = noted.at("ms").at("fused"), apart_ms = noted.at("ms").at("apart");
  EXPECT_EQ(pays, fused_ms * 1.02 < apart_ms);
  EXPECT_GT(fused_ms, 0);
  EXPECT_TRUE(choices.contains(key_of(one[0].call))) << "by its best algorithm";
  EXPECT_TRUE(choices.contains(key_of(apart[0].call)));

  // What is noted decides, and is arithmetic only where it changes the program.
  const auto with_answer = [&](bool answer) {
    nlohmann::json plan = nlohmann::json::parse(choices.to_json());
    plan["fusions"][0]["pays"] = answer;
    return KernelChoices::parse(plan.dump(), "p.json", machine_of(*device), device->kernels());
  };
  KernelChoices yes = with_answer(true), no = with_answer(false);
  EXPECT_TRUE(exchange_pays(apart, one, {{}, &yes, false, device.get()}));
  EXPECT_FALSE(exchange_pays(apart, one, {{}, &no, false, device.get()}));
  EXPECT_NE(yes.digest(), no.digest());
  EXPECT_EQ(choices.digest(), (pays ? yes : no).digest());

  // Other links are another question.
  const std::vector<LinkedCall> swapped = {{kernel_call(product), {0, 1}, {4}},
                                           {kernel_call(sum), {4, 2}, {4}}};
  EXPECT_FALSE(exchange_pays(swapped, one, {{}, &yes, false, device.get()}));
}

/// No room for both sides: no, and the plan file says why.
TEST(CudaTune, AFusionThatFindsNoRoomIsNoted) {
  EmulatedDevice small(size_t{1} << 20);
  const Call relu = {
      "", "Relu", {random(DType::kF32, {400, 400})}, {}, {{DType::kF32, {400, 400}}}};
  const std::vector<LinkedCall> one = {{kernel_call(relu), {0}, {1}}},
                                two = {{kernel_call(relu), {0}, {2}},
                                       {kernel_call(relu), {2}, {1}}};
  KernelChoices choices(machine_of(small));
  EXPECT_FALSE(exchange_pays(two, one, {{}, &choices, true, &small}));
  ASSERT_EQ(choices.unmeasured().size(), 1u);
  EXPECT_EQ(choices.unmeasured().begin()->first.op, "Relu for Relu, Relu");
  KernelChoices read =
      KernelChoices::parse(choices.to_json(), "p.json", machine_of(small), small.kernels());
  EXPECT_FALSE(exchange_pays(two, one, {{}, &read, true, &small})) << "it is not tried again";
}

constexpr const char* kStep = R"(g (bfloat16[2,8,5,4] x, bfloat16[16,8,3,3] w, bfloat16[16] b,
    bfloat16[16,16,3,3] w2, bfloat16[320,6] v) => (bfloat16[2,6] y) {
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)
  r = Relu (c)
  d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, w2)
  s = Add (d, c)
  p = MaxPool <kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]> (s)
  f = Flatten (p)
  y = MatMul (f, v)
})";

/// A step that is planned with measured kernels, and what its capture asks of the libraries.
class TunedStep {
 public:
  TunedStep(KernelChoices* choices, bool tune) {
    context_.device = open_device(test::tested_device());
    context_.stream = context_.device->make_stream();
    context_.feeding = context_.device->make_stream();
    model_.training.emplace_back();
    model_.training[0].graph =
        make_device_ready(parse_graph(kStep, "step"), {}, {.for_cpu = false});
    store_ = StateStore(model_);
    PlanOptions options;
    options.device = context_.device.get();
    options.choices = choices;
    options.tune = tune;
    program_ = plan(model_.training[0].graph, store_, options);
    record_matmuls(&products);
    record_engines(&engines);
    run_.emplace(context_, program_, store_);
    record_matmuls(nullptr);
    record_engines(nullptr);
  }

  std::vector<Tensor> inputs() const {
    std::vector<Tensor> all;
    for (const ProgramOperand& input : program_.inputs)
      all.push_back(random(input.dtype, input.shape, -1, 1, static_cast<uint32_t>(all.size())));
    return all;
  }
  std::vector<std::byte> step() {
    run_->wait(run_->start(inputs()));
    const std::byte* from = run_->output(0);
    return {from, from + program_.outputs[0].bytes};
  }
  const Program& program() const { return program_; }
  Device& device() { return *context_.device; }
  DeviceRun& run() { return *run_; }

  std::vector<MatmulCall> products;
  std::vector<std::string> engines;

 private:
  DeviceContext context_;
  Model model_;
  StateStore store_;
  Program program_;
  std::optional<DeviceRun> run_;
};

/// Measured, written, read again: what was chosen is what is captured, in the regions' layout too.
TEST(CudaTune, APlanIsCapturedAsItWasMeasured) {
  const auto device = test::open_tested_device();
  const TunedMachine machine = machine_of(*device);
  KernelChoices measured(machine);
  TunedStep tuned(&measured, true);
  // A library may have one algorithm alone for a call so small: that is no choice.
  const size_t choices = is_emulated() ? 3 : measured.size();
  ASSERT_GE(choices, 1u);
  EXPECT_EQ(measured.size(), choices);
  EXPECT_EQ(measured.used(), choices);
  KernelChoices read =
      KernelChoices::parse(measured.to_json(), "p.json", machine, device->kernels());
  TunedStep again(&read, false);
  TunedStep plain(nullptr, false);
  EXPECT_EQ(tuned.step(), again.step());
  for (TunedStep* step : {&tuned, &again}) {
    std::vector<std::string> chosen;
    for (const ProgramStep& each : step->program().steps) {
      if (!each.algorithm.empty()) chosen.push_back(each.algorithm);
    }
    ASSERT_EQ(chosen.size(), choices);
    if (!is_emulated()) continue;
    EXPECT_EQ(step->step(), plain.step()) << "its algorithms are all the same";
    // Each of the two slots is captured.
    ASSERT_EQ(step->engines.size(), 4u);
    ASSERT_EQ(step->products.size(), 2u);
    for (size_t i = 0; i < 4; ++i) {
      const std::string& name = chosen[i % 2];
      EXPECT_EQ(step->engines[i], name.substr(name.find('/') + 1));
    }
    for (const MatmulCall& product : step->products) EXPECT_EQ(product.algorithm, chosen[2]);
  }
  for (const std::string& engine : plain.engines) EXPECT_EQ(engine, "");
  const auto in_region = [](const ProgramStep& step) {
    return step.row != nullptr && step.row->name == "channels_last.conv";
  };
  EXPECT_TRUE(std::any_of(again.program().steps.begin(), again.program().steps.end(), in_region));
}

TEST(CudaTune, ASteadyStepIsStillOneLaunch) {
  const auto device = test::open_tested_device();
  KernelChoices choices(machine_of(*device));
  TunedStep tuned(&choices, true);
  tuned.step();
  const DeviceCounters before = tuned.device().counters();
  for (int step = 0; step < 2; ++step) tuned.run().wait(tuned.run().start(tuned.inputs()));
  const DeviceCounters after = tuned.device().counters();
  EXPECT_EQ(after.graph_launches, before.graph_launches + 2);
  EXPECT_EQ(after.launches, before.launches);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.synchronisations, before.synchronisations);
}

/// A library that does not take the algorithm any more ends the planning, and names the node.
TEST(CudaTune, NothingFallsBackInSilence) {
  if (!is_emulated()) GTEST_SKIP() << "only the emulation can be told to refuse";
  const auto device = test::open_tested_device();
  KernelChoices choices(machine_of(*device));
  TunedStep tuned(&choices, true);
  refuse_matmuls([](const libraries::LtRequest&) { return true; });
  const Error error = error_of([&] { TunedStep again(&choices, false); });
  refuse_matmuls(nullptr);
  EXPECT_EQ(error.code(), ErrorCode::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("MatMul"));
  EXPECT_THAT(error.what(), HasSubstr("lt:1:tile"));
}

}  // namespace
}  // namespace halfnote::cuda_emulated
