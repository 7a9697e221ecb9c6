// Convolutions of single elements as products of matrices. Channels last each position is a row of
// x and of y, and the filters are a matrix: what the library of convolutions computes, that of
// products may compute faster.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libraries/dnn.h"

namespace halfnote::HN_CUDA {

/// The names of the library's algorithms for the product that a convolution is, best first; none
/// where it is no product: kernels of more elements, strides, pads, groups, another layout.
std::vector<std::string> conv_product_algorithms(const libraries::ConvProblem& problem);

/// Is that the name of such an algorithm, and not of an engine for convolutions?
bool names_conv_product(std::string_view algorithm);

/// The convolution as a product by the algorithm of that name. Throws Error(kUsage) if the library
/// does not take it for the problem, or that is no product.
std::shared_ptr<const libraries::Convolution> plan_conv_product(
    const libraries::ConvProblem& problem, std::string_view algorithm);

}  // namespace halfnote::HN_CUDA
