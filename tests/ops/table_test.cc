// The operator table against ONNX's schemas, and against its own contract.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/ir/model.h"
#include "compiler/onnx/schema.h"
#include "compiler/ops/operator.h"

namespace halfnote::test {
namespace {

constexpr int64_t kNewestOpset = 28;  // newer versions of an op say nothing about the table

bool is_fixed(uint32_t slots, size_t index) { return index < 32 && (slots >> index & 1u) != 0; }

bool has_type(const SchemaParameter& parameter, DType dtype) {
  return std::find(parameter.dtypes.begin(), parameter.dtypes.end(), dtype) !=
         parameter.dtypes.end();
}

/// May a tensor of floats that are computed with stand here? (8-bit floats are quantized data.)
bool may_be_float(const SchemaParameter& parameter) {
  return has_type(parameter, DType::kF32) || has_type(parameter, DType::kF16) ||
         has_type(parameter, DType::kBF16);
}

/// The parameters that say whether an op takes a float type: those outside of the fixed slots, or
/// all where every float slot is fixed.
std::vector<SchemaParameter> deciding(const SchemaVersion& version, const OperatorRow& row) {
  std::vector<SchemaParameter> free, all;
  const auto look = [&](const std::vector<SchemaParameter>& parameters, uint32_t fixed) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!may_be_float(parameters[i])) continue;
      all.push_back(parameters[i]);
      if (!is_fixed(fixed, i)) free.push_back(parameters[i]);
    }
  };
  look(version.inputs, row.fp32_inputs);
  look(version.outputs, row.fp32_outputs);
  return free.empty() ? all : free;
}

bool takes(const SchemaVersion& version, const OperatorRow& row, DType dtype) {
  const std::vector<SchemaParameter> parameters = deciding(version, row);
  return !parameters.empty() &&
         std::all_of(parameters.begin(), parameters.end(),
                     [&](const SchemaParameter& p) { return has_type(p, dtype); });
}

int first_legal(const SchemaOp& op, const OperatorRow& row, DType dtype) {
  for (const SchemaVersion& version : op.versions) {
    if (version.since <= kNewestOpset && takes(version, row, dtype)) {
      return static_cast<int>(version.since);
    }
  }
  return 0;
}

/// ai.onnx.ml holds classic learners (trees, vectorizers): nothing that is trained here.
bool is_covered(const SchemaOp& op) { return op.domain != "ai.onnx.ml"; }

std::string name_of(const OperatorRow& row) {
  return std::string(row.domain) + (row.domain.empty() ? "" : ".") + std::string(row.name);
}

TEST(OperatorTable, EveryOnnxOpHasARow) {
  int count = 0;
  for (const SchemaOp& op : all_schema_ops()) {
    if (!is_covered(op)) continue;
    ++count;
    EXPECT_NE(find_operator(op.domain, op.name), nullptr) << op.domain << "." << op.name;
  }
  EXPECT_GE(count, 203 + 5);  // the default domain, and the preview domains
}

TEST(OperatorTable, EveryRowIsAnOpOfOnnxOrOurs) {
  std::set<std::pair<std::string_view, std::string_view>> known;
  for (const SchemaOp& op : all_schema_ops()) known.emplace(op.domain, op.name);
  for (const OperatorRow& row : operator_rows()) {
    EXPECT_TRUE(row.domain == kHalfnoteDomain || known.count({row.domain, row.name}) == 1)
        << name_of(row);
  }
}

TEST(OperatorTable, LegalityIsThatOfTheSchemas) {
  for (const SchemaOp& op : all_schema_ops()) {
    const OperatorRow* row = find_operator(op.domain, op.name);
    if (!is_covered(op) || row == nullptr) continue;
    EXPECT_EQ(row->legality.f16, first_legal(op, *row, DType::kF16)) << name_of(*row);
    EXPECT_EQ(row->legality.bf16, first_legal(op, *row, DType::kBF16)) << name_of(*row);
  }
}

TEST(OperatorTable, RowsAreSortedAndUnique) {
  const auto rows = operator_rows();
  for (size_t i = 1; i < rows.size(); ++i) {
    EXPECT_TRUE(std::tie(rows[i - 1].domain, rows[i - 1].name) <
                std::tie(rows[i].domain, rows[i].name))
        << name_of(rows[i]) << " stands twice";
  }
}

TEST(OperatorTable, FindsEveryRowAndNothingElse) {
  for (const OperatorRow& row : operator_rows()) {
    EXPECT_EQ(find_operator(row.domain, row.name), &row) << name_of(row);
  }
  EXPECT_EQ(find_operator("", "Nonsense"), nullptr);
  EXPECT_EQ(find_operator("", ""), nullptr);
  EXPECT_EQ(find_operator("zzz", "Add"), nullptr);
  EXPECT_EQ(find_operator(kHalfnoteDomain, "Conv"), nullptr);
}

TEST(OperatorTable, EveryRowStatesAGradientOrAReason) {
  for (const OperatorRow& row : operator_rows()) {
    EXPECT_NE(row.gradient != nullptr, !row.no_gradient.empty()) << name_of(row);
  }
}

TEST(OperatorTable, LoweredOpsStateNoGradient) {
  for (const OperatorRow& row : operator_rows()) {
    EXPECT_TRUE(row.lower == nullptr || row.gradient == nullptr) << name_of(row);
    EXPECT_EQ(row.no_gradient == kLowered, row.lower != nullptr) << name_of(row);
  }
}

TEST(OperatorTable, OurOpsHaveInferenceAndBody) {
  // ONNX gives these no shapes, or none for symbolic dims, or takes what makes none for empty.
  const std::set<std::string_view> kOpen = {"Gradient",  "GroupNormalization",
                                            "MaxUnpool", "MeanVarianceNormalization",
                                            "Range",     "Resize"};
  for (const OperatorRow& row : operator_rows()) {
    const bool ours = row.domain == kHalfnoteDomain;
    EXPECT_EQ(row.infer != nullptr, ours || kOpen.count(row.name) > 0) << name_of(row);
    EXPECT_EQ(row.body != nullptr, ours) << name_of(row);
  }
}

TEST(OperatorTable, FixedSlotsExistInTheSchema) {
  for (const SchemaOp& op : all_schema_ops()) {
    const OperatorRow* row = find_operator(op.domain, op.name);
    if (!is_covered(op) || row == nullptr) continue;
    const SchemaVersion& newest = op.versions.back();
    EXPECT_EQ(row->fp32_inputs >> std::min<size_t>(newest.inputs.size(), 31), 0u) << name_of(*row);
    EXPECT_EQ(row->fp32_outputs >> std::min<size_t>(newest.outputs.size(), 31), 0u)
        << name_of(*row);
  }
}

/// Ops whose precision class the reference table states, one of each kind of decision.
TEST(OperatorTable, ClassesOfWellKnownOps) {
  const std::pair<const char*, PrecisionClass> kExpected[] = {
      {"MatMul", PrecisionClass::kAllow},  {"Conv", PrecisionClass::kAllow},
      {"Softmax", PrecisionClass::kFp32},  {"Exp", PrecisionClass::kFp32},
      {"Add", PrecisionClass::kInfer},     {"Tanh", PrecisionClass::kInfer},
      {"Relu", PrecisionClass::kClear},    {"Reshape", PrecisionClass::kClear},
      {"If", PrecisionClass::kStruct},     {"BitShift", PrecisionClass::kOpaque},
      {"Softplus", PrecisionClass::kFp32}, {"Sqrt", PrecisionClass::kInfer},
  };
  for (const auto& [name, precision] : kExpected) {
    ASSERT_NE(find_operator("", name), nullptr) << name;
    EXPECT_EQ(find_operator("", name)->precision, precision) << name;
  }
  EXPECT_EQ(find_operator(kHalfnoteDomain, "SqrtGrad")->precision, PrecisionClass::kFp32);
  EXPECT_EQ(find_operator(kHalfnoteDomain, "SoftplusGrad")->precision, PrecisionClass::kInfer);
  EXPECT_EQ(class_name(PrecisionClass::kClear), "clear");
}

/// Of a product that goes on to a gradient either factor may be the incoming one.
TEST(OperatorTable, GradientOpsAreLinearInTheIncomingGradient) {
  for (const OperatorRow& row : operator_rows()) {
    if (row.domain != kHalfnoteDomain || !row.name.ends_with("Grad")) continue;
    const bool is_product = row.name == "GemmActivationGrad";
    EXPECT_EQ(row.scale, is_product ? ScaleRule::kProduct : ScaleRule::kFirst) << name_of(row);
  }
}

TEST(OperatorTable, ContractionsHaveFlopsAndOthersNone) {
  for (const OperatorRow& row : operator_rows()) {
    const bool trained =
        row.precision == PrecisionClass::kAllow && (row.gradient != nullptr || row.body != nullptr);
    if (trained) {
      EXPECT_NE(row.flops, nullptr) << name_of(row);
    }
    if (row.flops != nullptr) {
      EXPECT_EQ(row.precision, PrecisionClass::kAllow) << name_of(row);
    }
  }
}

TEST(OperatorTable, FlopsCountTwoPerMultiplyAdd) {
  const auto flops = [](std::string_view domain, std::string_view op, const Attributes& attributes,
                        const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
    return find_operator(domain, op)->flops(attributes, inputs, outputs);
  };
  EXPECT_EQ(flops("", "MatMul", {}, {{5, 2, 3}, {3, 4}}, {{5, 2, 4}}), 2.0 * 5 * 2 * 3 * 4);
  EXPECT_EQ(flops("", "Gemm", {{"transA", int64_t{1}}}, {{3, 2}, {3, 4}}, {{2, 4}}),
            2.0 * 2 * 3 * 4);
  const Shape x = {2, 6, 8, 8}, w = {4, 3, 3, 3}, y = {2, 4, 6, 6};  // 2 groups
  const double convolution = 2.0 * (2 * 4 * 6 * 6) * (3 * 3 * 3);
  EXPECT_EQ(flops("", "Conv", {}, {x, w}, {y}), convolution);
  EXPECT_EQ(flops("", "ConvTranspose", {}, {y, w}, {x}), convolution);
  EXPECT_EQ(flops(kHalfnoteDomain, "ConvGradInput", {}, {y, w}, {x}), convolution);
  EXPECT_EQ(flops(kHalfnoteDomain, "ConvGradWeight", {}, {y, x}, {w}), convolution);
  const Shape sequence = {7, 2, 5}, input = {1, 16, 5}, state = {1, 16, 4};
  EXPECT_EQ(flops("", "LSTM", {}, {sequence, input, state}, {{7, 1, 2, 4}}),
            2.0 * 7 * 2 * (16 * 5 + 16 * 4));
}

/// Where attributes decide the class of a node.
TEST(OperatorTable, AResizeToTheNearestElementIsClear) {
  const auto class_with = [](std::string_view name, Attributes attributes) {
    Node node;
    node.op = std::string(name);
    node.domain = name == "ResizeGrad" ? std::string(kHalfnoteDomain) : std::string();
    node.attributes = std::move(attributes);
    return class_of(*find_operator(node), node);
  };
  for (const char* op : {"Resize", "ResizeGrad"}) {
    EXPECT_EQ(class_with(op, {}), PrecisionClass::kClear) << "nearest is the default";
    EXPECT_EQ(class_with(op, {{"mode", "nearest"}}), PrecisionClass::kClear);
    EXPECT_EQ(class_with(op, {{"mode", "linear"}}), PrecisionClass::kFp32);
    EXPECT_EQ(class_with(op, {{"coordinate_transformation_mode", "tf_crop_and_resize"}}),
              PrecisionClass::kFp32);
  }
  EXPECT_EQ(class_with("Exp", {}), PrecisionClass::kFp32);
}

}  // namespace
}  // namespace halfnote::test
