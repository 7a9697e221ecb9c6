// cuDNN's functions, found in the library when the first one is called.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "kernels/cuda/libraries/rnn.h"
#include "kernels/cuda/libraries/sdpa.h"

namespace halfnote::cuda {

// Every function that is used, by its name in the library.
#define HN_CUDNN_FUNCTIONS(X)      \
  X(cudnnBackendCreateDescriptor)  \
  X(cudnnBackendDestroyDescriptor) \
  X(cudnnBackendExecute)           \
  X(cudnnBackendFinalize)          \
  X(cudnnBackendGetAttribute)      \
  X(cudnnBackendSetAttribute)      \
  X(cudnnCreate)                   \
  X(cudnnCreateDropoutDescriptor)  \
  X(cudnnCreateRNNDataDescriptor)  \
  X(cudnnCreateRNNDescriptor)      \
  X(cudnnCreateTensorDescriptor)   \
  X(cudnnDestroyDropoutDescriptor) \
  X(cudnnDestroyRNNDataDescriptor) \
  X(cudnnDestroyRNNDescriptor)     \
  X(cudnnDestroyTensorDescriptor)  \
  X(cudnnGetErrorString)           \
  X(cudnnGetLastErrorString)       \
  X(cudnnGetRNNTempSpaceSizes)     \
  X(cudnnGetRNNWeightParams)       \
  X(cudnnGetRNNWeightSpaceSize)    \
  X(cudnnGetStream)                \
  X(cudnnGetVersion)               \
  X(cudnnRNNBackwardData_v8)       \
  X(cudnnRNNBackwardWeights_v8)    \
  X(cudnnRNNForward)               \
  X(cudnnSetDropoutDescriptor)     \
  X(cudnnSetRNNDataDescriptor)     \
  X(cudnnSetRNNDescriptor_v8)      \
  X(cudnnSetStream)                \
  X(cudnnSetTensorNdDescriptor)

struct CudnnFunctions {
#define HN_FIELD(name) decltype(&::name) name = nullptr;
  HN_CUDNN_FUNCTIONS(HN_FIELD)
#undef HN_FIELD
};

/// Throws Error(kDevice) if the library is not installed.
const CudnnFunctions& cudnn();

/// Throws Error(kInternal) naming the call, with what the library said.
void check_dnn(cudnnStatus_t status, const char* call);

/// Null, with a reason, where cuDNN has no deterministic plan (cuda_sdpa.cc).
std::shared_ptr<const libraries::Sdpa> plan_attention(cudnnHandle_t handle,
                                                      const libraries::SdpaProblem& problem,
                                                      std::string& refusal);

/// Null, with a reason, where cuDNN has nothing for it, or packs weights in another way
/// (cuda_rnn.cc).
std::shared_ptr<const libraries::Rnn> plan_recurrent_layer(cudnnHandle_t handle,
                                                           const libraries::RnnProblem& problem,
                                                           std::string& refusal);

}  // namespace halfnote::cuda
