// What the address sanitizer sees of a kernel: this file is compiled with it, where the libraries
// are, as few other tests are (halfnote_sanitized_test() of tests/CMakeLists.txt).
#include <gtest/gtest.h>

#include "tests/sanitizer.h"

#if defined(__SANITIZE_ADDRESS__)

#include "kernels/cuda/packs.h"
#include "tests/cuda/emulator/fixture.h"

namespace halfnote::cuda_emulated {
namespace {

__global__ void read_at(const float* in, int at, float* out) { *out = in[at]; }
__global__ void read_four(const float* in, int at, float* out) {
  const float4 four = __ldg(reinterpret_cast<const float4*>(in + at));
  *out = four.x + four.y + four.z + four.w;
}
__global__ void write_at(float* to, int at) { to[at] = 1; }
__global__ void write_shared(int at, float* out) {
  HN_SHARED(float[33], row);
  row[at] = 1;
  *out = row[0];
}
__global__ void write_dynamic(int at, float* out) {
  HN_DYNAMIC_SHARED(float, row);
  row[at] = 1;
  *out = row[0];
}

/// An access one element before or behind an operand, or behind shared memory, ends the program.
TEST_F(EmulatorTest, AccessesOutOfBoundsAreCaught) {
  GTEST_FLAG_SET(death_test_style, "fast");
  const auto x = device_.allocate(101 * sizeof(float)), y = device_.allocate(sizeof(float));
  const auto nothing = device_.allocate(0);
  auto* const in = reinterpret_cast<float*>(x.get());
  auto* const out = reinterpret_cast<float*>(y.get());
  run(read_at, 1, 1, 0, in, 100, out);
  run(read_four, 1, 1, 0, in, 96, out);
  run(write_at, 1, 1, 0, in, 100);
  run(write_shared, 1, 1, 0, 32, out);
  run(write_dynamic, 1, 1, 33 * sizeof(float), 32, out);
  const char* const kSeen = "AddressSanitizer: use-after-poison";
  for (const int at : {101, 300, -1}) EXPECT_DEATH(run(read_at, 1, 1, 0, in, at, out), kSeen) << at;
  EXPECT_DEATH(run(read_four, 1, 1, 0, in, 100, out), kSeen) << "4 of 16 bytes are there";
  EXPECT_DEATH(run(write_at, 1, 1, 0, in, 101), kSeen);
  EXPECT_DEATH(run(write_at, 1, 1, 0, reinterpret_cast<float*>(nothing.get()), 0), kSeen);
  for (const int at : {33, 200, -1}) {
    // The length of a static array is known to the check of undefined behaviour, which comes first.
    EXPECT_DEATH(run(write_shared, 1, 1, 0, at, out), "use-after-poison|out of bounds") << at;
    EXPECT_DEATH(run(write_dynamic, 1, 1, 33 * sizeof(float), at, out), kSeen) << at;
  }
  const auto fill_too_much = [&] {
    stream_->fill(out, 0, 5);
    stream_->synchronise();
  };
  EXPECT_DEATH(fill_too_much(), kSeen);
}

}  // namespace
}  // namespace halfnote::cuda_emulated

#else

TEST(EmulatorBounds, AreCompiledWithTheSanitizerOfTheLibraries) {
  EXPECT_FALSE(halfnote::under_address_sanitizer());
}

#endif
