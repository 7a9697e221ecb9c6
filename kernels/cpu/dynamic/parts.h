// The dynamic rows, file by file, and what they share.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/dynamic.h"

namespace halfnote::cpu {

std::vector<DynamicRow> select_dynamic_rows();  // select.cc: NonZero, Compress, Unique
std::vector<DynamicRow> boxes_dynamic_rows();   // boxes.cc: NonMaxSuppression
std::vector<DynamicRow> text_dynamic_rows();    // text.cc: strings
std::vector<DynamicRow> count_dynamic_rows();   // tf_idf.cc: TfIdfVectorizer

/// An operand that does not fit, at the operator of `call`.
inline Error data_error(const DynamicCall& call, std::string what) {
  return Error(ErrorCode::kData, std::move(what)).at({.op = std::string(call.op)});
}

/// Throws Error(kData) unless input `index` is there.
inline const Tensor& required(const DynamicCall& call, size_t index) {
  if (call.has_input(index)) return call.inputs[index];
  throw data_error(call, "input " + std::to_string(index) + " is missing");
}

}  // namespace halfnote::cpu
