// Element types. The numbers are those of ONNX's TensorProto.DataType, so that import and export
// need no table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace halfnote {

enum class DType : uint8_t {
  kUndefined = 0,
  kF32 = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kI32 = 6,
  kI64 = 7,
  kString = 8,
  kBool = 9,
  kF16 = 10,
  kF64 = 11,
  kU32 = 12,
  kU64 = 13,
  kC64 = 14,
  kC128 = 15,
  kBF16 = 16,
  kF8E4M3FN = 17,
  kF8E4M3FNUZ = 18,
  kF8E5M2 = 19,
  kF8E5M2FNUZ = 20,
  kU4 = 21,
  kI4 = 22,
  kF4E2M1 = 23,
  kF8E8M0 = 24,
  kU2 = 25,
  kI2 = 26,
};
inline constexpr int kDTypeCount = 27;

/// The short name that halfnote prints: `f32`, `bf16`, `i64`, `bool`, `f8e4m3`.
std::string_view short_name(DType dtype);
/// The name in ONNX text: `float`, `bfloat16`, `int64`, `bool`, `float8e4m3fn`.
std::string_view onnx_name(DType dtype);
/// Reads a short or an ONNX name (`bf16`, `bfloat16`, `fp16`, `half`); nothing for other words.
std::optional<DType> dtype_from_name(std::string_view name);
/// The type of a number as ONNX codes it; nothing for codes outside the standard.
std::optional<DType> dtype_from_onnx(int64_t code);

/// Bits of one element: 4 for the 4-bit types, 0 for undefined and string.
int bits_of(DType dtype);
/// Bytes of one element in memory, where the types below 8 bits take a whole byte; 0 for undefined
/// and string.
size_t size_of(DType dtype);

/// f16, bf16, f32, f64 and the 8- and 4-bit floats.
bool is_float(DType dtype);
/// f16 and bf16.
bool is_16bit_float(DType dtype);
bool is_integer(DType dtype);

}  // namespace halfnote
