// NVRTC compiles every kernel of the table for the GPUs of four generations, and what it gave is
// kept in a folder that nobody can spoil. Needs the library, and neither driver nor GPU.
#include "kernels/cuda/libraries/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/system/folder.h"
#include "tests/cuda/chain/table.h"
#include "tests/environment.h"

namespace halfnote::libraries {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// Skips the test where the library is not installed; elsewhere any error is one.
class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      nvrtc_.emplace();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDevice) throw;
      GTEST_SKIP() << error.what();
    }
    // Its own: parts of the tests run side by side.
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / ("halfnote_nvrtc_" + std::string(test->name()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::optional<Nvrtc> nvrtc_;
  fs::path folder_;
  const std::vector<test::ChainCase> cases_ = test::chain_cases();
};

std::vector<chain::Source> texts_of(const std::vector<test::ChainCase>& cases) {
  std::vector<chain::Source> sources;
  for (const auto& [first, source] : test::chain_texts(cases)) sources.push_back(source);
  return sources;
}

TEST_F(NvrtcTest, CompilesEveryKernelForEveryGpu) {
  const std::vector<chain::Source> sources = texts_of(cases_);
  EXPECT_GT(sources.size(), 20u);
  for (const int architecture : {80, 90, 100, 120}) {
    EXPECT_EQ(nvrtc_->target_for(architecture), "sm_" + std::to_string(architecture));
    const CompiledKernels made = compile_kernels(*nvrtc_, sources, architecture, {});
    EXPECT_EQ(made.compiled, sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_THAT(made.images[i], StartsWith("\177ELF")) << sources[i].name;
      EXPECT_THAT(made.images[i], HasSubstr(sources[i].name));
    }
  }
}

TEST_F(NvrtcTest, GroupsAreSixteenBytesAndNothingSpills) {
  size_t seen = 0;
  for (const auto& [first, source] : test::chain_texts(cases_)) {
    const bool row = first->title.ends_with("with a row");
    const bool other = first->title.starts_with("dropouts of") || first->title.starts_with("sums");
    if (!row && !other) continue;
    const std::string ptx = nvrtc_->compile(source, "compute_90");
    EXPECT_THAT(ptx, Not(HasSubstr(".local"))) << first->title;
    const bool along_rows = first->title.starts_with("sums along rows");
    if (along_rows) {
      EXPECT_THAT(ptx, HasSubstr("shfl.sync")) << first->title;
    }
    if (!row && !along_rows) continue;
    EXPECT_THAT(ptx, HasSubstr("ld.global.v4")) << first->title;
    EXPECT_THAT(ptx, HasSubstr("st.global.v4")) << first->title;
    ++seen;
  }
  EXPECT_EQ(seen, 9u);
}

TEST_F(NvrtcTest, NewerGpusThanTheLibraryGetPtx) {
  EXPECT_THAT(nvrtc_->target_for(999), StartsWith("compute_"));
  const chain::Source small = test::chain_texts(cases_).back().source;
  const CompiledKernels made = compile_kernels(*nvrtc_, {&small, 1}, 999, {});
  EXPECT_THAT(made.images[0], HasSubstr(".visible .entry " + small.name));
  EXPECT_THROW(nvrtc_->target_for(10), Error);
}

TEST_F(NvrtcTest, RefusedTextIsAnInternalErrorWithTheCompilersWords) {
  try {
    nvrtc_->compile({"chain_x", "not C++"}, "sm_90");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("chain_x"));
    EXPECT_THAT(error.what(), HasSubstr("error"));
  }
}

TEST_F(NvrtcTest, KernelsAreCompiledOnce) {
  const auto texts = test::chain_texts(cases_);
  const std::vector<chain::Source> two = {texts.back().source, texts[texts.size() - 2].source};
  const auto compile = [&](int gpu) { return compile_kernels(*nvrtc_, two, gpu, folder_); };
  const CompiledKernels first = compile(90), second = compile(90);
  EXPECT_EQ(first.compiled, 2u);
  EXPECT_EQ(second.compiled, 0u);
  EXPECT_EQ(second.images, first.images);
  EXPECT_EQ(compile(80).compiled, 2u) << "another GPU, other code";
  EXPECT_EQ(names_in(folder_).size(), 4u);
}

TEST_F(NvrtcTest, SpoiltFilesCountAsMissing) {
  const chain::Source source = test::chain_texts(cases_).back().source;
  const auto compile = [&] { return compile_kernels(*nvrtc_, {&source, 1}, 90, folder_); };
  const std::string image = compile().images[0];
  const std::vector<std::string> names = names_in(folder_);
  ASSERT_EQ(names.size(), 1u);
  const fs::path file = folder_ / names[0];
  const std::string whole = read_text(file, 1 << 24);
  std::string flipped = whole;
  flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 1);
  for (const std::string& spoilt :
       {std::string(), std::string("no kernel"), whole.substr(0, whole.size() - 1), flipped,
        whole + "x", "halfnote kernel 1 0 0\n" + image}) {
    std::ofstream(file, std::ios::binary) << spoilt;
    const CompiledKernels again = compile();
    EXPECT_EQ(again.compiled, 1u);
    EXPECT_EQ(again.images[0], image);
    EXPECT_EQ(compile().compiled, 0u) << "the file is whole again";
  }
}

TEST_F(NvrtcTest, AFolderThatCannotBeWrittenCostsTheCompilation) {
  const chain::Source source = test::chain_texts(cases_).back().source;
  std::ofstream(folder_) << "a file where the folder should be";
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(compile_kernels(*nvrtc_, {&source, 1}, 90, folder_).compiled, 1u);
  }
}

TEST(KernelFolder, FollowsTheEnvironment) {
  const Variable home("HOME", "/home/me");
  {
    const Variable cache("XDG_CACHE_HOME", "/var/cache/me");
    EXPECT_EQ(kernel_folder(), "/var/cache/me/halfnote/kernels");
  }
  for (const char* none : {"", "relative"}) {
    const Variable cache("XDG_CACHE_HOME", none);
    EXPECT_EQ(kernel_folder(), "/home/me/.cache/halfnote/kernels");
    const Variable nowhere("HOME", none);
    EXPECT_EQ(kernel_folder(), "");
  }
}

}  // namespace
}  // namespace halfnote::libraries
