// Hardmax on a device, labels that are counted along lines, and norms whose scale or bias differs
// from line to line.
#include <gtest/gtest.h>

#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

TEST(CudaLines, Hardmax) {
  for (const DType dtype : kAllTypes) {
    for (const Shape& shape :
         {Shape{1, 1, 1}, {3, 35, 2}, {2, 2, 300}, {2, 0, 3}, {0, 4, 1}, {1, 2, 33000}}) {
      for (const int64_t axis : {0, 1, -1}) {
        if (element_count(shape) > 2000 && (axis != -1 || dtype != DType::kF16)) continue;
        // Few different values, so that there are equal ones.
        const Tensor few = random(DType::kF32, shape, -3, 3).cast_to(DType::kI8).cast_to(dtype);
        for (const Tensor& x : {few, ugly(dtype, shape)})
          check_as_on_cpu({"", "Hardmax", {x}, {{"axis", axis}}, {{dtype, shape}}});
      }
    }
  }
}

/// Shapes that broadcast to kX in every way.
const Shape kX = {2, 3, 4, 5};
const Shape kParameters[] = {{},           {5},          {4, 5},    {4, 1},       {2, 3, 4, 5},
                             {2, 1, 1, 1}, {1, 3, 1, 5}, {3, 1, 1}, {2, 3, 1, 5}, {1, 1, 4, 5}};

Call norm_call(std::string_view op, DType type, DType scale_type, const Shape& scale,
               const Shape* bias, int64_t axis) {
  Call call{"",
            op,
            {random(type, kX), random(scale_type, scale, 0.5, 2, 2)},
            {{"axis", axis}},
            {{type, kX}}};
  if (bias != nullptr) call.inputs.push_back(random(scale_type, *bias, -1, 1, 3));
  return call;
}

TEST(CudaLines, LayerNormsWithAnyScale) {
  for (const DType dtype : kFloats) {
    for (const int64_t axis : {1, -1}) {
      for (const Shape& scale : kParameters)
        check(norm_call("LayerNormalization", dtype, dtype, scale, nullptr, axis));
      for (const Shape& bias : kParameters)
        check(norm_call("LayerNormalization", dtype, dtype, {3, 1, 1}, &bias, axis));
    }
  }
  for (const int64_t axis : {0, 2}) {
    const Shape whole = kX;
    check(norm_call("LayerNormalization", DType::kF16, DType::kF16, {5}, &whole, axis));
  }
}

TEST(CudaLines, RmsNormsWithAnyScale) {
  for (const DType dtype : kFloats) {
    for (const Shape& scale : kParameters) {
      check(norm_call("RMSNormalization", dtype, dtype, scale, nullptr, 2));
      check_as_on_cpu(norm_call("RMSNormalization", dtype, DType::kF32, scale, nullptr, -1));
    }
  }
}

TEST(CudaLines, AScalePerLineOfUglySizes) {
  for (const Shape& shape : {Shape{1, 1}, {0, 5}, {2, 8193}, {300, 3}}) {
    const DType dtype = shape[0] == 2 ? DType::kBF16 : DType::kF32;
    const Tensor scale = random(dtype, {shape[0], 1}, 0.5, 2, 2);
    const Tensor bias = random(dtype, {shape[0], 1}, -1, 1, 3);
    check({"", "LayerNormalization", {random(dtype, shape), scale, bias}, {}, {{dtype, shape}}});
  }
}

/// Lines of a thread and of a warp, of one block and of many, behind each other and interleaved; in
/// packs that begin at every place of a line.
TEST(CudaLoss, LabelsWithTheHighestScores) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape& shape : std::vector<Shape>{{0, 5},
                                                 {1, 1},
                                                 {300, 10},
                                                 {7, 64},
                                                 {9, 65},
                                                 {40, 1000},
                                                 {3, 70, 33},
                                                 {2, 70, 5},
                                                 {70000, 3},
                                                 {17, 2501}}) {
      Shape labelled = shape;
      labelled.erase(labelled.begin() + 1);
      const int64_t lines = element_count(labelled);
      Tensor labels(DType::kI64, labelled);
      for (int64_t i = 0; i < lines; ++i) {
        labels.mutable_data<int64_t>()[static_cast<size_t>(i)] =
            i % 7 == 0 ? -100 : i * 37 % shape[1];
      }
      Attributes attributes;
      attributes.set("ignore_index", int64_t{-100});
      // Few values: many lines have their highest score more than once.
      const Tensor few = random(DType::kF32, shape, 0, 4).cast_to(DType::kI64);
      Call call{kOwn,
                "CountCorrect",
                {few.cast_to(dtype), labels},
                attributes,
                {{DType::kI64, {}}, {DType::kI64, {}}}};
      check_as_on_cpu(call);
      EXPECT_EQ(on_device(call)[1].at_as_int(0), lines - (lines + 6) / 7);
      call.outputs.push_back({DType::kI64, {}});  // the five highest
      check_as_on_cpu(call);
      Call padded = call;
      padded.attributes.set("classes", (shape[1] + 1) / 2);
      check_as_on_cpu(padded);
      if (shape[1] < 10) continue;
      call.inputs[0] = random(DType::kF32, shape, 0, 4e4).cast_to(DType::kI64).cast_to(dtype);
      check_as_on_cpu(call);
    }
  }
}

/// NaN, infinities and ties at every place of a line, and labels outside the classes.
TEST(CudaLoss, OddScoresHaveTheRanksOfTheCpu) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const DType dtype : kFloats) {
    for (const int64_t classes : {3, 5, 6, 77, 300}) {
      const int64_t lines = 41;
      Tensor scores = random(DType::kF32, {lines, classes}, 0, 3);
      Tensor labels(DType::kI32, {lines});
      for (int64_t line = 0; line < lines; ++line) {
        const int64_t label = line * 11 % (classes + 2) - 1;
        labels.mutable_data<int32_t>()[static_cast<size_t>(line)] = static_cast<int32_t>(label);
        float* at = scores.mutable_data<float>().data() + line * classes;
        const float odd[] = {1, nan, inf, -inf, 3};
        at[line % classes] = odd[line % 5];
        if (line % 3 == 0 && label >= 0 && label < classes) at[label] = odd[line / 3 % 5];
      }
      check_as_on_cpu({kOwn,
                       "CountCorrect",
                       {scores.cast_to(dtype), labels},
                       {},
                       std::vector<Result>(3, {DType::kI64, {}})});
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
