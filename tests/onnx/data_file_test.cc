// Values in files of their own: tensors, sequences, optional values, and what is none of them.
#include "compiler/onnx/data_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace halfnote {
namespace {

ValueType kind(TypeKind kind) {
  ValueType type;
  type.kind = kind;
  return type;
}

/// A TensorProto: dims 2, INT32, int32_data 7 and 8.
const std::string kTensor("\x08\x02\x10\x06\x2a\x02\x07\x08", 8);

class DataFile : public testing::Test {
 protected:
  Datum read(const std::string& bytes, TypeKind type) {
    write_file_atomic(path_, bytes);
    return read_data_file(path_, kind(type));
  }
  ErrorCode code(const std::string& bytes, TypeKind type) {
    try {
      read(bytes, type);
    } catch (const Error& error) {
      EXPECT_EQ(error.place().file, path_.string());
      return error.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::kInternal;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("value_") + testing::UnitTest::GetInstance()->current_test_info()->name() +
       ".pb");
};

TEST_F(DataFile, ReadsATensor) {
  const Datum datum = read(kTensor, TypeKind::kTensor);
  ASSERT_TRUE(datum.is_tensor());
  EXPECT_EQ(datum.tensor.to_ints(), (std::vector<int64_t>{7, 8}));
  EXPECT_TRUE(read(kTensor, TypeKind::kUnknown).is_tensor());
}

TEST_F(DataFile, ReadsASequenceOfTensors) {
  // elem_type TENSOR, then two tensor_values.
  const std::string value = std::string("\x1a\x08", 2) + kTensor;
  const Datum datum = read(std::string("\x10\x01", 2) + value + value, TypeKind::kSequence);
  ASSERT_TRUE(datum.is_sequence());
  ASSERT_EQ(datum.elements.size(), 2u);
  EXPECT_EQ(datum.elements[1].tensor.size(), 2);
  EXPECT_TRUE(read("", TypeKind::kSequence).elements.empty());
}

TEST_F(DataFile, ReadsAnOptionalValue) {
  const std::string filled = std::string("\x10\x01\x1a\x08", 4) + kTensor;
  EXPECT_EQ(read(filled, TypeKind::kOptional).elements.size(), 1u);
  EXPECT_TRUE(read("", TypeKind::kOptional).elements.empty());
}

TEST_F(DataFile, RefusesWhatItIsNot) {
  EXPECT_EQ(code("\xff\xff\xff", TypeKind::kTensor), ErrorCode::kModel);
  EXPECT_EQ(code(kTensor.substr(0, 7), TypeKind::kTensor), ErrorCode::kModel);
  EXPECT_EQ(code(std::string("\x08\x03", 2) + kTensor.substr(2), TypeKind::kTensor),
            ErrorCode::kModel)
      << "three elements are declared";
  EXPECT_EQ(code(kTensor, TypeKind::kMap), ErrorCode::kUnsupported);
  EXPECT_THROW(read_data_file("/nowhere/value.pb", kind(TypeKind::kTensor)), Error);
}

}  // namespace
}  // namespace halfnote
