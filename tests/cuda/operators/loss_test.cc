// The losses on the device, and their gradients, against the CPU's reference kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaLoss, CrossEntropy) {
  for (const DType dtype : kFloats) {
    for (const std::string reduction : {"mean", "sum", "none"}) {
      Attributes attributes;
      attributes.set("reduction", reduction);
      attributes.set("ignore_index", int64_t{-100});
      const Tensor x = random(dtype, {5, 131}, -5, 5);
      const Tensor labels = integers({3, -100, 130, 0, 77}, {5});
      const Shape loss = reduction == "none" ? Shape{5} : Shape{};
      check({"",
             "SoftmaxCrossEntropyLoss",
             {x, labels},
             attributes,
             {{dtype, loss}, {dtype, {5, 131}}}});
      check({kOwn,
             "SoftmaxCrossEntropyLossGrad",
             {random(dtype, loss), x, labels},
             attributes,
             {{dtype, {5, 131}}}});
    }
  }
  EXPECT_THROW(on_device({"",
                          "SoftmaxCrossEntropyLoss",
                          {random(DType::kF32, {2, 3}), integers({0, 3}, {2})},
                          {},
                          {{DType::kF32, {}}}}),
               Error);
}

/// Labels for all but the classes of `scores`: some are ignored.
Tensor labels_for(const Shape& scores) {
  Shape shape = scores;
  shape.erase(shape.begin() + 1);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < element_count(shape); ++i) {
    values.push_back(i % 3 == 1 ? -100 : (i * 7919 + scores[1] - 1) % scores[1]);
  }
  return integers(std::move(values), std::move(shape));
}

void check_loss_and_gradient(DType scores, DType gradient, const Shape& shape,
                             const std::string& reduction, bool weighted) {
  Attributes attributes;
  attributes.set("reduction", reduction);
  attributes.set("ignore_index", int64_t{-100});
  const Tensor labels = labels_for(shape);
  const Shape loss = reduction == "none" ? labels.shape() : Shape{};
  std::vector<Tensor> inputs = {random(scores, shape, -5, 5), labels,
                                random(DType::kF32, loss, 0.5, 2, 3)};
  if (weighted) inputs.push_back(random(DType::kF32, {shape[1]}, 0.5, 2, 4));
  check({kOwn,
         "SoftmaxCrossEntropyLossWithGradient",
         inputs,
         attributes,
         {{DType::kF32, loss}, {gradient, shape}}});
}

TEST(CudaLoss, LossAndGradientAtOnce) {
  // Lines whose first elements are at every distance from 16 bytes; short and long ones.
  const Shape shapes[] = {{1, 1}, {0, 8}, {5, 131}, {7, 128}, {3, 7, 5}, {20, 3}, {9, 4099}};
  for (const DType scores : kFloats) {
    for (const Shape& shape : shapes) {
      for (const std::string reduction : {"mean", "sum", "none"}) {
        check_loss_and_gradient(scores, scores, shape, reduction, reduction == "sum");
      }
      check_loss_and_gradient(scores, DType::kF32, shape, "mean", true);
      check_loss_and_gradient(scores, DType::kBF16, shape, "mean", false);
    }
  }
  // As long as shared memory, and longer.
  check_loss_and_gradient(DType::kBF16, DType::kBF16, {4, 50257}, "mean", false);
  check_loss_and_gradient(DType::kF32, DType::kF32, {3, 50257}, "mean", false);
  check_loss_and_gradient(DType::kF32, DType::kF16, {2, 65544}, "mean", true);
  // More labels than one block weighs.
  check_loss_and_gradient(DType::kF16, DType::kF16, {4099, 3}, "mean", true);
}

/// What stands behind the classes, were it NaN, is not read, and its gradient is 0.
TEST(CudaLoss, PaddingBehindTheClasses) {
  struct Padded {
    Shape scores;
    int64_t classes;
  };
  const Padded all[] = {{{5, 136}, 131}, {{3, 8}, 1},     {{4, 9}, 7},
                        {{0, 8}, 2},     {{2, 7, 5}, 3},  {{6, 16}, 16},
                        {{7, 40}, 33},   {{3, 528}, 522}, {{2, 50264}, 50257}};
  for (const DType dtype : kFloats) {
    for (const Padded& p : all) {
      Shape counted = p.scores;
      counted[1] = p.classes;
      const int64_t plane = p.scores.size() > 2 ? p.scores[2] : 1, line = p.scores[1] * plane;
      Tensor x = random(dtype, p.scores, -5, 5).cast_to(DType::kF64);
      const auto values = x.mutable_data<double>();
      for (int64_t i = 0; i < x.size(); ++i) {
        if (i % line >= p.classes * plane) values[static_cast<size_t>(i)] = std::nan("");
      }
      const Tensor labels = labels_for(counted);
      Attributes attributes{{"reduction", std::string("none")}, {"classes", p.classes}};
      attributes.set("ignore_index", int64_t{-100});
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      for (const DType gradient : {dtype, wide}) {
        const Call call{kOwn,
                        "SoftmaxCrossEntropyLossWithGradient",
                        {x.cast_to(dtype), labels, random(DType::kF32, labels.shape(), 0.5, 2, 3)},
                        attributes,
                        {{wide, labels.shape()}, {gradient, p.scores}}};
        check(call);
        const Tensor dx = on_device(call)[1];
        for (int64_t i = 0; i < dx.size(); ++i) {
          if (i % line < p.classes * plane) continue;
          EXPECT_EQ(dx.at_as_double(i), 0) << i;
        }
      }
    }
  }
}

TEST(CudaLoss, InfinitiesAndNanBecomeWhatTheCpuMakesOfThem) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  std::vector<float> values(4 * 700, -1);
  const auto put = [&](size_t row, float value, size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) values[row * 700 + i] = value;
  };
  put(0, -inf, 0, 699);
  put(1, inf, 3, 4);
  put(2, nan, 600, 601);
  put(3, -inf, 0, 700);
  Tensor x(DType::kF32, {4, 700});
  std::copy(values.begin(), values.end(), x.mutable_data<float>().begin());
  Attributes attributes;
  attributes.set("reduction", std::string("none"));
  check({kOwn,
         "SoftmaxCrossEntropyLossWithGradient",
         {x, integers({1, 0, 2, 5}, {4}), random(DType::kF32, {4})},
         attributes,
         {{DType::kF32, {4}}, {DType::kF32, {4, 700}}}});
}

/// Whole lines that a mask has taken to where f64 holds no logarithm beside the largest.
TEST(CudaLoss, LinesThatAreFar) {
  for (const Shape& shape : {Shape{3, 24}, Shape{3, 24, 5}, Shape{3, 5000}}) {
    Tensor x = random(DType::kF32, shape, -3, 3);
    const std::span<float> numbers = x.mutable_data<float>();
    const size_t line = numbers.size() / 3;
    for (size_t i = 0; i < line; ++i) {
      numbers[line + i] = std::numeric_limits<float>::lowest();
      numbers[2 * line + i] -= 1e9f;
    }
    const Tensor labels = labels_for(shape);
    Attributes attributes{{"reduction", std::string("none")}};
    attributes.set("ignore_index", int64_t{-100});
    const Call call{kOwn,
                    "SoftmaxCrossEntropyLossWithGradient",
                    {x, labels, random(DType::kF32, labels.shape(), 0.5, 2, 3)},
                    attributes,
                    {{DType::kF32, labels.shape()}, {DType::kF32, shape}}};
    check(call);
    const Tensor losses = on_device(call)[0];
    const int64_t lines = labels.size() / 3;
    for (int64_t i = lines; i < 2 * lines; ++i) {
      const bool counts = labels.at_as_int(static_cast<size_t>(i)) >= 0;
      const double wanted = counts ? std::log(static_cast<double>(shape[1])) : 0;
      EXPECT_NEAR(losses.at_as_double(i), wanted, 1e-5) << i;
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
