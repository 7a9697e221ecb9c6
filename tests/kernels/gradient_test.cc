// The fused gradients of contraction, normalization and loss against central differences in f64 of
// their forward ops.
#include <gtest/gtest.h>

#include <cmath>

#include "exact.h"

namespace halfnote::test {
namespace {

constexpr RunOptions kOnce{.check_repeats = false};

Tensor real(Shape shape, uint32_t seed, double low = -1, double high = 1) {
  return random_tensor(DType::kF64, std::move(shape), low, high, seed);
}

OutputSpec like(const Tensor& tensor) { return {tensor.dtype(), tensor.shape()}; }

TEST(Gradient, OfConv) {
  const Shape x{2, 4, 5, 4}, w{4, 2, 3, 2}, y{2, 4, 2, 4};
  Attributes attributes{{"group", int64_t{2}},
                        {"strides", std::vector<int64_t>{2, 1}},
                        {"dilations", std::vector<int64_t>{1, 2}},
                        {"pads", std::vector<int64_t>{1, 2, 0, 0}},
                        {"kernel_shape", std::vector<int64_t>{3, 2}}};
  const Tensor dy = real(y, 3);
  const std::vector<Tensor> inputs{real(x, 1), real(w, 2)};
  const auto loss = [&](const std::vector<Tensor>& in) {
    return inner_product(run_one("", "Conv", in, attributes, {DType::kF64, y}, kOnce), dy);
  };
  const Tensor shape = Tensor::of<int64_t>({4}, std::span<const int64_t>(x));
  expect_gradient(
      loss, inputs, 0,
      run_one(kOwn, "ConvGradInput", {dy, inputs[1], shape}, attributes, like(inputs[0])));
  expect_gradient(loss, inputs, 1,
                  run_one(kOwn, "ConvGradWeight", {dy, inputs[0]}, attributes, like(inputs[1])));
}

TEST(Gradient, OfBatchNormalization) {
  const Shape x{3, 2, 2, 3}, c{2};
  const Tensor dy = real(x, 6);
  const std::vector<Tensor> inputs{real(x, 1, -1, 3), real(c, 2), real(c, 3), real(c, 4),
                                   real(c, 5, 0, 1)};
  const std::vector<OutputSpec> outputs{
      {DType::kF64, x}, {DType::kF64, c}, {DType::kF64, c}, {DType::kF64, c}, {DType::kF64, c}};
  const auto loss = [&](const std::vector<Tensor>& in) {
    return inner_product(run_kernel(kOwn, "BatchNormalization", in, {}, outputs, kOnce)[0], dy);
  };
  const auto forward = run_kernel(kOwn, "BatchNormalization", inputs, {}, outputs);
  const auto gradients =
      run_kernel(kOwn, "BatchNormalizationGrad", {dy, inputs[0], inputs[1], forward[3], forward[4]},
                 {}, {like(inputs[0]), like(inputs[1]), like(inputs[2])});
  for (size_t i = 0; i < 3; ++i) expect_gradient(loss, inputs, i, gradients[i]);
}

TEST(Gradient, OfSoftmax) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const int64_t axis : {0, 1, -1}) {
      const Attributes attributes{{"axis", axis}};
      const Tensor dy = real({3, 4, 2}, 2);
      const std::vector<Tensor> inputs{real({3, 4, 2}, 1, -2, 2)};
      const auto loss = [&](const std::vector<Tensor>& in) {
        return inner_product(run_one("", op, in, attributes, {}, kOnce), dy);
      };
      const Tensor y = run_one("", op, inputs, attributes);
      expect_gradient(loss, inputs, 0,
                      run_one(kOwn, std::string(op) + "Grad", {dy, y}, attributes));
    }
  }
}

TEST(Gradient, OfLayerNormalization) {
  for (const int64_t axis : {-1, 1}) {
    const Attributes attributes{{"axis", axis}};
    const Shape x{3, 4, 5}, parameter = axis == -1 ? Shape{5} : Shape{4, 5},
                            statistic = axis == -1 ? Shape{3, 4, 1} : Shape{3, 1, 1};
    const Tensor dy = real(x, 4);
    const std::vector<Tensor> inputs{real(x, 1, -1, 3), real(parameter, 2), real(parameter, 3)};
    const std::vector<OutputSpec> outputs{
        {DType::kF64, x}, {DType::kF64, statistic}, {DType::kF64, statistic}};
    const auto loss = [&](const std::vector<Tensor>& in) {
      return inner_product(run_kernel("", "LayerNormalization", in, attributes, outputs, kOnce)[0],
                           dy);
    };
    const auto forward = run_kernel("", "LayerNormalization", inputs, attributes, outputs);
    const auto gradients = run_kernel(
        kOwn, "LayerNormalizationGrad", {dy, inputs[0], inputs[1], forward[1], forward[2]},
        attributes, {like(inputs[0]), like(inputs[1]), like(inputs[2])});
    for (size_t i = 0; i < 3; ++i) expect_gradient(loss, inputs, i, gradients[i]);
  }
}

struct LossCase {
  const char* reduction;
  bool weighted, ignores;
  Shape scores;
};

std::vector<LossCase> loss_cases() {
  std::vector<LossCase> cases;
  for (const char* reduction : {"none", "sum", "mean"}) {
    for (const bool weighted : {false, true}) {
      for (const bool ignores : {false, true}) {
        cases.push_back({reduction, weighted, ignores, {4, 5}});
        cases.push_back({reduction, weighted, ignores, {2, 3, 2, 2}});
      }
    }
  }
  return cases;
}

/// Labels that use every class and, if asked for, the ignored one twice.
Tensor labels_of(const LossCase& c, int64_t ignored) {
  Shape shape = c.scores;
  shape.erase(shape.begin() + 1);
  Tensor labels(DType::kI64, shape);
  auto to = labels.mutable_data<int64_t>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<int64_t>(i * 7 + 2) % c.scores[1];
  if (c.ignores) to[1] = to[3] = ignored;
  return labels;
}

TEST(Gradient, OfTheCrossEntropyLosses) {
  for (const LossCase& c : loss_cases()) {
    SCOPED_TRACE(std::string(c.reduction) + (c.weighted ? " weighted" : "") +
                 (c.ignores ? " ignoring " : " ") + to_string(c.scores));
    Attributes attributes{{"reduction", std::string(c.reduction)}};
    if (c.ignores) attributes.set("ignore_index", int64_t{-100});
    const Tensor labels = labels_of(c, -100);
    const Shape loss_shape = std::string_view(c.reduction) == "none" ? labels.shape() : Shape{};
    const Tensor dl = real(loss_shape, 3),
                 weights = c.weighted ? real({c.scores[1]}, 4, 0.2, 2) : Tensor();
    const std::vector<Tensor> inputs{real(c.scores, 1, -2, 2), labels, weights};
    const auto loss_of = [&](const char* op) {
      return [&, op](const std::vector<Tensor>& in) {
        return inner_product(run_one("", op, in, attributes, {DType::kF64, loss_shape}, kOnce), dl);
      };
    };
    const auto forward = run_kernel("", "SoftmaxCrossEntropyLoss", inputs, attributes,
                                    {{DType::kF64, loss_shape}, like(inputs[0])});
    const Tensor dx = run_one(kOwn, "SoftmaxCrossEntropyLossGrad",
                              {dl, forward[1], labels, weights}, attributes, like(inputs[0]));
    expect_gradient(loss_of("SoftmaxCrossEntropyLoss"), inputs, 0, dx);
    const Tensor shape = Tensor::of<int64_t>({static_cast<int64_t>(c.scores.size())},
                                             std::span<const int64_t>(c.scores));
    const Tensor dp = run_one(kOwn, "NegativeLogLikelihoodLossGrad", {dl, labels, weights, shape},
                              attributes, like(inputs[0]));
    expect_gradient(loss_of("NegativeLogLikelihoodLoss"), inputs, 0, dp);
  }
}

/// A gradient op on 16-bit inputs must give what it gives in f64 on the same numbers, within a few
/// roundings.
void expect_like_f64(std::string_view op, const std::vector<Tensor>& inputs,
                     const Attributes& attributes, DType type, double bound) {
  std::vector<Tensor> wide;
  for (const Tensor& input : inputs)
    wide.push_back(is_float(input.dtype()) ? input.cast_to(DType::kF64) : input);
  const Tensor exact = run_one(kOwn, op, wide, attributes, {DType::kF64, inputs[1].shape()});
  for (const char* kernel : {"reference", "onednn", "fast"}) {
    const RunOptions options{.kernel = kernel};
    const OutputSpec out{type, inputs[1].shape()};
    if (!refusals(kOwn, op, inputs, attributes, {out}, options).empty()) continue;
    SCOPED_TRACE(std::string(op) + " " + std::string(short_name(type)) + " " + kernel);
    const Tensor got = run_one(kOwn, op, inputs, attributes, out, options);
    for (int64_t i = 0; i < got.size(); ++i) {
      const double wanted = exact.at_as_double(i);
      EXPECT_NEAR(got.at_as_double(i), wanted,
                  1.01 * unit_roundoff(type) * std::fabs(wanted) + bound * 0x1p-24);
    }
  }
}

TEST(Gradient, IsTheSameIn16Bits) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor dy = random_tensor(type, {6, 40}, -1, 1, 1),
                 y = run_one("", "Softmax", {random_tensor(type, {6, 40}, -2, 2, 2)});
    expect_like_f64("SoftmaxGrad", {dy, y}, {}, type, 16);
    const Tensor log_y = run_one("", "LogSoftmax", {random_tensor(type, {6, 40}, -2, 2, 2)});
    expect_like_f64("LogSoftmaxGrad", {dy, log_y}, {}, type, 256);
    const Tensor scale = random_tensor(type, {40}, 0.5, 1.5, 3),
                 mean = random_tensor(DType::kF32, {6, 1}, -1, 1, 4),
                 inv_std = random_tensor(DType::kF32, {6, 1}, 0.5, 2, 5);
    expect_like_f64("LayerNormalizationGrad", {dy, y, scale, mean, inv_std}, {}, type, 64);
    const Tensor bdy = random_tensor(type, {3, 2, 5, 7}, -1, 1, 6),
                 x = random_tensor(type, {3, 2, 5, 7}, -1, 1, 7);
    const Tensor c = random_tensor(DType::kF32, {2}, 0.5, 1.5, 8),
                 m = random_tensor(DType::kF32, {2}, -1, 1, 9),
                 s = random_tensor(DType::kF32, {2}, 0.5, 2, 10);
    expect_like_f64("BatchNormalizationGrad", {bdy, x, c, m, s}, {}, type, 64);
  }
}

}  // namespace
}  // namespace halfnote::test
