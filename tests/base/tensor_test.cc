// Tensors: sharing, checked access, conversions that round once, identity byte for byte.
#include "base/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::shared_ptr<const std::byte> bytes_of(const std::vector<uint8_t>& values) {
  auto owner = std::make_shared<const std::vector<uint8_t>>(values);
  return {owner, reinterpret_cast<const std::byte*>(owner->data())};
}

TEST(Tensors, LargeOnesStartZeroedToo) {
  for (const int64_t size : {(int64_t{1} << 18) - 1, int64_t{1} << 18, (int64_t{1} << 18) + 3}) {
    Tensor tensor(DType::kF32, {size});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes()) % 64, 0u);
    EXPECT_TRUE(all_zero(tensor));
    tensor.mutable_data<float>().back() = -0.0f;  // no zero byte by byte
    EXPECT_FALSE(all_zero(tensor));
  }
  EXPECT_TRUE(all_zero(Tensor(DType::kF32, {0})));
  EXPECT_FALSE(all_zero(Tensor::strings({1}, {""})));
}

TEST(Tensors, StartZeroedAndAligned) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 5}, Shape{2, 0, 4}}) {
    const Tensor tensor(DType::kF32, shape);
    EXPECT_TRUE(tensor.defined());
    EXPECT_EQ(tensor.size(), element_count(shape));
    EXPECT_EQ(tensor.byte_size(), 4 * static_cast<size_t>(tensor.size()));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes()) % 64, 0u);
    for (const float value : tensor.data<float>()) EXPECT_EQ(value, 0.0f);
  }
  EXPECT_FALSE(Tensor().defined());
  EXPECT_THROW(Tensor(DType::kF32, {-1}), Error);
  EXPECT_THROW(Tensor(DType::kF32, {kMaxInt, kMaxInt}), Error);
}

TEST(Tensors, CopiesShareTheBytes) {
  Tensor a = Tensor::of<int32_t>({2, 2}, {1, 2, 3, 4});
  const Tensor b = a;
  EXPECT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(a.reshaped({4}).bytes(), a.bytes());
  EXPECT_EQ(a.cast_to(DType::kI32).bytes(), a.bytes());
  EXPECT_DEATH(a.mutable_data<int32_t>(), "");
  Tensor c = a.deep_copy();
  EXPECT_NE(c.bytes(), a.bytes());
  c.mutable_data<int32_t>()[0] = 9;
  EXPECT_EQ(b.data<int32_t>()[0], 1);
}

TEST(Tensors, StorageOutlivesTheTensor) {
  std::shared_ptr<const std::byte> storage;
  {
    const Tensor tensor = Tensor::of<uint8_t>({2}, {7, 8});
    storage = tensor.storage();
  }
  EXPECT_EQ(storage.get()[1], std::byte{8});
}

TEST(Tensors, TakeForeignBytesOfTheRightSize) {
  const auto bytes = bytes_of({1, 0, 2, 0});
  const Tensor tensor(DType::kU16, {2}, bytes, 4);
  EXPECT_EQ(tensor.bytes(), bytes.get());
  EXPECT_EQ(tensor.data<uint16_t>()[1], 2);
  try {
    Tensor(DType::kF32, {2}, bytes, 4);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_STREQ(error.what(),
                 "tensor data has the wrong size: expected 8 bytes for f32[2], got 4 bytes");
  }
}

TEST(Tensors, AccessAsAnotherTypeIsABug) {
  const Tensor tensor = Tensor::scalar(1.0f);
  EXPECT_DEATH(tensor.data<int32_t>(), "");
  EXPECT_DEATH(tensor.string_data(), "");
}

TEST(Tensors, HoldStrings) {
  const Tensor tensor = Tensor::strings({2}, {"a", "b"});
  EXPECT_EQ(tensor.string_data()[1], "b");
  EXPECT_EQ(tensor.reshaped({2, 1}).string_data()[0], "a");
  EXPECT_TRUE(identical(tensor, tensor.deep_copy()));
  EXPECT_FALSE(identical(tensor, Tensor::strings({2}, {"a", "c"})));
  EXPECT_EQ(Tensor(DType::kString, {3}).string_data().size(), 3u);
  EXPECT_THROW(Tensor::strings({3}, {"a"}), Error);
  EXPECT_THROW(tensor.cast_to(DType::kF32), Error);
}

TEST(Tensors, ReshapeKeepsTheSize) {
  const Tensor tensor(DType::kF32, {2, 3});
  EXPECT_EQ(tensor.reshaped({3, 2}).shape(), (Shape{3, 2}));
  EXPECT_THROW(tensor.reshaped({4}), Error);
  EXPECT_THROW(tensor.reshaped({-6}), Error);
}

TEST(Tensors, FillAndReadAnyNumericType) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kU8, DType::kI16,
        DType::kU16, DType::kI32, DType::kU32, DType::kI64, DType::kU64}) {
    const Tensor tensor = Tensor::full(dtype, {2}, 3.0);
    EXPECT_EQ(tensor.at_as_double(1), 3.0) << short_name(dtype);
    EXPECT_EQ(tensor.at_as_int(1), 3) << short_name(dtype);
  }
  EXPECT_EQ(Tensor::scalar_of(DType::kBool, 3.0).at_as_int(0), 1);
  EXPECT_EQ(Tensor::of<int16_t>({3}, {-1, 0, 5}).to_ints(), (std::vector<int64_t>{-1, 0, 5}));
  for (const DType dtype : {DType::kString, DType::kF8E5M2, DType::kI4, DType::kC64}) {
    EXPECT_THROW(Tensor::full(dtype, {}, 0), Error) << short_name(dtype);
  }
}

TEST(TensorIdentity, ComparesTypeShapeAndBytes) {
  const Tensor zero = Tensor::scalar(0.0f);
  EXPECT_TRUE(identical(zero, Tensor::scalar(0.0f)));
  EXPECT_FALSE(identical(zero, Tensor::scalar(-0.0f)));
  EXPECT_TRUE(identical(Tensor::scalar(kNan), Tensor::scalar(kNan)));
  EXPECT_FALSE(identical(zero, zero.reshaped({1})));
  EXPECT_FALSE(identical(zero, Tensor::scalar(int32_t{0})));
  EXPECT_TRUE(identical(Tensor(), Tensor()));
  EXPECT_FALSE(identical(Tensor(), zero));
  EXPECT_TRUE(identical(Tensor(DType::kF32, {0}), Tensor(DType::kF32, {0})));
  EXPECT_FALSE(identical(Tensor(DType::kF32, {0}), Tensor(DType::kF32, {0, 2})));
}

TEST(TensorCast, RoundsFloatsToNearestEven) {
  const Tensor from = Tensor::of<float>({4}, {1.0f, 1.00048828125f, 65520.0f, -0.0f});
  const Tensor half = from.cast_to(DType::kF16);
  EXPECT_TRUE(identical(half, Tensor::of<Half>({4}, {{0x3c00}, {0x3c00}, {0x7c00}, {0x8000}})));
  EXPECT_EQ(half.cast_to(DType::kF32).data<float>()[3], 0.0f);
  EXPECT_EQ(Tensor::scalar(1.5f).cast_to(DType::kF64).data<double>()[0], 1.5);
  // 1 + 2^-11 + 2^-40 lies above the tie; through f32 it would fall on it, and to even.
  const Tensor above = Tensor::scalar(1.0 + 0x1p-11 + 0x1p-40);
  EXPECT_EQ(above.cast_to(DType::kF16).data<Half>()[0].bits, 0x3c01);
  const Tensor above_bf16 = Tensor::scalar(1.0 + 0x1p-8 + 0x1p-40);
  EXPECT_EQ(above_bf16.cast_to(DType::kBF16).data<BFloat16>()[0].bits, 0x3f81);
}

TEST(TensorCast, RoundsBigIntegersOnce) {
  // Each lies one above a tie of the narrow type, by less than a double can show.
  const int64_t above_f32 = (int64_t{1} << 62) + (int64_t{1} << 38) + 1;
  EXPECT_EQ(Tensor::scalar(above_f32).cast_to(DType::kF32).data<float>()[0], 0x1.000002p62f);
  const int64_t above_bf16 = (int64_t{1} << 62) + (int64_t{1} << 54) + 1;
  const auto bf16 = [](auto value) {
    return to_f32(Tensor::scalar(value).cast_to(DType::kBF16).template data<BFloat16>()[0]);
  };
  EXPECT_EQ(bf16(above_bf16), 0x1.02p62f);
  EXPECT_EQ(bf16(-above_bf16), -0x1.02p62f);
  EXPECT_EQ(bf16(above_bf16 - 1), 0x1p62f);
  EXPECT_EQ(bf16(above_bf16 - 2), 0x1p62f);
  EXPECT_EQ(bf16((uint64_t{1} << 63) + (uint64_t{1} << 55) + 1), 0x1.02p63f);
  EXPECT_EQ(bf16(std::numeric_limits<uint64_t>::max()), 0x1p64f);
  EXPECT_EQ(bf16(std::numeric_limits<int64_t>::min()), -0x1p63f);
  EXPECT_EQ(bf16(int64_t{-3}), -3.0f);
}

TEST(TensorCast, FloatsToIntegersTruncateAndSaturate) {
  const Tensor from = Tensor::of<double>({6}, {-1.9, 1.9, 300.0, -300.0, kNan, HUGE_VAL});
  EXPECT_EQ(from.cast_to(DType::kI8).to_ints(), (std::vector<int64_t>{-1, 1, 127, -128, 0, 127}));
  EXPECT_EQ(from.cast_to(DType::kU8).to_ints(), (std::vector<int64_t>{0, 1, 255, 0, 0, 255}));
  EXPECT_EQ(from.cast_to(DType::kI64).to_ints(),
            (std::vector<int64_t>{-1, 1, 300, -300, 0, kMaxInt}));
  EXPECT_EQ(Tensor::scalar(0x1p63).cast_to(DType::kI64).to_ints()[0], kMaxInt);
  EXPECT_EQ(Tensor::scalar(0x1p64).cast_to(DType::kU64).data<uint64_t>()[0],
            std::numeric_limits<uint64_t>::max());
}

TEST(TensorCast, IntegersWrapAndStayExact) {
  EXPECT_EQ(Tensor::scalar(int32_t{257}).cast_to(DType::kU8).to_ints()[0], 1);
  EXPECT_EQ(Tensor::scalar(int8_t{-1}).cast_to(DType::kU64).data<uint64_t>()[0],
            std::numeric_limits<uint64_t>::max());
  const int64_t odd = (int64_t{1} << 53) + 1;  // a double cannot hold it
  EXPECT_EQ(Tensor::scalar(odd).cast_to(DType::kU64).cast_to(DType::kI64).to_ints()[0], odd);
}

TEST(TensorCast, BoolsAreZeroAndOne) {
  const Tensor from = Tensor::of<double>({4}, {0.0, -0.0, 0.25, kNan});
  EXPECT_EQ(from.cast_to(DType::kBool).to_ints(), (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_EQ(Tensor::scalar(true).cast_to(DType::kF16).data<Half>()[0].bits, 0x3c00);
  // A file may hold other bytes; they count as true.
  const Tensor raw(DType::kBool, {3}, bytes_of({0, 1, 2}), 3);
  EXPECT_EQ(raw.cast_to(DType::kI32).to_ints(), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(raw.to_ints(), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(raw.at_as_double(2), 1.0);
}

TEST(TensorCast, EmptyTensorsStayEmpty) {
  const Tensor cast = Tensor(DType::kF32, {0, 3}).cast_to(DType::kBF16);
  EXPECT_EQ(cast.shape(), (Shape{0, 3}));
  EXPECT_EQ(cast.dtype(), DType::kBF16);
}

// Gigabytes of moments are known to be zero without a look at them.
TEST(Tensors, ZerosThatNobodyWroteTakeNoRoomAndNoTime) {
  const int64_t many = int64_t{1} << 28;
  Tensor zeros = Tensor::full(DType::kF32, {many}, 0);
  EXPECT_TRUE(all_zero(zeros));
  EXPECT_TRUE(all_zero(zeros.reshaped({2, many / 2})));
  zeros.mutable_data<float>()[7] = 1;
  EXPECT_FALSE(all_zero(zeros));
  EXPECT_FALSE(all_zero(Tensor::full(DType::kF32, {1 << 20}, -0.0)));
}

// A file may give a tensor of nothing where a reader takes the first number.
TEST(Tensor, AnElementThatIsNotThereIsAnError) {
  const Tensor none(DType::kI64, {0}), two = Tensor::of<float>({2}, {1, 2});
  EXPECT_THROW(none.at_as_int(0), Error);
  EXPECT_THROW(two.at_as_double(2), Error);
  EXPECT_THROW(two.at_as_int(-1), Error);
  EXPECT_EQ(two.at_as_double(1), 2.0);
}

}  // namespace
}  // namespace halfnote
