// Bodies of control nodes, and containers, as they grow.
#include <algorithm>

#include "base/error.h"
#include "runtime/core/evaluate.h"
#include "tests/random/growth.h"
#include "tests/random/walk.h"

namespace halfnote::random {

void Growth::open_body() {
  const RegionId around = b_.insert_point().region;
  const RegionId region = graph_.add_region(around);
  graph_.region_name(region) = "body" + std::to_string(region.index);
  bodies_.push_back({region, around, pool_.size(), made_.size(), true});
  b_.set_insert_point(graph_.end(region));
}

Expr Growth::formal(const Tensor& first) {
  const RegionId region = b_.insert_point().region;
  const ValueType type = ValueType::tensor(first.dtype(), symbolic(first.shape()));
  const Expr x = b_.value(graph_.add_input(region, graph_.unique_name("formal"), type));
  remember(x, first);
  if (is_float(first.dtype())) keep(x);
  return x;
}

RegionId Growth::close_body(const std::vector<Expr>& outputs) {
  const auto open =
      std::find_if(bodies_.rbegin(), bodies_.rend(), [](const Body& body) { return body.open; });
  std::vector<ValueId> ids;
  for (const Expr& x : outputs) {
    // What the body does not make, or gives twice, it passes on.
    const bool own = graph_.value(x.id).kind == ValueKind::kResult &&
                     graph_.value(x.id).region == open->region &&
                     std::find(ids.begin(), ids.end(), x.id) == ids.end();
    ids.push_back(own ? x.id : op("Identity", {x}).id);
  }
  graph_.set_outputs(open->region, ids);
  pool_.resize(open->pool);
  made_.resize(open->made);
  open->open = false;
  b_.set_insert_point(graph_.end(open->around));
  return open->region;
}

std::vector<Expr> Growth::control(std::string_view op, const std::vector<Expr>& inputs, int outputs,
                                  Attributes attributes) {
  std::vector<Expr> results = b_.ops(op, inputs, outputs, std::move(attributes));
  made_.push_back(b_.last());
  std::erase_if(bodies_,
                [&](const Body& body) { return graph_.region_owner(body.region) == made_.back(); });
  const auto settle = [](ValueId, std::span<const Tensor>, Tensor tensor) {
    if (!tame(tensor) || tensor.size() > kMostElements) throw Misfit();
    return tensor;
  };
  Walk walk(graph_, settle, [](ValueId, const Tensor& tensor) { return tensor; });
  for (const auto& [id, tensor] : known_) walk.set(id, tensor);
  walk.run_node(made_.back());
  for (const Expr& x : results) {
    if (!x.valid()) continue;
    if (walk.at(x.id).size() > kMostElements) throw Misfit();
    remember(x, walk.at(x.id));
  }
  return results;
}

Expr Growth::open_input(Tensor tensor) {
  SymbolicShape shape = symbolic(tensor.shape());
  shape[0] = Dim::named("T" + std::to_string(open_inputs_));
  const std::string name = "s" + std::to_string(open_inputs_++);
  const ValueType type = ValueType::tensor(tensor.dtype(), shape);
  const Expr x = b_.value(graph_.add_input(graph_.main(), name, type));
  remember(x, std::move(tensor));
  return x;
}

std::vector<Tensor> Growth::inputs() const {
  std::vector<Tensor> tensors;
  for (ValueId id : graph_.inputs()) tensors.push_back(known_.at(id));
  return tensors;
}

Expr Growth::container(std::string_view op, const std::vector<Expr>& inputs,
                       Attributes attributes) {
  const Expr x = b_.ops(op, inputs, 1, std::move(attributes))[0];
  made_.push_back(b_.last());
  return x;
}

void Growth::keep_evaluated(Expr x) {
  // Where a body is open its values are not to be had: containers grow outside.
  if (!bodies_.empty()) throw Misfit();
  Graph copy = graph_;
  copy.set_outputs(copy.main(), {x.id});
  Tensor tensor = evaluate(copy, inputs())[0];
  if (!tame(tensor) || tensor.size() > kMostElements) throw Misfit();
  remember(x, std::move(tensor));
  // What comes out of a container has no shape until the container is taken apart.
  keep(op("Reshape", {x, ints(shape(x))}, {{"allowzero", int64_t{1}}}));
}

}  // namespace halfnote::random
