#include "base/ops/attention.h"

#include <string>

#include "base/error.h"

namespace halfnote {

AttentionAttributes read_attention(const Attributes& attributes, size_t terms) {
  AttentionAttributes read;
  read.scale = attributes.get_float("scale", 1);
  read.causal = attributes.get_int("is_causal", 0) != 0;
  read.nan_is_zero = attributes.get_int("nan_is_zero", 0) != 0;
  read.trans_k = attributes.get_int("transK", 0) != 0;
  read.hidden = attributes.get_floats("hidden");
  if (read.hidden.empty()) read.hidden.resize(terms);
  if (read.hidden.size() == terms) return read;
  throw Error(ErrorCode::kModel, "attribute hidden has not a number for each term")
      .expected(std::to_string(terms), std::to_string(read.hidden.size()));
}

}  // namespace halfnote
