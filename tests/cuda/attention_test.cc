// Attention and its gradient on the device against the CPU's reference: heads of every size of
// tile, no queries or keys, what the device refuses; and whole models with fused attention. More
// forms are in tests/kernels/attention_test.cc, which runs them on the device too.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "call.h"
#include "kernels/cuda/table.h"

namespace halfnote::cuda_emulated {
namespace {

struct HeadSizes {
  Shape batch;
  int64_t m, n, d, e;
};

Shape joined(Shape shape, std::initializer_list<int64_t> tail) {
  shape.insert(shape.end(), tail);
  return shape;
}

Call attention(const HeadSizes& s, DType dtype, const std::vector<Tensor>& terms = {},
               const Attributes& more = {}) {
  const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
  Call call{kOwn,
            "Attention",
            {random(dtype, joined(s.batch, {s.m, s.d}), -2, 2, 1),
             random(dtype, joined(s.batch, {s.n, s.d}), -2, 2, 2),
             random(dtype, joined(s.batch, {s.n, s.e}), -2, 2, 3)},
            more,
            {{dtype, joined(s.batch, {s.m, s.e})},
             {wide, joined(s.batch, {s.m})},
             {wide, joined(s.batch, {s.m})}}};
  call.attributes.set("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(s.d))));
  call.inputs.insert(call.inputs.end(), terms.begin(), terms.end());
  return call;
}

/// The gradient of a forward call, from what the device gave for it; `term`: a gradient for the
/// first term.
Call gradient(const Call& forward, const std::vector<Tensor>& results, bool term = false) {
  Call call{kOwn, "AttentionGrad", {}, forward.attributes, {}};
  call.inputs = {random(results[0].dtype(), results[0].shape(), -1, 1, 8)};
  for (size_t i = 0; i < 3; ++i) {
    call.inputs.push_back(forward.inputs[i]);
    call.outputs.push_back({forward.inputs[i].dtype(), forward.inputs[i].shape()});
  }
  call.inputs.insert(call.inputs.end(), results.begin(), results.end());
  call.inputs.insert(call.inputs.end(), forward.inputs.begin() + 3, forward.inputs.end());
  if (term) call.outputs.push_back({results[1].dtype(), forward.inputs[3].shape()});
  return call;
}

void check_both(const Call& forward, bool term = false) {
  check(forward);
  check(gradient(forward, on_device(forward), term));
}

TEST(CudaAttention, HeadsOfEverySize) {
  for (const DType dtype : kFloats) {
    check_both(attention({{2}, 70, 67, 64, 33}, dtype));
    check_both(attention({{1, 2}, 37, 40, 65, 128}, dtype));
    const int64_t most = dtype == DType::kF64 ? 128 : 256;  // elements of a head
    check_both(attention({{2}, 19, 18, most, most / 2 + 1}, dtype));
    check_both(attention({{3, 1}, 1, 1, 1, 1}, dtype));
  }
}

TEST(CudaAttention, NoQueriesKeysOrBatches) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_both(attention({{2}, 0, 5, 8, 8}, dtype));
    check_both(attention({{2}, 5, 0, 8, 8}, dtype));
    check_both(attention({{0, 3}, 5, 6, 8, 8}, dtype));
  }
}

TEST(CudaAttention, GradientOfATermIsSummedOverBatches) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const DType wide = DType::kF32;
    check_both(attention({{3, 2}, 70, 66, 16, 8}, dtype, {random(wide, {2, 70, 66})}), true);
    check_both(attention({{3, 2}, 21, 20, 16, 8}, dtype, {random(wide, {3, 1, 21, 20})}), true);
    check_both(attention({{2, 2}, 21, 20, 16, 8}, dtype, {random(wide, {21, 20})}), true);
    Attributes causal;
    causal.set("is_causal", int64_t{1});
    check_both(attention({{2, 2}, 90, 90, 16, 8}, dtype, {random(wide, {90, 90})}, causal), true);
  }
}

TEST(CudaAttention, SaysWhatItRefuses) {
  const auto refused = [](const Call& call) {
    try {
      on_device(call);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(refused(attention({{1}, 2, 2, 257, 2}, DType::kF32)).find("more than 256"),
            std::string::npos);
  EXPECT_NE(refused(attention({{1}, 2, 2, 2, 129}, DType::kF64)).find("more than 128"),
            std::string::npos);
  const std::vector<Tensor> five(5, random(DType::kF32, {2, 2}));
  EXPECT_NE(refused(attention({{1}, 2, 2, 4, 4}, DType::kF32, five)).find("four terms"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::cuda_emulated
