// External data: what may be opened, and which numbers are believed. Every row prepares a folder
// and says what happens.
#include <sys/stat.h>
#include <unistd.h>

#include "tests/onnx/support.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;
using wire::Entries;

const std::string kData = wire::raw_of<float>({1, 2, 3, 4});

/// A model whose initializer `w` (f32[4]) has these entries.
std::string model_with(const Entries& entries) {
  return wire::model(wire::relu_graph().message(
      wire::kInitializer, wire::external_tensor("w", DType::kF32, {4}, entries)));
}

struct Case {
  const char* name;
  Entries entries;
  std::function<void(const fs::path& folder)> prepare;  // beside `w.bin`, which holds the data
  const char* says = nullptr;                           // null: must be read
  ErrorCode code = ErrorCode::kModel;
};

void PrintTo(const Case& row, std::ostream* out) { *out << row.name; }

void write(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

class External : public testing::TestWithParam<Case> {};

/// Where tests/malformed/make_models.py wants the cases as files; else a folder that goes away.
fs::path folder_of(const Case& row, const fs::path& temporary) {
  const char* kept = std::getenv("HALFNOTE_CASE_FOLDER");
  if (kept == nullptr) return temporary;
  return fs::path(kept) / ((row.says == nullptr ? "ok-" : "") + std::string(row.name));
}

TEST_P(External, ReadsOrRefuses) {
  TempFolder temporary;
  const fs::path outer = folder_of(GetParam(), temporary.path());
  const fs::path folder = outer / "models";
  fs::create_directories(folder);
  write(outer / "secret.bin", kData);
  write(folder / "w.bin", kData);
  write(folder / "m.onnx", model_with(GetParam().entries));
  if (GetParam().prepare) GetParam().prepare(folder);
  if (GetParam().says == nullptr) {
    const Model model = import_model(folder / "m.onnx");
    EXPECT_TRUE(identical(model.graph.value(model.graph.find("w")).tensor,
                          Tensor::of<float>({4}, {1, 2, 3, 4})));
    return;
  }
  const Error error = error_of([&] { import_model(folder / "m.onnx"); });
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_EQ(error.place().file, (folder / "m.onnx").string());
  EXPECT_THAT(error.what(), testing::HasSubstr("initializer \"w\""));
  EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().says));
}

Entries at(const std::string& location) { return {{"location", location}}; }
Entries with(Entries entries, const std::string& key, const std::string& value) {
  entries.emplace_back(key, value);
  return entries;
}

INSTANTIATE_TEST_SUITE_P(
    Accepted, External,
    testing::Values(
        Case{"Plain", at("w.bin"), {}}, Case{"WithDot", at("./w.bin"), {}},
        Case{"OffsetAndLength", {{"location", "w.bin"}, {"offset", "0"}, {"length", "16"}}, {}},
        Case{"Checksum", with(at("w.bin"), "checksum", "da39a3ee"), {}},
        Case{"SubFolder", at("sub/a/w.bin"),
             [](const fs::path& f) { write(f / "sub/a/w.bin", kData); }},
        Case{"InTheMiddle",
             {{"location", "big.bin"}, {"offset", "8"}, {"length", "16"}},
             [](const fs::path& f) { write(f / "big.bin", "01234567" + kData + "more"); }},
        Case{"NotAligned",
             {{"location", "big.bin"}, {"offset", "3"}, {"length", "16"}},
             [](const fs::path& f) { write(f / "big.bin", "abc" + kData); }},
        Case{"HardLink", at("hard.bin"),
             [](const fs::path& f) { fs::create_hard_link(f / "w.bin", f / "hard.bin"); }},
        Case{"LinkInTheSameFolder", at("link.bin"),
             [](const fs::path& f) { fs::create_symlink("w.bin", f / "link.bin"); }},
        Case{"DotsInANameAreNoStepUp", at("..w..bin"),
             [](const fs::path& f) { write(f / "..w..bin", kData); }},
        Case{"DownloadCache", at("weights.bin"),
             [](const fs::path& f) {  // snapshots link into a folder of blobs, model and data alike
               const fs::path blobs = f.parent_path() / "blobs";
               fs::create_directories(blobs);
               fs::rename(f / "m.onnx", blobs / "abc");
               fs::rename(f / "w.bin", blobs / "def");
               fs::create_symlink("../blobs/abc", f / "m.onnx");
               fs::create_symlink("../blobs/def", f / "weights.bin");
             }},
        Case{"LinkedModelFolder", at("w.bin"),
             [](const fs::path& f) {  // the folder itself may be reached through a link
               fs::rename(f, f.parent_path() / "real");
               fs::create_directory_symlink("real", f);
             }}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    Locations, External,
    testing::Values(Case{"Empty", at(""), {}, "it is empty"},
                    Case{"StepUp", at("../secret.bin"), {}, "it holds \"..\""},
                    Case{"StepUpAlone", at(".."), {}, "it holds \"..\""},
                    Case{"StepUpInTheMiddle", at("a/../../secret.bin"), {}, "it holds \"..\""},
                    Case{"StepUpBackInside", at("a/../w.bin"), {}, "it holds \"..\""},
                    Case{"StepUpAtTheEnd", at("a/.."), {}, "it holds \"..\""},
                    Case{"Absolute", at("/etc/hostname"), {}, "it is absolute"},
                    Case{"DoubleSlash", at("//etc/hostname"), {}, "it is absolute"},
                    Case{"Nul", at(std::string("w.bin\0x", 7)), {}, "NUL"},
                    Case{"Backslash", at("..\\secret.bin"), {}, "backslash"},
                    Case{"Drive", at("C:\\w.bin"), {}, "backslash"},
                    Case{"FileUrl", at("file:w.bin"), {}, "URL"},
                    Case{"HttpUrl", at("http://host/w.bin"), {}, "URL"},
                    Case{"TooLong", at(std::string(5000, 'a')), {}, "too long"},
                    Case{"TrailingSlash", at("w.bin/"), {}, "it is a folder"},
                    Case{"Missing", at("none.bin"), {}, "cannot open", ErrorCode::kIo},
                    Case{"ThroughAFile", at("w.bin/x"), {}, "cannot open", ErrorCode::kIo}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    Links, External,
    testing::Values(
        Case{"ToASecret", at("link.bin"),
             [](const fs::path& f) { fs::create_symlink("../secret.bin", f / "link.bin"); },
             "link that leaves"},
        Case{"ToAnAbsolutePath", at("link.bin"),
             [](const fs::path& f) { fs::create_symlink("/etc/hostname", f / "link.bin"); },
             "link that leaves"},
        Case{"ToADevice", at("link.bin"),
             [](const fs::path& f) { fs::create_symlink("/dev/zero", f / "link.bin"); },
             "link that leaves"},
        Case{"FolderToTheOutside", at("dir/secret.bin"),
             [](const fs::path& f) { fs::create_directory_symlink("..", f / "dir"); },
             "link that leaves"},
        Case{"IntoASubFolder", at("link.bin"),
             [](const fs::path& f) {
               write(f / "sub/w.bin", kData);
               fs::create_symlink("sub/w.bin", f / "link.bin");
             },
             "link that leaves"},
        Case{"Chain", at("a.bin"),
             [](const fs::path& f) {
               fs::create_symlink("b.bin", f / "a.bin");
               fs::create_symlink("../secret.bin", f / "b.bin");
             },
             "link that leaves"},
        Case{"Loop", at("a.bin"),
             [](const fs::path& f) {
               fs::create_symlink("b.bin", f / "a.bin");
               fs::create_symlink("a.bin", f / "b.bin");
             },
             "cannot open", ErrorCode::kIo},
        Case{"Dangling", at("a.bin"),
             [](const fs::path& f) { fs::create_symlink("none", f / "a.bin"); }, "cannot open",
             ErrorCode::kIo},
        Case{"Magic", at("link.bin"),
             [](const fs::path& f) { fs::create_symlink("/proc/self/exe", f / "link.bin"); },
             "link that leaves"},
        Case{"CacheLinkToAnotherFolder", at("weights.bin"),
             [](const fs::path& f) {
               const fs::path blobs = f.parent_path() / "blobs";
               fs::create_directories(blobs);
               fs::rename(f / "m.onnx", blobs / "abc");
               fs::create_symlink("../blobs/abc", f / "m.onnx");
               fs::create_symlink("../secret.bin", f / "weights.bin");
             },
             "link that leaves"}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    FileKinds, External,
    testing::Values(
        Case{"Folder", at("dir"), [](const fs::path& f) { fs::create_directory(f / "dir"); },
             "is not a regular file: expected a regular file, got a folder"},
        Case{"Pipe", at("pipe"),
             [](const fs::path& f) { ASSERT_EQ(mkfifo((f / "pipe").c_str(), 0600), 0); },
             "got a pipe or device"}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    Numbers, External,
    testing::Values(
        Case{"OffsetBehindTheEnd", with(at("w.bin"), "offset", "17"), {}, "outside of its file"},
        Case{"LengthBehindTheEnd", with(at("w.bin"), "length", "17"), {}, "outside of its file"},
        Case{"SumOverflows",
             {{"location", "w.bin"}, {"offset", "16"}, {"length", "18446744073709551615"}},
             {},
             "outside of its file"},
        Case{"Negative", with(at("w.bin"), "offset", "-1"), {}, "bad offset"},
        Case{"NegativeLength", with(at("w.bin"), "length", "-16"), {}, "bad length"},
        Case{
            "TooManyDigits", with(at("w.bin"), "length", "99999999999999999999"), {}, "bad length"},
        Case{"NotANumber", with(at("w.bin"), "offset", "0x0"), {}, "bad offset"},
        Case{"Spaces", with(at("w.bin"), "offset", " 0"), {}, "bad offset"},
        Case{"EmptyNumber", with(at("w.bin"), "length", ""), {}, "bad length"},
        Case{"TooShort", with(at("w.bin"), "length", "15"), {}, "expected 16 bytes, got 15"},
        Case{"RestTooShort", with(at("w.bin"), "offset", "4"), {}, "expected 16 bytes, got 12"},
        Case{"RestTooLong", at("w.bin"), [](const fs::path& f) { write(f / "w.bin", kData + "x"); },
             "got 17 bytes"},
        Case{"EmptyFile", at("w.bin"), [](const fs::path& f) { write(f / "w.bin", ""); },
             "expected 16 bytes, got 0"},
        Case{"CutFile", with(at("w.bin"), "length", "16"),
             [](const fs::path& f) { fs::resize_file(f / "w.bin", 8); }, "outside of its file"},
        Case{"UnknownKey", with(at("w.bin"), "command", "rm"), {}, "unknown key"},
        Case{"KeyTwice", with(at("w.bin"), "location", "w.bin"), {}, "stands twice"},
        Case{"NoLocation", {{"offset", "0"}}, {}, "without a location"}),
    row_name);

TEST(ExternalData, RawDataBesideItIsRefused) {
  TempFolder folder;
  folder.write("w.bin", kData);
  const auto tensor = wire::external_tensor("w", DType::kF32, {4}, at("w.bin")).text(9, kData);
  const auto path =
      folder.write("m.onnx", wire::model(wire::relu_graph().message(wire::kInitializer, tensor)));
  EXPECT_THAT(error_of([&] { import_model(path); }).what(), testing::HasSubstr("more than once"));
}

TEST(ExternalData, LinksIntoAnAllowedFolderAreFollowed) {
  TempFolder folder;
  folder.write("shared/w.bin", kData);
  const auto path = folder.write("models/m.onnx", model_with(at("link.bin")));
  fs::create_symlink("../shared/w.bin", folder / "models/link.bin");
  EXPECT_THAT(error_of([&] { import_model(path); }).what(), testing::HasSubstr("link that leaves"));
  ImportOptions options;
  options.allowed_folders = {folder / "shared"};
  EXPECT_NO_THROW(import_model(path, options));
  options.allowed_folders = {folder / "share"};  // a prefix of the name is not the folder
  EXPECT_THAT(error_of([&] { import_model(path, options); }).what(),
              testing::HasSubstr("link that leaves"));
}

TEST(ExternalData, OddButLegalThingsAreTold) {
  TempFolder folder;
  folder.write("w.bin", kData);
  fs::create_hard_link(folder / "w.bin", folder / "second.bin");
  const auto path = folder.write("m.onnx", model_with(with(at("w.bin"), "checksum", "00")));
  std::vector<std::string> warnings;
  ImportOptions options;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  import_model(path, options);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], testing::HasSubstr("hard link"));
  EXPECT_THAT(warnings[1], testing::HasSubstr("not verified"));
}

TEST(ExternalData, AFileThatShrinksWhileItIsOpenedIsAnError) {
  TempFolder folder;
  folder.write("w.bin", kData);
  // The hard link makes the reader speak between its look at the size and the mapping.
  fs::create_hard_link(folder / "w.bin", folder / "second.bin");
  const auto path = folder.write("m.onnx", model_with(at("w.bin")));
  ImportOptions options;
  options.warn = [&](const std::string&) { fs::resize_file(folder / "w.bin", 4); };
  const Error error = error_of([&] { import_model(path, options); });
  EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
  EXPECT_THAT(error.what(), testing::HasSubstr("became shorter while it was opened"));
}

/// `count` initializers, the i-th in `location(i)`.
std::string many(int count, const std::function<std::string(int)>& location) {
  wire::Message graph = wire::relu_graph();
  for (int i = 0; i < count; ++i) {
    graph.message(wire::kInitializer, wire::external_tensor("w" + std::to_string(i), DType::kF32,
                                                            {4}, at(location(i))));
  }
  return wire::model(graph);
}

TEST(ExternalData, OneFileAThousandTimesIsOneMapping) {
  TempFolder folder;
  folder.write("w.bin", kData);
  const auto path = folder.write("m.onnx", many(1000, [](int) { return "w.bin"; }));
  const Model model = import_model(path);
  const auto& storage = model.graph.value(model.graph.find("w999")).tensor.storage();
  EXPECT_EQ(storage.get(), model.graph.value(model.graph.find("w0")).tensor.bytes());
  EXPECT_EQ(storage.use_count(), 1000);
}

TEST(ExternalData, NumberOfFilesIsLimited) {
  TempFolder folder;
  for (int i = 0; i < 3; ++i) folder.write("w" + std::to_string(i), kData);
  const auto path = folder.write("m.onnx", many(3, [](int i) { return "w" + std::to_string(i); }));
  ImportOptions options;
  options.limits.external_files = 3;
  EXPECT_NO_THROW(import_model(path, options));
  options.limits.external_files = 2;
  EXPECT_THAT(error_of([&] { import_model(path, options); }).what(),
              testing::HasSubstr("number of external files is over the limit"));
}

TEST(ExternalData, MoreThanTwoGigabytes) {
  // A sparse file: no disk is used, and only the pages that are looked at are read.
  TempFolder folder;
  constexpr int64_t kBytes = (int64_t{1} << 31) + 4096;
  folder.write("w.bin", "");
  fs::resize_file(folder / "w.bin", kBytes);
  const auto tensor = wire::external_tensor("w", DType::kU8, {kBytes}, at("w.bin"));
  const auto path =
      folder.write("m.onnx", wire::model(wire::relu_graph().message(wire::kInitializer, tensor)));
  const Model model = import_model(path);
  EXPECT_EQ(model.graph.value(model.graph.find("w")).tensor.byte_size(), size_t{kBytes});
  EXPECT_THAT(error_of([&] {
                export_model(model, folder / "o.onnx", {.external = ExternalTensors::kNever});
              }).what(),
              testing::HasSubstr("too large for one file"));
  EXPECT_FALSE(fs::exists(folder / "o.onnx"));
}

}  // namespace
}  // namespace halfnote
