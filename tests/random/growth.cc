#include "tests/random/growth.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/evaluate.h"
#include "tests/random/dice.h"

namespace halfnote::random {

bool tame(const Tensor& tensor) {
  if (!is_float(tensor.dtype())) return true;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (!(std::abs(tensor.at_as_double(i)) <= kLargest)) return false;
  }
  return true;
}

Growth::Growth(uint64_t seed) : state_(mix(seed)), b_(graph_, graph_.end(), infer_node) {}

uint64_t Growth::next() { return mix(state_++); }

int Growth::pick(int limit) {
  return static_cast<int>((next() >> 33) % static_cast<uint64_t>(limit));
}

int64_t Growth::size() {
  static constexpr int64_t kSizes[] = {1, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8, 16, 17};
  return chance(1) ? 0 : one_of(kSizes);
}

Expr Growth::input(std::string_view name, Tensor tensor) {
  const ValueType type = ValueType::tensor(tensor.dtype(), symbolic(tensor.shape()));
  const Expr x = b_.value(graph_.add_input(graph_.main(), std::string(name), type));
  remember(x, std::move(tensor));
  return x;
}

Tensor Growth::numbers(const Shape& shape, double scale) {
  Tensor tensor(DType::kF32, shape);
  for (float& x : tensor.mutable_data<float>()) {
    const double unit = static_cast<double>(next() >> 11) * 0x1p-52 - 1.0;  // [-1, 1)
    x = static_cast<float>(unit * scale);
  }
  return tensor;
}

Expr Growth::weight(const Shape& shape, double scale) {
  if (element_count(shape) > 4096) throw Misfit();
  if (chance(35)) {
    for (const Expr& old : weights_) {
      if (this->shape(old) == shape) return old;
    }
  }
  const std::string name = "w" + std::to_string(weight_names_++);
  const Expr w = b_.value(graph_.add_initializer(name, numbers(shape, scale)));
  graph_.value(w.id).trainable = true;
  remember(w, graph_.value(w.id).tensor);
  weights_.push_back(w);
  return w;
}

Expr Growth::constant(const Shape& shape) {
  if (element_count(shape) > 4096) throw Misfit();
  Tensor tensor(DType::kF32, shape);
  for (float& x : tensor.mutable_data<float>()) x = static_cast<float>(pick(17) - 8) / 8.0f;
  return constant_of(std::move(tensor));
}

Expr Growth::constant_of(Tensor tensor) {
  const std::string name = "c" + std::to_string(constants_++);
  const Expr c = b_.value(graph_.add_initializer(name, tensor));
  remember(c, std::move(tensor));
  return c;
}

Expr Growth::ints(const std::vector<int64_t>& numbers) {
  return constant_of(Tensor::of<int64_t>({static_cast<int64_t>(numbers.size())},
                                         std::span<const int64_t>(numbers)));
}

Expr Growth::any(int least_rank, int most_rank, int64_t most) {
  const int count = static_cast<int>(pool_.size());
  for (int tries = 0; tries < 12; ++tries) {
    const int late = chance(50) ? std::max(0, count - 4) : 0;
    const Expr x = pool_[static_cast<size_t>(late + pick(count - late))];
    const Shape s = shape(x);
    const int rank = static_cast<int>(s.size());
    if (rank >= least_rank && rank <= most_rank && element_count(s) <= most) return x;
  }
  throw Misfit();
}

Expr Growth::like(const Shape& wanted) {
  if (chance(50)) {
    for (int tries = 0; tries < 6; ++tries) {
      const Expr x = pool_[static_cast<size_t>(pick(static_cast<int>(pool_.size())))];
      if (shape(x) == wanted) return x;
    }
  }
  return chance(60) ? weight(wanted) : constant(wanted);
}

Shape Growth::shape(Expr x) const { return known_.at(x.id).shape(); }

void Growth::remember(Expr x, Tensor tensor) { known_[x.id] = std::move(tensor); }

std::vector<Expr> Growth::ops(std::string_view op, const std::vector<Expr>& inputs, int outputs,
                              Attributes attributes) {
  std::vector<Expr> results = b_.ops(op, inputs, outputs, std::move(attributes));
  made_.push_back(b_.last());
  std::vector<Tensor> operands;
  for (const Expr& x : inputs) operands.push_back(x.valid() ? known_.at(x.id) : Tensor());
  std::vector<Tensor> tensors = evaluate_node(graph_, b_.last(), operands);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].valid()) continue;
    if (!tame(tensors[i]) || tensors[i].size() > kMostElements) throw Misfit();
    remember(results[i], std::move(tensors[i]));
  }
  return results;
}

Expr Growth::drawn(std::string_view op, const std::vector<Expr>& inputs, Tensor example,
                   Attributes attributes) {
  const Expr result = b_.ops(op, inputs, 1, std::move(attributes))[0];
  made_.push_back(b_.last());
  remember(result, std::move(example));
  return result;
}

bool Growth::grow(void (*family)(Growth&)) {
  const size_t pool = pool_.size(), weights = weights_.size(), bodies = bodies_.size();
  const size_t nodes = made_.size();
  const uint32_t values = graph_.value_count();
  try {
    family(*this);
    return true;
  } catch (const Misfit&) {
  } catch (const Error& error) {
    // Operands that do not fit, and what is said to be unsupported; all else is for the caller.
    if (error.code() != ErrorCode::kModel && error.code() != ErrorCode::kUnsupported) throw;
  }
  roll_back(nodes, weights, pool, bodies, values);
  return false;
}

/// A node that was refused stands behind those in the list.
void Growth::remove_refused(RegionId region) {
  std::vector<NodeId> nodes = graph_.nodes(region);
  for (size_t i = nodes.size(); i > 0; --i) {
    if (std::find(made_.begin(), made_.end(), nodes[i - 1]) == made_.end()) {
      graph_.remove(nodes[i - 1]);
    }
  }
}

void Growth::roll_back(size_t nodes, size_t weights, size_t pool, size_t bodies, uint32_t values) {
  pool_.resize(pool);
  made_.resize(nodes);
  // Bodies inside out, with all that stands in them; then what was made around them.
  while (bodies_.size() > bodies) {
    const RegionId region = bodies_.back().region;
    graph_.set_outputs(region, {});
    const std::vector<NodeId> inside = graph_.nodes(region);
    for (size_t i = inside.size(); i > 0; --i) graph_.remove(inside[i - 1]);
    while (!graph_.inputs(region).empty()) graph_.remove_value(graph_.inputs(region).back());
    bodies_.pop_back();
  }
  b_.set_insert_point(graph_.end());
  remove_refused(graph_.main());
  for (const Body& body : bodies_) {
    if (!body.open) continue;
    remove_refused(body.region);
    b_.set_insert_point(graph_.end(body.region));
  }
  weights_.resize(weights);
  // What is older waits for a node with a body that is still growing.
  for (ValueId id : graph_.initializers()) {
    if (graph_.has_uses(id) || id.index < values) continue;
    known_.erase(id);
    graph_.remove_value(id);
  }
}

}  // namespace halfnote::random
