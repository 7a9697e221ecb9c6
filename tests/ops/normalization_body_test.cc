// Bodies of the normalizations of ai.halfnote against their kernels.
#include <gtest/gtest.h>

#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

constexpr DType kNormalizationTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
// Sums of up to some hundred terms, and a division by a standard deviation of about 0.6.
constexpr double kNormalizationSums = 64;
const Shape kNormalizationShapes[] = {{4, 3}, {2, 5, 7}, {2, 3, 5, 3}, {3, 1, 2, 1, 3}};

DType wide(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

TEST(NormalizationBody, BatchNormalization) {
  for (DType dtype : kNormalizationTypes) {
    for (const Shape& shape : kNormalizationShapes) {
      const Shape channel = {shape[1]};
      const DType w = wide(dtype);
      expect_body_agrees({to_string(shape),
                          "BatchNormalization",
                          {{"epsilon", 1e-3f}, {"momentum", 0.7f}},
                          {random_tensor(dtype, shape, 1, 1, 3), random_tensor(w, channel, 2),
                           random_tensor(w, channel, 3), random_tensor(w, channel, 4),
                           random_tensor(w, channel, 5, 0.5, 2)},
                          5},
                         kNormalizationSums);
    }
  }
}

/// With the sum and the Relu behind it, and its gradient so.
TEST(NormalizationBody, FusedBatchNormalization) {
  for (DType dtype : kNormalizationTypes) {
    for (const Shape& shape : kNormalizationShapes) {
      const Shape channel = {shape[1]};
      const DType w = wide(dtype);
      const Tensor x = random_tensor(dtype, shape, 1), more = random_tensor(dtype, shape, 2),
                   scale = random_tensor(w, channel, 3), bias = random_tensor(w, channel, 4),
                   mean = random_tensor(w, channel, 5, -0.1, 0.1),
                   inv_std = random_tensor(w, channel, 6, 1, 2), y = random_tensor(dtype, shape, 7),
                   none;
      for (const Attributes& activation : {Attributes{}, Attributes{{"activation", "Relu"}}}) {
        expect_body_agrees({to_string(shape),
                            "BatchNormalization",
                            activation,
                            {x, scale, bias, mean, inv_std, more},
                            5},
                           kNormalizationSums);
      }
      for (const Attributes& activation : {Attributes{}, Attributes{{"activation", "Relu"}}}) {
        expect_body_agrees({to_string(shape) + " what is added normalized",
                            "BatchNormalization",
                            activation,
                            {x, scale, bias, mean, inv_std, more, bias, scale, mean, inv_std},
                            5},
                           kNormalizationSums);
      }
      const std::vector<Tensor> tails[] = {{more}, {none, y}, {more, y}, {more, none, bias}};
      for (const std::vector<Tensor>& tail : tails) {
        std::vector<Tensor> operands = {random_tensor(dtype, shape, 8), x, scale, mean, inv_std};
        operands.insert(operands.end(), tail.begin(), tail.end());
        expect_body_agrees({to_string(shape), "BatchNormalizationGrad", {}, operands, 4},
                           kNormalizationSums);
      }
    }
  }
}

/// The signs of Y as bits, written and read.
TEST(NormalizationBody, SignsOfBatchNormalization) {
  const Attributes relu = {{"activation", "Relu"}};
  const Tensor none;
  for (DType dtype : kNormalizationTypes) {
    for (const Shape& shape : {Shape{3, 8, 2}, Shape{2, 16, 3, 5}, Shape{0, 8, 4}}) {
      const Shape channel = {shape[1]};
      const DType w = wide(dtype);
      Tensor far(DType::kF64, shape);  // leaves no result near 0
      for (size_t i = 0; i < far.mutable_data<double>().size(); ++i)
        far.mutable_data<double>()[i] = i * 7 % 5 < 2 ? 8 : -8;
      const Tensor x = random_tensor(dtype, shape, 1), scale = random_tensor(w, channel, 2),
                   bias = random_tensor(w, channel, 3), mean = random_tensor(w, channel, 4),
                   inv_std = random_tensor(w, channel, 5, 1, 2);
      expect_body_agrees({to_string(shape),
                          "BatchNormalization",
                          relu,
                          {x, scale, bias, mean, inv_std, far.cast_to(dtype)},
                          6},
                         kNormalizationSums);
      Shape bytes = {shape[0]};
      bytes.insert(bytes.end(), shape.begin() + 2, shape.end());
      bytes.push_back(shape[1] / 8);
      Tensor signs(DType::kU8, bytes);
      for (size_t i = 0; i < signs.mutable_data<uint8_t>().size(); ++i)
        signs.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(i * 151 + 37);
      const Tensor dy = random_tensor(dtype, shape, 6), more = random_tensor(dtype, shape, 7);
      expect_body_agrees({to_string(shape),
                          "BatchNormalizationGrad",
                          {},
                          {dy, x, scale, mean, inv_std, more, none, none, signs},
                          4},
                         kNormalizationSums);
      const Tensor other = random_tensor(dtype, shape, 8);
      for (const Tensor& addend : {none, more}) {
        expect_body_agrees(
            {to_string(shape) + " of two normalizations",
             "BatchNormalizationGrad",
             {},
             {dy, x, scale, mean, inv_std, addend, none, none, signs, other, bias, bias, inv_std},
             7},
            kNormalizationSums);
      }
    }
  }
}

TEST(NormalizationBody, BatchNormalizationGrad) {
  for (DType dtype : kNormalizationTypes) {
    for (const Shape& shape : kNormalizationShapes) {
      const Shape channel = {shape[1]};
      const DType w = wide(dtype);
      expect_body_agrees({to_string(shape),
                          "BatchNormalizationGrad",
                          {},
                          {random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2),
                           random_tensor(w, channel, 3), random_tensor(w, channel, 4, -0.1, 0.1),
                           random_tensor(w, channel, 5, 1, 2)},
                          3},
                         kNormalizationSums);
    }
  }
}

/// With the sum before them, and gradients with those on either side.
TEST(NormalizationBody, NormalizationsOfSums) {
  const Shape shape = {3, 5, 7}, line = {7}, kept = {3, 5, 1};
  const Attributes epsilon = {{"epsilon", 1e-3f}};
  for (DType dtype : kNormalizationTypes) {
    const Tensor x = random_tensor(dtype, shape, 1), r = random_tensor(dtype, shape, 2),
                 dy = random_tensor(dtype, shape, 3), more = random_tensor(dtype, shape, 4),
                 scale = random_tensor(dtype, line, 5), bias = random_tensor(dtype, line, 6),
                 mean = random_tensor(wide(dtype), kept, 7, -0.1, 0.1),
                 inv = random_tensor(wide(dtype), kept, 8, 1, 2), none;
    for (const Tensor& shift : {bias, none}) {
      expect_body_agrees({"sum", "LayerNormalization", epsilon, {x, scale, shift, r}, 4},
                         kNormalizationSums);
    }
    expect_body_agrees({"sum", "RMSNormalization", epsilon, {x, scale, r}, 2}, kNormalizationSums);
    const std::vector<Tensor> tails[] = {{r}, {none, more}, {r, more}};
    for (const std::vector<Tensor>& tail : tails) {
      std::vector<Tensor> layer = {dy, x, scale, mean, inv}, rms = {dy, x, scale};
      layer.insert(layer.end(), tail.begin(), tail.end());
      rms.insert(rms.end(), tail.begin(), tail.end());
      expect_body_agrees({"sums", "LayerNormalizationGrad", {}, layer, 3}, kNormalizationSums);
      expect_body_agrees({"sums", "RMSNormalizationGrad", {}, rms, 2}, kNormalizationSums);
    }
  }
}

TEST(NormalizationBody, LayerNormalizationGrad) {
  const Shape shape = {3, 5, 7};
  for (DType dtype : kNormalizationTypes) {
    for (int64_t axis : {-1, 1, 0}) {
      const auto first = static_cast<size_t>(axis < 0 ? axis + 3 : axis);
      const Shape scale(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end());
      Shape kept = shape;
      for (size_t i = first; i < 3; ++i) kept[i] = 1;
      for (DType out : {dtype, wide(dtype)}) {
        expect_body_agrees(
            {"axis " + std::to_string(axis),
             "LayerNormalizationGrad",
             {{"axis", axis}, {"out_dtype", static_cast<int64_t>(out)}},
             {random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2),
              random_tensor(dtype, scale, 3), random_tensor(DType::kF32, kept, 4, -0.1, 0.1),
              random_tensor(DType::kF32, kept, 5, 1, 2)},
             3},
            kNormalizationSums);
      }
    }
  }
}

TEST(NormalizationBody, RMSNormalizationGrad) {
  const Shape shape = {3, 5, 7};
  for (DType dtype : kNormalizationTypes) {
    for (int64_t axis : {-1, 1, 0}) {
      const auto first = static_cast<std::ptrdiff_t>(axis < 0 ? axis + 3 : axis);
      const Shape scale(shape.begin() + first, shape.end());
      for (DType out : {dtype, wide(dtype)}) {
        expect_body_agrees({"axis " + std::to_string(axis),
                            "RMSNormalizationGrad",
                            {{"axis", axis}, {"out_dtype", static_cast<int64_t>(out)}},
                            {random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2),
                             random_tensor(dtype, scale, 3)},
                            2},
                           kNormalizationSums);
      }
    }
  }
}

TEST(NormalizationBody, GroupNormalizationGrad) {
  for (DType dtype : kNormalizationTypes) {
    for (const Shape& shape : {Shape{3, 6}, Shape{2, 6, 5}, Shape{2, 6, 3, 2}}) {
      for (int64_t groups : {0, 1, 3}) {
        if (shape.size() == 2 && groups != 1) continue;  // too few elements for a variance
        expect_body_agrees({to_string(shape) + " in " + std::to_string(groups),
                            "GroupNormalizationGrad",
                            {{"num_groups", groups},
                             {"epsilon", 1e-3f},
                             {"out_dtype", static_cast<int64_t>(wide(dtype))}},
                            {random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2, -1, 2),
                             random_tensor(dtype, {6}, 3)},
                            3},
                           kNormalizationSums);
      }
    }
  }
}

TEST(NormalizationBody, SoftmaxGradients) {
  for (DType dtype : kNormalizationTypes) {
    for (int64_t axis : {-1, 0, 1}) {
      const Attributes attributes = {{"axis", axis}};
      const Tensor grad = random_tensor(dtype, {3, 5, 7}, 1);
      const Tensor y = random_tensor(dtype, {3, 5, 7}, 2, 0, 0.3);
      const Tensor log_y = random_tensor(dtype, {3, 5, 7}, 3, -4, 0);
      expect_body_agrees({"axis", "SoftmaxGrad", attributes, {grad, y}}, kNormalizationSums);
      expect_body_agrees({"axis", "LogSoftmaxGrad", attributes, {grad, log_y}}, kNormalizationSums);
    }
  }
}

TEST(NormalizationBody, EveryBodyIsTested) {
  const std::set<std::string> kTested = {
      "BatchNormalization", "BatchNormalizationGrad", "GroupNormalizationGrad",
      "LayerNormalization", "LayerNormalizationGrad", "LogSoftmaxGrad",
      "RMSNormalization",   "RMSNormalizationGrad",   "SoftmaxGrad"};
  EXPECT_EQ(with_body(normalization_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
