// What the library of convolutions may be asked, and what the models of the fixtures ask of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/libraries/dnn_request.h"
#include "tests/cuda/harness/asked.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote::libraries {
namespace {

using test::legal_convolution;

TEST(Dnn, RequestIsChannelsLast) {
  const DnnRequest r = dnn_request(legal_convolution());
  EXPECT_EQ(illegal_request(r), "");
  EXPECT_EQ(r.compute, DType::kF32);
  EXPECT_TRUE(r.tensor_cores);
  EXPECT_EQ(r.x, (DnnTensor{'x', DType::kBF16, {4, 8, 9, 7}, {504, 1, 56, 8}}));
  EXPECT_EQ(r.w, (DnnTensor{'w', DType::kBF16, {16, 4, 3, 3}, {36, 1, 12, 4}}));
  EXPECT_EQ(r.y, (DnnTensor{'y', DType::kBF16, {4, 16, 5, 4}, {320, 1, 64, 16}}));
  EXPECT_EQ(r.stride, (Shape{2, 2}));
  EXPECT_EQ(r.pad_end, (Shape{1, 1}));
}

TEST(Dnn, ABiasIsALineOfChannels) {
  ConvProblem problem = legal_convolution();
  problem.bias = DType::kBF16;
  const DnnRequest r = dnn_request(problem);
  EXPECT_EQ(illegal_request(r), "");
  EXPECT_EQ(r.bias, (DnnTensor{'b', DType::kBF16, {1, 16, 1, 1}, {16, 1, 16, 16}}));
  EXPECT_FALSE(dnn_request(legal_convolution()).has_bias());
}

TEST(Dnn, OneSpatialDimBecomesTwo) {
  ConvProblem problem = legal_convolution();
  problem.plan.spatial = 1;
  problem.plan.in[1] = problem.plan.out[1] = problem.plan.kernel[1] = problem.plan.stride[1] = 1;
  problem.plan.pad_begin[1] = problem.plan.pad_end[1] = 0;
  const DnnRequest r = dnn_request(problem);
  EXPECT_EQ(illegal_request(r), "");
  EXPECT_EQ(r.x.dims, (Shape{4, 8, 1, 7}));
}

TEST(Dnn, PlainLayout) {
  ConvProblem problem = legal_convolution();
  problem.operands = problem.result = DType::kF32;
  problem.layout = ConvLayout::kPlain;
  const DnnRequest r = dnn_request(problem);
  EXPECT_EQ(illegal_request(r), "");
  EXPECT_EQ(r.x.strides, (Shape{504, 63, 7, 1}));
  EXPECT_EQ(r.w.strides, (Shape{36, 9, 3, 1}));
}

TEST(Dnn, TensorCoresOnlyWhereTheyAreExact) {
  ConvProblem problem = legal_convolution();
  problem.operands = problem.result = DType::kF32;
  EXPECT_FALSE(dnn_request(problem).tensor_cores);
  problem.tf32 = true;
  EXPECT_TRUE(dnn_request(problem).tensor_cores);
}

TEST(Dnn, RulesOfTheLibrary) {
  struct Case {
    const char* reason;
    void (*spoil)(DnnRequest& r);
  };
  const Case cases[] = {
      {"", [](DnnRequest& r) { r.y.dtype = DType::kF32; }},
      {"types that do not go together: bf16 and bf16 to f16 in f32",
       [](DnnRequest& r) { r.y.dtype = DType::kF16; }},
      {"types that do not go together: bf16 and f32 to bf16 in f32",
       [](DnnRequest& r) { r.w.dtype = DType::kF32; }},
      {"types that do not go together: bf16 and bf16 to bf16 in f64",
       [](DnnRequest& r) { r.compute = DType::kF64; }},
      {"types that do not go together: bf16 and bf16 to f16 in f32",
       [](DnnRequest& r) {
         r.wanted = ConvResult::kW;
         r.w.dtype = DType::kF16;
       }},
      {"types that do not go together: bf16 and bf16 to f32 in f32",
       [](DnnRequest& r) {
         r.wanted = ConvResult::kW;
         r.w.dtype = DType::kF32;
       }},
      {"neither two nor three spatial dims of x", [](DnnRequest& r) { r.x.dims.pop_back(); }},
      {"no elements of w", [](DnnRequest& r) { r.w.dims[2] = 0; }},
      {"too many elements of y", [](DnnRequest& r) { r.y.dims[0] = int64_t{1} << 30; }},
      {"strides of no packed layout",
       [](DnnRequest& r) { std::swap(r.x.strides[1], r.x.strides[2]); }},
      {"strides of no packed layout",
       [](DnnRequest& r) {
         r.x.strides = {504, 63, 7, 1};  // plain, beside others that are channels-last
       }},
      {"two tensors of one id", [](DnnRequest& r) { r.w.id = 'x'; }},
      {"not one number for each spatial dim", [](DnnRequest& r) { r.stride.push_back(1); }},
      {"a stride or dilation below 1, or a negative pad", [](DnnRequest& r) { r.dilation[0] = 0; }},
      {"a stride or dilation below 1, or a negative pad", [](DnnRequest& r) { r.pad_end[1] = -1; }},
      {"extents that do not fit", [](DnnRequest& r) { r.pad_begin[0] = 3; }},
      {"extents that do not fit", [](DnnRequest& r) { r.dilation[1] = 9; }},
  };
  for (const Case& c : cases) {
    DnnRequest request = dnn_request(legal_convolution());
    c.spoil(request);
    EXPECT_EQ(illegal_request(request), c.reason);
  }
}

TEST(Dnn, RulesOfABias) {
  struct Case {
    const char* reason;
    void (*spoil)(DnnRequest& r);
  };
  const Case cases[] = {
      {"a bias of weights", [](DnnRequest& r) { r.wanted = ConvResult::kW; }},
      {"a bias of another type", [](DnnRequest& r) { r.bias.dtype = DType::kF32; }},
      {"a bias of another type", [](DnnRequest& r) { r.bias.dtype = r.y.dtype = DType::kF32; }},
      {"not one number of a bias for each channel", [](DnnRequest& r) { r.bias.dims[1] = 8; }},
      {"not one number of a bias for each channel", [](DnnRequest& r) { r.bias.dims.pop_back(); }},
      {"two tensors of one id", [](DnnRequest& r) { r.bias.id = 'y'; }},
  };
  for (const Case& c : cases) {
    ConvProblem problem = legal_convolution();
    problem.bias = DType::kBF16;
    DnnRequest request = dnn_request(problem);
    c.spoil(request);
    EXPECT_EQ(illegal_request(request), c.reason);
  }
}

TEST(Dnn, RulesOfAddresses) {
  alignas(256) static std::byte memory[32768];
  const auto at = [](size_t offset) { return static_cast<void*>(memory + offset); };
  const DnnRequest request = dnn_request(legal_convolution());
  const auto why = [&](const ConvOperands& operands, size_t workspace) {
    return illegal_operands(request, operands, workspace);
  };
  const ConvOperands good = {at(0), at(8192), at(16384), at(32512)};
  EXPECT_EQ(why(good, 256), "");
  EXPECT_EQ(why({nullptr, at(8192), at(16384), at(32512)}, 256), "no address of x");
  EXPECT_EQ(why({at(0), at(8200), at(16384), at(32512)}, 256),
            "an address not aligned as promised of w");
  EXPECT_EQ(why({at(0), at(8192), at(16), at(32512)}, 256), "a result over an operand");
  EXPECT_EQ(why({at(0), at(16), at(16384), at(32512)}, 256), "") << "both are only read";
  EXPECT_EQ(why({at(0), at(8192), at(16384), nullptr}, 0), "");
  EXPECT_EQ(why({at(0), at(8192), at(16384), nullptr}, 256), "no workspace");
  EXPECT_EQ(why({at(0), at(8192), at(16384), at(32640)}, 256), "a workspace that is not aligned");
  ConvProblem with_bias = legal_convolution();
  with_bias.bias = DType::kBF16;
  const auto why_bias = [&](void* bias) {
    return illegal_operands(dnn_request(with_bias), {at(0), at(8192), at(16384), at(32512), bias},
                            256);
  };
  EXPECT_EQ(why_bias(at(32000)), "");
  EXPECT_EQ(why_bias(nullptr), "no address of the bias");
  EXPECT_EQ(why_bias(at(32002)), "an address not aligned as promised of the bias");
  EXPECT_EQ(why_bias(at(16400)), "a result over an operand");
}

/// The convolutions of a training step, recorded as it is captured; it does not run.
std::vector<DnnRequest> convolutions_of(const std::string& model, DType precision) {
  const std::filesystem::path folder =
      std::filesystem::path(test::source_folder()) / "tests/fixtures/models" / model;
  test::CapturedStep step(folder, precision);
  std::vector<DnnRequest> requests;
  cuda_emulated::record_convolutions(&requests);
  step.capture();
  cuda_emulated::record_convolutions(nullptr);
  return requests;
}

/// An illegal one would go to our own loops: forward, and both gradients, are asked of the library.
TEST(Dnn, ModelsAskForTheirConvolutions) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    const std::vector<DnnRequest> requests = convolutions_of("cifar_cnn", precision);
    std::array<int, 3> counts{};
    for (const DnnRequest& r : requests) {
      EXPECT_EQ(illegal_request(r), "");
      EXPECT_EQ(r.tensor_cores, precision != DType::kF32);
      EXPECT_EQ(r.x.strides[1] == 1, precision != DType::kF32) << "channels last";
      EXPECT_EQ(r.wanted == ConvResult::kX ? r.w.dtype : r.x.dtype, precision);
      // In f32 a bias is added by ourselves.
      EXPECT_EQ(r.has_bias(), precision != DType::kF32 && r.wanted == ConvResult::kY);
      EXPECT_EQ(r.y.dtype, precision);
      ++counts[static_cast<size_t>(r.wanted)];
    }
    EXPECT_GT(counts[0], 0);
    EXPECT_EQ(counts[2], counts[0]);
    // Nobody asks for the gradient of the images; a step is captured once for each run on its way.
    EXPECT_EQ(counts[1], counts[0] - DeviceRun::kMostRuns);
  }
}

/// Forward and gradient of each attention are asked of the library in 16 bits, none in f32.
TEST(Dnn, ModelsAskForTheirAttention) {
  struct Model {
    const char* name;
    long layers;
  };
  for (const Model& model :
       {Model{"bert", 2}, Model{"gpt2", 2}, Model{"llama", 2}, Model{"vit", 2}}) {
    for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::string(model.name) + " " + std::string(short_name(precision)));
      test::CapturedStep step(
          std::filesystem::path(test::source_folder()) / "tests/fixtures/models" / model.name,
          precision);
      std::vector<SdpaProblem> problems;
      cuda_emulated::record_attentions(&problems);
      step.capture();
      cuda_emulated::record_attentions(nullptr);
      for (const SdpaProblem& p : problems) EXPECT_EQ(p.dtype, precision);
      const auto gradients = std::ranges::count_if(problems, &SdpaProblem::gradient);
      const long wanted = precision == DType::kF32 ? 0 : model.layers * DeviceRun::kMostRuns;
      EXPECT_EQ(gradients, wanted);
      EXPECT_EQ(std::ssize(problems) - gradients, wanted);
    }
  }
}

}  // namespace
}  // namespace halfnote::libraries
