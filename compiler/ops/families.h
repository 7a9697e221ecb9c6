// The families of the operator table. Each function gives the rows of one family, ONNX's operators
// and those of `ai.halfnote`; table.cc puts them together.
#pragma once

#include <string_view>
#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote {

/// Why the gradient operators of every family have no gradient of their own.
inline constexpr std::string_view kSecond =
    "its body stands in for it, but not in bodies of control flow";

std::vector<OperatorRow> elementwise_rows();
std::vector<OperatorRow> contraction_rows();
std::vector<OperatorRow> normalization_rows();
std::vector<OperatorRow> reduction_rows();
std::vector<OperatorRow> movement_rows();
std::vector<OperatorRow> loss_rows();
std::vector<OperatorRow> stateful_rows();
std::vector<OperatorRow> control_rows();
std::vector<OperatorRow> quantized_rows();
std::vector<OperatorRow> dynamic_size_rows();
std::vector<OperatorRow> signal_rows();

}  // namespace halfnote
