// The operator table: the rows of all families, sorted once, and an index of them: every pass asks
// for the row of nearly every node.
#include <algorithm>
#include <functional>
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

/// Open-addressed, at most half full.
class RowIndex {
 public:
  explicit RowIndex(std::span<const OperatorRow> rows) {
    size_t size = 1;
    while (size < 2 * rows.size()) size *= 2;
    slots_.resize(size);
    for (const OperatorRow& row : rows) {
      size_t at = start(row.domain, row.name);
      while (slots_[at] != nullptr) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = &row;
    }
  }
  const OperatorRow* find(std::string_view domain, std::string_view name) const {
    for (size_t at = start(domain, name);; at = (at + 1) & (slots_.size() - 1)) {
      const OperatorRow* row = slots_[at];
      if (row == nullptr || (row->name == name && row->domain == domain)) return row;
    }
  }

 private:
  size_t start(std::string_view domain, std::string_view name) const {
    return (std::hash<std::string_view>{}(name) + domain.size()) & (slots_.size() - 1);
  }

  std::vector<const OperatorRow*> slots_;
};

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
  static const RowIndex index(operator_rows());
  return index.find(domain, name);
}

PrecisionClass class_of(const OperatorRow& row, const Node& node) {
  return row.precision_here == nullptr ? row.precision : row.precision_here(node);
}

PrecisionClass applied_class(const OperatorRow& row, const Node& node) {
  const PrecisionClass own = class_of(row, node);
  if (!is_16bit_float(node.precision.dtype)) return own;
  if (row.fp32_math_inside) return PrecisionClass::kInfer;
  if (own != PrecisionClass::kFp32) return own;
  // A list put it there.
  const bool allowed = node.precision.reason.find("allow") != std::string::npos;
  return allowed ? PrecisionClass::kAllow : PrecisionClass::kInfer;
}

std::string why_no_gradient(const Graph& graph, NodeId node) {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr) return "the op is unknown";
  if (row->no_gradient_here != nullptr) {
    std::string why = row->no_gradient_here(graph, node);
    if (!why.empty()) return why;
  }
  return std::string(row->no_gradient);
}

}  // namespace halfnote
