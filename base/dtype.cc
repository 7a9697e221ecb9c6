// One row per element type, in the order of ONNX's codes; everything said of a type stands in its
// row.
#include "base/dtype.h"

#include <array>

namespace halfnote {
namespace {

struct Row {
  std::string_view short_name, onnx_name;
  int bits = 0;
  size_t bytes = 0;
  char kind = ' ';  // f float, i integer
};

constexpr std::array<Row, kDTypeCount> kRows = {{
    {"undefined", "undefined", 0, 0, ' '},
    {"f32", "float", 32, 4, 'f'},
    {"u8", "uint8", 8, 1, 'i'},
    {"i8", "int8", 8, 1, 'i'},
    {"u16", "uint16", 16, 2, 'i'},
    {"i16", "int16", 16, 2, 'i'},
    {"i32", "int32", 32, 4, 'i'},
    {"i64", "int64", 64, 8, 'i'},
    {"string", "string", 0, 0, ' '},
    {"bool", "bool", 8, 1, ' '},
    {"f16", "float16", 16, 2, 'f'},
    {"f64", "double", 64, 8, 'f'},
    {"u32", "uint32", 32, 4, 'i'},
    {"u64", "uint64", 64, 8, 'i'},
    {"c64", "complex64", 64, 8, ' '},
    {"c128", "complex128", 128, 16, ' '},
    {"bf16", "bfloat16", 16, 2, 'f'},
    {"f8e4m3", "float8e4m3fn", 8, 1, 'f'},
    {"f8e4m3fnuz", "float8e4m3fnuz", 8, 1, 'f'},
    {"f8e5m2", "float8e5m2", 8, 1, 'f'},
    {"f8e5m2fnuz", "float8e5m2fnuz", 8, 1, 'f'},
    {"u4", "uint4", 4, 1, 'i'},
    {"i4", "int4", 4, 1, 'i'},
    {"f4e2m1", "float4e2m1", 4, 1, 'f'},
    {"f8e8m0", "float8e8m0", 8, 1, 'f'},
    {"u2", "uint2", 2, 1, 'i'},
    {"i2", "int2", 2, 1, 'i'},
}};

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

struct Alias {
  std::string_view name;
  DType dtype;
};
constexpr Alias kAliases[] = {{"fp32", DType::kF32},      {"float32", DType::kF32},
                              {"fp16", DType::kF16},      {"half", DType::kF16},
                              {"fp64", DType::kF64},      {"float64", DType::kF64},
                              {"e4m3", DType::kF8E4M3FN}, {"e5m2", DType::kF8E5M2}};

}  // namespace

std::string_view short_name(DType dtype) { return row(dtype).short_name; }
std::string_view onnx_name(DType dtype) { return row(dtype).onnx_name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 1; i < kDTypeCount; ++i) {
    if (kRows[i].short_name == name || kRows[i].onnx_name == name) return static_cast<DType>(i);
  }
  for (const Alias& alias : kAliases) {
    if (alias.name == name) return alias.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_onnx(int64_t code) {
  if (code <= 0 || code >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(code);
}

int bits_of(DType dtype) { return row(dtype).bits; }
size_t size_of(DType dtype) { return row(dtype).bytes; }
bool is_float(DType dtype) { return row(dtype).kind == 'f'; }
bool is_16bit_float(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
bool is_integer(DType dtype) { return row(dtype).kind == 'i'; }

}  // namespace halfnote
