// Runs a call of an ai.halfnote op twice: on its kernel, and as its function body in standard ops
// on theirs; both must agree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/graph.h"
#include "compiler/ir/model.h"

namespace halfnote::test {

/// One call. An undefined tensor stands for an absent optional input.
struct BodyCase {
  std::string name;
  std::string op;
  Attributes attributes;
  std::vector<Tensor> inputs;
  int outputs = 1;
  /// Inputs that are constants of the calling graph (a target shape) rather than its inputs.
  std::vector<size_t> constants = {};
  /// Is the size of the batch, the first dim of the first operand, unknown to the body?
  bool symbolic_batch = false;
};

/// A graph of this one node, its outputs the node's; types inferred.
Graph graph_of(const BodyCase& call);
/// The inputs of graph_of(call): those of the call that are neither constant nor absent.
std::vector<Tensor> graph_inputs(const BodyCase& call);
/// The function body of the call.
Function body_of(const BodyCase& call);
std::vector<Tensor> run_kernel(const BodyCase& call);
std::vector<Tensor> run_body(const BodyCase& call);

/// Numbers in [low, high), the same for the same seed everywhere.
Tensor random_tensor(DType dtype, Shape shape, uint64_t seed, double low = -1, double high = 1);
/// The same in f64, as gradients are checked in.
inline Tensor f64(Shape shape, uint64_t seed = 1, double low = -1, double high = 1) {
  return random_tensor(DType::kF64, std::move(shape), seed, low, high);
}
Tensor random_ints(DType dtype, Shape shape, uint64_t seed, int64_t low, int64_t high);
Tensor ints(const std::vector<int64_t>& numbers);

/// The spacing of a float type at 1.
double spacing(DType dtype);
/// Same types and shapes; every element within one spacing of its type (both sides round once),
/// plus `sums` spacings of the math type at the largest magnitude of the tensor (orders of
/// summation differ).
void expect_close(const std::vector<Tensor>& kernel, const std::vector<Tensor>& body, double sums);
/// run_kernel against run_body, with and without a symbolic batch.
void expect_body_agrees(const BodyCase& call, double sums);
/// … bit for bit, both times.
void expect_body_identical(const BodyCase& call);

}  // namespace halfnote::test
