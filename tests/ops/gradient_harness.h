// Checks the gradient rule of an operator against central differences in f64.
#pragma once

#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/graph.h"

namespace halfnote::test {

enum class Dims : uint8_t { kFixed, kSymbolic };

/// One call of an op whose rule is checked. An undefined tensor stands for an absent optional
/// input.
struct GradientCase {
  std::string name;
  std::string op;
  Attributes attributes = {};
  std::vector<Tensor> inputs;     // floats in f64
  std::vector<size_t> wrt = {0};  // inputs whose gradient is checked
  int outputs = 1;
  std::vector<size_t> silent = {};  // outputs into which no gradient flows
  /// Integer and bool inputs are constants of the graph, floats are not, but for these.
  std::vector<size_t> computed = {}, constants = {};
  std::string domain = {};
};

/// The gradients that the rule gives for the inputs `wrt`, for these gradients of the results
/// (undefined for a silent one). With symbolic dims the rule sees no size but 1; equal sizes have
/// equal symbols. An undefined tensor stands for no gradient, that is zero.
std::vector<Tensor> rule_gradients(const GradientCase& test, const std::vector<Tensor>& dy,
                                   Dims dims = Dims::kFixed);

/// The graph that the rule made, its inputs those of the case and then the gradients of the
/// results, its outputs the gradients of `wrt`.
Graph gradient_graph(const GradientCase& test, const std::vector<Tensor>& dy, Dims dims);

/// The op's ScaleRule holds: with S on the operands that may carry it, all of them or for a product
/// one, the float results are those without times the power that the rule says, bit for bit.
void expect_scale_rule(const GradientCase& test);

/// Every element of every gradient agrees with the central difference of Σ dY·Y, dY random, within
/// 1e-6 of the largest of its tensor. The difference itself is exact to about 1e-9. Types and
/// shapes are those of the inputs. Also without fixed sizes, where `dims` says so. A loss scale on
/// dY is on every gradient, by the ScaleRules of the ops that the rule emits.
void expect_gradient(const GradientCase& test, Dims dims = Dims::kFixed);

}  // namespace halfnote::test
