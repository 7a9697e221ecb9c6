// What the families of random nodes stand on: dice, the pool of values made so far, and nodes that
// are run as they are made, so that nothing that is not finite grows into a model.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/builder.h"
#include "tests/random/problem.h"

namespace halfnote::random {

/// Thrown by a family that finds no operands, or makes a value that is not finite or too large.
struct Misfit {};

inline constexpr int64_t kMostElements = 8192;  // of a value

/// Is every number finite and at most kLargest?
bool tame(const Tensor& tensor);

class Growth {
 public:
  explicit Growth(uint64_t seed);

  // --- dice --------------------------------------------------------------------------------------
  int pick(int limit);
  bool chance(int percent) { return pick(100) < percent; }
  int between(int low, int high) { return low + pick(high - low + 1); }
  template <class T, size_t N>
  const T& one_of(const T (&choices)[N]) {
    return choices[pick(static_cast<int>(N))];
  }
  /// Mostly small and odd, now and then 0.
  int64_t size();

  // --- values ------------------------------------------------------------------------------------
  Graph& graph() { return graph_; }
  Builder& builder() { return b_; }
  Expr input(std::string_view name, Tensor tensor);
  /// A new weight, or an old one of that shape.
  Expr weight(const Shape& shape, double scale = 0.5);
  /// A constant of multiples of 1/8, which every float type holds exactly.
  Expr constant(const Shape& shape);
  Expr constant_of(Tensor tensor);
  Expr ints(const std::vector<int64_t>& numbers);
  Tensor numbers(const Shape& shape, double scale);
  /// A float value of the pool, late ones more often; throws Misfit where no tried one has a rank
  /// in the range and at most `most` elements.
  Expr any(int least_rank = 0, int most_rank = 8, int64_t most = 4096);
  /// A value of this shape: of the pool, or a weight or constant.
  Expr like(const Shape& shape);
  Shape shape(Expr x) const;
  const Tensor& known(Expr x) const { return known_.at(x.id); }
  /// Makes a node and runs it. Throws Misfit if a result is not finite or over kLargest.
  std::vector<Expr> ops(std::string_view op, const std::vector<Expr>& inputs, int outputs,
                        Attributes attributes = {});
  Expr op(std::string_view name, const std::vector<Expr>& inputs, Attributes attributes = {}) {
    return ops(name, inputs, 1, std::move(attributes))[0];
  }
  /// Makes a node that draws, which only a training step can run; `example` stands for its result.
  Expr drawn(std::string_view op, const std::vector<Expr>& inputs, Tensor example,
             Attributes attributes = {});
  void keep(Expr x) { pool_.push_back(x); }

  // --- bodies ------------------------------------------------------------------------------------
  /// Opens the body of a control node: what grows from here on stands in it, until close_body().
  void open_body();
  /// An input of the body, with what it is in the first trip; kept.
  Expr formal(const Tensor& first);
  /// Gives the innermost open body its outputs; its values leave the pool.
  RegionId close_body(const std::vector<Expr>& outputs);
  /// A node with the bodies closed last; runs it, all trips. Throws Misfit as ops().
  std::vector<Expr> control(std::string_view op, const std::vector<Expr>& inputs, int outputs,
                            Attributes attributes);
  int depth() const { return static_cast<int>(bodies_.size()); }
  /// A graph input with one open dim, the first one.
  Expr open_input(Tensor tensor);
  /// All graph inputs, in order.
  std::vector<Tensor> inputs() const;
  /// A result of sequence and optional ops, which only evaluate() runs.
  void keep_evaluated(Expr x);
  /// A node that stands for itself, not run: its results are containers.
  Expr container(std::string_view op, const std::vector<Expr>& inputs, Attributes attributes = {});
  std::span<const Expr> pool() const { return pool_; }

  /// One step of growth: `family` and what it made, or nothing if it threw Misfit or made a node
  /// that is refused.
  bool grow(void (*family)(Growth&));

 private:
  uint64_t next();
  void remember(Expr x, Tensor tensor);
  void roll_back(size_t nodes, size_t weights, size_t pool, size_t bodies, uint32_t values);
  void remove_refused(RegionId region);

  /// A body that no node holds yet.
  struct Body {
    RegionId region, around;
    size_t pool = 0, made = 0;
    bool open = true;
  };

  Graph graph_;
  uint64_t state_;
  Builder b_;
  std::vector<Expr> pool_;
  std::vector<Expr> weights_;
  std::vector<NodeId> made_;
  std::vector<Body> bodies_;
  std::map<ValueId, Tensor> known_;
  int constants_ = 0, weight_names_ = 0, open_inputs_ = 0;
};

// One family a file, in families/; each adds to the pool or throws Misfit.
void grow_elementwise(Growth& g);
void grow_contraction(Growth& g);
void grow_normalization(Growth& g);
void grow_reduction(Growth& g);
void grow_movement(Growth& g);
void grow_places(Growth& g);
void grow_picture(Growth& g);
void grow_stateful(Growth& g);
void grow_control(Growth& g);
void grow_container(Growth& g);

/// Makes a loss of the values that nobody reads yet, and the settings of the training.
void finish(Growth& g, Problem& problem);

}  // namespace halfnote::random
