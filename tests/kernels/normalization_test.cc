// The normalizations and softmax against their definitions in f64, on the reference and on the fast
// kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "exact.h"

namespace halfnote::test {
namespace {

constexpr double kEpsilon = 1e-5f;

Tensor of_doubles(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return Tensor::of<double>(shape, std::span<const double>(values)).cast_to(dtype);
}

struct Statistics {
  double mean = 0, variance = 0;
  double inv_std() const { return 1 / std::sqrt(variance + kEpsilon); }
};

Statistics statistics_of(const std::vector<double>& values) {
  Statistics s;
  for (const double value : values) s.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    s.variance += (value - s.mean) * (value - s.mean) / static_cast<double>(values.size());
  }
  return s;
}

/// Elements of channel c of a tensor (N, C, …).
std::vector<int64_t> channel_indices(const Shape& x, int64_t c) {
  std::vector<int64_t> indices;
  const int64_t plane = element_count(x) / x[0] / x[1];
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t i = 0; i < plane; ++i) indices.push_back((n * x[1] + c) * plane + i);
  }
  return indices;
}

/// Everything a BatchNormalization in training gives, in f64.
struct BatchNorm {
  std::vector<double> y, running_mean, running_var, mean, inv_std;
};

BatchNorm exact_batch_norm(const std::vector<Tensor>& in, double momentum) {
  BatchNorm exact;
  exact.y.resize(static_cast<size_t>(in[0].size()));
  for (int64_t c = 0; c < in[0].shape()[1]; ++c) {
    std::vector<double> values;
    const std::vector<int64_t> indices = channel_indices(in[0].shape(), c);
    for (const int64_t i : indices) values.push_back(in[0].at_as_double(i));
    const Statistics s = statistics_of(values);
    for (const int64_t i : indices) {
      exact.y[static_cast<size_t>(i)] =
          (in[0].at_as_double(i) - s.mean) * s.inv_std() * in[1].at_as_double(c) +
          in[2].at_as_double(c);
    }
    exact.running_mean.push_back(in[3].at_as_double(c) * momentum + s.mean * (1 - momentum));
    exact.running_var.push_back(in[4].at_as_double(c) * momentum + s.variance * (1 - momentum));
    exact.mean.push_back(s.mean);
    exact.inv_std.push_back(s.inv_std());
  }
  return exact;
}

std::vector<Tensor> batch_norm_inputs(DType type, const Shape& x, double offset) {
  const DType parameter = type == DType::kF64 ? DType::kF64 : DType::kF32;
  const Shape c{x[1]};
  return {random_tensor(type, x, offset - 1, offset + 1, 1),
          random_tensor(parameter, c, 0.5, 1.5, 2), random_tensor(parameter, c, -1, 1, 3),
          random_tensor(parameter, c, -1, 1, 4), random_tensor(parameter, c, 0.5, 1.5, 5)};
}

class BatchNormalization : public testing::TestWithParam<const char*> {};

TEST_P(BatchNormalization, TrainsLikeItsDefinition) {
  for (const Shape& shape : {Shape{4, 3, 5, 7}, Shape{2, 2, 4, 4}, Shape{3, 1, 70},
                             Shape{1, 2, 3, 5, 9}, Shape{2, 2, 64, 65}}) {
    for (const DType type : kFloatTypes) {
      for (const double offset : {0.0, 100.0}) {
        const RunOptions options{.kernel = GetParam()};
        if (type == DType::kF64 && options.kernel != "reference") continue;
        SCOPED_TRACE(to_string(shape) + " " + std::string(short_name(type)) + " around " +
                     std::to_string(offset));
        const std::vector<Tensor> in = batch_norm_inputs(type, shape, offset);
        const DType p = in[1].dtype();
        const Shape c{shape[1]};
        const auto out = run_kernel(kOwn, "BatchNormalization", in, {{"momentum", 0.8f}},
                                    {{type, shape}, {p, c}, {p, c}, {p, c}, {p, c}}, options);
        const BatchNorm exact = exact_batch_norm(in, 0.8f);
        // The statistics are exact but for one rounding; y loses what x − mean does when the mean
        // is rounded to f32.
        // In f64 the sums themselves add count·u.
        const double count =
            static_cast<double>(element_count(shape)) / static_cast<double>(shape[1]);
        const double u = unit_roundoff(p) * (type == DType::kF64 ? 1 + count / 16 : 1);
        const double y_error = 16 * u + 4 * u * offset + 2 * unit_roundoff(type);
        expect_close(out[0], of_doubles(type, shape, exact.y), 2 * unit_roundoff(type),
                     4 * y_error);
        expect_close(out[1], of_doubles(p, c, exact.running_mean), 16 * u, 16 * u);
        expect_close(out[2], of_doubles(p, c, exact.running_var), 64 * u, 64 * u);
        expect_close(out[3], of_doubles(p, c, exact.mean), 16 * u, 16 * u);
        expect_close(out[4], of_doubles(p, c, exact.inv_std), 64 * u, 0);
      }
    }
  }
}

TEST_P(BatchNormalization, OfOnnxGivesRunningStatistics) {
  const RunOptions options{.kernel = GetParam()};
  const Shape shape{3, 2, 5, 6}, c{2};
  const std::vector<Tensor> in = batch_norm_inputs(DType::kF32, shape, 1);
  const auto out = run_kernel("", "BatchNormalization", in, {{"training_mode", int64_t{1}}},
                              {{DType::kF32, shape}, {DType::kF32, c}, {DType::kF32, c}}, options);
  const BatchNorm exact = exact_batch_norm(in, 0.9f);
  expect_close(out[0], of_doubles(DType::kF32, shape, exact.y), 1e-6, 1e-6);
  expect_close(out[1], of_doubles(DType::kF32, c, exact.running_mean), 1e-6, 1e-6);
  expect_close(out[2], of_doubles(DType::kF32, c, exact.running_var), 1e-6, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Kernels, BatchNormalization, testing::Values("reference", "fast"),
                         [](const auto& test) { return std::string(test.param); });

class BatchNormalizationInference : public testing::TestWithParam<const char*> {};

TEST_P(BatchNormalizationInference, TakesGivenStatisticsOfOtherTypes) {
  const Shape shape{2, 3, 4, 5};
  for (const DType type : {DType::kF16, DType::kBF16, DType::kF32}) {
    const std::vector<Tensor> in = batch_norm_inputs(type, shape, 0);
    const Tensor y =
        run_kernel("", "BatchNormalization", in, {}, {{type, shape}}, {.kernel = GetParam()})[0];
    for (int64_t i = 0; i < y.size(); ++i) {
      const int64_t c = i / 20 % 3;
      const double inv_std = 1 / std::sqrt(in[4].at_as_double(c) + kEpsilon);
      const double value =
          (in[0].at_as_double(i) - in[3].at_as_double(c)) * inv_std * in[1].at_as_double(c) +
          in[2].at_as_double(c);
      EXPECT_NEAR(y.at_as_double(i), value, unit_roundoff(type) * std::fabs(value) + 8 * 0x1p-24);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BatchNormalizationInference, testing::Values("reference", "fast"),
                         [](const auto& test) { return std::string(test.param); });

TEST(BatchNormalizationRefusals, RejectsWhatDoesNotFit) {
  std::vector<Tensor> in = batch_norm_inputs(DType::kF32, {2, 3, 4, 5}, 0);
  const auto with_statistics =
      std::vector<OutputSpec>{{DType::kF32, {2, 3, 4, 5}}, {DType::kF32, {3}}, {DType::kF32, {3}}};
  EXPECT_NE(refusals("", "BatchNormalization", in, {}, with_statistics).find("training_mode"),
            std::string::npos);
  in[2] = Tensor(DType::kF32, {4});
  EXPECT_THROW(run_one("", "BatchNormalization", in), Error);
}

struct LineCase {
  const char* op;
  bool has_bias;
  DType x, scale;
};

TEST(LayerNormalization, FollowsItsDefinition) {
  for (const DType type : kFloatTypes) {
    for (const int64_t axis : {-1, 1, -2}) {
      SCOPED_TRACE(std::string(short_name(type)) + " axis " + std::to_string(axis));
      const Shape shape{3, 5, 7};
      const int64_t length = axis == -1 ? 7 : 35, lines = 105 / length;
      const Shape parameter = axis == -1 ? Shape{7} : Shape{5, 7},
                  statistic = axis == -1 ? Shape{3, 5, 1} : Shape{3, 1, 1};
      const DType stash = type == DType::kF64 ? DType::kF64 : DType::kF32;
      const Tensor x = random_tensor(type, shape, -2, 3, 1),
                   scale = random_tensor(type, parameter, 0.5, 1.5, 2),
                   bias = random_tensor(type, parameter, -1, 1, 3);
      const auto out = run_kernel("", "LayerNormalization", {x, scale, bias}, {{"axis", axis}},
                                  {{type, shape}, {stash, statistic}, {stash, statistic}});
      const Tensor rms = run_one("", "RMSNormalization", {x, scale}, {{"axis", axis}});
      const double math = 16 * unit_roundoff(stash), store = unit_roundoff(type);
      for (int64_t line = 0; line < lines; ++line) {
        std::vector<double> values;
        double squares = 0;
        for (int64_t i = 0; i < length; ++i) {
          values.push_back(x.at_as_double(line * length + i));
          squares += values.back() * values.back() / static_cast<double>(length);
        }
        const Statistics s = statistics_of(values);
        EXPECT_NEAR(out[1].at_as_double(line), s.mean, math);
        EXPECT_NEAR(out[2].at_as_double(line), s.inv_std(), math);
        for (int64_t i = 0; i < length; ++i) {
          const double value = values[static_cast<size_t>(i)], factor = scale.at_as_double(i);
          const double wanted = (value - s.mean) * s.inv_std() * factor + bias.at_as_double(i);
          EXPECT_NEAR(out[0].at_as_double(line * length + i), wanted,
                      math + store * std::fabs(wanted));
          const double wanted_rms = value / std::sqrt(squares + kEpsilon) * factor;
          EXPECT_NEAR(rms.at_as_double(line * length + i), wanted_rms,
                      math + store * std::fabs(wanted_rms));
        }
      }
    }
  }
}

TEST(RmsNormalization, HasTheTypeOfItsScale) {
  const Tensor x = random_tensor(DType::kBF16, {4, 9}, -1, 1, 1),
               scale = random_tensor(DType::kF32, {9}, 0.5, 1.5, 2);
  const Tensor y = run_one("", "RMSNormalization", {x, scale}, {}, {DType::kF32, {4, 9}});
  const Tensor wide = run_one("", "RMSNormalization", {x.cast_to(DType::kF32), scale}, {},
                              {DType::kF32, {4, 9}}, {.kernel = "reference"});
  EXPECT_TRUE(identical(y, wide));
}

TEST(LayerNormalization, RejectsAScaleOfAnotherSize) {
  const Tensor x(DType::kF32, {4, 9});
  EXPECT_NO_THROW(run_one("", "LayerNormalization", {x, Tensor(DType::kF32, {1})}));
  EXPECT_THROW(run_one("", "LayerNormalization", {x, Tensor(DType::kF32, {4})}), Error);
  EXPECT_THROW(
      run_one("", "LayerNormalization", {x, Tensor(DType::kF32, {9})}, {{"axis", int64_t{2}}}),
      Error);
}

TEST(LayerNormalization, BroadcastsScaleAndBias) {
  const Shape shape{3, 4, 5};
  const Tensor x = random_tensor(DType::kF32, shape, -1, 1, 1);
  const Tensor one = Tensor::full(DType::kF32, {5}, 1);
  const Attributes axis{{"axis", int64_t{1}}};
  for (const Shape& own :
       {Shape{1}, Shape{5}, Shape{4, 1}, Shape{1, 1, 5}, Shape{3, 1, 1}, shape}) {
    SCOPED_TRACE(to_string(own));
    const Tensor scale = random_tensor(DType::kF32, own, 0.5, 1.5, 2);
    const Tensor y = run_one("", "LayerNormalization", {x, scale, scale}, axis);
    const Tensor plain = run_one("", "LayerNormalization", {x, one}, axis);
    const Tensor wide = run_one("", "Expand", {scale, Tensor::of<int64_t>({3}, {3, 4, 5})}, {},
                                {DType::kF32, shape});
    for (int64_t i = 0; i < y.size(); ++i) {
      const double wanted = (plain.at_as_double(i) + 1) * wide.at_as_double(i);
      EXPECT_NEAR(y.at_as_double(i), wanted, 8 * 0x1p-24 * (std::fabs(wanted) + 2));
    }
  }
}

TEST(GroupNormalization, NormalizesGroupsAndInstances) {
  const Shape shape{2, 6, 3, 5};
  for (const DType type : kFloatTypes) {
    const Tensor x = random_tensor(type, shape, -1, 2, 1),
                 scale = random_tensor(type, {6}, 0.5, 1.5, 2),
                 bias = random_tensor(type, {6}, -1, 1, 3);
    for (const int64_t groups : {1, 2, 6}) {
      const Tensor y =
          run_one("", "GroupNormalization", {x, scale, bias}, {{"num_groups", groups}});
      const int64_t size = 6 / groups * 15;
      for (int64_t group = 0; group < 2 * groups; ++group) {
        std::vector<double> values;
        for (int64_t i = 0; i < size; ++i) values.push_back(x.at_as_double(group * size + i));
        const Statistics s = statistics_of(values);
        for (int64_t i = group * size; i < (group + 1) * size; ++i) {
          const int64_t c = i / 15 % 6;
          const double wanted = (x.at_as_double(i) - s.mean) * s.inv_std() * scale.at_as_double(c) +
                                bias.at_as_double(c);
          EXPECT_NEAR(y.at_as_double(i), wanted,
                      unit_roundoff(type) * (std::fabs(wanted) + 4) + 0x1p-20);
        }
      }
      if (groups != 6) continue;
      EXPECT_TRUE(identical(y, run_one("", "InstanceNormalization", {x, scale, bias})));
    }
  }
  const Tensor x(DType::kF32, shape), c(DType::kF32, {6});
  EXPECT_THROW(run_one("", "GroupNormalization", {x, c, c}, {{"num_groups", int64_t{4}}}), Error);
  EXPECT_THROW(run_one("", "GroupNormalization", {x, c, c}), Error);
}

TEST(Lrn, SumsNeighbouringChannels) {
  const Shape shape{2, 5, 3};
  const Tensor x = random_tensor(DType::kF64, shape, -1, 1, 1);
  for (const int64_t size : {1, 2, 3, 4}) {
    const Tensor y =
        run_one("", "LRN", {x}, {{"size", size}, {"alpha", 0.5f}, {"beta", 0.75f}, {"bias", 2.0f}});
    for (int64_t i = 0; i < 30; ++i) {
      double sum = 0;
      const int64_t c = i / 3 % 5;
      for (int64_t k = std::max<int64_t>(0, c - (size - 1) / 2);
           k <= std::min<int64_t>(4, c + size / 2); ++k) {
        sum += std::pow(x.at_as_double(i + (k - c) * 3), 2);
      }
      EXPECT_NEAR(y.at_as_double(i),
                  x.at_as_double(i) / std::pow(2 + 0.5 / static_cast<double>(size) * sum, 0.75),
                  1e-12);
    }
  }
}

struct SoftmaxCase {
  Shape shape;
  int64_t axis;
};

const SoftmaxCase kSoftmaxes[] = {{{3, 5}, -1},   {{1, 1}, 1},       {{4, 133}, 1},
                                  {{2, 7, 3}, 1}, {{5, 2, 2, 3}, 0}, {{9}, 0}};

/// The index of element `i` of a line, and the line's start, along `axis`.
std::vector<std::vector<int64_t>> lines_of(const SoftmaxCase& c) {
  const auto axis =
      static_cast<size_t>(c.axis < 0 ? c.axis + static_cast<int64_t>(c.shape.size()) : c.axis);
  const int64_t stride = strides_of(c.shape)[axis], length = c.shape[axis];
  std::vector<std::vector<int64_t>> lines;
  for (int64_t start = 0; start < element_count(c.shape); ++start) {
    if (start / stride % length != 0) continue;
    lines.emplace_back();
    for (int64_t i = 0; i < length; ++i) lines.back().push_back(start + i * stride);
  }
  return lines;
}

TEST(Softmax, FollowsItsDefinitionOnEveryKernel) {
  for (const SoftmaxCase& c : kSoftmaxes) {
    for (const DType type : kFloatTypes) {
      for (const char* kernel : {"reference", "onednn"}) {
        if (type == DType::kF64 && std::string_view(kernel) == "onednn") continue;
        SCOPED_TRACE(to_string(c.shape) + " " + std::string(short_name(type)) + " " + kernel);
        const RunOptions options{.kernel = kernel};
        const Attributes axis{{"axis", c.axis}};
        const Tensor x = random_tensor(type, c.shape, -6, 9, 1);
        if (const OutputSpec out{type, c.shape};
            !refusals("", "Softmax", {x}, axis, {out}, options).empty()) {
          EXPECT_NE(c.axis, -1);
          continue;
        }
        const Tensor y = run_one("", "Softmax", {x}, axis, {}, options),
                     log_y = run_one("", "LogSoftmax", {x}, axis, {}, options);
        // A few roundings in math precision around exp and log, whose arguments are up to 15; then
        // one in storage.
        const double math = 32 * unit_roundoff(type == DType::kF64 ? type : DType::kF32),
                     store = unit_roundoff(type);
        for (const auto& line : lines_of(c)) {
          double sum = 0;
          for (const int64_t i : line) sum += std::exp(x.at_as_double(i));
          for (const int64_t i : line) {
            const double wanted = std::exp(x.at_as_double(i)) / sum,
                         wanted_log = x.at_as_double(i) - std::log(sum);
            EXPECT_NEAR(y.at_as_double(i), wanted, (math + store) * wanted + 0x1p-25);
            EXPECT_NEAR(log_y.at_as_double(i), wanted_log,
                        4 * math + store * std::fabs(wanted_log));
          }
        }
      }
    }
  }
}

TEST(Softmax, DoesNotOverflow) {
  const Tensor x = Tensor::of<float>({1, 3}, {1000, 999, -1000});
  for (const char* kernel : {"reference", "onednn"}) {
    const Tensor y = run_one("", "Softmax", {x}, {}, {}, {.kernel = kernel});
    EXPECT_NEAR(y.at_as_double(0), 1 / (1 + std::exp(-1.0)), 1e-6);
    EXPECT_EQ(y.at_as_double(2), 0);
  }
}

TEST(Softmax, OfNothing) {
  EXPECT_EQ(run_one("", "Softmax", {Tensor(DType::kF32, {0, 4})}).size(), 0);
  EXPECT_EQ(run_one("", "Softmax", {Tensor(DType::kF32, {4, 0})}).size(), 0);
}

TEST(Hardmax, TakesTheFirstOfEquals) {
  const Tensor x = Tensor::of<float>({2, 3}, {1, 5, 5, -1, -2, -1});
  const Tensor wanted = Tensor::of<float>({2, 3}, {0, 1, 0, 1, 0, 0});
  EXPECT_TRUE(identical(run_one("", "Hardmax", {x}), wanted));
}

}  // namespace
}  // namespace halfnote::test
