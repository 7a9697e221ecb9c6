#include "runtime/core/flops.h"

namespace halfnote {
namespace {

double size(const Operand& operand) { return static_cast<double>(operand.size()); }

/// Elements of the result times the length of the reduced dim of operand 0.
double matmul(const KernelCall& call, const char* transposed) {
  const Shape& a = call.inputs[0].shape;
  if (a.empty()) return 0;
  const bool swapped = call.attributes->get_int(transposed, 0) != 0 && a.size() >= 2;
  const int64_t k = swapped ? a[a.size() - 2] : a.back();
  return 2.0 * size(call.outputs[0]) * static_cast<double>(k);
}

/// Output pixels times the weights that touch each: `result` is the operand of the forward output's
/// shape.
double convolution(const Operand& result, const Operand& weight) {
  if (weight.shape.empty() || weight.shape[0] == 0) return 0;
  return 2.0 * size(result) * size(weight) / static_cast<double>(weight.shape[0]);
}

/// Products of a recurrent op: every row of X at every step with W, and the state with R.
double recurrence(const KernelCall& call) {
  const Shape& x = call.inputs[0].shape;
  if (x.size() != 3 || call.inputs.size() < 3) return 0;
  return 2.0 * static_cast<double>(x[0] * x[1]) * (size(call.inputs[1]) + size(call.inputs[2]));
}

}  // namespace

double contraction_flops(const KernelCall& call) {
  if (call.inputs.size() < 2 || call.outputs.empty()) return 0;
  if (call.op == "MatMul" || call.op == "Gemm") return matmul(call, "transA");
  if (call.op == "Conv") return convolution(call.outputs[0], call.inputs[1]);
  if (call.op == "ConvTranspose") return convolution(call.inputs[0], call.inputs[1]);
  if (call.op == "ConvGradInput") return convolution(call.inputs[0], call.inputs[1]);
  if (call.op == "ConvGradWeight") return convolution(call.inputs[0], call.outputs[0]);
  if (call.op == "LSTM" || call.op == "GRU" || call.op == "RNN") return recurrence(call);
  // Two products for each of the forward's: for its operand, and for its weight.
  if (call.op == "LSTMGrad" || call.op == "GRUGrad" || call.op == "RNNGrad") {
    return 2.0 * recurrence(call);
  }
  return 0;
}

}  // namespace halfnote
