// Inputs that only hide scores, by their readers.
#include "passes/precision/values/masks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "compiler/ir/text.h"
#include "runtime/train/data/inputs.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;

bool hides(const std::string& body) {
  const Model model = parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]> main (float[2,4,8,8] s, float[2,8] m) => "
      "(float[2,4,8,8] y) <\n   int64[2] axes = {1, 2}, "
      "float two = {2}\n> {\n" +
          body + "}\n",
      "test");
  return is_mask_of_scores(model.graph, model.graph.find("m"));
}

TEST(Masks, AreAddedOnTheWayIntoASoftmax) {
  EXPECT_TRUE(hides("   a = Unsqueeze (m, axes)\n   b = Add (s, a)\n   y = Softmax (b)\n"));
  EXPECT_TRUE(
      hides("   c = Cast <to = 10> (m)\n   a = Unsqueeze (c, axes)\n   d = Cast <to = 1> "
            "(a)\n   b = Sub (d, s)\n   y = LogSoftmax (b)\n"));
  EXPECT_TRUE(
      hides("   k = Shape (m)\n   a = Unsqueeze (m, axes)\n   b = Add (a, s)\n   e = Add (b, "
            "s)\n   y = Softmax (e)\n"));
}

TEST(Masks, AreReadByNothingElse) {
  EXPECT_FALSE(hides("   a = Unsqueeze (m, axes)\n   y = Add (s, a)\n"));
  EXPECT_FALSE(hides("   a = Unsqueeze (m, axes)\n   b = Mul (s, a)\n   y = Softmax (b)\n"));
  EXPECT_FALSE(hides("   a = Unsqueeze (m, axes)\n   b = Sub (s, a)\n   y = Softmax (b)\n"));
  EXPECT_FALSE(
      hides("   a = Unsqueeze (m, axes)\n   b = Add (s, a)\n   e = Tanh (b)\n   f = Softmax "
            "(b)\n   y = Add (e, f)\n"));
  EXPECT_FALSE(hides("   y = Softmax (s)\n"));
}

TEST(Masks, MayHideByMinusInfinity) {
  Tensor mask(DType::kF32, {2, 3});
  mask.mutable_data<float>()[1] = -INFINITY;
  ModelInput input{"mask", DType::kF32, {Dim::named("N"), Dim(3)}};
  ConvertRoom room;
  const auto fill = [&](int64_t sample) {
    const InputMap map(Dataset("d", {{"mask", mask}}), {&input, 1});
    Tensor batch = map.make_batch(0, 1);
    map.fill(0, sample, 0, batch, room);
    return batch;
  };
  expect_error(ErrorCode::kData, {"sample 0 of \"mask\" is not finite", "element 1"},
               [&] { fill(0); });
  input.hides = true;
  EXPECT_EQ(fill(0).data<float>()[1], -INFINITY);
  mask.mutable_data<float>()[5] = INFINITY;
  expect_error(ErrorCode::kData, {"sample 1 of \"mask\"", "finite numbers, or -Inf", "element 2"},
               [&] { fill(1); });
  mask.mutable_data<float>()[5] = NAN;
  expect_error(ErrorCode::kData, {"sample 1 of \"mask\"", "NaN in element 2"}, [&] { fill(1); });
}

}  // namespace
}  // namespace halfnote
