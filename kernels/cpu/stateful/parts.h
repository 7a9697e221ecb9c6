// The rows of the stateful family, file by file.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace halfnote::cpu {

std::vector<KernelRow> random_rows();        // random.cc: RandomNormal, RandomUniform, Dropout
std::vector<KernelRow> fast_dropout_rows();  // fast_dropout.cc
std::vector<KernelRow> optimizer_rows();     // optimizer.cc: SGD, Momentum, Adam, AdamW
std::vector<KernelRow> adaptive_optimizer_rows();  // optimizer_adaptive.cc: Adagrad, RMSprop, Lion
std::vector<KernelRow> scaled_optimizer_rows();    // optimizer_scaled.cc: LAMB, Adafactor
std::vector<KernelRow> fast_scaled_rows();         // fast_scaled.cc: the same two in vectors
std::vector<KernelRow> scaling_rows();  // scaling.cc: AllFinite, GlobalNorm, UpdateLossScale

}  // namespace halfnote::cpu
