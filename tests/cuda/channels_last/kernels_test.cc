// The kernels on tensors that lie channels last, against the CPU's reference on plain ones; and the
// reorder between the two.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/libraries/dnn_request.h"
#include "kernels/cuda/table.h"
#include "kernels/layout.h"
#include "tests/cuda/channels_last/last.h"

namespace halfnote::cuda_emulated {
namespace {

/// Shapes that no tile and no vector divides.
const Shape kUglyImages[] = {{1, 2, 1, 2},    {2, 3, 5, 7},    {1, 8, 3, 1},
                             {3, 20, 4, 4},   {2, 33, 6, 5},   {1, 64, 9, 17},
                             {5, 130, 2, 33}, {2, 5, 3, 2, 4}, {2, 16, 3, 2, 4}};

/// Expects that the call is for plain operands only.
void check_plain(const Call& call) {
  if (test::tested_device() == "none") return;
  EXPECT_TRUE(run_last(call, ~0u, ~0u, false).empty()) << call.op;
}

Tensor reordered(Device& device, const Tensor& from, bool to_last) {
  KernelCall call;
  call.op = device.regions().reorder->op;
  call.inputs = {{from.dtype(), from.shape(), {}, nullptr}};
  call.outputs = call.inputs;
  (to_last ? call.outputs : call.inputs)[0].layout = channels_last();
  const Prepared prepared = device.regions().reorder->prepare(call);
  if (!prepared) throw Error(ErrorCode::kInternal, prepared.refusal);
  return test::run_kernel(device, *prepared.kernel, call.outputs, {from})[0];
}

TEST(ChannelsLast, ReorderIsWhereItIsSaidToBe) {
  if (test::tested_device() == "none") GTEST_SKIP();
  const auto device = test::open_tested_device();
  for (const DType dtype : {DType::kBool, DType::kI8, DType::kF16, DType::kBF16, DType::kF32,
                            DType::kI64, DType::kF64}) {
    for (const Shape& shape : kUglyImages) {
      Tensor x(dtype, shape);
      for (size_t i = 0; i < x.byte_size(); ++i)
        x.mutable_bytes()[i] = static_cast<std::byte>(i * 37 + i / 251);
      const Tensor last = reordered(*device, x, true);
      EXPECT_EQ(std::memcmp(last.bytes(), turned(x, true).bytes(), x.byte_size()), 0)
          << short_name(dtype) << to_string(shape);
      const Tensor back = reordered(*device, last, false);
      EXPECT_EQ(std::memcmp(back.bytes(), x.bytes(), x.byte_size()), 0);
    }
  }
}

TEST(ChannelsLast, WhatLiesAlikeStaysPlain) {
  if (test::tested_device() == "none") GTEST_SKIP();
  const auto device = test::open_tested_device();
  for (const Shape& shape :
       {Shape{2, 1, 4, 4}, Shape{2, 9, 1, 1}, Shape{2, 9}, Shape{0, 9, 4, 4}}) {
    KernelCall call;
    call.op = "Reorder";
    call.inputs = call.outputs = {{DType::kBF16, shape, {}, nullptr}};
    call.outputs[0].layout = channels_last();
    EXPECT_FALSE(device->regions().reorder->prepare(call)) << to_string(shape);
    check_plain({"", "Relu", {random(DType::kBF16, shape)}, {}, {{DType::kBF16, shape}}});
  }
}

TEST(ChannelsLast, ElementsMeetTheirLikes) {
  for (const Shape& shape : kUglyImages) {
    if (shape.size() != 4) continue;
    const int64_t n = shape[0], c = shape[1], h = shape[2], w = shape[3];
    for (const DType dtype : kStored) {
      const Tensor a = random(dtype, shape);
      check_last({"", "Relu", {a}, {}, {{dtype, shape}}});
      for (const Shape& other :
           {shape, Shape{}, Shape{c, 1, 1}, Shape{n, c, 1, 1}, Shape{h, w}, Shape{n, 1, h, w}}) {
        const Tensor b = random(dtype, other, 1, 3, 2);
        check_last({"", "Sub", {a, b}, {}, {{dtype, shape}}});
        check_last({"", "Div", {a, b}, {}, {{dtype, shape}}});
      }
      const Tensor mask =
          on_cpu({"", "Less", {a, random(dtype, shape, -2, 2, 3)}, {}, {{DType::kBool, shape}}})[0];
      check_last({"", "Where", {mask, a, random(dtype, shape, 5, 6, 4)}, {}, {{dtype, shape}}});
      Attributes to;
      to.set("to", static_cast<int64_t>(DType::kF32));
      check_last({"", "Cast", {a}, to, {{DType::kF32, shape}}});
      if (dtype == DType::kF32) continue;
      // One from f32 turns its operand on the way, if its result is to lie otherwise.
      to.set("to", static_cast<int64_t>(dtype));
      const Tensor wide = random(DType::kF32, shape);
      for (const auto& [from_last, to_last] : {std::pair(1u, 0u), {0u, 1u}, {1u, 1u}})
        check_last({"", "Cast", {wide}, to, {{dtype, shape}}}, from_last, to_last);
    }
  }
  // Channels that differ from pixel to pixel cannot be read plain: they come channels last too.
  const Tensor x = random(DType::kBF16, {3, 6, 4, 5}), y = random(DType::kBF16, {1, 6, 4, 5});
  check_last({"", "Add", {x, y}, {}, {{DType::kBF16, x.shape()}}});
  check_plain({"", "Add", {x, random(DType::kBF16, {6, 4, 5})}, {}, {{DType::kBF16, x.shape()}}});
}

TEST(ChannelsLast, ChainsOfElements) {
  const Shape shape{2, 12, 5, 3};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const std::string type(short_name(dtype));
    Attributes program;
    program.set("program", "t0:" + type + " = Add(x0, x1); t1:" + type + " = Relu(t0); t2:" + type +
                               " = Mul(t1, x2); out t0, t2");
    check_last({kOwn,
                "Pointwise",
                {random(dtype, shape), random(dtype, {12, 1, 1}, -1, 1, 2), random(dtype, shape)},
                program,
                {{dtype, shape}, {dtype, shape}}});
    Attributes sum;
    sum.set("program", "t0:" + type + " = Add(x0, x1); t1:" + type +
                           " = ReduceSum[0, 1](t0); "
                           "out t0, t1");
    check_plain({kOwn,
                 "Pointwise",
                 {random(dtype, shape), random(dtype, shape)},
                 sum,
                 {{dtype, shape}, {dtype, {12, 5, 3}}}});
  }
}

TEST(ChannelsLast, BatchNormalization) {
  for (const Shape& shape : kUglyImages) {
    for (const DType dtype : kStored) {
      const Shape c{shape[1]};
      const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                   scale = random(DType::kF32, c, 0.5, 2, 3),
                   bias = random(DType::kF32, c, -1, 1, 4), mean = random(DType::kF32, c, 4, 7, 5),
                   variance = random(DType::kF32, c, 0.5, 2, 6);
      const Result f32{DType::kF32, c};
      check_last(
          {"", "BatchNormalization", {x, scale, bias, mean, variance}, {}, {{dtype, shape}}});
      check_last({kOwn,
                  "BatchNormalization",
                  {x, scale, bias, mean, variance},
                  {},
                  {{dtype, shape}, f32, f32, f32, f32}});
      check_last({kOwn,
                  "BatchNormalizationGrad",
                  {dy, x, scale, mean, variance},
                  {},
                  {{dtype, shape}, f32, f32}});
    }
  }
}

/// A normalization with the sum and the Relu behind it, and its gradient.
TEST(ChannelsLast, FusedBatchNormalization) {
  Attributes relu;
  relu.set("activation", "Relu");
  const Tensor none;
  for (const Shape& shape : kUglyImages) {
    for (const DType dtype : kStored) {
      const Shape c{shape[1]};
      const Result full{dtype, shape}, f32{DType::kF32, c};
      const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                   more = random(dtype, shape, -1, 1, 8), y = random(dtype, shape, -1, 1, 9),
                   scale = random(DType::kF32, c, 0.5, 2, 3),
                   bias = random(DType::kF32, c, -1, 1, 4), mean = random(DType::kF32, c, 4, 7, 5),
                   variance = random(DType::kF32, c, 0.5, 2, 6);
      for (const Attributes& activation : {Attributes(), relu}) {
        check_last({kOwn,
                    "BatchNormalization",
                    {x, scale, bias, mean, variance, more},
                    activation,
                    {full, f32, f32, f32, f32}});
      }
      check_last({kOwn,
                  "BatchNormalization",
                  {x, scale, bias, mean, variance},
                  relu,
                  {full, f32, f32, f32, f32}});
      std::vector<std::vector<Tensor>> tails = {
          {more}, {none, y}, {more, y}, {none, none, bias}, {more, none, bias}};
      if (shape[1] % 8 == 0) {
        const Tensor signs = bits_for(shape);
        const Call keeping{kOwn,
                           "BatchNormalization",
                           {x, scale, bias, mean, variance, far_from_zero(dtype, shape)},
                           relu,
                           {full, f32, f32, f32, f32, {DType::kU8, signs.shape()}}};
        const Call reading{kOwn,
                           "BatchNormalizationGrad",
                           {dy, x, scale, mean, variance, more, none, none, signs},
                           {},
                           {full, f32, f32, full}};
        if (dtype == DType::kF32) {
          check_plain(keeping);
          check_plain(reading);
        } else {
          check_last(keeping);
          tails.push_back({none, none, none, signs});
          tails.push_back({more, none, none, signs});
        }
      }
      for (const std::vector<Tensor>& tail : tails) {
        std::vector<Tensor> operands{dy, x, scale, mean, variance};
        operands.insert(operands.end(), tail.begin(), tail.end());
        check_last({kOwn, "BatchNormalizationGrad", operands, {}, {full, f32, f32, full}});
        check_last({kOwn, "BatchNormalizationGrad", operands, {}, {{}, f32, f32, full}});
        if (!tail[0].defined())
          check_last({kOwn, "BatchNormalizationGrad", operands, {}, {full, f32, f32}});
      }
    }
  }
}

/// Two that are added up: the statistics of one, which the other normalizes it by, and both
/// gradients at once.
TEST(ChannelsLast, TwoBatchNormalizations) {
  Attributes relu;
  relu.set("activation", "Relu");
  const Tensor none;
  for (const Shape& shape : kUglyImages) {
    for (const DType dtype : kStored) {
      const Shape c{shape[1]};
      const Result full{dtype, shape}, f32{DType::kF32, c};
      const std::vector<Result> results{full, f32, f32, f32, f32};
      const Tensor x = random(dtype, shape, 4, 7), other = random(dtype, shape, -1, 1, 2),
                   dy = random(dtype, shape, -1, 1, 3), more = random(dtype, shape, -1, 1, 8),
                   a = random(DType::kF32, c, 0.5, 2, 4), b = random(DType::kF32, c, -1, 1, 5),
                   mean = random(DType::kF32, c, 4, 7, 6), inv = random(DType::kF32, c, 0.5, 2, 7);
      check_last({kOwn, "BatchNormalization", {x, a, b, mean, inv}, {}, {{}, f32, f32, f32, f32}});
      for (const Attributes& activation : {Attributes(), relu}) {
        const std::vector<Tensor> operands{x, a, b, mean, inv, other, inv, a, b, a};
        check_last({kOwn, "BatchNormalization", operands, activation, results});
      }
      if (shape[1] % 8 != 0) continue;
      for (const Tensor& addend : {none, more}) {
        for (const Result& dx : {full, Result{}}) {
          const std::vector<Tensor> operands{
              dy, x, a, mean, inv, addend, none, none, bits_for(shape), other, inv, b, a};
          const Call call{
              kOwn, "BatchNormalizationGrad", operands, {}, {dx, f32, f32, {}, full, f32, f32}};
          dtype == DType::kF32 ? check_plain(call) : check_last(call);
        }
      }
    }
  }
}

struct PoolShapes {
  Shape x, y;
  std::vector<int64_t> kernel, strides, pads;
};

TEST(ChannelsLast, Pools) {
  const PoolShapes all[] = {
      {{2, 8, 6, 6}, {2, 8, 3, 3}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{2, 3, 9, 7}, {2, 3, 5, 4}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{1, 33, 5, 4}, {1, 33, 5, 4}, {3, 3}, {1, 1}, {1, 1, 1, 1}},
      {{2, 20, 4, 4}, {2, 20, 1, 1}, {4, 4}, {1, 1}, {0, 0, 0, 0}},
      {{1, 2, 7, 9}, {1, 2, 2, 3}, {2, 1}, {4, 4}, {0, 0, 0, 0}},
      {{2, 5, 13}, {2, 5, 6}, {3}, {2}, {0, 0}},
      {{1, 4, 4, 5, 6}, {1, 4, 2, 3, 3}, {3, 2, 2}, {2, 2, 2}, {1, 0, 0, 0, 1, 0}},
      {{3, 16, 11, 13}, {3, 16, 6, 7}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{2, 24, 7, 9}, {2, 24, 4, 5}, {2, 2}, {2, 2}, {1, 1, 0, 0}},
      {{2, 16, 9, 10}, {2, 16, 4, 5}, {4, 4}, {2, 2}, {1, 1, 1, 1}},
      {{1, 8, 10, 7}, {1, 8, 5, 4}, {3, 2}, {2, 2}, {0, 1, 1, 0}},
      {{1, 8, 9, 9}, {1, 8, 3, 4}, {4, 3}, {2, 2}, {0, 0, 0, 0}},
      {{1, 8, 9, 9}, {1, 8, 4, 5}, {3, 1}, {2, 2}, {0, 0, 0, 0}},
      {{2, 8, 8, 11}, {2, 8, 2, 3}, {2, 3}, {4, 4}, {0, 0, 0, 0}},
      {{2, 8, 7, 5}, {2, 8, 2, 1}, {3, 2}, {3, 4}, {0, 0, 0, 0}},
  };
  for (const PoolShapes& p : all) {
    for (const DType dtype : kStored) {
      // Few different values, so that windows have ties.
      Tensor rounded = random(DType::kF64, p.x, -3, 3);
      for (double& value : rounded.mutable_data<double>()) value = std::round(value);
      const Tensor x = rounded.cast_to(dtype), dy = random(dtype, p.y, -1, 1, 2);
      Attributes attributes{{"kernel_shape", p.kernel}, {"strides", p.strides}, {"pads", p.pads}};
      check_last({"", "MaxPool", {x}, attributes, {{dtype, p.y}}});
      check_last({kOwn, "MaxPoolGrad", {dy, x}, attributes, {{dtype, p.x}}});
      Attributes with_relu = attributes;
      with_relu.set("activation", std::string("Relu"));
      Shape lying = p.y;
      std::rotate(lying.begin() + 1, lying.begin() + 2, lying.end());
      const Result taps{DType::kU8, lying};
      check_last({kOwn, "MaxPool", {x}, attributes, {{dtype, p.y}, taps}});
      const Call kept{kOwn, "MaxPool", {x}, with_relu, {{dtype, p.y}, taps}};
      check_last(kept);
      const Tensor size = integers(p.x, {static_cast<int64_t>(p.x.size())});
      check_last(
          {kOwn, "MaxPoolTapsGrad", {dy, on_cpu(kept)[1], size}, attributes, {{dtype, p.x}}, {2}});
      for (const int64_t include_pad : {0, 1}) {
        attributes.set("count_include_pad", include_pad);
        check_last({"", "AveragePool", {x}, attributes, {{dtype, p.y}}});
        check_last({kOwn, "AveragePoolGrad", {dy, x}, attributes, {{dtype, p.x}}});
      }
    }
  }
}

TEST(ChannelsLast, PoolsOfDilatedWindows) {
  for (const Shape& shape : {Shape{2, 8, 9, 10}, {1, 3, 9, 10}}) {  // also with gaps
    const Shape result = {shape[0], shape[1], 5, 4};
    const Tensor x = random(DType::kBF16, shape), dy = random(DType::kBF16, result, -1, 1, 2);
    const Attributes dilated{{"kernel_shape", std::vector<int64_t>{3, 2}},
                             {"dilations", std::vector<int64_t>{2, 3}},
                             {"strides", std::vector<int64_t>{1, 2}}};
    check_last({"", "MaxPool", {x}, dilated, {{DType::kBF16, result}}});
    check_last({kOwn, "MaxPoolGrad", {dy, x}, dilated, {{DType::kBF16, shape}}});
    check_last({"", "AveragePool", {x}, dilated, {{DType::kBF16, result}}});
    check_last({kOwn, "AveragePoolGrad", {dy, x}, dilated, {{DType::kBF16, shape}}});
  }
  const Tensor x = random(DType::kBF16, {1, 8, 4, 4});
  Attributes attributes{{"kernel_shape", std::vector<int64_t>{2, 2}}};
  check_plain({"",
               "MaxPool",
               {x},
               attributes,
               {{DType::kBF16, {1, 8, 3, 3}}, {DType::kI64, {1, 8, 3, 3}}}});
}

TEST(ChannelsLast, Reductions) {
  for (const Shape& shape : kUglyImages) {
    if (shape.size() != 4) continue;
    const int64_t n = shape[0], c = shape[1];
    for (const DType dtype : kStored) {
      const Tensor x = random(dtype, shape, 0.5, 2);
      check_last({"", "GlobalAveragePool", {x}, {}, {{dtype, {n, c, 1, 1}}}});
      check_last({"", "GlobalMaxPool", {x}, {}, {{dtype, {n, c, 1, 1}}}});
      Attributes flat;
      flat.set("keepdims", int64_t{0});
      const auto over = [&](std::string_view op, std::vector<int64_t> axes, Shape to) {
        const auto count = static_cast<int64_t>(axes.size());
        return Call{"", op, {x, integers(std::move(axes), {count})}, flat, {{dtype, to}}, {1}};
      };
      check_last(over("ReduceSum", {0, 2, 3}, {c}));
      check_last(over("ReduceMean", {2, 3}, {n, c}));
      check_last(over("ReduceMax", {1}, {n, shape[2], shape[3]}));
      check_last(over("ReduceLogSumExp", {0, 1, 2, 3}, {}));
      check_plain(over("ReduceSum", {3}, {n, c, shape[2]}));
      Call own = over("ReduceSum", {0, 2, 3}, {c});
      own.domain = kOwn;
      own.outputs[0].dtype = DType::kF32;
      check_last(own);
    }
  }
}

TEST(ChannelsLast, Moves) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kBool}) {
    const auto some = [&](Shape shape, uint32_t seed) {
      const Tensor x = random(DType::kF32, std::move(shape), -1, 1, seed);
      if (dtype != DType::kBool) return x.cast_to(dtype);
      return on_cpu({"", "Less", {x, random(DType::kF32, {})}, {}, {{dtype, x.shape()}}})[0];
    };
    const Tensor x = some({2, 3, 4, 5}, 1), gates = some({2, 3, 1, 1}, 2);
    const auto moved = [&](std::string_view op, std::vector<std::vector<int64_t>> numbers,
                           Shape to) {
      Call call{"", op, {x}, {}, {{dtype, std::move(to)}}};
      for (const std::vector<int64_t>& list : numbers) {
        if (!list.empty()) call.known.push_back(call.inputs.size());
        call.inputs.push_back(list.empty() ? Tensor()
                                           : integers(list, {static_cast<int64_t>(list.size())}));
      }
      return call;
    };
    check_last(moved("Pad", {{0, 0, 1, 0, 0, 5, 0, 2}}, {2, 8, 5, 7}));
    check_last(moved("Pad", {{0, 5}, {}, {1}}, {2, 8, 4, 5}));
    check_last(moved("Pad", {{0, -1}, {}, {-1}}, {2, 3, 4, 4}));
    check_last(moved("Slice", {{1, 0}, {3, 9}, {1, -1}, {1, 2}}, {2, 2, 4, 3}));
    check_last(moved("Slice", {{1}, {2}}, {1, 3, 4, 5}));
    Call expand = moved("Expand", {{2, 3, 4, 5}}, x.shape());
    for (const Tensor& from : {gates, some({3, 1, 1}, 3), some({1, 3, 4, 5}, 4), some({}, 5)}) {
      expand.inputs[0] = from;
      check_last(expand);
    }
    for (const int64_t axis : {1, -3}) {
      const Attributes channels{{"axis", axis}};
      check_last({"",
                  "Concat",
                  {x, some({2, 8, 4, 5}, 6), some({2, 1, 4, 5}, 7)},
                  channels,
                  {{dtype, {2, 12, 4, 5}}}});
      check_last({"",
                  "Split",
                  {x, integers({2, 1}, {2})},
                  channels,
                  {{dtype, {2, 2, 4, 5}}, {dtype, {2, 1, 4, 5}}},
                  {1}});
    }
    check_last({"", "Concat", {x, x}, {{"axis", int64_t{2}}}, {{dtype, {2, 3, 8, 5}}}});
    check_plain({"",
                 "Concat",
                 {random(DType::kF32, {2, 3}), random(DType::kF32, {2, 3})},
                 {{"axis", int64_t{1}}},
                 {{DType::kF32, {2, 6}}}});
    check_last(moved("Slice", {{0}, {1}, {1}}, {2, 1, 4, 5}));
  }
}

/// The same bytes.
TEST(ChannelsLast, TransposesOfTheModel) {
  const Tensor x = random(DType::kBF16, {2, 3, 4, 5}), line = random(DType::kBF16, {2, 3, 7});
  const auto perm = [](std::vector<int64_t> order) { return Attributes{{"perm", order}}; };
  check_last({"", "Transpose", {x}, perm({0, 2, 3, 1}), {{DType::kBF16, {2, 4, 5, 3}}}});
  check_last({"", "Transpose", {x}, perm({0, 3, 1, 2}), {{DType::kBF16, {2, 5, 3, 4}}}});
  check_last({"", "Transpose", {line}, perm({0, 2, 1}), {{DType::kBF16, {2, 7, 3}}}});
  check_plain({"", "Transpose", {x}, perm({0, 1, 3, 2}), {{DType::kBF16, {2, 3, 5, 4}}}});
  check_plain({"", "Transpose", {x}, {}, {{DType::kBF16, {5, 4, 3, 2}}}});
}

TEST(ChannelsLast, Resizes) {
  struct Case {
    std::string mode, coordinates;
    std::vector<float> scales;
    Shape in, out;
  };
  const Case all[] = {
      {"nearest", "asymmetric", {1, 1, 2, 2}, {2, 3, 4, 5}, {2, 3, 8, 10}},
      {"linear", "half_pixel", {1, 1, 2, 3}, {1, 20, 5, 7}, {1, 20, 10, 21}},
      {"cubic", "align_corners", {1, 1, 1.5f, 0.6f}, {2, 33, 6, 10}, {2, 33, 9, 6}},
      {"linear", "half_pixel", {1, 1, 4, 3}, {1, 2, 1, 1}, {1, 2, 4, 3}},
      {"nearest", "half_pixel", {1, 1, 1, 1}, {1, 3, 4, 3}, {1, 3, 4, 3}},
  };
  for (const Case& c : all) {
    for (const DType dtype : kStored) {
      Attributes how{{"mode", c.mode}, {"coordinate_transformation_mode", c.coordinates}};
      const Tensor scales = Tensor::of<float>({4}, std::span<const float>(c.scales));
      check_last(
          {"", "Resize", {random(dtype, c.in), Tensor(), scales}, how, {{dtype, c.out}}, {2}});
      how.set("scales", c.scales);
      check_last({kOwn, "ResizeGrad", {random(dtype, c.out)}, how, {{dtype, c.in}}});
    }
  }
  const float of_channels[] = {1, 2, 2, 1};
  check_plain({"",
               "Resize",
               {random(DType::kF32, {1, 3, 4, 4}), Tensor(),
                Tensor::of<float>({4}, std::span<const float>(of_channels))},
               {},
               {{DType::kF32, {1, 6, 8, 4}}},
               {2}});
}

struct ConvShapes {
  Shape x, w, y;
  std::vector<int64_t> strides, pads;
  int64_t group = 1;
};

/// Operands one by one and all together: a convolution takes each as it comes.
void check_last_convolutions() {
  const ConvShapes all[] = {
      {{1, 8, 6, 5}, {16, 8, 3, 3}, {1, 16, 6, 5}, {1, 1}, {1, 1, 1, 1}},
      {{2, 3, 7, 6}, {20, 3, 3, 3}, {2, 20, 4, 3}, {2, 2}, {1, 1, 1, 1}},
      {{1, 33, 4, 4}, {1, 33, 3, 3}, {1, 1, 2, 2}, {1, 1}, {0, 0, 0, 0}},
      {{2, 1, 6, 6}, {8, 1, 3, 3}, {2, 8, 4, 4}, {1, 1}, {0, 0, 0, 0}},
      {{2, 16, 3, 5}, {24, 16, 1, 1}, {2, 24, 3, 5}, {1, 1}, {0, 0, 0, 0}},
      {{2, 16, 3, 3}, {8, 16, 3, 3}, {2, 8, 1, 1}, {1, 1}, {0, 0, 0, 0}},
      {{1, 20, 5, 5}, {20, 5, 3, 3}, {1, 20, 5, 5}, {1, 1}, {1, 1, 1, 1}, 4},
      {{1, 8, 5, 5}, {8, 1, 3, 3}, {1, 8, 5, 5}, {1, 1}, {1, 1, 1, 1}, 8},
      {{2, 8, 11}, {8, 8, 3}, {2, 8, 11}, {1}, {1, 1}},
  };
  for (const ConvShapes& c : all) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Attributes attributes;
      attributes.set("strides", c.strides);
      attributes.set("pads", c.pads);
      attributes.set("group", c.group);
      const Tensor x = random(dtype, c.x, -1, 1), w = random(dtype, c.w, -1, 1, 2),
                   dy = random(dtype, c.y, -1, 1, 3), bias = random(dtype, {c.w[0]}, -1, 1, 4);
      Attributes of_weight = attributes;
      of_weight.set("kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end()));
      of_weight.set("out_dtype", int64_t{1});
      const Tensor sizes = integers(c.x, {static_cast<int64_t>(c.x.size())});
      std::vector<Call> calls = {
          {"", "Conv", {x, w}, attributes, {{dtype, c.y}}},
          {"", "Conv", {x, w, bias}, attributes, {{dtype, c.y}}},
          {kOwn, "ConvGradInput", {dy, w, sizes}, attributes, {{dtype, c.x}}, {2}},
          {kOwn, "ConvGradWeight", {dy, x}, of_weight, {{DType::kF32, c.w}}},
      };
      if (c.strides[0] == 1) {
        const Tensor of_x = random(dtype, {c.x[1]}, -1, 1, 5);
        calls.push_back({"", "ConvTranspose", {dy, w, of_x}, attributes, {{dtype, c.x}}});
      }
      for (const Call& call : calls) {
        check(call);
        const std::pair<uint32_t, uint32_t> masks[] = {{3, 1}, {1, 0}, {2, 1}, {0, 1}};
        for (const auto& [inputs, outputs] : masks) {
          if (!run_last(call, inputs, outputs, false).empty()) check_last(call, inputs, outputs);
        }
      }
    }
  }
}

TEST(ChannelsLast, Convolutions) {
  check_last_convolutions();
  const Tensor x = random(DType::kF32, {1, 8, 5, 5}), w = random(DType::kF32, {8, 8, 3, 3});
  check_plain({"", "Conv", {x, w}, {}, {{DType::kF32, {1, 8, 3, 3}}}});
}

/// Where the library has nothing for 16-bit operands, they are f32 for it, which TF32 holds.
TEST(ChannelsLast, ConvolutionsThatTheLibraryRefuses) {
  refuse_convolutions([](const libraries::DnnRequest& r) {
    return std::string(is_16bit_float(r.x.dtype) || is_16bit_float(r.y.dtype) ? "no 16 bits" : "");
  });
  check_last_convolutions();
  refuse_convolutions(nullptr);
}

/// Whole vectors of 8 channels, but for one channel alone, and for groups.
TEST(ChannelsLast, ChannelsAreFilledUp) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "only the emulation records";
  struct Case {
    Shape x, w, y;
    int64_t group, channels, filters;
  };
  const Case all[] = {{{1, 3, 5, 5}, {20, 3, 3, 3}, {1, 20, 3, 3}, 1, 8, 24},
                      {{1, 16, 5, 5}, {8, 16, 3, 3}, {1, 8, 3, 3}, 1, 16, 8},
                      {{1, 1, 5, 5}, {9, 1, 3, 3}, {1, 9, 3, 3}, 1, 1, 16},
                      {{1, 6, 5, 5}, {6, 3, 3, 3}, {1, 6, 3, 3}, 2, 6, 6}};
  for (const Case& c : all) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      std::vector<libraries::DnnRequest> requests;
      record_convolutions(&requests);
      on_device({"",
                 "Conv",
                 {random(dtype, c.x), random(dtype, c.w)},
                 {{"group", c.group}},
                 {{dtype, c.y}}});
      record_convolutions(nullptr);
      ASSERT_EQ(requests.size(), 1u);
      const bool filled = dtype == DType::kBF16;
      EXPECT_EQ(requests[0].x.dims[1], filled ? c.channels : c.x[1]);
      EXPECT_EQ(requests[0].y.dims[1], filled ? c.filters : c.y[1]);
      EXPECT_EQ(illegal_request(requests[0]), "");
    }
  }
}

/// Either side in either layout; channels that fill 16 bytes and others, and none of the image.
TEST(ChannelsLast, Patches) {
  struct Windows {
    Shape image, result;
    std::vector<int64_t> kernel, strides, pads;
  };
  const Windows all[] = {
      {{2, 3, 6, 8}, {2, 16, 3, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{2, 3, 5, 7}, {2, 32, 5, 7}, {3, 3}, {1, 1}, {1, 1, 1, 1}},
      {{1, 2, 9, 7}, {1, 13, 3, 4}, {2, 3}, {3, 2}, {0, 2, 1, 0}},
      {{3, 2, 33}, {3, 8, 15}, {4}, {2}, {0, 0}},
      {{1, 1, 2100}, {1, 1040, 3}, {1030}, {500}, {0, 0}},
      {{1, 2, 4, 3, 5}, {1, 24, 2, 2, 3}, {2, 2, 3}, {2, 1, 1}, {0, 0, 0, 0, 0, 0}},
      {{5, 3, 224, 64}, {5, 16, 112, 32}, {2, 2}, {2, 2}, {0, 0, 0, 0}}};
  for (const Windows& w : all) {
    Attributes attributes;
    attributes.set("kernel_shape", w.kernel);
    attributes.set("strides", w.strides);
    attributes.set("pads", w.pads);
    attributes.set("channels", w.result[1]);
    for (const DType from : kStored) {
      for (const DType to : kStored) {
        if (to != from) attributes.set("out_dtype", static_cast<int64_t>(to));
        const Call call{kOwn, "Patches", {random(from, w.image)}, attributes, {{to, w.result}}};
        check(call);
        for (const auto& [from_last, to_last] : {std::pair(1u, 0u), {0u, 1u}, {1u, 1u}})
          check_last(call, from_last, to_last);
      }
    }
  }
  // So many pixels that a thread has two of them.
  Attributes one;
  one.set("kernel_shape", std::vector<int64_t>{1, 1});
  one.set("channels", int64_t{16});
  const DType half = DType::kBF16;
  check_last({kOwn, "Patches", {random(half, {67, 1, 32, 64})}, one, {{half, {67, 16, 32, 64}}}}, 1,
             1);
  Attributes attributes;
  attributes.set("kernel_shape", std::vector<int64_t>{2, 2});
  attributes.set("channels", int64_t{16});
  for (const Shape& image : {Shape{0, 3, 4, 4}, Shape{2, 3, 1, 4}}) {
    const Shape result{image[0], 16, image[2] - 1, image[3] - 1};
    check({kOwn, "Patches", {random(DType::kF32, image)}, attributes, {{DType::kF32, result}}});
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
