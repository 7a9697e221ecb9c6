// The operator rows of the losses.
#include "compiler/ir/model.h"
#include "compiler/ops/families.h"
#include "compiler/ops/loss/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote {

using namespace loss;  // NOLINT(google-build-using-namespace): the rules of this family

std::vector<OperatorRow> loss_rows() {
  using enum PrecisionClass;
  return {
      {.name = "NegativeLogLikelihoodLoss",
       .precision = kFp32,
       .legality = {12, 22},
       .gradient = nll_gradient,
       .note = "f32 math and loss"},
      {.name = "SoftmaxCrossEntropyLoss",
       .precision = kFp32,
       .legality = {12, 13},
       .fp32_outputs = 0b11,  // the loss is f32 before the loss scale multiplies it; log_prob
       .gradient = softmax_cross_entropy_gradient,
       .note = "f32 math and loss"},
      {.domain = kHalfnoteDomain,
       .name = "NegativeLogLikelihoodLossGrad",
       .precision = kFp32,
       .legality = {1, 1},
       .fp32_inputs = 0b1,  // dL, where the loss scale enters
       .has_out_dtype = true,
       .scale = ScaleRule::kFirst,
       .no_gradient = kSecond,
       .infer = infer_nll_grad,
       .body = nll_grad_body,
       .note = "gradient of NegativeLogLikelihoodLoss"},
      {.domain = kHalfnoteDomain,
       .name = "SoftmaxCrossEntropyLossWithGradient",
       .precision = kOpaque,
       .legality = {1, 1},
       .no_gradient = kSecond,
       .infer = infer_loss_and_grad,
       .body = loss_and_grad_body,
       .note = "loss and gradient from the scores, one pass over memory; made for a device"},
      {.domain = kHalfnoteDomain,
       .name = "CountCorrect",
       .precision = kOpaque,
       .legality = {1, 1},
       .no_gradient = "it counts",
       .infer = infer_count_correct,
       .body = count_correct_body,
       .note = "labels with the highest scores; made where a run counts them"},
      {.domain = kHalfnoteDomain,
       .name = "SoftmaxCrossEntropyLossGrad",
       .precision = kFp32,
       .legality = {1, 1},
       .fp32_inputs = 0b1,
       .scale = ScaleRule::kFirst,
       .no_gradient = kSecond,
       .infer = infer_like<1>,
       .body = softmax_cross_entropy_grad_body,
       .note = "gradient of SoftmaxCrossEntropyLoss from log_prob"},
  };
}

}  // namespace halfnote
