#include "base/ops/pointwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/shape.h"

namespace halfnote {
namespace {

using Op = PointwiseOp;
using Types = PointwiseTypes;
constexpr std::string_view kOwn = "ai.halfnote";
constexpr std::array<PointwiseParameter, 2> kApproximate = {{{"approximate", 0, "tanh"}}};
constexpr std::array<PointwiseParameter, 2> kAlpha = {{{"alpha", 1.0f, {}}}};
constexpr std::array<PointwiseParameter, 2> kElu = {
    {{"alpha", 1.0f, {}}, {"from_input", 0, {}, true}}};
constexpr std::array<PointwiseParameter, 2> kSelu = {
    {{"alpha", 1.67326319217681884765625f, {}}, {"gamma", 1.05070102214813232421875f, {}}}};
constexpr std::array<PointwiseParameter, 2> kLeak = {{{"alpha", 0.01f, {}}}};
constexpr std::array<PointwiseParameter, 2> kHard = {{{"alpha", 0.2f, {}}, {"beta", 0.5f, {}}}};

constexpr std::array<PointwiseParameter, 2> kDropped = {
    {{"ratio", 0.5f, {}}, {"node", 0, {}, true}}};

constexpr std::array<PointwiseParameter, 2> kDims = {
    {{"first", 0, {}, true}, {"dims", 0, {}, true}}};

constexpr PointwiseRow kPointwiseRows[] = {
    {Op::kAdd, "", "Add", 2},
    {Op::kSub, "", "Sub", 2},
    {Op::kMul, "", "Mul", 2},
    {Op::kDiv, "", "Div", 2},
    {Op::kMin, "", "Min", 2},
    {Op::kMax, "", "Max", 2},
    {Op::kPow, "", "Pow", 2},
    {Op::kPRelu, "", "PRelu", 2},
    {Op::kEqual, "", "Equal", 2, Types::kCompare},
    {Op::kLess, "", "Less", 2, Types::kCompare},
    {Op::kLessOrEqual, "", "LessOrEqual", 2, Types::kCompare},
    {Op::kGreater, "", "Greater", 2, Types::kCompare},
    {Op::kGreaterOrEqual, "", "GreaterOrEqual", 2, Types::kCompare},
    {Op::kAnd, "", "And", 2, Types::kBools},
    {Op::kOr, "", "Or", 2, Types::kBools},
    {Op::kXor, "", "Xor", 2, Types::kBools},
    {Op::kWhere, "", "Where", 3, Types::kSelect},
    {Op::kCast, "", "Cast", 1, Types::kConvert},
    {Op::kIdentity, "", "Identity", 1},
    {Op::kNot, "", "Not", 1, Types::kBools},
    {Op::kAbs, "", "Abs"},
    {Op::kCeil, "", "Ceil"},
    {Op::kCelu, "", "Celu", 1, Types::kFloats, kAlpha},
    {Op::kCos, "", "Cos"},
    {Op::kElu, "", "Elu", 1, Types::kFloats, kElu},
    {Op::kErf, "", "Erf"},
    {Op::kExp, "", "Exp"},
    {Op::kFloor, "", "Floor"},
    {Op::kGelu, "", "Gelu", 1, Types::kFloats, kApproximate},
    {Op::kHardSigmoid, "", "HardSigmoid", 1, Types::kFloats, kHard},
    {Op::kHardSwish, "", "HardSwish"},
    {Op::kLeakyRelu, "", "LeakyRelu", 1, Types::kFloats, kLeak},
    {Op::kLog, "", "Log"},
    {Op::kMish, "", "Mish"},
    {Op::kNeg, "", "Neg"},
    {Op::kReciprocal, "", "Reciprocal"},
    {Op::kRelu, "", "Relu"},
    {Op::kRound, "", "Round"},
    {Op::kSelu, "", "Selu", 1, Types::kFloats, kSelu},
    {Op::kSigmoid, "", "Sigmoid"},
    {Op::kSign, "", "Sign"},
    {Op::kSin, "", "Sin"},
    {Op::kSoftplus, "", "Softplus"},
    {Op::kSoftsign, "", "Softsign"},
    {Op::kSqrt, "", "Sqrt"},
    {Op::kSwish, "", "Swish", 1, Types::kFloats, kAlpha},
    {Op::kTanh, "", "Tanh"},
    {Op::kThresholdedRelu, "", "ThresholdedRelu", 1, Types::kFloats, kAlpha},
    {Op::kAbsGrad, kOwn, "AbsGrad", 2},
    {Op::kCeluGrad, kOwn, "CeluGrad", 2, Types::kFloats, kAlpha},
    {Op::kCosGrad, kOwn, "CosGrad", 2},
    {Op::kEluGrad, kOwn, "EluGrad", 2, Types::kFloats, kElu},
    {Op::kErfGrad, kOwn, "ErfGrad", 2},
    {Op::kExpGrad, kOwn, "ExpGrad", 2},
    {Op::kGeluGrad, kOwn, "GeluGrad", 2, Types::kFloats, kApproximate},
    {Op::kHardSigmoidGrad, kOwn, "HardSigmoidGrad", 2, Types::kFloats, kHard},
    {Op::kHardSwishGrad, kOwn, "HardSwishGrad", 2},
    {Op::kLeakyReluGrad, kOwn, "LeakyReluGrad", 2, Types::kFloats, kLeak},
    {Op::kLogGrad, kOwn, "LogGrad", 2},
    {Op::kMishGrad, kOwn, "MishGrad", 2},
    {Op::kReciprocalGrad, kOwn, "ReciprocalGrad", 2},
    {Op::kReluGrad, kOwn, "ReluGrad", 2},
    {Op::kSeluGrad, kOwn, "SeluGrad", 2, Types::kFloats, kSelu},
    {Op::kSigmoidGrad, kOwn, "SigmoidGrad", 2},
    {Op::kSinGrad, kOwn, "SinGrad", 2},
    {Op::kSoftplusGrad, kOwn, "SoftplusGrad", 2},
    {Op::kSoftsignGrad, kOwn, "SoftsignGrad", 2},
    {Op::kSqrtGrad, kOwn, "SqrtGrad", 2},
    {Op::kSwishGrad, kOwn, "SwishGrad", 2, Types::kFloats, kAlpha},
    {Op::kTanhGrad, kOwn, "TanhGrad", 2},
    {Op::kThresholdedReluGrad, kOwn, "ThresholdedReluGrad", 2, Types::kFloats, kAlpha},
    {Op::kDropout, kOwn, "Dropout", 3, Types::kDraw, kDropped},
    {Op::kReduceSum, "", "ReduceSum", 1, Types::kSum, kDims},
    {Op::kReduceMean, "", "ReduceMean", 1, Types::kSum, kDims},
};
static_assert(std::ranges::all_of(kPointwiseRows, [](const PointwiseRow& row) {
  return &row == kPointwiseRows + static_cast<size_t>(row.code);
}));
static_assert(std::size(kPointwiseRows) == kPointwiseOps);

/// Integers up to here are floats as they are.
constexpr int64_t kMostInteger = int64_t{1} << 24;

bool is_float_type(DType dtype) { return dtype == DType::kF32 || is_16bit_float(dtype); }

/// Why a step cannot have these numbers, or an empty string.
std::string unfit_numbers(const PointwiseRow& row, const PointwiseNumbers& numbers) {
  if (row.types == Types::kSum) {
    const bool known = numbers[1] >= 1 && numbers[1] <= static_cast<float>(kMaxRank) &&
                       numbers[1] == std::trunc(numbers[1]);
    return known && (numbers[0] == 0 || numbers[0] == -numbers[1])
               ? ""
               : "a sum that is over neither the first dims nor the last";
  }
  if (row.types != Types::kDraw) return {};
  if (!(numbers[0] >= 0 && numbers[0] <= 1)) return "a ratio outside of [0, 1]";
  const bool whole = numbers[1] >= 0 && numbers[1] <= kMostInteger;
  return whole && numbers[1] == std::trunc(numbers[1]) ? "" : "a node that is no number of one";
}

/// A cursor over the text of a program.
class Reader {
 public:
  Reader(std::string_view text, std::span<const DType> inputs, std::span<const DType> outputs)
      : text_(text), inputs_(inputs), outputs_(outputs) {}

  PointwiseProgram read() {
    while (!take("out ")) {
      read_step();
      require("; ");
    }
    do {
      const int step = read_operand();
      if (step >= 0) fail("an output is an input");
      const DType wanted = type_of_output(program_.outputs.size());
      if (wanted != DType::kUndefined && dtype_of(step) != wanted) fail("type of an output");
      program_.outputs.push_back(~step);
    } while (take(", "));
    if (at_ != text_.size() || program_.outputs.size() != outputs_.size()) fail("outputs");
    if (sums_ > 1 ||
        std::ranges::count_if(program_.outputs, [&](int k) { return ends_in(k); }) != sums_)
      fail("a sum that is not one output");
    return std::move(program_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error(ErrorCode::kModel, fmt::format("pointwise program: {}", what))
        .expected("t0:f32 = Op(x0, …); …; out t0",
                  fmt::format("\"{}\" at {}", text_.substr(0, 200), at_));
  }
  DType type_of_output(size_t index) const {
    return index < outputs_.size() ? outputs_[index] : DType::kUndefined;
  }
  DType dtype_of(int operand) const {
    return operand >= 0 ? inputs_[static_cast<size_t>(operand)]
                        : program_.steps[static_cast<size_t>(~operand)].dtype;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void require(std::string_view word) {
    if (!take(word)) fail(fmt::format("no '{}'", word));
  }
  std::string_view word() {
    const size_t start = at_;
    const auto in_word = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    };
    while (at_ < text_.size() && in_word(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }
  template <class T>
  T number() {
    T value{};
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("not a number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  int read_operand() {
    const bool is_input = take("x");
    if (!is_input) require("t");
    const int index = number<int>();
    const size_t count = is_input ? inputs_.size() : program_.steps.size();
    if (index < 0 || static_cast<size_t>(index) >= count) fail("no such operand");
    return is_input ? index : ~index;
  }
  DType read_type() {
    const std::string_view name = word();
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kBool}) {
      if (name == short_name(dtype)) return dtype;
    }
    fail("no such type");
  }
  void read_step() {
    require("t");
    if (number<size_t>() != program_.steps.size()) fail("steps out of order");
    PointwiseStep step;
    require(":");
    step.dtype = read_type();
    require(" = ");
    const std::string_view name = word();
    const auto* row = std::ranges::find(kPointwiseRows, name, &PointwiseRow::op);
    if (row == std::end(kPointwiseRows)) fail("no such op");
    step.op = row->code;
    if (take("[")) {
      step.parameters[0] = number<float>();
      require(", ");
      step.parameters[1] = number<float>();
      require("]");
    }
    if (std::string why = unfit_numbers(*row, step.parameters); !why.empty()) fail(why);
    std::array<DType, kPointwiseArity> types{};
    for (int i = 0; i < row->arity; ++i) {
      require(i == 0 ? "(" : ", ");
      step.operands[static_cast<size_t>(i)] = read_operand();
      const int operand = step.operands[static_cast<size_t>(i)];
      if (operand < 0 && ends_in(~operand)) fail("a sum as an operand");
      types[static_cast<size_t>(i)] = dtype_of(step.operands[static_cast<size_t>(i)]);
    }
    require(")");
    const std::span<const DType> operands(types.data(), static_cast<size_t>(row->arity));
    if (std::string why = unfit_types(*row, operands, step.dtype); !why.empty()) fail(why);
    program_.steps.push_back(step);
    sums_ += row->types == Types::kSum;
  }
  bool ends_in(int step) const { return is_sum(program_.steps[static_cast<size_t>(step)].op); }

  std::string_view text_;
  std::span<const DType> inputs_, outputs_;
  size_t at_ = 0;
  PointwiseProgram program_;
  int sums_ = 0;
};

}  // namespace

std::span<const PointwiseRow> pointwise_rows() { return kPointwiseRows; }

const PointwiseRow* find_pointwise(std::string_view domain, std::string_view op) {
  static const auto* const kIndex = [] {
    auto* index = new std::map<std::pair<std::string_view, std::string_view>, const PointwiseRow*>;
    for (const PointwiseRow& row : kPointwiseRows)
      if (row.types != Types::kSum) index->emplace(std::pair(row.domain, row.op), &row);
    return index;
  }();
  const auto found = kIndex->find({domain, op});
  return found == kIndex->end() ? nullptr : found->second;
}

PointwiseNumbers pointwise_parameters(const PointwiseRow& row, const Attributes& attributes) {
  PointwiseNumbers numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const PointwiseParameter& parameter = row.parameters[i];
    if (parameter.name.empty()) continue;
    if (parameter.integer) {
      numbers[i] = static_cast<float>(attributes.get_int(parameter.name, 0));
      continue;
    }
    numbers[i] = parameter.word_for_one.empty()
                     ? attributes.get_float(parameter.name, parameter.fallback)
                     : attributes.get_string(parameter.name, "none") == parameter.word_for_one;
  }
  return numbers;
}

int pointwise_operands(const PointwiseRow& row) {
  return row.types == Types::kDraw ? 1 : row.arity;
}

std::optional<PointwiseSum> sum_of(const PointwiseProgram& program) {
  for (size_t k = 0; k < program.outputs.size(); ++k) {
    const PointwiseStep& step = program.steps[static_cast<size_t>(program.outputs[k])];
    if (!is_sum(step.op)) continue;
    return PointwiseSum{k, static_cast<size_t>(step.parameters[1]), step.parameters[0] < 0,
                        step.op == Op::kReduceMean};
  }
  return std::nullopt;
}

PointwiseNumbers sum_parameters(const PointwiseSum& sum) {
  const auto dims = static_cast<float>(sum.dims);
  return {sum.along_rows ? -dims : 0.0f, dims};
}

std::string unfit_attributes(const PointwiseRow& row, const Attributes& attributes) {
  for (const PointwiseParameter& parameter : row.parameters) {
    if (parameter.integer && attributes.get_int(parameter.name, 0) > kMostInteger)
      return fmt::format("{} above {}", parameter.name, kMostInteger);
  }
  return unfit_numbers(row, pointwise_parameters(row, attributes));
}

std::string unfit_input(DType dtype, int64_t elements) {
  if (dtype == DType::kI64) return elements == 1 ? "" : "several elements of type i64";
  return is_pointwise_type(dtype) ? "" : fmt::format("elements of type {}", short_name(dtype));
}

bool is_pointwise_type(DType dtype) { return is_float_type(dtype) || dtype == DType::kBool; }

std::string unfit_types(const PointwiseRow& row, std::span<const DType> operands, DType result) {
  if (row.types == Types::kDraw) {
    const bool fits = is_float_type(result) && operands[0] == result;
    const bool drawn = operands[1] == DType::kI64 && operands[2] == DType::kI64;
    return fits && drawn ? "" : "not floats of one type and two i64";
  }
  if (row.types == Types::kSum) {
    const bool fits =
        is_float_type(operands[0]) && (result == operands[0] || result == DType::kF32);
    return fits ? "" : "not floats and their sum";
  }
  for (const DType dtype : operands) {
    if (!is_pointwise_type(dtype)) return fmt::format("elements of type {}", short_name(dtype));
  }
  if (!is_pointwise_type(result)) return fmt::format("elements of type {}", short_name(result));
  const bool select = row.types == Types::kSelect;
  const std::span<const DType> alike = operands.subspan(select ? 1 : 0);
  const bool even = std::ranges::all_of(alike, [&](DType dtype) { return dtype == alike[0]; });
  const bool boolean = result == DType::kBool;
  switch (row.types) {
    case Types::kConvert:
      return {};
    case Types::kFloats:
    case Types::kSelect:
      if (select && operands[0] != DType::kBool) return "the condition is not bool";
      if (boolean || !even || alike[0] != result) return "operands of different types, or bool";
      return {};
    case Types::kCompare:
      return boolean && even ? "" : "operands of different types";
    case Types::kBools:
      return boolean && even && operands[0] == DType::kBool ? "" : "operands that are not bool";
    case Types::kDraw:
    case Types::kSum:
      break;
  }
  return {};
}

std::string to_text(const PointwiseProgram& program) {
  const auto operand = [](int index) {
    return index >= 0 ? fmt::format("x{}", index) : fmt::format("t{}", ~index);
  };
  std::string text;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const PointwiseStep& step = program.steps[i];
    const PointwiseRow& row = pointwise_row(step.op);
    text += fmt::format("t{}:{} = {}", i, short_name(step.dtype), row.op);
    if (!row.parameters[0].name.empty())
      text += fmt::format("[{}, {}]", step.parameters[0], step.parameters[1]);
    for (int k = 0; k < row.arity; ++k)
      text += (k == 0 ? "(" : ", ") + operand(step.operands[static_cast<size_t>(k)]);
    text += "); ";
  }
  text += "out ";
  for (size_t i = 0; i < program.outputs.size(); ++i)
    text += fmt::format("{}t{}", i == 0 ? "" : ", ", program.outputs[i]);
  return text;
}

PointwiseProgram parse_pointwise(std::string_view text, std::span<const DType> inputs,
                                 std::span<const DType> outputs) {
  return Reader(text, inputs, outputs).read();
}

PointwiseProgram parse_pointwise(std::string_view text, std::span<const DType> inputs,
                                 size_t outputs) {
  const std::vector<DType> open(outputs, DType::kUndefined);
  return Reader(text, inputs, open).read();
}

std::vector<DType> pointwise_types(std::string_view text, std::span<const DType> inputs,
                                   size_t outputs) {
  const PointwiseProgram program = parse_pointwise(text, inputs, outputs);
  std::vector<DType> types;
  for (const int step : program.outputs)
    types.push_back(program.steps[static_cast<size_t>(step)].dtype);
  return types;
}

}  // namespace halfnote
