// Our vectorised GroupNormalization, InstanceNormalization and their gradient against the
// reference.
#include <gtest/gtest.h>

#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

struct GroupCase {
  Shape x;
  int64_t groups;
};

/// Planes of one element, short ones, exactly the limit, longer than a piece; a channel a group,
/// one group; sizes that no vector divides.
const GroupCase kGroups[] = {
    {{1, 1}, 1},       {{2, 6}, 3},         {{3, 4, 1, 1}, 2},   {{5, 300}, 2},
    {{2, 6, 3, 5}, 6}, {{2, 6, 3, 5}, 1},   {{1, 130, 4, 4}, 2}, {{2, 8, 7, 9}, 4},
    {{2, 8, 8, 8}, 4}, {{3, 5, 13, 11}, 5}, {{1, 4, 2049}, 2},   {{2, 3, 5, 7, 11}, 3},
    {{40, 2, 9}, 1},   {{1, 700, 3}, 1},
};

/// normalization_test.cc holds the kernels of devices against the reference.
RunOptions rows_of(std::string_view kernel, int threads = 1) {
  return {.kernel = kernel, .threads = threads, .check_device = false};
}

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

/// 64 partial sums of f32 over a piece of at most 2048 elements of size up to 3; both round once to
/// the type of the output, perhaps to different sides of a tie.
void expect_near(const Tensor& got, const Tensor& wanted) {
  constexpr double kSums = 64 * 0x1p-24;
  expect_close(got, wanted, 2 * unit_roundoff(got.dtype()) + kSums, kSums);
}

/// Y, dX, dScale, dB by a kernel; scale in f32, bias in the type of X.
std::vector<Tensor> run_group_norm(const GroupCase& c, DType type, const RunOptions& options) {
  const Shape own{c.x[1]};
  const Tensor x = random_tensor(type, c.x, -2, 3, 1), dy = random_tensor(type, c.x, -1, 1, 2),
               scale = random_tensor(DType::kF32, own, 0.5, 1.5, 3),
               bias = random_tensor(type, own, -1, 1, 4);
  const Attributes attributes{{"num_groups", c.groups}, {"epsilon", 1e-3f}};
  const OutputSpec like_x{type, c.x}, gradient{DType::kF32, own};
  std::vector<Tensor> all =
      run_kernel("", "GroupNormalization", {x, scale, bias}, attributes, {like_x}, options);
  for (Tensor& tensor : run_kernel(kOwn, "GroupNormalizationGrad", {dy, x, scale}, attributes,
                                   {like_x, gradient, gradient}, options)) {
    all.push_back(std::move(tensor));
  }
  return all;
}

TEST(FastGroupNormalization, AgreesWithTheReference) {
  for (const GroupCase& c : kGroups) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(to_string(c.x) + " in " + std::to_string(c.groups) + " " +
                   std::string(short_name(type)));
      const std::vector<Tensor> got = run_group_norm(c, type, rows_of("fast", 2));
      const std::vector<Tensor> wanted = run_group_norm(c, type, rows_of("reference"));
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("output " + std::to_string(i));
        expect_near(got[i], wanted[i]);
      }
    }
  }
}

/// A group for each channel.
TEST(FastInstanceNormalization, AgreesWithTheReference) {
  for (const GroupCase& c : kGroups) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(to_string(c.x) + " " + std::string(short_name(type)));
      const Tensor x = random_tensor(type, c.x, -2, 3, 1),
                   scale = random_tensor(type, {c.x[1]}, 0.5, 1.5, 2),
                   bias = random_tensor(DType::kF32, {c.x[1]}, -1, 1, 3);
      expect_near(
          run_one("", "InstanceNormalization", {x, scale, bias}, {}, {}, rows_of("fast")),
          run_one("", "InstanceNormalization", {x, scale, bias}, {}, {}, rows_of("reference")));
    }
  }
}

/// An output that nobody asks for changes nothing in the others.
TEST(FastGroupNormalization, GivesEachGradientAlone) {
  for (const Shape& shape : {Shape{3, 6, 2, 3}, Shape{2, 4, 9, 9}}) {
    const Shape own{shape[1]};
    const std::vector<Tensor> inputs{random_tensor(DType::kBF16, shape, -1, 1, 1),
                                     random_tensor(DType::kBF16, shape, -2, 3, 2),
                                     random_tensor(DType::kBF16, own, 0.5, 1.5, 3)};
    const std::vector<OutputSpec> outputs{
        {DType::kBF16, shape}, {DType::kF32, own}, {DType::kF32, own}};
    const Attributes attributes{{"num_groups", int64_t{2}}};
    const RunOptions on = rows_of("fast");
    const auto all = run_kernel(kOwn, "GroupNormalizationGrad", inputs, attributes, outputs, on);
    for (size_t wanted = 0; wanted < outputs.size(); ++wanted) {
      std::vector<OutputSpec> alone(outputs.size());
      alone[wanted] = outputs[wanted];
      const auto got = run_kernel(kOwn, "GroupNormalizationGrad", inputs, attributes, alone, on);
      EXPECT_TRUE(identical(got[wanted], all[wanted])) << to_string(shape) << " output " << wanted;
    }
  }
}

/// A mean far from 0 costs no accuracy: the elements are 4096 plus small numbers, as f32 holds
/// them; the reference computes in f64.
TEST(FastGroupNormalization, MeansMayBeLarge) {
  const Attributes attributes{{"num_groups", int64_t{2}}};
  const auto results = [&](const Tensor& x, DType type, std::string_view kernel) {
    const Tensor dy = random_tensor(DType::kF32, x.shape(), -1, 1, 2).cast_to(type),
                 scale = random_tensor(DType::kF32, {4}, 0.5, 1.5, 3).cast_to(type);
    const OutputSpec like_x{type, x.shape()}, own{type, {4}};
    const RunOptions options = rows_of(kernel);
    std::vector<Tensor> all = run_kernel(kOwn, "GroupNormalizationGrad", {dy, x, scale}, attributes,
                                         {like_x, own, own}, options);
    all.push_back(run_one("", "GroupNormalization", {x, scale, scale}, attributes, {}, options));
    return all;
  };
  for (const Shape& shape : {Shape{2, 4, 3, 3}, Shape{2, 4, 9, 9}}) {
    Tensor x = random_tensor(DType::kF32, shape, -1, 1, 1);
    for (float& value : x.mutable_data<float>()) value += 4096;
    const auto got = results(x, DType::kF32, "fast");
    const auto wanted = results(x.cast_to(DType::kF64), DType::kF64, "reference");
    for (size_t i = 0; i < got.size(); ++i) expect_near(got[i], wanted[i].cast_to(DType::kF32));
  }
}

TEST(FastGroupNormalization, SquaresMayBeTooLargeForF32) {
  for (const Shape& shape : {Shape{1, 2, 2, 2}, Shape{1, 2, 8, 8}}) {
    Tensor x = random_tensor(DType::kF32, shape, -1, 1, 1);
    for (float& value : x.mutable_data<float>()) value *= 3e25f;
    const Tensor one = Tensor::full(DType::kF32, {2}, 1);
    for (const auto op : {"GroupNormalization", "LayerNormalization"}) {
      const bool grouped = std::string_view(op) == "GroupNormalization";
      const Attributes attributes =
          grouped ? Attributes{{"num_groups", int64_t{1}}} : Attributes{{"axis", int64_t{-1}}};
      const Tensor scale = grouped ? one : Tensor::full(DType::kF32, {shape.back()}, 1);
      expect_near(run_one("", op, {x, scale, scale}, attributes, {}, {.kernel = "fast"}),
                  run_one("", op, {x, scale, scale}, attributes));
    }
  }
}

TEST(FastGroupNormalization, SaysWhatItDoesNotTake) {
  const auto reason = [](DType type, const Shape& shape, DType parameters) {
    const Tensor x(type, shape), own(parameters, {shape[1]});
    return refusals("", "GroupNormalization", {x, own, own}, {{"num_groups", int64_t{1}}},
                    {{type, shape}}, {.kernel = "fast"});
  };
  EXPECT_EQ(reason(DType::kBF16, {2, 3, 4}, DType::kF32), "");
  EXPECT_NE(reason(DType::kF64, {2, 3, 4}, DType::kF32).find("f64"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {2, 3, 4}, DType::kF64).find("f64"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {0, 3, 4}, DType::kF32).find("without elements"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
