// The operator rows of the normalizations and of softmax.
#include <iterator>

#include "compiler/ir/model.h"
#include "compiler/ops/families.h"
#include "compiler/ops/normalization/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote {
namespace {

using namespace normalization;  // NOLINT(google-build-using-namespace): the rules of this family
using enum PrecisionClass;

constexpr OperatorRow kNormalizations[] = {
    {.name = "BatchNormalization",
     .precision = kFp32,
     .legality = {1, 14},
     .fp32_inputs = 0b11110,  // scale, B, mean, var
     .fp32_outputs = 0b110,   // running mean and variance
     .fp32_math_inside = true,
     .gradient = batch_normalization_gradient,
     .note = "16-bit X with f32 parameters and statistics"},
    {.name = "GroupNormalization",
     .precision = kFp32,
     .legality = {18, 18},
     .fp32_math_inside = true,
     .gradient = group_normalization_gradient,
     .infer = infer_like<0>,
     .note = "stash_type keeps the statistics in f32"},
    {.name = "Hardmax",
     .precision = kClear,
     .legality = {1, 13},
     .gradient = no_slope,
     .note = "one-hot of the maximum: piecewise constant"},
    {.name = "InstanceNormalization",
     .precision = kFp32,
     .legality = {1, 22},
     .gradient = instance_normalization_gradient,
     .note = "no form with f32 statistics in ONNX: f32 in and out"},
    {.name = "LRN",
     .precision = kFp32,
     .legality = {1, 13},
     .gradient = lrn_gradient,
     .note = "squares overflow f16"},
    {.name = "LayerNormalization",
     .precision = kFp32,
     .legality = {17, 17},
     .fp32_outputs = 0b110,  // Mean, InvStdDev
     .fp32_math_inside = true,
     .gradient = layer_normalization_gradient,
     .note = "stash_type keeps the statistics in f32"},
    {.name = "LogSoftmax",
     .precision = kFp32,
     .legality = {1, 13},
     .gradient = log_softmax_gradient,
     .note = "f32 math"},
    {.name = "LpNormalization",
     .precision = kFp32,
     .legality = {1, 22},
     .gradient = lp_normalization_gradient,
     .note = "norms in f32"},
    {.name = "MeanVarianceNormalization",
     .precision = kFp32,
     .legality = {9, 13},
     .gradient = mean_variance_normalization_gradient,
     .infer = infer_like<0>,
     .note = "means and squares in f32"},
    {.name = "RMSNormalization",
     .precision = kFp32,
     .legality = {23, 23},
     .fp32_math_inside = true,
     .gradient = rms_normalization_gradient,
     .note = "stash_type keeps the statistics in f32"},
    {.name = "Softmax",
     .precision = kFp32,
     .legality = {1, 13},
     .gradient = softmax_gradient,
     .note = "f32 math"},
};

constexpr OperatorRow kHalfnoteNormalizations[] = {
    {.domain = kHalfnoteDomain,
     .name = "BatchNormalization",
     .precision = kFp32,
     .legality = {1, 1},
     .fp32_inputs = 0b11110,
     .fp32_outputs = 0b11110,
     .fp32_math_inside = true,
     .gradient = saved_batch_normalization_gradient,
     .infer = infer_batch_normalization,
     .body = batch_normalization_body,
     .note = "training form that keeps its statistics for the backward; with a sum and Relu behind "
             "it on GPUs"},
    {.domain = kHalfnoteDomain,
     .name = "BatchNormalizationGrad",
     .precision = kFp32,
     .legality = {1, 1},
     .fp32_inputs = 0b10011100,
     .fp32_outputs = 0b110,
     .fp32_math_inside = true,
     .scale = ScaleRule::kFirst,
     .linear_inputs = 0b100001,  // both parts of dY
     .no_gradient = kSecond,
     .infer = infer_batch_normalization_grad,
     .body = batch_normalization_grad_body,
     .note = "gradient of BatchNormalization in training form"},
    {.domain = kHalfnoteDomain,
     .name = "GroupNormalizationGrad",
     .precision = kFp32,
     .legality = {1, 1},
     .has_out_dtype = true,
     .fp32_math_inside = true,
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_group_normalization_grad,
     .body = group_normalization_grad_body,
     .note = "gradient of GroupNormalization and InstanceNormalization"},
    {.domain = kHalfnoteDomain,
     .name = "LayerNormalizationGrad",
     .precision = kFp32,
     .legality = {1, 1},
     .fp32_inputs = 0b11000,
     .has_out_dtype = true,
     .fp32_math_inside = true,
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_layer_normalization_grad,
     .body = layer_normalization_grad_body,
     .note = "gradient of LayerNormalization; out_dtype is that of dScale and dB"},
    {.domain = kHalfnoteDomain,
     .name = "LogSoftmaxGrad",
     .precision = kFp32,
     .legality = {1, 1},
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_like<1>,
     .body = log_softmax_grad_body,
     .note = "gradient of LogSoftmax from its output"},
    {.domain = kHalfnoteDomain,
     .name = "RMSNormalizationGrad",
     .precision = kFp32,
     .legality = {1, 1},
     .has_out_dtype = true,
     .fp32_math_inside = true,
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_rms_normalization_grad,
     .body = rms_normalization_grad_body,
     .note = "gradient of RMSNormalization; out_dtype is that of dScale"},
    {.domain = kHalfnoteDomain,
     .name = "SoftmaxGrad",
     .precision = kFp32,
     .legality = {1, 1},
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_like<1>,
     .body = softmax_grad_body,
     .note = "gradient of Softmax from its output"},
};

}  // namespace

std::vector<OperatorRow> normalization_rows() {
  std::vector<OperatorRow> rows(std::begin(kNormalizations), std::end(kNormalizations));
  rows.insert(rows.end(), std::begin(kHalfnoteNormalizations), std::end(kHalfnoteNormalizations));
  return rows;
}

}  // namespace halfnote
