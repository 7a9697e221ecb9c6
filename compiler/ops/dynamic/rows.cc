// Results whose size depends on data: strings, encoded images, chosen boxes.
#include "compiler/ops/families.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kText = "works on strings or encoded bytes: no gradient exists";

OperatorRow text(std::string_view name) {
  return {.name = name, .precision = kOpaque, .no_gradient = kText};
}

}  // namespace

std::vector<OperatorRow> dynamic_size_rows() {
  return {
      text("ImageDecoder"),
      {.name = "NonMaxSuppression",
       .precision = kFp32,
       .fp32_inputs = 0b11011,
       .place_inputs = 1,
       .no_gradient = "integer output: no gradient exists",
       .sized_by_values = true,
       .note = "f32 only in ONNX"},
      text("RegexFullMatch"),
      text("StringConcat"),
      text("StringNormalizer"),
      text("StringSplit"),
      text("TfIdfVectorizer"),
  };
}

}  // namespace halfnote
