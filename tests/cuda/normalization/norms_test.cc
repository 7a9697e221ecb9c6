// Softmax, batch and layer normalization on CUDA against the CPU's reference kernels.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaNormalization, Softmax) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {5, 129}, {2, 300}, {0, 4}, {2, 3, 5}}) {
      const Tensor x = random(dtype, shape, -8, 8), dy = random(dtype, shape, -1, 1, 2);
      for (const int64_t axis : {int64_t{-1}, int64_t{0}, int64_t{1}}) {
        Attributes attributes;
        attributes.set("axis", axis);
        check({"", "Softmax", {x}, attributes, {{dtype, shape}}});
        check({"", "LogSoftmax", {x}, attributes, {{dtype, shape}}});
        check({kOwn, "SoftmaxGrad", {dy, x}, attributes, {{dtype, shape}}});
        check({kOwn, "LogSoftmaxGrad", {dy, x}, attributes, {{dtype, shape}}});
      }
    }
  }
}

/// Lines in registers of a warp and of a block, in packs and one by one, and longer ones.
TEST(CudaNormalization, SoftmaxOfLines) {
  for (const DType dtype : kFloats) {
    for (const int64_t width : {8, 264, 1024, 1030, 4096, 8192, 8200}) {
      const Shape shape{11, width};
      const Tensor x = random(dtype, shape, -8, 8), dy = random(dtype, shape, -1, 1, 2);
      for (const char* op : {"Softmax", "LogSoftmax"}) {
        const Call forward{"", op, {x}, {}, {{dtype, shape}}};
        check(forward);
        const std::string gradient = std::string(op) + "Grad";
        check({kOwn, gradient, {dy, on_cpu(forward)[0]}, {}, {{dtype, shape}}});
      }
    }
  }
}

/// Groups in registers of a warp and of a block, in packs and one by one, and larger ones.
TEST(CudaNormalization, GroupNorm) {
  for (const DType dtype : kFloats) {
    const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
    for (const Shape& shape : {Shape{2, 6, 1},
                               {3, 4, 7},
                               {1, 4, 16, 8},
                               {2, 4, 31, 33},
                               {1, 4, 32, 64},
                               {1, 2, 65, 129},
                               {0, 4, 3},
                               {2, 4, 0},
                               {2, 4, 3, 0}}) {
      const Shape c{shape[1]};
      const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                   scale = random(dtype, c, 0.5, 2, 3), bias = random(dtype, c, -1, 1, 4);
      for (const int64_t groups : {int64_t{1}, shape[1] / 2, shape[1]}) {
        if (groups * shape.back() == 1) continue;  // a variance of 0
        Attributes attributes;
        attributes.set("num_groups", groups);
        check({"", "GroupNormalization", {x, scale, bias}, attributes, {{dtype, shape}}});
        check({kOwn,
               "GroupNormalizationGrad",
               {dy, x, scale},
               attributes,
               {{dtype, shape}, {wide, c}, {wide, c}}});
      }
      check({"", "InstanceNormalization", {x, scale, bias}, {}, {{dtype, shape}}});
    }
  }
}

/// Around a mean far from 0, where squares say nothing, and with a first element far from it.
TEST(CudaNormalization, GroupNormFarFromZero) {
  const Shape shape{1, 4, 50, 70}, c{4};
  const Tensor scale = random(DType::kF32, c, 0.5, 2, 3), bias = random(DType::kF32, c, -1, 1, 4),
               dy = random(DType::kF32, shape, -1, 1, 2);
  Attributes attributes;
  attributes.set("num_groups", int64_t{1});
  for (const double first : {1e5, 0.0}) {
    Tensor x = random(DType::kF32, shape, 1e5 - 100, 1e5 + 100);
    x.mutable_data<float>()[0] = static_cast<float>(first);
    for (const Tensor& of : {x, Tensor::full(DType::kF32, shape, 1e6)}) {
      check({"", "GroupNormalization", {of, scale, bias}, attributes, {{DType::kF32, shape}}});
      check({kOwn,
             "GroupNormalizationGrad",
             {dy, of, scale},
             attributes,
             {{DType::kF32, shape}, {DType::kF32, c}, {DType::kF32, c}}});
    }
  }
}

const std::vector<Shape> kUglyBatches = {{1, 1},    {5, 3},    {2, 7, 129},   {3, 2, 65, 67},
                                         {0, 3, 5}, {2, 3, 0}, {3, 16, 5, 7}, {0, 8, 3}};

/// A normalization with and without the sum and the Relu behind it, and its gradient.
TEST(CudaNormalization, BatchNorm) {
  Attributes relu;
  relu.set("activation", "Relu");
  const Tensor none;
  for (const DType dtype : kFloats) {
    const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
    for (const Shape& shape : kUglyBatches) {
      const Shape c{shape[1]};
      const Result full{dtype, shape}, sums{wide, c};
      const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                   more = random(dtype, shape, -1, 1, 3), y = random(dtype, shape, -1, 1, 4),
                   scale = random(wide, c, 0.5, 2, 5), bias = random(wide, c, -1, 1, 6),
                   mean = random(wide, c, 5, 6, 7), inv_std = random(wide, c, 0.5, 2, 8);
      const std::vector<Result> results{full, sums, sums, sums, sums};
      for (const Attributes& activation : {Attributes(), relu}) {
        check({kOwn, "BatchNormalization", {x, scale, bias, mean, inv_std}, activation, results});
        check({kOwn,
               "BatchNormalization",
               {x, scale, bias, mean, inv_std, more},
               activation,
               results});
      }
      std::vector<std::vector<Tensor>> tails = {
          {}, {more}, {none, y}, {more, y}, {none, none, bias}, {more, none, bias}};
      if (shape[1] % 8 == 0) {
        const Tensor signs = bits_for(shape);
        std::vector<Result> with_signs = results;
        with_signs.push_back({DType::kU8, signs.shape()});
        const Tensor far = far_from_zero(dtype, shape);
        check({kOwn, "BatchNormalization", {x, scale, bias, mean, inv_std, far}, relu, with_signs});
        tails.push_back({none, none, none, signs});
        tails.push_back({more, none, none, signs});
      }
      for (const std::vector<Tensor>& tail : tails) {
        std::vector<Tensor> operands{dy, x, scale, mean, inv_std};
        operands.insert(operands.end(), tail.begin(), tail.end());
        check({kOwn, "BatchNormalizationGrad", operands, {}, {full, sums, sums, full}});
        check({kOwn, "BatchNormalizationGrad", operands, {}, {full, sums, sums}});
        check({kOwn, "BatchNormalizationGrad", operands, {}, {{}, sums, sums, full}});
      }
    }
  }
}

/// Two that are added up: the statistics of one, which the other normalizes it by, and both
/// gradients at once.
TEST(CudaNormalization, TwoBatchNorms) {
  const Tensor none;
  for (const DType dtype : kFloats) {
    const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
    for (const Shape& shape : kUglyBatches) {
      const Shape c{shape[1]};
      const Result full{dtype, shape}, sums{wide, c};
      const Tensor x = random(dtype, shape, 4, 7), other = random(dtype, shape, -1, 1, 2),
                   dy = random(dtype, shape, -1, 1, 3), y = random(dtype, shape, -1, 1, 4),
                   a = random(wide, c, 0.5, 2, 5), b = random(wide, c, -1, 1, 6),
                   mean = random(wide, c, 4, 7, 7), inv = random(wide, c, 0.5, 2, 8);
      check({kOwn, "BatchNormalization", {x, a, b, mean, inv}, {}, {{}, sums, sums, sums, sums}});
      check({kOwn,
             "BatchNormalization",
             {x, a, b, mean, inv, other, inv, a, b, a},
             {},
             {full, sums, sums, sums, sums}});
      std::vector<std::vector<Tensor>> masks{{none, none, none}, {y, none, none}};
      if (shape[1] % 8 == 0) masks.push_back({none, none, bits_for(shape)});
      for (const std::vector<Tensor>& mask : masks) {
        std::vector<Tensor> operands{dy, x, a, mean, inv, y};
        operands.insert(operands.end(), mask.begin(), mask.end());
        operands.insert(operands.end(), {other, inv, b, a});
        for (const Result& dx : {full, Result{}}) {
          check({kOwn,
                 "BatchNormalizationGrad",
                 operands,
                 {},
                 {dx, sums, sums, {}, full, sums, sums}});
        }
        check({kOwn,
               "BatchNormalizationGrad",
               operands,
               {},
               {full, sums, sums, full, full, sums, sums}});
      }
    }
  }
}

/// The gradient finds the sign of Y again, bit for bit, and takes it as bits.
TEST(CudaNormalization, BatchNormGradientNeedsNoY) {
  Attributes relu;
  relu.set("activation", "Relu");
  for (const DType dtype : kStored) {
    const Shape shape{4, 8, 9, 5}, c{8};
    const Result full{dtype, shape}, sums{DType::kF32, c};
    const Tensor x = random(dtype, shape, -3, 5), dy = random(dtype, shape, -1, 1, 2),
                 scale = random(DType::kF32, c, 0.5, 2, 3), bias = random(DType::kF32, c, -1, 1, 4),
                 old = random(DType::kF32, c, 0, 1, 5);
    const auto run = [&](const auto& how) {
      const auto y = how({kOwn,
                          "BatchNormalization",
                          {x, scale, bias, old, old},
                          relu,
                          {full, sums, sums, sums, sums, {DType::kU8, {4, 9, 5, 1}}}});
      const auto gradient = [&](const Tensor& result, const Tensor& line, const Tensor& signs) {
        return how({kOwn,
                    "BatchNormalizationGrad",
                    {dy, x, scale, y[3], y[4], {}, result, line, signs},
                    {},
                    {full, sums, sums, full}});
      };
      const auto by_y = gradient(y[0], {}, {}), by_line = gradient({}, bias, {}),
                 by_bits = gradient({}, {}, y[5]);
      for (size_t i = 0; i < by_y.size(); ++i) {
        EXPECT_TRUE(identical(by_y[i], by_line[i])) << i;
        EXPECT_TRUE(identical(by_y[i], by_bits[i])) << i;
      }
    };
    run([](const Call& call) { return on_cpu(call); });
    run([](const Call& call) { return on_device(call); });
  }
}

TEST(CudaNormalization, LocalResponses) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {2, 9, 129}, {0, 4, 3}, {2, 5, 3, 7}}) {
      const Tensor x = random(dtype, shape, -3, 3);
      for (const int64_t size : {1, 2, 5}) {
        const Attributes how = {{"size", size}, {"alpha", 0.5f}, {"beta", 0.75f}, {"bias", 2.0f}};
        check({"", "LRN", {x}, how, {{dtype, shape}}});
      }
    }
  }
}

TEST(CudaNormalization, LpNorms) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {2, 300}, {0, 4}, {2, 3, 5}}) {
      const Tensor x = random(dtype, shape, -3, 3), zero(dtype, shape);
      for (const int64_t p : {1, 2}) {
        for (const int64_t axis : {-1, 0}) {
          const Attributes how = {{"p", p}, {"axis", axis}};
          check({"", "LpNormalization", {x}, how, {{dtype, shape}}});
          check({"", "LpNormalization", {zero}, how, {{dtype, shape}}});
        }
      }
    }
  }
}

TEST(CudaNormalization, MeansAndVariances) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1, 1, 1}, {2, 3, 5, 7}, {5, 2, 17, 9}, {0, 3, 2, 2}}) {
      const Tensor x = random(dtype, shape, 4, 7);
      check({"", "MeanVarianceNormalization", {x}, {}, {{dtype, shape}}});
      for (const std::vector<int64_t>& axes :
           {std::vector<int64_t>{-1}, {0}, {1, 3}, {0, 1, 2, 3}}) {
        check({"", "MeanVarianceNormalization", {x}, {{"axes", axes}}, {{dtype, shape}}});
      }
    }
  }
}

TEST(CudaNormalization, LayerNorm) {
  for (const DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1}, {3, 7}, {131, 129}, {2, 3, 768}, {700, 5}}) {
      const int64_t width = shape.back(), lines = element_count(shape) / width;
      const DType wide = dtype == DType::kF64 ? dtype : DType::kF32;
      const Tensor x = random(dtype, shape), dy = random(dtype, shape, -1, 1, 2);
      const Tensor scale = random(dtype, {width}, 0.5, 2, 3),
                   bias = random(dtype, {width}, -1, 1, 4);
      const Shape line_shape = {lines, 1};
      check({"",
             "LayerNormalization",
             {x, scale, bias},
             {},
             {{dtype, shape}, {wide, line_shape}, {wide, line_shape}}});
      const Tensor mean = random(wide, {lines}, -1, 1, 5), inv = random(wide, {lines}, 0.5, 2, 6);
      check({kOwn,
             "LayerNormalizationGrad",
             {dy, x, scale, mean, inv},
             {},
             {{dtype, shape}, {wide, {width}}, {wide, {width}}}});
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
