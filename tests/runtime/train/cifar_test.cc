// CIFAR's binary batches.
#include <gmock/gmock.h>

#include "runtime/train/data/format/readers.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;
using test::TempFolder;
using test::write_bytes;

constexpr size_t kImage = 3072;

/// A record whose pixels count up from its first label.
std::string record(std::initializer_list<int> labels) {
  std::string bytes;
  for (const int label : labels) bytes += static_cast<char>(label);
  for (size_t i = 0; i < kImage; ++i)
    bytes += static_cast<char>(*labels.begin() + static_cast<int>(i));
  return bytes;
}

TEST(Cifar, JoinsBatches) {
  const TempFolder folder;
  write_bytes(folder / "1", record({3}) + record({9}));
  write_bytes(folder / "2", record({0}));
  const std::vector<DataField> fields = read_cifar({folder / "1", folder / "2"}, kCifar10Records);
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].to_string(), "image u8[3,32,32]");
  EXPECT_TRUE(identical(fields[1].data, Tensor::of<uint8_t>({3}, {3, 9, 0})));
  const auto pixels = fields[0].data.data<uint8_t>();
  EXPECT_EQ(pixels[0], 3);
  EXPECT_EQ(pixels[kImage + 1], 10);
  EXPECT_EQ(pixels[2 * kImage + 1024], 0);  // the first green pixel of the third image
  EXPECT_EQ(pixels[2 * kImage + 1025], 1);
}

TEST(Cifar, ReadsBothLabelsOfCifar100) {
  const TempFolder folder;
  write_bytes(folder / "train.bin", record({19, 99}) + record({0, 1}));
  const std::vector<DataField> fields = read_cifar({folder / "train.bin"}, kCifar100Records);
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[1].name, "label");
  EXPECT_TRUE(identical(fields[1].data, Tensor::of<uint8_t>({2}, {99, 1})));
  EXPECT_EQ(fields[2].name, "coarse_label");
  EXPECT_TRUE(identical(fields[2].data, Tensor::of<uint8_t>({2}, {19, 0})));
  EXPECT_EQ(fields[0].data.data<uint8_t>()[1], 20);
}

TEST(Cifar, RefusesDamage) {
  const TempFolder folder;
  write_bytes(folder / "empty", "");
  expect_error(ErrorCode::kData, {"empty", "a multiple of 3073 bytes, got 0"},
               [&] { read_cifar({folder / "empty"}, kCifar10Records); });
  write_bytes(folder / "short", record({3}).substr(1));
  expect_error(ErrorCode::kData, {"short", "got 3072"},
               [&] { read_cifar({folder / "short"}, kCifar10Records); });
  write_bytes(folder / "label", record({3}) + record({10}));
  expect_error(ErrorCode::kData, {"label out of range in sample 1", "expected 0 to 9, got 10"},
               [&] { read_cifar({folder / "label"}, kCifar10Records); });
  write_bytes(folder / "coarse", record({20, 0}));
  expect_error(ErrorCode::kData, {"coarse_label out of range in sample 0"},
               [&] { read_cifar({folder / "coarse"}, kCifar100Records); });
}

TEST(Cifar, RefusesMoreThanTheMemoryLimit) {
  const TempFolder folder;
  write_bytes(folder / "a", record({3}) + record({4}));
  DataLimits limits;
  limits.copied_bytes = 2 * 3073;
  EXPECT_EQ(read_cifar({folder / "a"}, kCifar10Records, limits).size(), 2u);
  --limits.copied_bytes;
  expect_error(ErrorCode::kMemory, {"expected at most 6145 bytes, got 6146"},
               [&] { read_cifar({folder / "a"}, kCifar10Records, limits); });
}

}  // namespace
}  // namespace halfnote
