// Rows of the signal family that stand in files of their own.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

KernelRow mel_row();  // mel.cu: MelWeightMatrix

}  // namespace halfnote::HN_CUDA
