// The requests for convolutions before cuDNN itself, which judges descriptors without a GPU: what
// our rules let through it takes, and what it refuses our rules refuse. In builds with CUDA only.
#include <gtest/gtest.h>

#include "kernels/cuda/libraries/dnn_request.h"
#include "tests/cuda/harness/asked.h"

namespace halfnote::libraries {
namespace {

ConvProblem problem() {
  ConvProblem made = test::legal_convolution();
  made.operands = made.result = DType::kF32;
  return made;
}

TEST(Cudnn, TakesWhatOurRulesLetThrough) {
  for (const ConvResult wanted : {ConvResult::kY, ConvResult::kX, ConvResult::kW}) {
    for (const ConvLayout layout : {ConvLayout::kChannelsLast, ConvLayout::kPlain}) {
      for (const DType operands : {DType::kF32, DType::kF16, DType::kBF16}) {
        for (const DType result : {operands, DType::kF32}) {
          if (result != operands && wanted != ConvResult::kY) continue;
          for (const size_t spatial : {1, 2, 3}) {
            ConvProblem made = problem();
            made.wanted = wanted;
            made.layout = layout;
            made.operands = operands;
            made.result = result;
            cpu::ConvPlan& p = made.plan;
            p.spatial = spatial;
            if (spatial == 1) {
              p.in[1] = p.out[1] = p.kernel[1] = p.stride[1] = 1;
              p.pad_begin[1] = p.pad_end[1] = 0;
            } else if (spatial == 3) {
              p.in[0] = p.kernel[0] = p.dilation[0] = 3;
              p.pad_begin[0] = 4;
            }
            for (const bool has_bias : {false, wanted != ConvResult::kW && result == operands}) {
              if (has_bias) made.bias = result;
              const DnnRequest request = dnn_request(made);
              EXPECT_EQ(illegal_request(request), "");
              EXPECT_EQ(cuda::refusal_of_descriptors(request), "");
            }
          }
        }
      }
    }
  }
}

TEST(Cudnn, RefusesWhatOurRulesRefuse) {
  void (*const spoil[])(DnnRequest & r) = {
      [](DnnRequest& r) { r.w.dims[2] = 0; },   [](DnnRequest& r) { r.pad_begin[0] = 5; },
      [](DnnRequest& r) { r.dilation[1] = 9; }, [](DnnRequest& r) { r.stride[0] = 0; },
      [](DnnRequest& r) { r.pad_end[1] = -1; }, [](DnnRequest& r) { r.x.dims[0] = 3; },
      [](DnnRequest& r) { r.w.dims[0] = 17; },  [](DnnRequest& r) { r.stride.push_back(1); },
  };
  for (const auto& change : spoil) {
    DnnRequest request = dnn_request(problem());
    change(request);
    const std::string ours = illegal_request(request);
    EXPECT_NE(ours, "");
    EXPECT_NE(cuda::refusal_of_descriptors(request), "") << ours;
  }
}

}  // namespace
}  // namespace halfnote::libraries
