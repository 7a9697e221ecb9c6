// The bodies of Attention and AttentionGrad of ai.halfnote against their kernels.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

// Sums of up to some dozens of terms behind an exponential, in two orders.
constexpr double kAttentionSums = 64;

struct AttentionBody {
  const char* name;
  Attributes attributes;
  std::vector<Shape> terms = {};
  int term_gradients = 0;
  bool trans_k = false;
  int64_t group = 1;  // heads of Q that read one of K and V
};

Attributes with_dropout(Attributes attributes) {
  attributes.set("ratio", 0.25f);
  attributes.set("node", int64_t{7});
  return attributes;
}

const AttentionBody kBodies[] = {
    {"plain", {{"scale", 0.5f}}},
    {"keys transposed", {{"transK", int64_t{1}}}, {}, 0, true},
    {"causal", {{"is_causal", int64_t{1}}, {"scale", 0.25f}}},
    {"rows first", {{"rows_first", std::vector<int64_t>{1, 1, 1, 1}}}},
    {"some rows first", {{"rows_first", std::vector<int64_t>{0, 1, 0, 1}}}},
    {"other rows first", {{"rows_first", std::vector<int64_t>{1, 0, 1, 0}}}},
    {"a bias with a gradient", {{"scale", 0.5f}}, {{1, 3, 7, 7}}, 1},
    {"a mask", {{"hidden", std::vector<float>{-1e9f}}}, {{2, 1, 1, 7}}},
    {"a bias, then a mask",
     {{"hidden", std::vector<float>{0, -1e9f}}, {"nan_is_zero", int64_t{1}}},
     {{3, 7, 7}, {2, 1, 1, 7}},
     1},
    {"groups", {{"scale", 0.5f}}, {}, 0, false, 3},
    {"groups, rows first",
     {{"rows_first", std::vector<int64_t>{1, 1, 1, 1}}, {"is_causal", int64_t{1}}},
     {},
     0,
     false,
     3},
    {"groups of transposed keys, a bias with a gradient",
     {{"transK", int64_t{1}}},
     {{1, 3, 7, 7}},
     1,
     true,
     3},
    {"a dropout", with_dropout({{"scale", 0.5f}})},
    {"a dropout, rows first", with_dropout({{"rows_first", std::vector<int64_t>{1, 1, 1, 1}}})},
    {"a dropout behind a bias and a mask",
     with_dropout({{"hidden", std::vector<float>{0, -1e9f}}, {"nan_is_zero", int64_t{1}}}),
     {{3, 7, 7}, {2, 1, 1, 7}},
     1},
};

Tensor term_of(const AttentionBody& body, size_t i, DType dtype) {
  const bool mask = i < body.attributes.get_floats("hidden").size() &&
                    body.attributes.get_floats("hidden")[i] != 0;
  if (!mask) return random_tensor(dtype == DType::kF64 ? dtype : DType::kF32, body.terms[i], 4);
  Tensor bits(DType::kBool, body.terms[i]);
  for (size_t k = 0; k < bits.mutable_data<bool>().size(); ++k)
    bits.mutable_data<bool>()[k] = k % 3 != 1;
  return bits;
}

TEST(AttentionBody, AgreesWithItsKernel) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const AttentionBody& body : kBodies) {
      std::vector<int64_t> first = body.attributes.get_ints("rows_first");
      first.resize(4);
      const auto stored = [&](size_t operand, int64_t size) {
        const int64_t heads = operand == 1 || operand == 2 ? 3 / body.group : 3;
        return first[operand] != 0 ? Shape{2, 7, heads, size} : Shape{2, heads, 7, size};
      };
      const Shape k = body.trans_k ? Shape{2, 3 / body.group, 5, 7} : stored(1, 5);
      BodyCase call{body.name,
                    "Attention",
                    body.attributes,
                    {random_tensor(dtype, stored(0, 5), 1), random_tensor(dtype, k, 2),
                     random_tensor(dtype, stored(2, 4), 3)},
                    3};
      for (size_t i = 0; i < body.terms.size(); ++i) call.inputs.push_back(term_of(body, i, dtype));
      if (body.attributes.find("ratio") != nullptr)
        call.inputs.insert(call.inputs.end(),
                           {Tensor::scalar(int64_t{12}), Tensor::scalar(int64_t{3})});
      expect_body_agrees(call, kAttentionSums);

      const std::vector<Tensor> results = run_kernel(call);
      std::vector<Tensor> inputs = {random_tensor(dtype, stored(3, 4), 8)};
      inputs.insert(inputs.end(), call.inputs.begin(), call.inputs.begin() + 3);
      inputs.insert(inputs.end(), results.begin(), results.end());
      inputs.insert(inputs.end(), call.inputs.begin() + 3, call.inputs.end());
      call.op = "AttentionGrad";
      call.inputs = inputs;
      call.outputs = 3 + body.term_gradients;
      expect_body_agrees(call, kAttentionSums);
      if (dtype == DType::kF64) continue;
      call.attributes.set("out_dtypes", std::vector<int64_t>{1, 1, 1});
      expect_body_agrees(call, kAttentionSums);
    }
  }
}

TEST(AttentionBody, OfPackedOperandsAgreesWithItsKernel) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Tensor all = random_tensor(dtype, {2, 7, 3, 2, 5}, 1);
    BodyCase call{"packed",
                  "Attention",
                  {{"rows_first", std::vector<int64_t>{1, 1, 1, 0}}, {"packed", int64_t{1}}},
                  {all, all, all},
                  3};
    expect_body_agrees(call, kAttentionSums);
    const std::vector<Tensor> results = run_kernel(call);
    call.op = "AttentionGrad";
    call.inputs = {random_tensor(dtype, {2, 2, 7, 5}, 8), all, all, all};
    call.inputs.insert(call.inputs.end(), results.begin(), results.end());
    call.outputs = 1;
    expect_body_agrees(call, kAttentionSums);
  }
}

TEST(AttentionBody, RefusesWhatItCannotRead) {
  const Tensor x = random_tensor(DType::kF32, {2, 3}, 1), line = random_tensor(DType::kF32, {3}, 1);
  EXPECT_THROW(graph_of({"a line", "Attention", {}, {line, x, x}, 2}), Error);
  EXPECT_THROW(graph_of({"no values", "Attention", {}, {x, x}, 2}), Error);
  const BodyCase dropout{"no seed", "Attention", {{"ratio", 0.5f}}, {x, x, x}, 3};
  EXPECT_THROW(body_of(dropout), Error);
  const BodyCase hidden{
      "hidden", "Attention", {{"hidden", std::vector<float>{0, 0}}}, {x, x, x, x}, 3};
  EXPECT_THROW(body_of(hidden), Error);
  const BodyCase flags{
      "flags", "Attention", {{"rows_first", std::vector<int64_t>{1, 1, 1}}}, {x, x, x}, 3};
  EXPECT_THROW(graph_of(flags), Error);
  const BodyCase heads{
      "no heads", "Attention", {{"rows_first", std::vector<int64_t>{1, 0, 0, 0}}}, {x, x, x}, 3};
  EXPECT_THROW(graph_of(heads), Error);
  const Tensor y = random_tensor(DType::kF32, {2, 2, 3}, 1);
  const BodyCase both{"both",
                      "Attention",
                      {{"rows_first", std::vector<int64_t>{0, 1, 0, 0}}, {"transK", int64_t{1}}},
                      {y, y, y},
                      3};
  EXPECT_THROW(body_of(both), Error);
  const BodyCase packed{"two parts",
                        "Attention",
                        {{"rows_first", std::vector<int64_t>{1, 1, 1, 0}}, {"packed", int64_t{1}}},
                        {random_tensor(DType::kF32, {4, 2, 2, 3}, 1), y, y},
                        3};
  EXPECT_THROW(graph_of(packed), Error);
  const BodyCase types{"types",
                       "AttentionGrad",
                       {{"out_dtypes", std::vector<int64_t>{7}}},
                       {x, x, x, x, x, line, line},
                       3};
  EXPECT_THROW(graph_of(types), Error);
}

}  // namespace
}  // namespace halfnote::test
