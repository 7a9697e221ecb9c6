// A device of the emulator, and kernels of the tests on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/launch.h"

namespace halfnote::cuda_emulated {

class EmulatorTest : public ::testing::Test {
 protected:
  ~EmulatorTest() override { emulation::set_emulation_seed(1); }

  template <class... Formal, class... Actual>
  void run(void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared, Actual... arguments) {
    launch(*stream_, kernel, grid, block, shared, arguments...);
    stream_->synchronise();
  }
  /// What the Error of a launch says; empty if there is none.
  template <class... Formal, class... Actual>
  std::string error_of(void (*kernel)(Formal...), dim3 grid, dim3 block, Actual... arguments) {
    try {
      run(kernel, grid, block, 0, arguments...);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  EmulatedDevice device_;
  std::unique_ptr<Stream> stream_ = device_.make_stream();
};

}  // namespace halfnote::cuda_emulated
