// Which matrix products may be asked of the library.
#include "kernels/cuda/libraries/blas.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"

namespace halfnote::libraries {
namespace {

MatmulProblem legal() {
  MatmulProblem p;
  p.ab = DType::kBF16;
  p.d = DType::kF32;
  p.m = 4;
  p.n = 6;
  p.k = 8;
  p.batches = 3;
  p.stride_a = 32;
  p.stride_d = 24;
  return p;
}

TEST(Blas, RefusesWhatTheLibraryWould) {
  EXPECT_EQ(illegal_matmul(legal()), "");
  struct Case {
    const char* reason;
    void (*spoil)(MatmulProblem& p);
  };
  const Case cases[] = {
      {"no product of bf16 gives f16", [](MatmulProblem& p) { p.d = DType::kF16; }},
      {"no product of i32 gives f32", [](MatmulProblem& p) { p.ab = DType::kI32; }},
      {"no product of f32 gives bf16",
       [](MatmulProblem& p) { p.ab = DType::kF32, p.d = DType::kBF16; }},
      {"an empty matrix", [](MatmulProblem& p) { p.k = 0; }},
      {"an empty matrix", [](MatmulProblem& p) { p.batches = 0; }},
      {"a matrix too large", [](MatmulProblem& p) { p.m = int64_t{1} << 31; }},
      {"matrices that overlap", [](MatmulProblem& p) { p.stride_a = 31; }},
      {"matrices that overlap", [](MatmulProblem& p) { p.stride_b = 1; }},
      {"matrices that overlap", [](MatmulProblem& p) { p.stride_d = 0; }},
  };
  for (const Case& c : cases) {
    MatmulProblem p = legal();
    c.spoil(p);
    EXPECT_EQ(illegal_matmul(p), c.reason);
  }
}

TEST(Blas, IllegalRequestIsABugOfOurs) {
  cuda_emulated::EmulatedDevice device;
  const auto stream = device.make_stream();
  const auto memory = device.allocate(1024);
  const auto library = [&](size_t offset) {
    cuda_emulated::blas().matmul(
        *stream, legal(), {memory.get() + offset, memory.get(), memory.get() + 512, nullptr});
  };
  EXPECT_THROW(library(1), Error) << "not aligned to its elements";
  EXPECT_NO_THROW(library(2));
}

}  // namespace
}  // namespace halfnote::libraries
