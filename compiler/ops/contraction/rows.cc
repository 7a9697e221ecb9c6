// The operator rows of the contractions: matrix products, convolutions, attention and recurrence.
#include <iterator>

#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/families.h"
#include "compiler/ops/reduction/parts.h"

namespace halfnote {
namespace {

using namespace contraction;  // NOLINT(google-build-using-namespace): the rules of this family
using enum PrecisionClass;

constexpr std::string_view kInteger = "the operands are integers or quantized: no gradient exists";
constexpr std::string_view kRecurrent =
    "not in this release: gradients of recurrent ops; unroll the loop";
constexpr std::string_view kAttention =
    "not in this release: gradient of fused attention; export it as MatMul and Softmax";
constexpr std::string_view kSecond = "not in this release: second derivatives";

constexpr OperatorRow kOnnxRows[] = {
    {.name = "Attention",
     .precision = kAllow,
     .legality = {23, 23},
     .fp32_inputs = 1u << 3,  // the mask has a type of its own
     .no_gradient = kLowered,
     .lower = lower_attention,
     .note = "written as MatMul and Softmax"},
    {.name = "CausalConvWithState",
     .precision = kInfer,
     .legality = {27, 27},
     .no_gradient = "not in this release: gradients of ops newer than op-set 23",
     .note = "depthwise causal convolution with a carried state"},
    {.name = "Col2Im",
     .precision = kInfer,
     .legality = {18, 18},
     .scale = ScaleRule::kFirst,
     .no_gradient = kLowered,
     .lower = reduction::lower_col2im,
     .note = "adds overlapping blocks into an image"},
    {.name = "Conv",
     .precision = kAllow,
     .legality = {1, 22},
     .scale = ScaleRule::kProduct,
     .gradient = conv_gradient,
     .note = "convolution, f32 accumulation"},
    {.name = "ConvInteger",
     .precision = kOpaque,
     .no_gradient = kInteger,
     .note = "8-bit convolution"},
    {.name = "ConvTranspose",
     .precision = kAllow,
     .legality = {1, 22},
     .scale = ScaleRule::kProduct,
     .no_gradient = "not in this release: gradient of ConvTranspose",
     .note = "transposed convolution, f32 accumulation"},
    {.name = "DeformConv",
     .precision = kFp32,
     .legality = {19, 22},
     .no_gradient = "not in this release: gradient of DeformConv",
     .note = "the sampling offsets need f32"},
    {.name = "Einsum",
     .precision = kAllow,
     .legality = {12, 28},
     .scale = ScaleRule::kProduct,
     .no_gradient = kLowered,
     .lower = lower_einsum,
     .note = "written as Transpose, MatMul, ReduceSum and Mul"},
    {.domain = "ai.onnx.preview",
     .name = "FlexAttention",
     .precision = kAllow,
     .legality = {1, 1},
     .no_gradient = kAttention,
     .note = "attention with score and mask functions"},
    {.name = "GRU",
     .precision = kAllow,
     .legality = {1, 22},
     .no_gradient = kRecurrent,
     .note = "gate math in f32"},
    {.name = "Gemm",
     .precision = kAllow,
     .legality = {1, 13},
     .scale = ScaleRule::kProduct,
     .gradient = gemm_gradient,
     .note = "alpha and beta are applied in f32"},
    {.name = "LSTM",
     .precision = kAllow,
     .legality = {1, 22},
     .no_gradient = kRecurrent,
     .note = "gate math in f32"},
    {.name = "LinearAttention",
     .precision = kFp32,
     .legality = {27, 27},
     .no_gradient = "not in this release: gradients of ops newer than op-set 23",
     .note = "a recurrent state accumulates"},
    {.name = "MatMul",
     .precision = kAllow,
     .legality = {1, 13},
     .scale = ScaleRule::kProduct,
     .gradient = matmul_gradient,
     .note = "matrix product, f32 accumulation"},
    {.name = "MatMulInteger",
     .precision = kOpaque,
     .no_gradient = kInteger,
     .note = "8-bit matrix product"},
    {.name = "QLinearConv",
     .precision = kOpaque,
     .fp32_inputs = (1u << 1) | (1u << 4) | (1u << 6),
     .no_gradient = kInteger,
     .note = "quantized convolution; its scales stay f32"},
    {.name = "QLinearMatMul",
     .precision = kOpaque,
     .legality = {21, 21},
     .no_gradient = kInteger,
     .note = "quantized matrix product; its scales keep their type"},
    {.name = "RNN",
     .precision = kAllow,
     .legality = {1, 22},
     .no_gradient = kRecurrent,
     .note = "gate math in f32"},
};

constexpr OperatorRow kHalfnoteRows[] = {
    {.domain = kHalfnoteDomain,
     .name = "ConvGradInput",
     .precision = kAllow,
     .legality = {1, 1},
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_conv_grad_input,
     .body = conv_grad_input_body,
     .note = "gradient of Conv with respect to its input"},
    {.domain = kHalfnoteDomain,
     .name = "ConvGradWeight",
     .precision = kAllow,
     .legality = {1, 1},
     .has_out_dtype = true,
     .scale = ScaleRule::kFirst,
     .no_gradient = kSecond,
     .infer = infer_conv_grad_weight,
     .body = conv_grad_weight_body,
     .note = "gradient of Conv with respect to its weight"},
    {.domain = kHalfnoteDomain,
     .name = "Gemm",
     .precision = kAllow,
     .legality = {1, 1},
     .has_out_dtype = true,
     .scale = ScaleRule::kProduct,
     .gradient = gemm_gradient,
     .infer = infer_gemm,
     .body = gemm_body,
     .note = "ONNX Gemm that may write f32 from 16-bit operands"},
    {.domain = kHalfnoteDomain,
     .name = "MatMul",
     .precision = kAllow,
     .legality = {1, 1},
     .has_out_dtype = true,
     .scale = ScaleRule::kProduct,
     .gradient = transposed_matmul_gradient,
     .infer = infer_matmul,
     .body = matmul_body,
     .note = "ONNX MatMul with transpose flags that may write f32 from 16-bit operands"},
};

}  // namespace

std::vector<OperatorRow> contraction_rows() {
  std::vector<OperatorRow> rows(std::begin(kOnnxRows), std::end(kOnnxRows));
  rows.insert(rows.end(), std::begin(kHalfnoteRows), std::end(kHalfnoteRows));
  return rows;
}

}  // namespace halfnote
