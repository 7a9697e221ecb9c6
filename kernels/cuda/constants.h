// Small tables that the host has planned, brought to the device as arguments of kernels: a copy
// from the host's memory would have to find it there at every launch of the captured step.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/launch.h"

namespace halfnote::HN_CUDA {

/// Writes bytes to the device's memory; the host's may go at once.
void write_constants(Stream& stream, void* to, std::span<const std::byte> bytes);

template <class T>
void write_table(Stream& stream, T* to, const std::vector<T>& table) {
  write_constants(stream, to, std::as_bytes(std::span(table)));
}

}  // namespace halfnote::HN_CUDA
