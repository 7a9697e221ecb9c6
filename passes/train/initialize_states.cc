// initialize_states: writes down the first values of a step's own states, as ONNX's
// `initialization` does, so that a training can begin anew wherever the file is read:
//
//   state moment "w.m" -> …   ──▶   initialization: "w.m.first" = ConstantOfShape <value: 0>
//   (shape)
//                                   initialization_binding: ["w.m" = "w.m.first"]
//
// Exact: each is the value that the state has now. A tensor of equal elements, as all of ours are,
// takes no room. Leaves alone: weights and running statistics, whose first values are the model's
// initializers; and steps that came with an initialization.
#include <cstring>
#include <map>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

/// Does the state begin with what the inference graph holds under its name?
bool is_of_model(const Graph& inference, const Value& state) {
  const ValueId other = inference.find(state.name);
  return other.valid() && inference.value(other).kind == ValueKind::kInitializer;
}

bool has_equal_elements(const Tensor& tensor) {
  if (tensor.size() == 0 || tensor.dtype() == DType::kString) return false;
  if (all_zero(tensor)) return true;
  const size_t element = tensor.byte_size() / static_cast<size_t>(tensor.size());
  return std::memcmp(tensor.bytes(), tensor.bytes() + element, tensor.byte_size() - element) == 0;
}

/// The first element, as ConstantOfShape wants it.
Tensor first_element(const Tensor& tensor) {
  const size_t element = tensor.byte_size() / static_cast<size_t>(tensor.size());
  return Tensor(tensor.dtype(), {1}, tensor.storage(), element);
}

class Initialization {
 public:
  Initialization(TrainingStep& step, const InferNode& infer)
      : step_(step), b_(step.initialization, step.initialization.end(), infer) {
    step.initialization.name = "initialization";
  }

  void add(const Value& state) {
    Graph& graph = step_.initialization;
    const Tensor& tensor = state.tensor;
    const Expr value =
        has_equal_elements(tensor)
            ? b_.op("ConstantOfShape", {shape(tensor.shape())}, {{"value", first_element(tensor)}})
            : b_.op("Identity", {b_.constant(tensor)});
    graph.rename(value.id, graph.unique_name(state.name + ".first"));
    graph.node(b_.last()).name = graph.value(value.id).name;
    outputs_.push_back(value.id);
    step_.initialization_binding.emplace_back(state.name, graph.value(value.id).name);
  }

  void finish() { step_.initialization.set_outputs(step_.initialization.main(), outputs_); }

 private:
  Expr shape(const Shape& shape) {
    const auto found = shapes_.find(shape);
    if (found != shapes_.end()) return found->second;
    return shapes_.emplace(shape, b_.ints(shape)).first->second;
  }

  TrainingStep& step_;
  Builder b_;
  std::map<Shape, Expr> shapes_;
  std::vector<ValueId> outputs_;
};

bool initialize(const Graph& inference, TrainingStep& step, PassContext& context) {
  if (!step.initialization_binding.empty()) return false;
  std::vector<ValueId> own;
  for (const State& state : step.graph.states()) {
    if (!is_of_model(inference, step.graph.value(state.current))) own.push_back(state.current);
  }
  if (own.empty()) return false;
  Initialization initialization(step, context.infer);
  for (ValueId state : own) initialization.add(step.graph.value(state));
  initialization.finish();
  return true;
}

}  // namespace

bool initialize_states(Model& model, PassContext& context) {
  bool changed = false;
  for (TrainingStep& step : model.training) changed |= initialize(model.graph, step, context);
  return changed;
}

}  // namespace halfnote
