// Depthwise convolutions by the kernels of ours, forward and backward, against the CPU's reference;
// and where they are taken.
#include <gmock/gmock.h>

#include <string>

#include "base/error.h"
#include "kernels/cuda/libraries/dnn_request.h"
#include "runtime/core/tune/tuner.h"
#include "tests/cuda/channels_last/last.h"

namespace halfnote::cuda_emulated {
namespace {

struct Depthwise {
  Shape x, kernel;
  std::vector<int64_t> strides, dilations, pads;
  bool of_filters = true;  // is there a kernel for the gradient of the filters?
};

const Depthwise kDepthwise[] = {
    {{2, 16, 9, 11}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {{1, 72, 8, 5}, {3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
    {{2, 8, 7, 9}, {5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}},
    {{1, 24, 10, 10}, {7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}},
    {{1, 136, 6, 7}, {7, 7}, {2, 2}, {1, 1}, {3, 3, 3, 3}},
    {{1, 8, 9, 9}, {5, 3}, {3, 2}, {1, 1}, {0, 1, 2, 0}},
    {{1, 16, 12, 9}, {3, 3}, {1, 1}, {3, 1}, {3, 1, 3, 1}},
    {{1, 16, 9, 12}, {3, 3}, {1, 1}, {1, 2}, {1, 2, 1, 2}, false},
    {{1, 8, 9, 12}, {2, 4}, {1, 3}, {1, 1}, {0, 0, 1, 1}, false},
    {{2, 16, 37}, {4}, {1}, {1}, {3, 0}, false},
    {{2, 16, 37}, {3}, {1}, {1}, {2, 0}},
    {{3, 8, 2, 1}, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
};

struct Calls {
  Call forward, biased, of_x, of_filters, transposed;
};

Calls calls_of(const Depthwise& c, DType dtype) {
  Shape filters = {c.x[1], 1}, y = {c.x[0], c.x[1]};
  const size_t dims = c.kernel.size();
  for (size_t d = 0; d < dims; ++d) {
    filters.push_back(c.kernel[d]);
    const int64_t window = (c.kernel[d] - 1) * c.dilations[d] + 1;
    y.push_back((c.x[d + 2] + c.pads[d] + c.pads[d + dims] - window) / c.strides[d] + 1);
  }
  Attributes attributes = {{"group", c.x[1]},
                           {"kernel_shape", std::vector<int64_t>(c.kernel)},
                           {"strides", c.strides},
                           {"dilations", c.dilations},
                           {"pads", c.pads}};
  const Tensor x = random(dtype, c.x, -2, 2, 1), w = random(dtype, filters, -1, 1, 2);
  const Tensor dy = random(dtype, y, -2, 2, 3), bias = random(dtype, {c.x[1]}, -1, 1, 4);
  const Tensor sizes = integers(std::vector<int64_t>(c.x), {static_cast<int64_t>(c.x.size())});
  Attributes of_x = attributes;
  of_x.set("output_shape", std::vector<int64_t>(c.x.begin() + 2, c.x.end()));
  return {{"", "Conv", {x, w}, attributes, {{dtype, y}}},
          {"", "Conv", {x, w, bias}, attributes, {{dtype, y}}},
          {kOwn, "ConvGradInput", {dy, w, sizes}, attributes, {{dtype, c.x}}, {2}},
          {kOwn, "ConvGradWeight", {dy, x}, attributes, {{dtype, filters}}},
          {"", "ConvTranspose", {dy, w, bias}, of_x, {{dtype, c.x}}}};
}

/// By the algorithm of that name.
void check_by(const Call& call, const std::string& algorithm) {
  SCOPED_TRACE(std::string(call.op) + " by " + algorithm);
  const auto device = test::open_tested_device();
  KernelChoices choices(machine_of(*device));
  const KernelCall asked = kernel_call(call);
  choices.set(key_of(asked), {{algorithm, 1}});
  const KernelChoice choice = choose_kernel(asked, {{}, &choices, false, device.get()});
  ASSERT_NE(choice.kernel, nullptr);
  std::vector<libraries::DnnRequest> requests;
  record_convolutions(&requests);
  const std::vector<Tensor> got =
      test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs);
  record_convolutions(nullptr);
  EXPECT_TRUE(requests.empty()) << "the library has computed it";
  test::expect_near(got[0], on_cpu(call)[0], algorithm, 1e-5);
}

TEST(CudaDepthwise, AgreesWithTheReference) {
  if (test::tested_device() == "none") GTEST_SKIP();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Depthwise& c : kDepthwise) {
      SCOPED_TRACE(to_string(c.x) + to_string(c.kernel) + std::string(short_name(dtype)));
      const Calls calls = calls_of(c, dtype);
      check_by(calls.forward, "dnn.conv 0/own:depthwise");
      check_by(calls.of_x, "dnn.conv 0/own:depthwise");
      if (c.of_filters) check_by(calls.of_filters, "dnn.conv 0/own:depthwise");
    }
  }
}

/// With a bias it is no choice: the library has nothing for that but f32.
TEST(CudaDepthwise, AddsABiasBeforeItRounds) {
  if (test::tested_device() == "none") GTEST_SKIP();
  std::vector<libraries::DnnRequest> requests;
  record_convolutions(&requests);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Depthwise& c : kDepthwise) {
      SCOPED_TRACE(to_string(c.x) + to_string(c.kernel) + std::string(short_name(dtype)));
      const Calls calls = calls_of(c, dtype);
      check(calls.biased);
      check(calls.transposed);
      check_last(calls.biased);
      check_last(calls.transposed);
    }
  }
  record_convolutions(nullptr);
  EXPECT_TRUE(requests.empty()) << "the library has computed some";
}

/// The rest is the library's: other types, filters of several channels, several filters a channel,
/// channels that fill no vector.
TEST(CudaDepthwise, LeavesTheRestToTheLibrary) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP();
  struct Case {
    DType dtype;
    Shape x, w, y;
    int64_t group;
  };
  for (const Case& c : {Case{DType::kF32, {1, 8, 5, 5}, {8, 1, 3, 3}, {1, 8, 3, 3}, 8},
                        Case{DType::kBF16, {1, 16, 5, 5}, {16, 2, 3, 3}, {1, 16, 3, 3}, 8},
                        Case{DType::kBF16, {1, 8, 5, 5}, {16, 1, 3, 3}, {1, 16, 3, 3}, 8},
                        Case{DType::kBF16, {1, 12, 5, 5}, {12, 1, 3, 3}, {1, 12, 3, 3}, 12}}) {
    SCOPED_TRACE(to_string(c.w));
    std::vector<libraries::DnnRequest> requests;
    record_convolutions(&requests);
    const Tensor bias = random(c.dtype, {c.y[1]}, -1, 1, 3);
    check({"",
           "Conv",
           {random(c.dtype, c.x), random(c.dtype, c.w, -1, 1, 2), bias},
           {{"group", c.group}},
           {{c.dtype, c.y}}});
    record_convolutions(nullptr);
    EXPECT_FALSE(requests.empty());
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
