#include "passes/device/emit_step.h"

#include <set>

#include "base/error.h"
#include "compiler/ir/node_names.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/body.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

const TrainingStep& step_of(const Model& model, std::string_view name) {
  std::string known;
  for (const TrainingStep& step : model.training) {
    if (step.name == name) return step;
    known += (known.empty() ? "" : ", ") + step.name;
  }
  throw Error(ErrorCode::kUsage, "the model has no such step")
      .expected(known.empty() ? "a training model" : "one of " + known,
                "\"" + std::string(name) + "\"");
}

/// The names of what some step updates.
std::set<std::string, std::less<>> names_of_states(const Model& model) {
  std::set<std::string, std::less<>> names;
  for (const TrainingStep& step : model.training) {
    for (const State& state : step.graph.states())
      names.insert(step.graph.value(state.current).name);
  }
  return names;
}

/// An input takes the name, the type and the uses of an initializer.
ValueId make_input(Graph& graph, ValueId initializer) {
  const std::string name = graph.value(initializer).name;
  const ValueType type = graph.value(initializer).type;
  const int8_t power = graph.value(initializer).scale_power;
  graph.rename(initializer, graph.unique_name(name + ".first"));
  const ValueId input = graph.add_input(graph.main(), name, type);
  graph.value(input).scale_power = power;
  graph.replace_uses(initializer, input);
  graph.remove_value(initializer);
  return input;
}

/// Turns the states into inputs and outputs.
void expose_states(Graph& graph) {
  std::vector<std::pair<std::string, ValueId>> results;
  for (uint32_t i = static_cast<uint32_t>(graph.states().size()); i-- > 0;) {
    const State state = graph.states()[i];
    const std::string name = graph.value(state.current).name;
    graph.remove_state(i);
    const ValueId input = make_input(graph, state.current);
    for (auto& [other, next] : results) next = next == state.current ? input : next;
    results.emplace_back(name, state.next == state.current ? input : state.next);
  }
  Builder b(graph, graph.end(), infer_node);
  for (auto result = results.rbegin(); result != results.rend(); ++result) {
    const Expr out = b.op("Identity", {b.value(result->second)});
    graph.rename(out.id, graph.unique_name(result->first + ".new"));
    graph.add_output(graph.main(), out.id);
  }
}

/// Turns what only other steps update into inputs: it is no constant of this one.
void expose_read_states(Graph& graph, const std::set<std::string, std::less<>>& states) {
  for (ValueId value : graph.initializers()) {
    if (graph.has_uses(value) && states.contains(graph.value(value).name)) make_input(graph, value);
  }
}

/// An output must be the result of a node, once.
void separate_outputs(Graph& graph) {
  Builder b(graph, graph.end(), infer_node);
  const std::vector<ValueId> outputs(graph.outputs().begin(), graph.outputs().end());
  for (uint32_t i = 0; i < outputs.size(); ++i) {
    if (graph.value(outputs[i]).kind == ValueKind::kResult) continue;
    const Expr copy = b.op("Identity", {b.value(outputs[i])});
    graph.rename(copy.id, graph.unique_name(graph.value(outputs[i]).name + ".out"));
    graph.replace_use({UseKind::kRegionOutput, graph.main().index, i}, copy.id);
  }
}

/// The symbols that inference made up in a body (`Range_d0`) say where they stand: a dim of the
/// step, or of another body, may bear the same. What an operand's dim is named, too, names nothing
/// then.
void keep_symbols_apart(Graph& body, const std::string& prefix) {
  std::set<std::string> made, given;
  for (uint32_t i = 0; i < body.value_count(); ++i) {
    const Value& value = body.value(ValueId{i});
    const size_t rank = value.type.shape ? value.type.shape->size() : 0;
    for (size_t axis = 0; axis < rank; ++axis) {
      if (value.kind == ValueKind::kInput) given.insert((*value.type.shape)[axis].symbol);
      made.insert(value.name + "_d" + std::to_string(axis));
    }
  }
  for (uint32_t i = 0; i < body.value_count(); ++i) {
    Value& value = body.value(ValueId{i});
    if (value.kind == ValueKind::kInput || !value.type.shape) continue;
    for (Dim& dim : *value.type.shape) {
      if (dim.known() || !made.contains(dim.symbol)) continue;
      dim.symbol = given.contains(dim.symbol) ? std::string() : prefix + dim.symbol;
    }
  }
}

/// What was known of a result's dims holds of what the body gives for it: bodies further on are
/// built from it.
void keep_known(Value& result, const ValueType& known) {
  if (result.kind != ValueKind::kResult || !known.shape) return;
  if (!result.type.shape) result.type.shape = known.shape;
  if (result.type.rank() != known.rank()) return;
  for (size_t i = 0; i < known.shape->size(); ++i) {
    Dim& dim = (*result.type.shape)[i];
    const Dim& before = (*known.shape)[i];
    if (!dim.known() && (before.known() || !before.symbol.empty())) dim = before;
  }
}

}  // namespace

void inline_bodies(Graph& graph) {
  for (NodeId id : graph.all_nodes()) {
    if (graph.node(id).domain != kHalfnoteDomain) continue;
    Function body = build_body(graph, id, infer_node);
    ValueMap values;
    const auto formal = body.body.inputs();
    for (size_t i = 0; i < formal.size(); ++i) values[formal[i]] = graph.input(id, i);
    CloneOptions options;
    options.prefix = graph.node(id).name + "/";
    options.role = graph.node(id).role;
    keep_symbols_apart(body.body, options.prefix);
    const std::vector<ValueId> results =
        clone_into(graph, graph.before(id), body.body, values, options);
    // A body has a result for every output, also for one that the node leaves out.
    const std::vector<ValueId> outputs(graph.outputs(id).begin(), graph.outputs(id).end());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ValueId output = outputs[i], by = results[i];
      if (!output.valid()) continue;
      keep_known(graph.value(by), graph.value(output).type);
      const std::string name = graph.value(output).name;
      graph.rename(output, graph.unique_name(name + ".node"));
      graph.replace_uses(output, by);
      if (graph.value(by).kind == ValueKind::kResult) graph.rename(by, graph.unique_name(name));
    }
    graph.remove(id);
  }
}

Model emit_step(const Model& model, std::string_view step_name, Emulation emulation) {
  Model out;
  out.graph = step_of(model, step_name).graph;
  out.graph.name = std::string(step_name);
  out.metadata = model.metadata;
  out.producer_name = model.producer_name;
  out.producer_version = model.producer_version;
  out.opsets[""] = kOpsetVersion;
  expose_states(out.graph);
  expose_read_states(out.graph, names_of_states(model));
  inline_bodies(out.graph);
  separate_outputs(out.graph);
  if (emulation == Emulation::k16Bit) {
    const CompileOptions options;
    std::vector<Remark> remarks;
    PassContext context{options, infer_node, {}, remarks, "emulate-16bit"};
    emulate_16bit(out.graph, context);
  }
  for (ValueId value : out.graph.initializers()) out.graph.value(value).trainable = false;
  erase_unused_initializers(out.graph);
  make_node_names_unique(out.graph);
  return out;
}

}  // namespace halfnote
