#include "base/ops/attention.h"

namespace halfnote {

AttentionAttributes::RowsFirst read_rows_first(const Attributes& attributes) {
  const std::vector<int64_t> flags = attributes.get_ints("rows_first");
  if (flags.empty()) return {};
  if (flags.size() != 4) {
    throw Error(ErrorCode::kModel, "attribute rows_first has not a number for each of Q, K, V, Y")
        .expected("4", std::to_string(flags.size()));
  }
  return {flags[0] != 0, flags[1] != 0, flags[2] != 0, flags[3] != 0};
}

size_t dropout_operands(const Attributes& attributes) {
  return attributes.find("ratio") != nullptr ? 2 : 0;
}

namespace {

void read_dropout(const Attributes& attributes, size_t operands, AttentionAttributes& read) {
  const size_t own = dropout_operands(attributes);
  if (operands < own) throw Error(ErrorCode::kModel, "ratio is set, and seed or step is missing");
  read.terms = operands - own;
  if (own == 0) return;
  read.ratio = attributes.get_float("ratio", 0);
  read.node = attributes.get_int("node", 0);
  if (*read.ratio >= 0 && *read.ratio <= 1) return;
  throw Error(ErrorCode::kModel, "the ratio of a dropout is no probability")
      .expected("a number in [0, 1]", std::to_string(*read.ratio));
}

}  // namespace

AttentionAttributes read_attention(const Attributes& attributes, size_t operands) {
  AttentionAttributes read;
  read_dropout(attributes, operands, read);
  read.scale = attributes.get_float("scale", 1);
  read.causal = attributes.get_int("is_causal", 0) != 0;
  read.nan_is_zero = attributes.get_int("nan_is_zero", 0) != 0;
  read.trans_k = attributes.get_int("transK", 0) != 0;
  read.rows_first = read_rows_first(attributes);
  read.packed = attributes.get_int("packed", 0) != 0;
  const AttentionAttributes::RowsFirst& first = read.rows_first;
  if (read.trans_k && first.k)
    throw Error(ErrorCode::kModel, "transK is set, and rows_first for K as well");
  if (read.packed && !(first.q && first.k && first.v))
    throw Error(ErrorCode::kModel, "packed is set, and not rows_first for Q, K and V");
  read.hidden = attributes.get_floats("hidden");
  if (read.hidden.empty()) read.hidden.resize(read.terms);
  if (read.hidden.size() == read.terms) return read;
  throw Error(ErrorCode::kModel, "attribute hidden has not a number for each term")
      .expected(std::to_string(read.terms), std::to_string(read.hidden.size()));
}

}  // namespace halfnote
