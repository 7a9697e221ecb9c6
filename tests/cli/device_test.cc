// `--device cuda` in a build with CUDA, on a machine whose driver is missing, damaged or old: the
// program starts, says what it sought and what came, and trains on no other device.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tests/cli/support.h"

namespace halfnote::cli_test {
namespace {

using testing::HasSubstr;

// What this CPU does with bf16 and padding says nothing about a device.
TEST(Device, RunsSayNothingOfTheCpu) {
  Workplace place;
  place.compile("artifact.onnx", {"--precision", "bf16"});
  const Outcome outcome =
      place.run(words(std::string("run artifact.onnx --steps 1 --device cuda-emulated ") + kTrain));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("emulated CUDA device"));
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("CPU")));
}

TEST(Device, UnknownWordsOfTheEnvironmentAreErrors) {
  Workplace place;
  place.compile("artifact.onnx");
  const auto before = place.list();
  for (const auto& [name, known] :
       {std::pair("HALFNOTE_EPILOGUES", "expected always or never, got alwys"),
        {"HALFNOTE_RECURRENT", "expected own, got alwys"},
        {"HALFNOTE_ATTENTION", "expected always or never, got alwys"},
        {"HALFNOTE_BRANCHES", "expected always or never, got alwys"},
        {"HALFNOTE_EMULATION_SEED", "expected a number from 0 to 2^64 - 1, got alwys"}}) {
    ::setenv(name, "alwys", 1);
    const Outcome outcome = place.run(
        words(std::string("run artifact.onnx --steps 1 --device cuda-emulated ") + kTrain));
    ::unsetenv(name);
    EXPECT_EQ(outcome.code, 2) << name;
    EXPECT_EQ(outcome.out, "") << name;
    EXPECT_THAT(outcome.err, testing::StartsWith("halfnote: error (usage): ")) << name;
    EXPECT_THAT(outcome.err, HasSubstr(name + std::string(" in the environment is no ")));
    EXPECT_THAT(outcome.err, HasSubstr(known));
    EXPECT_EQ(place.list(), before) << name;
  }
}

#if defined(HALFNOTE_OLD_DRIVER)

const std::string kOnCuda = std::string("run artifact.onnx --steps 1 --device cuda ") + kTrain;
constexpr const char* kWhatToDo =
    "; install a driver for CUDA 13 (580 or newer), or run on --device cpu";

/// Runs with the libraries of `folder` before those of the system: one line, code 10, no output.
std::string refusal(const Workplace& place, const std::string& folder) {
  const auto before = place.list();
  ::setenv("LD_LIBRARY_PATH", folder.c_str(), 1);
  const Outcome outcome = place.run(words(kOnCuda));
  ::unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(outcome.code, 10) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(place.list(), before);
  return outcome.err;
}

TEST(CudaDriver, MissingOneIsNamed) {
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_NOW)) {
    ::dlclose(driver);
    GTEST_SKIP() << "this machine has a driver";
  }
  Workplace place;
  place.compile("artifact.onnx");
  const std::string text = refusal(place, "");
  EXPECT_THAT(text, HasSubstr("error (device): no NVIDIA driver: expected libcuda.so.1, got "
                              "libcuda.so.1: cannot open shared object file"));
  EXPECT_THAT(text, HasSubstr(kWhatToDo));
}

TEST(CudaDriver, DamagedOneIsNamed) {
  Workplace place;
  place.compile("artifact.onnx");
  place.write("libcuda.so.1", "no library");
  const std::string text = refusal(place, (place / ".").string());
  EXPECT_THAT(text, HasSubstr("no NVIDIA driver: expected libcuda.so.1, got libcuda.so.1: "));
  EXPECT_THAT(text, HasSubstr("file too short"));
  EXPECT_THAT(text, HasSubstr(kWhatToDo));
}

TEST(CudaDriver, OldOneIsNoMissingOne) {
  Workplace place;
  place.compile("artifact.onnx");
  const std::string text = refusal(place, HALFNOTE_OLD_DRIVER);
  EXPECT_THAT(text, HasSubstr("the NVIDIA driver is too old: expected one for CUDA 13, got one for "
                              "CUDA 12.4"));
  EXPECT_THAT(text, HasSubstr(kWhatToDo));
}

TEST(CudaDriver, CpuNeedsNone) {
  Workplace place;
  place.compile("artifact.onnx");
  ::setenv("LD_LIBRARY_PATH", HALFNOTE_OLD_DRIVER, 1);
  const Outcome outcome = place.run(words(std::string("run artifact.onnx --steps 1 ") + kTrain));
  ::unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

#else

TEST(CudaDriver, BuildWithoutCudaSaysSo) {
  Workplace place;
  place.compile("artifact.onnx");
  for (const std::string device : {"cuda", "cuda:1"}) {
    const auto before = place.list();
    const Outcome outcome =
        place.run(words("run artifact.onnx --steps 1 --device " + device + " " + kTrain));
    EXPECT_EQ(outcome.code, 10) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("this build of halfnote has no CUDA: expected a build with "
                                       "-DHALFNOTE_CUDA=ON"));
    EXPECT_EQ(place.list(), before);
  }
}

#endif

}  // namespace
}  // namespace halfnote::cli_test
