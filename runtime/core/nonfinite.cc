#include "runtime/core/nonfinite.h"

#include <algorithm>
#include <cmath>

namespace halfnote {
namespace {

constexpr std::string_view kCastInserted = "cast inserted";  // insert_casts begins its reason so

struct Special {
  bool nan = false, inf = false;
};

Special scan(const Tensor& tensor) {
  Special found;
  if (!is_float(tensor.dtype())) return found;
  for (int64_t i = 0; i < tensor.size() && !(found.nan && found.inf); ++i) {
    const double x = tensor.at_as_double(i);
    found.nan |= std::isnan(x);
    found.inf |= std::isinf(x);
  }
  return found;
}

Special scan(const ValueType& type, const std::byte* bytes) {
  if (bytes == nullptr || !type.has_concrete_shape()) return {};
  const Shape shape = concrete(*type.shape);
  const size_t size = static_cast<size_t>(element_count(shape)) * size_of(type.dtype);
  const std::shared_ptr<const std::byte> borrowed(std::shared_ptr<const std::byte>(), bytes);
  return scan(Tensor(type.dtype, shape, borrowed, size));
}

/// Notes what each value held when it was made, since buffers are used again later.
class Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph), held_(graph.value_count()) {}

  void add_inputs(std::span<const Tensor> inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) note(graph_.inputs()[i], scan(inputs[i]), {}, {});
  }

  /// Weights, other states and constants. A constant mask of -Inf is meant so.
  void add_initializers(const StateStore& store) {
    for (ValueId id : graph_.initializers()) {
      const Value& value = graph_.value(id);
      const StateEntry* entry = store.find(value.name);
      const Special special = entry == nullptr ? scan(value.tensor) : scan(store.get(*entry));
      held_[id.index] = special;
      if (entry == nullptr && !special.nan) continue;
      const bool fresh = !first_;
      note(id, special, {}, {});
      if (!fresh || !first_ || entry == nullptr || entry->copy_of.empty()) continue;
      first_->rounded_to = entry->dtype;
      first_->value = entry->copy_of;
    }
  }

  void visit(const ProgramStep& step, const KernelBuffers& buffers) {
    if (!step.id.valid()) return;  // a reorder: its operand was looked at
    Special operands;
    for (ValueId input : graph_.inputs(step.id)) {
      if (!input.valid()) continue;
      operands.nan |= held_[input.index].nan;
      operands.inf |= held_[input.index].inf;
    }
    const auto outputs = graph_.outputs(step.id);
    for (size_t i = 0; i < outputs.size() && i < buffers.outputs.size(); ++i) {
      if (!outputs[i].valid()) continue;
      note(outputs[i], scan(graph_.value(outputs[i]).type, buffers.outputs[i]), operands, step.id);
    }
  }

  std::optional<NonFinite> first() const { return first_; }

 private:
  void note(ValueId id, const Special& special, const Special& operands, NodeId node) {
    held_[id.index] = special;
    const bool new_nan = special.nan && !operands.nan;
    const bool new_inf = special.inf && !operands.inf && !operands.nan;
    if (first_ || !(new_nan || new_inf)) return;
    first_ = NonFinite{{}, {}, graph_.value(id).name, new_nan};
    if (!node.valid()) return;
    const Node& maker = graph_.node(node);
    if (maker.op == "Cast" && maker.precision.reason.starts_with(kCastInserted)) {
      first_->rounded_to = graph_.value(id).type.dtype;
      const ValueId source = graph_.input(node, 0);
      first_->value = graph_.value(source).name;
      name(graph_.value(source).producer);
    } else {
      name(node);
    }
  }

  /// A node of the backward pass by the name of the one it was made for, which rules can name.
  void name(NodeId node) {
    if (!node.valid()) return;
    const Node& maker = graph_.node(node);
    first_->node = maker.origin.empty() ? maker.name : maker.origin.str();
    first_->op = maker.op;
  }

  const Graph& graph_;
  std::vector<Special> held_;
  std::optional<NonFinite> first_;
};

}  // namespace

std::optional<NonFinite> find_nonfinite(Executor& executor, const StateStore& store,
                                        const Graph& graph, std::span<const Tensor> inputs) {
  Search search(graph);
  search.add_inputs(inputs);
  search.add_initializers(store);
  executor.observe(
      [&](const ProgramStep& step, const KernelBuffers& buffers) { search.visit(step, buffers); });
  executor.run(inputs);
  executor.observe({});
  return search.first();
}

std::string to_string(const NonFinite& found) {
  const std::string kind = found.nan ? "NaN" : "Inf";
  if (found.rounded_to != DType::kUndefined) {
    const std::string by =
        found.node.empty() ? "" : ", which node \"" + found.node + "\" (" + found.op + ") makes,";
    return "\"" + found.value + "\"" + by + " is too large for " +
           std::string(short_name(found.rounded_to));
  }
  if (found.node.empty()) return "\"" + found.value + "\" holds " + kind;
  return "node \"" + found.node + "\" (" + found.op + ") makes the first " + kind + ", in \"" +
         found.value + "\"";
}

std::string find_nonfinite_state(const StateStore& store) {
  for (const StateEntry& entry : store.entries()) {
    if (entry.dtype != DType::kF32 || entry.kind == StateKind::kAccumulator) continue;
    const auto* values = reinterpret_cast<const float*>(store.data(entry));
    const auto* end = values + element_count(entry.shape);
    if (!std::all_of(values, end, [](float v) { return std::isfinite(v); })) return entry.name;
  }
  return {};
}

std::string advice(const NonFinite& found) {
  if (found.node.empty() && found.rounded_to != DType::kUndefined) {
    return "make the data smaller (--normalize), or compile with --precision bf16";
  }
  if (found.node.empty()) return "mend it in the model or in the data";
  return "compile with --fp32-node '" + found.node +
         "', a smaller learning rate (--lr), or --precision bf16";
}

}  // namespace halfnote
