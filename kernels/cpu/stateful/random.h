// What dropout and the random ops do, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/random.h"

namespace halfnote::cpu {

/// Which words math::dropout_words() gives a call. Operators of ours read seed and step from their
/// operands 1 and 2; ONNX's have the bits of an attribute, and no step.
struct RandomStream {
  bool of_operands = false;
  uint64_t seed = 0;  // of the attribute
  uint32_t node = 0;
};

struct DropoutPlan {
  RandomStream stream;
  math::DropoutRule rule;
};

// Each gives the reason why the operands have no kernel, or an empty string.

std::string plan_uniform(const KernelCall& call, RandomStream& stream, math::UniformDraw& draw);
std::string plan_normal(const KernelCall& call, RandomStream& stream, math::NormalDraw& draw);
std::string plan_dropout(const KernelCall& call, DropoutPlan& plan);
/// ONNX's Dropout in its inference form: the identity, and a mask of ones.
std::string plan_inference_dropout(const KernelCall& call);

}  // namespace halfnote::cpu
