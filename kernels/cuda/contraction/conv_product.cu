#include "kernels/cuda/contraction/conv_product.h"

#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/libraries/lt_request.h"

namespace halfnote::HN_CUDA {

namespace {

using libraries::ConvLayout;
using libraries::Convolution;
using libraries::ConvOperands;
using libraries::ConvProblem;
using libraries::ConvResult;
using libraries::MatmulOperands;
using libraries::MatmulProblem;

/// Does each position of y come from the one position of x that is at its place?
bool is_product(const ConvProblem& problem) {
  const cpu::ConvPlan& p = problem.plan;
  constexpr cpu::ConvPlan::Dims kOne = {1, 1, 1}, kNone = {0, 0, 0};
  return problem.layout == ConvLayout::kChannelsLast && p.groups == 1 && p.kernel == kOne &&
         p.stride == kOne && p.pad_begin == kNone && p.in == p.out;
}

/// Rows of y are rows of x times the filters, transposed; the filters' gradient is y, transposed,
/// times x.
MatmulProblem product_of(const ConvProblem& problem) {
  const cpu::ConvPlan& p = problem.plan;
  const int64_t rows = p.batch * p.out_size();
  MatmulProblem product;
  product.ab = problem.operands;
  product.d = problem.result;
  product.tf32 = problem.tf32;
  product.has_bias = problem.has_bias();
  product.m = problem.wanted == ConvResult::kW ? p.filters : rows;
  product.n = problem.wanted == ConvResult::kY ? p.filters : p.channels;
  product.k = problem.wanted == ConvResult::kY   ? p.channels
              : problem.wanted == ConvResult::kX ? p.filters
                                                 : rows;
  product.trans_a = problem.wanted == ConvResult::kW;
  product.trans_b = problem.wanted == ConvResult::kY;
  product.stride_d = product.m * product.n;
  return product;
}

class ConvolutionAsProduct final : public Convolution {
 public:
  ConvolutionAsProduct(const ConvProblem& problem, std::string_view algorithm)
      : wanted_(problem.wanted),
        product_(product_of(problem)),
        algorithm_(blas().algorithm(product_, algorithm)) {}

  size_t workspace_bytes() const override { return blas().workspace_bytes(product_); }
  void run(Stream& stream, const ConvOperands& operands) const override {
    MatmulOperands all = {.a = operands.y,
                          .b = operands.w,
                          .d = operands.x,
                          .workspace = operands.workspace,
                          .bias = operands.bias,
                          .algorithm = algorithm_.get()};
    if (wanted_ == ConvResult::kY) {
      all.a = operands.x;
      all.d = operands.y;
    } else if (wanted_ == ConvResult::kW) {
      all.b = operands.x;
      all.d = operands.w;
    }
    blas().matmul(stream, product_, all);
  }

 private:
  ConvResult wanted_;
  MatmulProblem product_;
  std::shared_ptr<const libraries::MatmulAlgorithm> algorithm_;
};

}  // namespace

std::vector<std::string> conv_product_algorithms(const ConvProblem& problem) {
  if (!is_product(problem)) return {};
  const MatmulProblem product = product_of(problem);
  if (!libraries::illegal_matmul(product).empty()) return {};
  return blas().algorithms(product);
}

bool names_conv_product(std::string_view algorithm) { return algorithm.starts_with("lt:"); }

std::shared_ptr<const Convolution> plan_conv_product(const ConvProblem& problem,
                                                     std::string_view algorithm) {
  if (!is_product(problem))
    libraries::refuse_algorithm("the convolution", algorithm, "it is no product");
  return std::make_shared<ConvolutionAsProduct>(problem, algorithm);
}

}  // namespace halfnote::HN_CUDA
