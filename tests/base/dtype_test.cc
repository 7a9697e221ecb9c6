// The table of element types, and value types as text.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>

#include "base/tensor.h"
#include "base/type.h"

namespace halfnote {
namespace {

DType nth(int code) { return static_cast<DType>(code); }

TEST(DTypes, NamesAreUniqueAndReadBack) {
  std::set<std::string_view> names;
  for (int code = 1; code < kDTypeCount; ++code) {
    const DType dtype = nth(code);
    EXPECT_EQ(dtype_from_name(short_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_name(onnx_name(dtype)), dtype);
    EXPECT_EQ(dtype_from_onnx(code), dtype);
    EXPECT_TRUE(names.insert(short_name(dtype)).second) << short_name(dtype);
  }
}

TEST(DTypes, ReadsTheUsualAliases) {
  EXPECT_EQ(dtype_from_name("fp16"), DType::kF16);
  EXPECT_EQ(dtype_from_name("half"), DType::kF16);
  EXPECT_EQ(dtype_from_name("fp32"), DType::kF32);
  EXPECT_EQ(dtype_from_name("float64"), DType::kF64);
  EXPECT_EQ(dtype_from_name("bfloat16"), DType::kBF16);
  EXPECT_EQ(dtype_from_name("float8e4m3fn"), DType::kF8E4M3FN);
}

TEST(DTypes, RefusesOtherWordsAndCodes) {
  for (const char* word : {"", "F32", "f32 ", "undefined", "int", "tf32"}) {
    EXPECT_EQ(dtype_from_name(word), std::nullopt) << word;
  }
  for (const int64_t code : {int64_t{-1}, int64_t{0}, int64_t{kDTypeCount}, int64_t{1} << 40}) {
    EXPECT_EQ(dtype_from_onnx(code), std::nullopt) << code;
  }
}

TEST(DTypes, SizesAreThoseOfTheElements) {
  EXPECT_EQ(size_of(DType::kUndefined), 0u);
  EXPECT_EQ(size_of(DType::kString), 0u);
  EXPECT_EQ(size_of(DType::kC128), 16u);
  for (const DType small : {DType::kU4, DType::kI4, DType::kF4E2M1, DType::kU2, DType::kI2}) {
    EXPECT_EQ(size_of(small), 1u);
  }
  EXPECT_EQ(bits_of(DType::kI4), 4);
  EXPECT_EQ(bits_of(DType::kU2), 2);
  EXPECT_EQ(size_of(dtype_of<float>()), sizeof(float));
  EXPECT_EQ(size_of(dtype_of<Half>()), sizeof(Half));
  EXPECT_EQ(size_of(dtype_of<bool>()), sizeof(bool));
  EXPECT_EQ(size_of(dtype_of<uint64_t>()), sizeof(uint64_t));
  for (int code = 1; code < kDTypeCount; ++code) {
    if (bits_of(nth(code)) >= 8) {
      EXPECT_EQ(size_of(nth(code)) * 8, static_cast<size_t>(bits_of(nth(code))));
    }
  }
}

TEST(DTypes, KindsDoNotOverlap) {
  int floats = 0, integers = 0;
  for (int code = 0; code < kDTypeCount; ++code) {
    floats += is_float(nth(code)) ? 1 : 0;
    integers += is_integer(nth(code)) ? 1 : 0;
    EXPECT_FALSE(is_float(nth(code)) && is_integer(nth(code))) << code;
  }
  EXPECT_EQ(floats, 10);    // f64 f32 f16 bf16, five of 8 bits, one of 4
  EXPECT_EQ(integers, 12);  // 8 to 64 bits, and 4 and 2 bits, each signed and unsigned
  EXPECT_TRUE(is_16bit_float(DType::kBF16));
  EXPECT_FALSE(is_16bit_float(DType::kF32));
  EXPECT_FALSE(is_integer(DType::kBool));
}

ValueType container(TypeKind kind, ValueType inner, DType key = DType::kUndefined) {
  return {kind, DType::kUndefined, std::nullopt, key,
          std::make_shared<const ValueType>(std::move(inner))};
}

TEST(ValueTypes, PrintAsOnnxText) {
  const ValueType matrix = ValueType::tensor(DType::kF32, {Dim::named("N"), 10});
  EXPECT_EQ(to_string(matrix), "float[N,10]");
  EXPECT_EQ(to_string(ValueType::tensor(DType::kI64, {})), "int64[]");
  EXPECT_EQ(to_string(ValueType::tensor(DType::kBF16)), "bfloat16");
  EXPECT_EQ(to_string(ValueType{}), "?");
  EXPECT_EQ(to_string(container(TypeKind::kSequence, matrix)), "seq(float[N,10])");
  EXPECT_EQ(to_string(container(TypeKind::kOptional, matrix)), "optional(float[N,10])");
  EXPECT_EQ(to_string(container(TypeKind::kMap, matrix, DType::kString)),
            "map(string, float[N,10])");
  ValueType sparse = matrix;
  sparse.kind = TypeKind::kSparseTensor;
  EXPECT_EQ(to_string(sparse), "sparse_tensor(float[N,10])");
}

TEST(ValueTypes, CompareByContent) {
  const ValueType scalar = ValueType::tensor(DType::kF32, {});
  EXPECT_EQ(container(TypeKind::kSequence, scalar), container(TypeKind::kSequence, scalar));
  EXPECT_FALSE(container(TypeKind::kSequence, scalar) == container(TypeKind::kOptional, scalar));
  EXPECT_FALSE(scalar == ValueType::tensor(DType::kF32));
  EXPECT_FALSE(scalar == ValueType::tensor(DType::kF16, {}));
  EXPECT_FALSE(scalar == container(TypeKind::kSequence, scalar));
}

TEST(ValueTypes, KnowTheirRank) {
  EXPECT_EQ(ValueType::tensor(DType::kF32).rank(), -1);
  EXPECT_EQ(ValueType::tensor(DType::kF32, {2, 3}).rank(), 2);
  EXPECT_TRUE(ValueType::tensor(DType::kF32, {2, 3}).has_concrete_shape());
  EXPECT_FALSE(ValueType::tensor(DType::kF32, {Dim()}).has_concrete_shape());
  EXPECT_FALSE(ValueType::tensor(DType::kF32).has_concrete_shape());
}

}  // namespace
}  // namespace halfnote
