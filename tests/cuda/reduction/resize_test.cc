// A step has the kernels of a Resize and nothing else: what they read was brought before it.
#include <gtest/gtest.h>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

/// How many kernels a call is.
uint64_t launches_of(const Call& call) {
  const auto device = test::open_tested_device();
  const KernelCall asked = kernel_call(call);
  const KernelChoice choice = device->kernels().choose(asked);
  EXPECT_NE(choice.kernel, nullptr);
  if (choice.kernel == nullptr) return 0;
  const uint64_t before = device->counters().launches;
  test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs);
  return device->counters().launches - before;
}

TEST(CudaResize, IsAKernelAnAxis) {
  if (test::tested_device() == "none") GTEST_SKIP();
  struct Case {
    std::vector<float> scales;
    Shape out;
    uint64_t kernels;
  };
  const Case all[] = {{{1, 1, 2, 3}, {1, 2, 60, 99}, 2},
                      {{1, 1, 1, 0.5f}, {1, 2, 30, 16}, 1},
                      {{1, 1, 1, 1}, {1, 2, 30, 33}, 0}};
  Attributes how{{"mode", std::string("linear")}};
  for (const Case& c : all) {
    const Tensor x = random(DType::kF32, {1, 2, 30, 33});
    const Tensor scales = Tensor::of<float>({4}, std::span<const float>(c.scales));
    const Call forward{"", "Resize", {x, Tensor(), scales}, how, {{DType::kF32, c.out}}, {2}};
    check(forward);
    EXPECT_EQ(launches_of(forward), c.kernels) << to_string(c.out);
    Attributes gradient = how;
    gradient.set("scales", c.scales);
    const Call backward{
        kOwn, "ResizeGrad", {random(DType::kF32, c.out)}, gradient, {{DType::kF32, x.shape()}}};
    check(backward);
    EXPECT_EQ(launches_of(backward), c.kernels) << to_string(c.out);
  }
}

/// Outside of the region that is cropped stands a value of its own.
TEST(CudaResize, CropsAndExtrapolates) {
  const Attributes how{{"mode", std::string("linear")},
                       {"coordinate_transformation_mode", std::string("tf_crop_and_resize")},
                       {"extrapolation_value", 7.0f}};
  const float region[] = {0, 0, -0.5f, 0.2f, 1, 1, 1.5f, 0.9f};
  const Tensor roi = Tensor::of<float>({8}, region);
  for (const DType dtype : kFloats) {
    check({"",
           "Resize",
           {random(dtype, {2, 3, 8, 9}), roi, Tensor(), integers({2, 3, 12, 5}, {4})},
           how,
           {{dtype, {2, 3, 12, 5}}},
           {1, 3}});
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
