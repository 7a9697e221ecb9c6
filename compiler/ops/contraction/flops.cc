// What contractions cost: two operations per multiply-add, whatever the kernel does.
#include <algorithm>

#include "base/ops/attention.h"
#include "compiler/ops/contraction/parts.h"

namespace halfnote::contraction {
namespace {

double size(const Shape& shape) {
  double product = 1;
  for (int64_t dim : shape) product *= static_cast<double>(dim);
  return product;
}

/// Output pixels times the weights that touch each: `result` has the shape of the forward result.
double convolution(const Shape& result, const Shape& weight) {
  if (weight.empty() || weight[0] == 0) return 0;
  return 2.0 * size(result) * size(weight) / static_cast<double>(weight[0]);
}

/// Multiply-adds of Q·Kᵀ are `of_keys` times as many as Q has rows, keys and elements of a row,
/// those of P·V likewise; operations of both.
double attention_products(const Attributes& attributes, std::span<const Shape> operands,
                          double of_keys, double of_values) {
  const bool packed = attributes.get_int("packed", 0) != 0;
  const Shape q = packed ? part_of_packed(operands[0]) : operands[0];
  Shape v = packed ? part_of_packed(operands[2]) : operands[2];
  if (read_rows_first(attributes).v) v = swap_rows_and_heads(v);
  const double rows = size(q) / static_cast<double>(std::max<int64_t>(1, q.back()));
  return 2.0 * rows * static_cast<double>(v[v.size() - 2]) *
         (of_keys * static_cast<double>(q.back()) + of_values * static_cast<double>(v.back()));
}

}  // namespace

/// Elements of the result times the length of the reduced dim of operand 0.
double matmul_flops(const Attributes& attributes, std::span<const Shape> inputs,
                    std::span<const Shape> outputs) {
  if (inputs.size() < 2 || outputs.empty() || inputs[0].empty()) return 0;
  const Shape& a = inputs[0];
  const bool swapped = attributes.get_int("transA", 0) != 0 && a.size() >= 2;
  const int64_t k = swapped ? a[a.size() - 2] : a.back();
  return 2.0 * size(outputs[0]) * static_cast<double>(k);
}

double conv_flops(const Attributes&, std::span<const Shape> inputs,
                  std::span<const Shape> outputs) {
  return inputs.size() < 2 || outputs.empty() ? 0 : convolution(outputs[0], inputs[1]);
}

double conv_grad_input_flops(const Attributes&, std::span<const Shape> inputs,
                             std::span<const Shape>) {
  return inputs.size() < 2 ? 0 : convolution(inputs[0], inputs[1]);
}

double conv_grad_weight_flops(const Attributes&, std::span<const Shape> inputs,
                              std::span<const Shape> outputs) {
  return inputs.empty() || outputs.empty() ? 0 : convolution(inputs[0], outputs[0]);
}

/// Scores from Q (…, M, D) and V (…, N, E), and the values they weigh.
double attention_flops(const Attributes& attributes, std::span<const Shape> inputs,
                       std::span<const Shape>) {
  if (inputs.size() < 3 || inputs[0].size() < 2 || inputs[2].size() < 2) return 0;
  return attention_products(attributes, inputs.first(3), 1, 1);
}

/// The four products of the gradient, and the scores once more.
double attention_grad_flops(const Attributes& attributes, std::span<const Shape> inputs,
                            std::span<const Shape>) {
  if (inputs.size() < 4 || inputs[1].size() < 2 || inputs[3].size() < 2) return 0;
  return attention_products(attributes, inputs.subspan(1, 3), 3, 2);
}

/// Every row of X at every step with W, and the state with R.
double recurrent_flops(const Attributes&, std::span<const Shape> inputs, std::span<const Shape>) {
  if (inputs.size() < 3 || inputs[0].size() != 3) return 0;
  const Shape& x = inputs[0];
  return 2.0 * static_cast<double>(x[0]) * static_cast<double>(x[1]) *
         (size(inputs[1]) + size(inputs[2]));
}

/// Two products for each of the forward's: for its operand, and for its weight.
double recurrent_grad_flops(const Attributes& attributes, std::span<const Shape> inputs,
                            std::span<const Shape> outputs) {
  return 2.0 * recurrent_flops(attributes, inputs, outputs);
}

}  // namespace halfnote::contraction
