// Ops that no gradient flows through: comparison, logic, bits, tests for NaN, rounding.
#include "compiler/ops/elementwise/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::elementwise {
namespace {

using enum PrecisionClass;

constexpr std::string_view kBool = "bool output: no gradient exists";
constexpr std::string_view kInteger = "integer output: no gradient exists";
constexpr std::string_view kFlips = "rounding the operands may flip the result";

/// A comparison. Its operands must carry no power of the loss scale: S·a < b is not a < b.
OperatorRow comparison(std::string_view name, Legality legality) {
  return {.name = name,
          .precision = kClear,
          .legality = legality,
          .no_gradient = kBool,
          .note = kFlips};
}

OperatorRow test(std::string_view name, Legality legality, std::string_view note) {
  return {.name = name,
          .precision = kClear,
          .legality = legality,
          .scale = ScaleRule::kAbsorb,
          .no_gradient = kBool,
          .note = note};
}

OperatorRow opaque(std::string_view name, std::string_view reason) {
  return {.name = name, .precision = kOpaque, .no_gradient = reason};
}

/// Rounding: the gradient is zero wherever it exists.
OperatorRow rounding(std::string_view name, Legality legality) {
  return {.name = name,
          .precision = kClear,
          .legality = legality,
          .gradient = no_slope,
          .note = "piecewise constant: the gradient is zero"};
}

}  // namespace

std::vector<OperatorRow> logic_rows() {
  std::vector<OperatorRow> rows = {
      comparison("Equal", {11, 13}),
      comparison("Greater", {1, 13}),
      comparison("GreaterOrEqual", {12, 16}),
      comparison("Less", {1, 13}),
      comparison("LessOrEqual", {12, 16}),
      test("IsInf", {20, 20}, "f16 turns finite numbers above 65504 into inf"),
      test("IsNaN", {9, 13}, "reads the type that the value has"),
      rounding("Ceil", {1, 13}),
      rounding("Floor", {1, 13}),
      rounding("Round", {11, 22}),
      rounding("Sign", {9, 13}),
  };
  rows.back().scale = ScaleRule::kAbsorb;  // S is positive
  for (std::string_view name : {"And", "Not", "Or", "Xor"}) rows.push_back(opaque(name, kBool));
  for (std::string_view name :
       {"BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"}) {
    rows.push_back(opaque(name, kInteger));
  }
  return rows;
}

}  // namespace halfnote::elementwise
