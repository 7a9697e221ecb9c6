// The operator table: the rows of all families, sorted once, searched by domain and name.
#include <algorithm>
#include <tuple>

#include "compiler/ops/families.h"

namespace halfnote {
namespace {

using Key = std::pair<std::string_view, std::string_view>;

Key key_of(const OperatorRow& row) { return {row.domain, row.name}; }

std::vector<OperatorRow> all_rows() {
  std::vector<OperatorRow> all;
  for (auto family :
       {elementwise_rows, contraction_rows, normalization_rows, reduction_rows, movement_rows,
        loss_rows, stateful_rows, control_rows, quantized_rows, dynamic_size_rows, signal_rows}) {
    const std::vector<OperatorRow> rows = family();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  std::stable_sort(all.begin(), all.end(), [](const OperatorRow& a, const OperatorRow& b) {
    return key_of(a) < key_of(b);
  });
  return all;
}

}  // namespace

std::string_view class_name(PrecisionClass precision) {
  switch (precision) {
    case PrecisionClass::kAllow:
      return "allow";
    case PrecisionClass::kFp32:
      return "fp32";
    case PrecisionClass::kInfer:
      return "infer";
    case PrecisionClass::kClear:
      return "clear";
    case PrecisionClass::kStruct:
      return "struct";
    case PrecisionClass::kOpaque:
      return "opaque";
  }
  return "unknown";
}

std::span<const OperatorRow> operator_rows() {
  static const std::vector<OperatorRow> rows = all_rows();
  return rows;
}

const OperatorRow* find_operator(std::string_view domain, std::string_view name) {
  const std::span<const OperatorRow> rows = operator_rows();
  const Key key{domain, name};
  const auto found = std::lower_bound(
      rows.begin(), rows.end(), key,
      [](const OperatorRow& row, const Key& wanted) { return key_of(row) < wanted; });
  return found != rows.end() && key_of(*found) == key ? &*found : nullptr;
}

}  // namespace halfnote
