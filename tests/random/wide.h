// A training step in f64, exactly or with noise where its types round: what the step would give in
// exact arithmetic, and how far rounding may move it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote::random {

/// The loss and the gradients of a step, by name.
using Numbers = std::map<std::string, Tensor>;

/// Which values get noise, and how much: `amount` times the unit roundoff of the value's own type
/// at most, relative, uniform, from `seed`.
struct Noise {
  uint64_t seed = 0;
  double amount = 0;
  // Only initializers, and what follows from constants alone: what a compiler may have rounded.
  bool constants_only = false;
};

/// A step whose loss is output 0 and whose gradients are outputs named grad/…; everything else is
/// cut away, floats are f64.
class WideStep {
 public:
  explicit WideStep(const Graph& step);
  Numbers run(const std::vector<Tensor>& inputs, const Noise& noise = {}) const;
  /// The largest magnitude among all values of type f16 in a run without noise.
  double largest_f16(const std::vector<Tensor>& inputs) const;

 private:
  Numbers run_all(const std::vector<Tensor>& inputs, const Noise& noise, double* most_f16) const;

  Graph graph_;
  std::vector<DType> types_;     // by value, before they became f64
  std::vector<bool> constants_;  // by value: does it follow from constants alone?
  std::vector<bool> exact_;      // by value: does no type round it?
};

/// Around the exact numbers of a step: by how much each element moves, at most, in `runs` runs with
/// noise. An element's own number is at least a tenth of the largest of its tensor, as a few runs
/// may spare it.
std::map<std::string, std::vector<double>> spreads(const WideStep& step,
                                                   const std::vector<Tensor>& inputs,
                                                   const Noise& noise, int runs);

}  // namespace halfnote::random
