// What cuDNN is asked for a convolution, as data: the descriptors of its graph API before they are
// the library's. CUDA's side turns them into handles, the emulated one holds them against the
// library's rules, and tests record them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/shape.h"
#include "kernels/cuda/libraries/dnn.h"

namespace halfnote::libraries {

/// Bytes that all addresses are a multiple of: what the kernels for tensor cores want.
inline constexpr int64_t kDnnAlignment = 16;
/// Where the library's documentation wants the workspace to lie.
inline constexpr size_t kDnnWorkspaceAlignment = 256;
/// A plan that wants more is passed over.
inline constexpr int64_t kDnnMostWorkspace = int64_t{512} << 20;

/// A tensor: its dims are in the library's order (batch or filters, channels, spatial…).
struct DnnTensor {
  int64_t id = 0;
  DType dtype = DType::kUndefined;
  Shape dims, strides;  // strides in elements

  friend bool operator==(const DnnTensor&, const DnnTensor&) = default;
};

/// One operation, a graph of its own; alpha is 1 and beta 0. With a bias a second one, which adds
/// it to the first one's sums.
struct DnnRequest {
  ConvResult wanted = ConvResult::kY;
  DType compute = DType::kUndefined;
  DnnTensor x, w, y;
  DnnTensor bias;  // a number for each channel of the result; without dims: there is none
  Shape stride, dilation, pad_begin, pad_end;  // of the spatial dims
  bool tensor_cores = false;                   // may engines use them?

  bool has_bias() const { return !bias.dims.empty(); }
  const DnnTensor& result() const {
    return wanted == ConvResult::kX ? x : wanted == ConvResult::kW ? w : y;
  }
  friend bool operator==(const DnnRequest&, const DnnRequest&) = default;
};

DnnRequest dnn_request(const ConvProblem& problem);

/// The rule of cuDNN's documentation that the request breaks; empty if it keeps all: types that go
/// together, two or three spatial dims, extents of x, w and y that belong together, elements that
/// 32 bits can count, strides of one packed layout, different ids; a bias of the
/// result's type, and none of weights.
std::string illegal_request(const DnnRequest& request);
/// The same of the addresses: all there, aligned as promised, the result over no operand, and of a
/// workspace of `bytes` too.
std::string illegal_operands(const DnnRequest& request, const ConvOperands& operands,
                             size_t workspace_bytes);

}  // namespace halfnote::libraries

namespace halfnote::cuda {

/// For tests, in a build with CUDA: what cuDNN itself says of the request as far as it goes without
/// a GPU (tensors, convolution, operation, graph); empty if it takes it. Throws Error(kDevice) if
/// it is not installed.
std::string refusal_of_descriptors(const libraries::DnnRequest& request);
/// For tests: what cuDNN plans for it on a GPU that is not there (libraries/sdpa.h).
PaperPlan plan_on_paper(const libraries::DnnRequest& request, const std::string& device);
/// For tests: the engines that it has plans of there; and the plan of one of them.
std::vector<std::string> engines_on_paper(const libraries::DnnRequest& request,
                                          const std::string& device);
PaperPlan plan_on_paper(const libraries::DnnRequest& request, const std::string& device,
                        std::string_view engine);

}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {

/// For tests: from now on every request is put there when it runs or is captured; null: nowhere.
void record_convolutions(std::vector<libraries::DnnRequest>* requests);
/// For tests: likewise the names of engines, empty where the library chose.
void record_engines(std::vector<std::string>* engines);
/// For tests: the emulated library has no plan where this says why (as cuDNN may have none on some
/// GPU); null: it has a plan for everything.
void refuse_convolutions(std::string (*why)(const libraries::DnnRequest& request));

}  // namespace halfnote::cuda_emulated
