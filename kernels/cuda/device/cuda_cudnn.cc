#include "kernels/cuda/device/cuda_cudnn.h"

#include <array>

#include "base/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/libraries/library.h"

namespace halfnote::cuda {

namespace {

constexpr libraries::LibraryName kCudnn = {
    "cuDNN", "libcudnn.so.9",
    "install cuDNN 9 for CUDA 13 (NVIDIA's packages, or the Python package nvidia-cudnn-cu13), and "
    "name its folder in HALFNOTE_CUDA_LIBRARIES"};

CudnnFunctions load_cudnn() {
  void* library = libraries::open_library(kCudnn);
  CudnnFunctions functions;
#define HN_LOAD_FUNCTION(name) \
  functions.name =             \
      reinterpret_cast<decltype(&::name)>(libraries::find_function(library, kCudnn, #name));
  HN_CUDNN_FUNCTIONS(HN_LOAD_FUNCTION)
#undef HN_LOAD_FUNCTION
  return functions;
}

/// What the library said of its last failure.
std::string last_words() {
  std::array<char, 512> text{};
  cudnn().cudnnGetLastErrorString(text.data(), text.size());
  return text.data();
}

}  // namespace

const CudnnFunctions& cudnn() {
  static const CudnnFunctions functions = load_cudnn();
  return functions;
}

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kInternal, std::string(call) + " failed with status " +
                                        std::to_string(static_cast<int>(status)) + ": " +
                                        last_words());
}

std::string dnn_version() {
  try {
    const size_t version = cudnn().cudnnGetVersion();
    return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
           "." + std::to_string(version % 100);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDevice) throw;
    return "no cuDNN";
  }
}

}  // namespace halfnote::cuda
