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

/// The shape of V with its heads before the rows.
Shape meant_values(const Attributes& attributes, const Shape& stored) {
  return read_rows_first(attributes).v ? swap_rows_and_heads(stored) : stored;
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
  const Shape &q = inputs[0], v = meant_values(attributes, inputs[2]);
  return 2.0 * size(q) / static_cast<double>(std::max<int64_t>(1, q.back())) *
         static_cast<double>(v[v.size() - 2] * (q.back() + v.back()));
}

/// The four products of the gradient, and the scores once more.
double attention_grad_flops(const Attributes& attributes, std::span<const Shape> inputs,
                            std::span<const Shape>) {
  if (inputs.size() < 4 || inputs[1].size() < 2 || inputs[3].size() < 2) return 0;
  const Shape &q = inputs[1], v = meant_values(attributes, inputs[3]);
  return 2.0 * size(q) / static_cast<double>(std::max<int64_t>(1, q.back())) *
         static_cast<double>(v[v.size() - 2] * (3 * q.back() + 2 * v.back()));
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
