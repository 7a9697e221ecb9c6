// emulate_16bit: every 16-bit op as an f32 op between casts, for runtimes without 16-bit kernels.
//
//   y: bf16 = MatMul(a: bf16, b: bf16)     ──▶     a1 = Cast <f32> (a)   b1 = Cast <f32> (b)
//                                                  y1 = MatMul(a1, b1)   y = Cast <bf16> (y1)
//
// Rounds where a kernel with f32 math and 16-bit storage rounds: once, at the end of each op.
// Ops that make 16-bit values out of none (ConstantOfShape, RandomNormal …) make f32 ones, too.
// Leaves alone: Cast, and ops without a 16-bit operand or result.
#include <map>

#include "passes/passes.h"

namespace halfnote {
namespace {

class Emulator {
 public:
  Emulator(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool run() {
    bool changed = false;
    for (NodeId node : graph_.all_nodes()) changed |= rewrite(node);
    return changed;
  }

 private:
  bool low(ValueId value) const {
    return value.valid() && is_16bit_float(graph_.value(value).type.dtype);
  }

  /// The type that an op without 16-bit operands gives its results: `value` or `dtype`.
  static bool widen_attributes(Attributes& attributes) {
    const Attribute* value = attributes.find("value");
    const Tensor* tensor = value == nullptr ? nullptr : std::get_if<Tensor>(value);
    if (tensor != nullptr && is_16bit_float(tensor->dtype())) {
      attributes.set("value", tensor->cast_to(DType::kF32));
      return true;
    }
    const auto named = static_cast<DType>(attributes.get_int("dtype", 0));
    if (!is_16bit_float(named)) return false;
    attributes.set("dtype", static_cast<int64_t>(DType::kF32));
    return true;
  }

  bool rewrite(NodeId id) {
    if (graph_.node(id).op == "Cast" || !graph_.subgraphs(id).empty()) return false;
    bool any = false;
    for (ValueId input : graph_.inputs(id)) any |= low(input);
    if (!any && !widen_attributes(graph_.node(id).attributes)) return false;
    Builder b(graph_, graph_.before(id), context_.infer);
    b.set_role(graph_.node(id).role);
    const std::vector<ValueId> inputs(graph_.inputs(id).begin(), graph_.inputs(id).end());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (low(inputs[i])) graph_.set_input(id, i, b.cast(b.value(inputs[i]), DType::kF32).id);
    }
    std::vector<DType> results;
    for (ValueId output : graph_.outputs(id)) {
      results.push_back(output.valid() ? graph_.value(output).type.dtype : DType::kUndefined);
      if (output.valid()) graph_.value(output).type = {};
    }
    context_.infer(graph_, id);
    b.set_insert_point(graph_.after(id));
    const std::vector<ValueId> outputs(graph_.outputs(id).begin(), graph_.outputs(id).end());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!is_16bit_float(results[i])) continue;
      const ValueId wide = outputs[i];
      const Expr rounded = b.cast(b.value(wide), results[i]);
      graph_.replace_uses_if(wide, rounded.id,
                             [&](const Use& use) { return use.node() != b.last(); });
      // The value that others know by name is the rounded one.
      const std::string name = graph_.value(wide).name;
      graph_.rename(wide, graph_.unique_name(name + ".f32"));
      graph_.rename(rounded.id, name);
    }
    return true;
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

bool emulate_16bit(Graph& graph, PassContext& context) { return Emulator(graph, context).run(); }

}  // namespace halfnote
