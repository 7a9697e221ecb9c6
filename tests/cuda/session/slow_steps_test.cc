// What is told of steps that no library takes.
#include <gtest/gtest.h>

#include <string>

#include "compiler/ir/text.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

/// What a session tells whose step, of a convolution in this type, is planned.
std::string told_of(const std::string& type, const std::string& device,
                    const std::string& kernels = {}) {
  const std::string text = "<ir_version: 10, opset_import: [\"\" : 17]> conv (" + type +
                           "[1,1,3,3] x) => (float l) <" + type +
                           "[1,1,1,1] w = {2}> { [far] y = Conv (x, w) z = Cast <to = 1> (y)"
                           " l = ReduceMean <keepdims = 0> (z) }";
  CompileOptions options;
  options.policy.dtype = DType::kF32;
  options.train.loss_outputs = {"l"};
  SessionOptions on;
  on.device = device;
  on.kernels = kernels;
  Session session(compile_model(parse_model(text, "conv"), options).model, on);
  session.prepare(std::vector<Shape>{{1, 1, 3, 3}});
  std::string told;
  for (const Remark& remark : session.device_remarks()) {
    if (remark.pass == "kernels") told += remark.text;
  }
  return told;
}

TEST(SlowSteps, ALibrarysRefusalIsTold) {
  const std::string told = told_of("double", test::tested_device());
  EXPECT_NE(told.find("100 % of its FLOPs"), std::string::npos) << told;
  EXPECT_NE(told.find("(Conv) on own.conv"), std::string::npos) << told;
  EXPECT_NE(told.find("dnn.conv: f64 is for checks"), std::string::npos) << told;
  EXPECT_EQ(told_of("float", test::tested_device()), "");
  EXPECT_EQ(told_of("double", test::tested_device(), "own"), "") << "as it was asked for";
  EXPECT_EQ(told_of("double", "cpu"), "");
}

}  // namespace
}  // namespace halfnote
