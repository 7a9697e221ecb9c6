// A maximum that keeps its taps (kernels/cpu/reduction/kept_maxima.h), of tensors that lie plain or
// channels last.
#pragma once

#include "kernels/cpu/reduction/kept_maxima.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/divisor.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

/// Where the tap of a window is whose result is at `place` of a tensor: where that one is if it
/// lies channels last, where that would be if it lies plain.
struct TapPlaces {
  Divisor pixels, channels;  // channels: those of an image that lies plain, else 1

  __device__ int64_t of(int64_t place) const {
    if (channels.value() == 1) return place;
    const int64_t plane = pixels.quotient(place), position = place - plane * pixels.value();
    const int64_t image = channels.quotient(plane), channel = plane - image * channels.value();
    return (image * pixels.value() + position) * channels.value() + channel;
  }
};

/// `channels` lie side by side: 1 where the tensors are plain.
Prepared prepare_kept_max_pool(const KernelCall& call, const cpu::KeptMaxPool& pool,
                               int64_t channels);

}  // namespace halfnote::HN_CUDA
