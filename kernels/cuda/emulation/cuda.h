// What a kernel's source finds under g++ in place of nvcc's built-in names.
#pragma once

#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/emulation/math.h"
#include "kernels/cuda/emulation/memory.h"
#include "kernels/cuda/emulation/types.h"
#include "kernels/cuda/emulation/warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::halfnote::emulation::builtins.thread)
#define blockIdx (::halfnote::emulation::builtins.block)
#define blockDim (::halfnote::emulation::builtins.block_dim)
#define gridDim (::halfnote::emulation::builtins.grid_dim)
#define warpSize (::halfnote::emulation::kWarpSize)
