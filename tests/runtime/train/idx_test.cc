// MNIST's idx format: every element type, gzip, the real Fashion-MNIST files, and files that are
// damaged.
#include <gmock/gmock.h>

#include "runtime/train/data/format/readers.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;
using test::gzip;
using test::TempFolder;
using test::write_bytes;

std::string bytes_of(std::initializer_list<int> values) {
  std::string result;
  for (const int value : values) result += static_cast<char>(value);
  return result;
}

/// u8 (2,3) holding 1 to 6.
std::string small_file() {
  return bytes_of({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6});
}

TEST(Idx, ReadsBytes) {
  const TempFolder folder;
  write_bytes(folder / "a", small_file());
  EXPECT_TRUE(identical(read_idx(folder / "a"), Tensor::of<uint8_t>({2, 3}, {1, 2, 3, 4, 5, 6})));
}

TEST(Idx, ReadsGzip) {
  const TempFolder folder;
  write_bytes(folder / "a.gz", gzip(small_file()));
  EXPECT_TRUE(
      identical(read_idx(folder / "a.gz"), Tensor::of<uint8_t>({2, 3}, {1, 2, 3, 4, 5, 6})));
}

TEST(Idx, ReadsGzipOfSeveralMembers) {
  const TempFolder folder;
  const std::string whole = small_file();
  write_bytes(folder / "a",
              gzip(whole.substr(0, 7)) + gzip(whole.substr(7, 6)) + gzip(whole.substr(13)));
  EXPECT_TRUE(identical(read_idx(folder / "a"), Tensor::of<uint8_t>({2, 3}, {1, 2, 3, 4, 5, 6})));
}

struct ElementCase {
  const char* name;
  int code;
  std::string big_endian;
  Tensor expected;
};

class IdxElements : public testing::TestWithParam<ElementCase> {};

TEST_P(IdxElements, ConvertsFromBigEndian) {
  const TempFolder folder;
  write_bytes(folder / "a",
              bytes_of({0, 0, GetParam().code, 1, 0, 0, 0, 1}) + GetParam().big_endian);
  EXPECT_TRUE(identical(read_idx(folder / "a"), GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    All, IdxElements,
    testing::Values(
        ElementCase{"u8", 0x08, bytes_of({200}), Tensor::of<uint8_t>({1}, {200})},
        ElementCase{"i8", 0x09, bytes_of({0xff}), Tensor::of<int8_t>({1}, {-1})},
        ElementCase{"i16", 0x0b, bytes_of({0xff, 0xfe}), Tensor::of<int16_t>({1}, {-2})},
        ElementCase{"i32", 0x0c, bytes_of({0, 1, 0, 2}), Tensor::of<int32_t>({1}, {65538})},
        ElementCase{"f32", 0x0d, bytes_of({0x3f, 0xc0, 0, 0}), Tensor::of<float>({1}, {1.5f})},
        ElementCase{"f64", 0x0e, bytes_of({0x3f, 0xf8, 0, 0, 0, 0, 0, 0}),
                    Tensor::of<double>({1}, {1.5})}),
    [](const auto& row) { return row.param.name; });

struct BadCase {
  const char* name;
  std::string bytes;
  std::vector<std::string> message;
};

class IdxBad : public testing::TestWithParam<BadCase> {};

TEST_P(IdxBad, IsRefused) {
  const TempFolder folder;
  write_bytes(folder / "bad", GetParam().bytes);
  std::vector<std::string> parts = GetParam().message;
  parts.push_back("bad: ");
  expect_error(ErrorCode::kData, parts, [&] { read_idx(folder / "bad"); });
}

INSTANTIATE_TEST_SUITE_P(
    All, IdxBad,
    testing::Values(
        BadCase{"empty", "", {"the header is truncated: expected 4 bytes, got 0"}},
        BadCase{"html", "<html>not found</html>", {"not an idx file", "got 3c 68"}},
        BadCase{"type", bytes_of({0, 0, 7, 1, 0, 0, 0, 0}), {"unknown element type", "got 07"}},
        BadCase{"scalar", bytes_of({0, 0, 8, 0, 1}), {"number of dims", "got 0"}},
        BadCase{"rank", bytes_of({0, 0, 8, 9}), {"number of dims", "expected 1 to 8, got 9"}},
        BadCase{"short_dims", bytes_of({0, 0, 8, 2, 0, 0, 0}), {"the header is truncated"}},
        BadCase{"short_data",
                bytes_of({0, 0, 8, 1, 0, 0, 0, 9, 1}),
                {"the data of shape [9] is truncated: expected 9 bytes, got 1"}},
        BadCase{"long_data",
                bytes_of({0, 0, 8, 1, 0, 0, 0, 1, 1, 2}),
                {"more bytes follow the data of shape [1]"}},
        BadCase{
            "huge",
            bytes_of({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
            {"more data than the file can hold", "got shape [4294967295,4294967295,4294967295]"}},
        BadCase{"huge_and_empty",
                bytes_of({0, 0, 8, 3, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}),
                {"more data than the file can hold"}},
        BadCase{"gzip_garbage",
                bytes_of({0x1f, 0x8b, 9, 9, 9, 9, 9, 9}),
                {"the gzip stream is damaged"}},
        BadCase{"gzip_short", gzip(small_file()).substr(0, 20), {"the gzip stream is truncated"}},
        BadCase{"gzip_without_sum",
                gzip(small_file()).substr(0, gzip(small_file()).size() - 4),
                {"truncated"}},
        BadCase{"gzip_tail", gzip(small_file()) + "junk", {"the gzip stream is damaged"}}),
    [](const auto& row) { return row.param.name; });

TEST(Idx, DetectsEveryBitFlipOfGzippedContent) {
  const TempFolder folder;
  const std::string good = gzip(small_file());
  const Tensor expected = Tensor::of<uint8_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  for (size_t i = 10; i < good.size(); ++i) {  // the first ten bytes hold time, level and system
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    write_bytes(folder / "a", bad);
    try {
      EXPECT_TRUE(identical(read_idx(folder / "a"), expected)) << "byte " << i;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData) << error.what();
    }
  }
}

TEST(Idx, RefusesExpansionOverTheLimitBeforeSpendingMemory) {
  const TempFolder folder;
  write_bytes(folder / "bomb.gz",
              gzip(bytes_of({0, 0, 8, 1, 0x7f, 0, 0, 0}) + std::string(1000, '\0')));
  expect_error(ErrorCode::kData, {"bomb.gz", "more data than the file can hold"},
               [&] { read_idx(folder / "bomb.gz"); });
  DataLimits limits;
  limits.ratio = 2;
  write_bytes(folder / "b.gz",
              gzip(bytes_of({0, 0, 8, 1, 0, 0, 3, 0xe8}) + std::string(1000, '\0')));
  EXPECT_EQ(read_idx(folder / "b.gz").size(), 1000);
  expect_error(ErrorCode::kData, {"more data than the file can hold"},
               [&] { read_idx(folder / "b.gz", limits); });
}

TEST(Idx, SurvivesDamage) {
  const TempFolder folder;
  const std::string path = folder / "a";
  test::expect_robust(path, small_file(), 3000, [&] { read_idx(path); });
  test::expect_robust(path, gzip(small_file()), 3000, [&] { read_idx(path); });
}

TEST(Idx, RefusesWhatIsNoFile) {
  const TempFolder folder;
  expect_error(ErrorCode::kIo, {"missing"}, [&] { read_idx(folder / "missing"); });
  expect_error(ErrorCode::kIo, {folder.path().string()}, [&] { read_idx(folder.path().string()); });
}

TEST(Idx, ReadsFashionMnist) {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  struct Part {
    const char* prefix;
    int64_t samples;
  };
  for (const Part& part : {Part{"train", 60000}, Part{"t10k", 10000}}) {
    const Tensor images = read_idx(folder + part.prefix + "-images-idx3-ubyte.gz");
    const Tensor labels = read_idx(folder + part.prefix + "-labels-idx1-ubyte.gz");
    EXPECT_EQ(images.dtype(), DType::kU8);
    EXPECT_EQ(images.shape(), Shape({part.samples, 28, 28}));
    EXPECT_EQ(labels.shape(), Shape({part.samples}));
    std::vector<int64_t> counts(10, 0);
    for (const uint8_t label : labels.data<uint8_t>()) {
      ASSERT_LT(label, 10);
      ++counts[label];
    }
    EXPECT_THAT(counts, testing::Each(part.samples / 10));  // the classes are balanced
  }
}

}  // namespace
}  // namespace halfnote
