// Bodies of Adagrad, RMSprop, Lion, LAMB and Adafactor against their kernels.
#include <gtest/gtest.h>

#include "tests/ops/body_harness.h"

namespace halfnote::test {
namespace {

struct OptimizerBody {
  const char* op;
  Attributes attributes;
  /// What fills each state slot: 0 absent, else a tensor of this shape.
  std::vector<Shape> slots;
  std::vector<bool> present;
  bool reads_step = true;
};

std::vector<OptimizerBody> bodies(const Shape& shape) {
  std::vector<OptimizerBody> all = {
      {"Adagrad", {}, {shape}, {true}},
      {"Adagrad", {{"lr_decay", 0.25f}, {"weight_decay", 0.125f}}, {shape}, {true}},
      {"RMSprop", {}, {shape, shape, shape}, {true, false, false}, false},
      {"RMSprop",
       {{"centered", int64_t{1}}, {"alpha", 0.5f}},
       {shape, shape, shape},
       {true, true, false},
       false},
      {"RMSprop",
       {{"momentum", 0.5f}, {"weight_decay", 0.25f}},
       {shape, shape, shape},
       {true, false, true},
       false},
      {"Lion", {{"weight_decay", 0.125f}}, {shape}, {true}, false},
      {"Lamb", {{"weight_decay", 0.125f}}, {shape, shape}, {true, true}},
      {"Lamb", {{"weight_decay", 0.125f}, {"lamb_mode", int64_t{1}}}, {shape, shape}, {true, true}},
      {"Lamb", {{"min_ratio", 0.5f}, {"max_ratio", 0.75f}}, {shape, shape}, {true, true}},
      {"Adafactor", {{"scale_parameter", int64_t{0}}}, {shape, shape}, {true, false}},
  };
  if (shape.size() < 2) return all;
  Shape row(shape.begin(), shape.end() - 1), column = row;
  column.back() = shape.back();
  for (const int64_t relative : {0, 1}) {
    all.push_back({"Adafactor",
                   {{"relative_step", relative}, {"weight_decay", 0.125f}},
                   {row, column},
                   {true, true}});
  }
  return all;
}

BodyCase call_of(const OptimizerBody& body, DType dtype, const Shape& shape, int commit) {
  BodyCase call{to_string(shape), body.op, body.attributes, {}, 1};
  call.inputs = {random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2)};
  for (size_t i = 0; i < body.slots.size(); ++i) {
    const bool here = body.present[i];
    // Second moments are positive and larger than the square of a first one.
    call.inputs.push_back(here ? random_tensor(dtype, body.slots[i], 3 + i, i == 1 ? -0.25 : 0.5, 1)
                               : Tensor());
    if (std::string(body.op) == "Adafactor" && here) {
      call.inputs.back() = random_tensor(dtype, body.slots[i], 3 + i, 0.5, 1);
    }
    if (std::string(body.op) == "Lamb" && here) {
      call.inputs.back() = random_tensor(dtype, body.slots[i], 3 + i, i == 1 ? 0.5 : -1, 1);
    }
    call.outputs += here;
  }
  call.inputs.push_back(Tensor::scalar_of(dtype, 0.0625));
  if (body.reads_step) call.inputs.push_back(Tensor::scalar<int64_t>(3));
  if (commit >= 0) call.inputs.push_back(Tensor::scalar(commit == 1));
  return call;
}

/// The call as device passes make it: a gradient in 16 bits, two factors, a copy in 16 bits.
BodyCase device_form(BodyCase call, int commit) {
  if (commit < 0) call.inputs.emplace_back();
  const DType dtype = call.inputs[0].dtype();
  call.inputs[1] = call.inputs[1].cast_to(DType::kBF16);
  call.attributes.set("copy_dtype", static_cast<int64_t>(DType::kF16));
  call.inputs.push_back(Tensor::scalar_of(dtype, 0.75));
  call.inputs.push_back(Tensor::scalar_of(dtype, 1.0 / 3));
  ++call.outputs;
  return call;
}

TEST(OptimizerBody, AgreesWithTheKernel) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Shape& shape : {Shape{1}, Shape{7}, Shape{3, 5}, Shape{2, 3, 2, 2}}) {
      for (const OptimizerBody& body : bodies(shape)) {
        // Some ten roundings one after another, on both sides.
        for (const int commit : {-1, 1}) {
          expect_body_agrees(call_of(body, dtype, shape, commit), 20);
          expect_body_agrees(device_form(call_of(body, dtype, shape, commit), commit), 20);
        }
        expect_body_identical(call_of(body, dtype, shape, 0));
        expect_body_identical(device_form(call_of(body, dtype, shape, 0), 0));
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::test
