// The generated kernels of the steps of the models in three precisions, by their very texts: on
// made-up operands they give the bits of the host's loops, which whole models use, in three orders
// of the threads, and what the CPU's reference gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <sstream>

#include "base/error.h"
#include "kernels/cuda/elementwise/chain/plan.h"
#include "tests/cuda/chain/compiled.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

using chain::Access;

struct Parsed {
  std::vector<DType> types;
  std::vector<Access> access;
  bool walks = false;  // an input broadcasts, and is no single element
};

Parsed parse(const ModelChain& model) {
  Parsed parsed;
  std::istringstream words{std::string(model.inputs)};
  for (std::string word; words >> word;) {
    const size_t colon = word.find(':');
    parsed.types.push_back(*dtype_from_name(word.substr(0, colon)));
    parsed.access.push_back(static_cast<Access>(word[colon + 1] - '0'));
    parsed.walks = parsed.walks || parsed.access.back() == Access::kAlong ||
                   parsed.access.back() == Access::kStay;
  }
  return parsed;
}

/// What an input of this kind is of a matrix with `lead` dims of 1 before it.
Shape shape_of(Access access, size_t lead, int64_t rows, int64_t columns) {
  if (access == Access::kSingle) return {};
  Shape shape(lead, 1);
  shape.push_back(access == Access::kAlong ? 1 : rows);
  shape.push_back(access == Access::kStay ? 1 : columns);
  return shape;
}

Tensor operand(DType dtype, const Shape& shape, uint32_t seed) {
  if (dtype == DType::kI64) return integers({(int64_t{3} << 40) + seed}, shape);
  if (dtype != DType::kBool) return random(dtype, shape, -3, 3, seed);
  return random(DType::kF32, shape, 0, 2, seed).cast_to(DType::kI32).cast_to(dtype);
}

Call call_of(const ModelChain& model, int64_t rows, int64_t columns) {
  const Parsed parsed = parse(model);
  Call call{kOwn, "Pointwise", {}, {}, {}};
  call.attributes.set("program", std::string(model.program));
  const std::vector<DType> outputs = pointwise_types(model.program, parsed.types, model.outputs);
  const auto sum = sum_of(parse_pointwise(model.program, parsed.types, outputs));
  const size_t lead = sum ? sum->dims - 1 : 0;
  for (size_t i = 0; i < parsed.types.size(); ++i) {
    const Shape shape = shape_of(parsed.access[i], lead, rows, columns);
    call.inputs.push_back(operand(parsed.types[i], shape, static_cast<uint32_t>(i + 1)));
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    Shape shape = shape_of(Access::kWhole, lead, rows, columns);
    call.outputs.push_back({outputs[k], sum && sum->output == k ? kept_dims(shape, *sum) : shape});
  }
  return call;
}

/// How far a result may be from the reference's x.
struct Bound {
  double of_all = 0, of_own = 0;  // of_all + of_own·|x|
  bool holds(double got, double x) const {
    return got == x || std::fabs(got - x) <= of_all + of_own * std::fabs(x);
  }
};

/// NaN is NaN, whatever its sign.
bool same_numbers(const Tensor& a, const Tensor& b, const Bound& bound = {}) {
  if (!is_float(a.dtype()) || identical(a, b)) return identical(a, b);
  for (int64_t i = 0; i < a.size(); ++i) {
    const double x = a.at_as_double(i), y = b.at_as_double(i);
    if (!bound.holds(x, y) && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

/// Functions of numbers that are rounded to 16 bits are a few units of f32 off (brief.h), which
/// rounding hides, but for where their terms cancel: the slope of Gelu is 0 near -0.75. There a
/// result is 2^-18 of the largest off, and the next 16-bit number; a sum of 37 has some of these.
Bound bound_of(const ModelChain& model, const std::vector<Tensor>& wanted, size_t output) {
  if (model.program.find("GeluGrad") == std::string_view::npos) return {};
  double largest = 0;
  for (int64_t i = 0; i < wanted[0].size(); ++i) {
    const double x = std::fabs(wanted[0].at_as_double(i));
    if (std::isfinite(x)) largest = std::max(largest, x);
  }
  const DType type = wanted[0].dtype();
  const double spacing = type == DType::kF16 ? 0x1p-10 : type == DType::kBF16 ? 0x1p-7 : 0x1p-20;
  if (output == 0) return {largest * 0x1p-18, spacing};
  return {largest * spacing, 0};
}

std::vector<Tensor> on_compiled(const Call& call) {
  use_compiled_chains({kModelKernels, kModelChainCount});
  const std::vector<Tensor> results = on_device(call);
  use_compiled_chains({});
  return results;
}

TEST(ModelChains, GiveTheBitsOfTheLoopsThatModelsRun) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "these are compiled for the host";
  EXPECT_GT(kModelChainCount, 80u);
  size_t calls = 0;
  for (const ModelChain& model : std::span(kModelChains, kModelChainCount)) {
    SCOPED_TRACE(std::string(model.first) + ": " + std::string(model.program));
    std::vector<int64_t> widths;
    if (model.even) widths = {64, 1024};
    if (!model.even || !parse(model).walks) widths.insert(widths.end(), {65, 129});
    for (const int64_t columns : widths) {
      const Call call = call_of(model, 37, columns);
      chain::Plan plan;
      ASSERT_EQ(chain::plan_chain(kernel_call(call), plan), "");
      ASSERT_EQ(chain::source_of(plan.chain).name, model.name) << "another text";
      const std::vector<Tensor> got = on_compiled(call), wanted = on_device(call);
      for (size_t k = 0; k < wanted.size(); ++k)
        EXPECT_TRUE(same_numbers(got[k], wanted[k], bound_of(model, wanted, k)))
            << "output " << k << " of " << columns;
      ++calls;
    }
  }
  EXPECT_GE(calls, 2 * kModelChainCount);
}

TEST(ModelChains, GiveWhatTheReferenceGives) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "these are compiled for the host";
  use_compiled_chains({kModelKernels, kModelChainCount});
  for (const ModelChain& model : std::span(kModelChains, kModelChainCount)) {
    SCOPED_TRACE(std::string(model.first) + ": " + std::string(model.program));
    check(call_of(model, 5, model.even ? 64 : 65));
  }
  use_compiled_chains({});
}

}  // namespace
}  // namespace halfnote::cuda_emulated
