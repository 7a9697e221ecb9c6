// Where CUDA's libraries are looked for, and what is said of missing, damaged and old ones.
#include "kernels/cuda/libraries/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/environment.h"

namespace halfnote::libraries {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr LibraryName kMissing = {"cuTest", "libhalfnote_no_such.so.13", "install cuTest"};

std::string message(const LibraryName& name) {
  try {
    open_library(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_EQ(error.exit_code(), 10);
    return error.what();
  }
  ADD_FAILURE() << "opened " << name.file;
  return "";
}

TEST(Library, NamedFoldersComeFirst) {
  const Variable folders(kLibraryFolders, "/one::/two/");
  EXPECT_THAT(
      library_candidates(kMissing),
      ElementsAre("/one/libhalfnote_no_such.so.13", "/two//libhalfnote_no_such.so.13",
                  "libhalfnote_no_such.so.13", "/usr/local/cuda/lib64/libhalfnote_no_such.so.13"));
  LibraryName driver = kMissing;
  driver.search = Search::kLoader;
  EXPECT_THAT(library_candidates(driver), ElementsAre("libhalfnote_no_such.so.13"));
}

TEST(Library, MissingTellsEveryPlace) {
  const Variable folders(kLibraryFolders, "/one");
  const std::string text = message(kMissing);
  EXPECT_THAT(text, HasSubstr("no cuTest: expected libhalfnote_no_such.so.13, got "));
  for (const std::string& candidate : library_candidates(kMissing)) {
    EXPECT_THAT(text, HasSubstr(candidate + ": cannot open shared object file"));
  }
  EXPECT_THAT(text, HasSubstr("; install cuTest"));
}

TEST(Library, DamagedIsNoMissingOne) {
  const fs::path folder = fs::path(testing::TempDir()) / "halfnote_library_test";
  fs::create_directories(folder);
  std::ofstream(folder / kMissing.file) << "no library";
  const Variable folders(kLibraryFolders, folder.c_str());
  EXPECT_THAT(message(kMissing), HasSubstr((folder / kMissing.file).string() + ": file too short"));
  fs::remove_all(folder);
}

TEST(Library, OldOneLacksFunctions) {
  constexpr LibraryName kMath = {"the math library", "libm.so.6", "install a newer one"};
  void* library = open_library(kMath);
  EXPECT_NE(find_function(library, kMath, "cos"), nullptr);
  try {
    find_function(library, kMath, "cos_of_next_year");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_STREQ(error.what(),
                 "the math library is too old: expected cos_of_next_year, got libm.so.6 without "
                 "it; install a newer one");
  }
}

}  // namespace
}  // namespace halfnote::libraries
