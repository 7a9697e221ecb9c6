// Pointwise programs: chains of elementwise ops that run as one pass over memory. The pass that
// makes them and the kernel that runs them share the list of ops and the form of a program, which
// travels as the text attribute `program` of ai.halfnote.Pointwise:
//
//   t0:bf16 = Add(x0, x1); t1:bf16 = Gelu[1, 0](t0); t2:f32 = Cast(t1); out t0, t2
//
// x0, x1, … are the node's inputs, broadcast to the shape of its outputs; t0, t1, … the results of
// the steps, each computed in f32 and rounded to the type behind its name, as the op alone would.
// Only a Dropout reads inputs of i64, its seed and its step, which are one number each; it draws
// for the element's position in the outputs. A sum or a mean may end a program, over the first
// dims, ReduceSum[0, dims], or along the last ones, ReduceSum[-dims, dims] (the first axis and
// their number): nobody reads it, and it is the one output of another shape, without these dims.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/attribute.h"
#include "base/dtype.h"

namespace halfnote {

/// The ops of a program, in the order of pointwise_rows().
enum class PointwiseOp : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMin,
  kMax,
  kPow,
  kPRelu,
  kEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kAnd,
  kOr,
  kXor,
  kWhere,
  kCast,
  kIdentity,
  kNot,
  kAbs,
  kCeil,
  kCelu,
  kCos,
  kElu,
  kErf,
  kExp,
  kFloor,
  kGelu,
  kHardSigmoid,
  kHardSwish,
  kLeakyRelu,
  kLog,
  kMish,
  kNeg,
  kReciprocal,
  kRelu,
  kRound,
  kSelu,
  kSigmoid,
  kSign,
  kSin,
  kSoftplus,
  kSoftsign,
  kSqrt,
  kSwish,
  kTanh,
  kThresholdedRelu,
  kAbsGrad,
  kCeluGrad,
  kCosGrad,
  kEluGrad,
  kErfGrad,
  kExpGrad,
  kGeluGrad,
  kHardSigmoidGrad,
  kHardSwishGrad,
  kLeakyReluGrad,
  kLogGrad,
  kMishGrad,
  kReciprocalGrad,
  kReluGrad,
  kSeluGrad,
  kSigmoidGrad,
  kSinGrad,
  kSoftplusGrad,
  kSoftsignGrad,
  kSqrtGrad,
  kSwishGrad,
  kTanhGrad,
  kThresholdedReluGrad,
  kDropout,
  kReduceSum,
  kReduceMean,
};
inline constexpr size_t kPointwiseOps = static_cast<size_t>(PointwiseOp::kReduceMean) + 1;

/// What the operands and the result of an op are.
enum class PointwiseTypes : uint8_t {
  kFloats,   // all of one float type
  kCompare,  // operands of one float type (or bool), a bool result
  kBools,    // all bool
  kSelect,   // bool, then floats of one type
  kConvert,  // any type to any
  kDraw,     // floats of one type, then two i64
  kSum,      // floats of one type, a result of these or of f32; no elementwise operator
};

/// An attribute that becomes a number. Of a word, 1 stands for `word_for_one` and 0 for the others.
struct PointwiseParameter {
  std::string_view name;
  float fallback = 0;
  std::string_view word_for_one;
  bool integer = false;
};

struct PointwiseRow {
  PointwiseOp code;
  std::string_view domain, op;
  int arity = 1;
  PointwiseTypes types = PointwiseTypes::kFloats;
  std::array<PointwiseParameter, 2> parameters = {};
};

inline constexpr size_t kPointwiseArity = 3;
using PointwiseNumbers = std::array<float, 2>;

std::span<const PointwiseRow> pointwise_rows();
inline size_t index_of(PointwiseOp op) { return static_cast<size_t>(op); }
inline const PointwiseRow& pointwise_row(PointwiseOp op) { return pointwise_rows()[index_of(op)]; }
inline bool is_sum(PointwiseOp op) { return pointwise_row(op).types == PointwiseTypes::kSum; }
/// The row of an elementwise operator; null if no program can hold it.
const PointwiseRow* find_pointwise(std::string_view domain, std::string_view op);
PointwiseNumbers pointwise_parameters(const PointwiseRow& row, const Attributes& attributes);
/// How many operands of an op have elements to go through; they come before the others.
int pointwise_operands(const PointwiseRow& row);

/// The types that a program computes with.
bool is_pointwise_type(DType dtype);

/// One step. An operand k ≥ 0 is input k, an operand ~k the result of step k.
struct PointwiseStep {
  PointwiseOp op = PointwiseOp::kAdd;
  std::array<int, kPointwiseArity> operands = {};
  PointwiseNumbers parameters = {};
  DType dtype = DType::kUndefined;

  friend bool operator==(const PointwiseStep&, const PointwiseStep&) = default;
};

struct PointwiseProgram {
  std::vector<PointwiseStep> steps;
  std::vector<int> outputs;  // the steps whose results are outputs, in the order of these

  friend bool operator==(const PointwiseProgram&, const PointwiseProgram&) = default;
};

/// Why no program can hold an op with these attributes, or read an input of so many elements; or an
/// empty string.
std::string unfit_attributes(const PointwiseRow& row, const Attributes& attributes);
std::string unfit_input(DType dtype, int64_t elements);
/// Why the types do not fit an op, or an empty string.
std::string unfit_types(const PointwiseRow& row, std::span<const DType> operands, DType result);

/// Which output is a sum (or a mean), and over how many dims; none if there is none.
struct PointwiseSum {
  size_t output = 0;
  size_t dims = 0;
  bool along_rows = false;  // over the last dims, not the first
  bool is_mean = false;
};
std::optional<PointwiseSum> sum_of(const PointwiseProgram& program);
/// The dims of the elements that a sum leaves. At least `sum.dims` must be there.
template <class Dims>
Dims kept_dims(const Dims& whole, const PointwiseSum& sum) {
  const auto dims = static_cast<std::ptrdiff_t>(sum.dims);
  return sum.along_rows ? Dims(whole.begin(), whole.end() - dims)
                        : Dims(whole.begin() + dims, whole.end());
}
/// What stands in brackets behind the name of such a step.
PointwiseNumbers sum_parameters(const PointwiseSum& sum);

std::string to_text(const PointwiseProgram& program);
/// Reads to_text()'s form and checks it against the types of the inputs and outputs. Throws
/// Error(kModel) with the step.
PointwiseProgram parse_pointwise(std::string_view text, std::span<const DType> inputs,
                                 std::span<const DType> outputs);
/// The same, where the types of the `outputs` results are as the text states them.
PointwiseProgram parse_pointwise(std::string_view text, std::span<const DType> inputs,
                                 size_t outputs);
/// These types.
std::vector<DType> pointwise_types(std::string_view text, std::span<const DType> inputs,
                                   size_t outputs);

}  // namespace halfnote
