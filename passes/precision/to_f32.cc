// to_f32: a graph in mixed precision as it would be without a policy.
//
//   x1 = Cast <bf16> (x)   y1 = Conv(x1, w1)   y = Cast <f32> (y1)   ──▶   y = Conv(x, w)
//
// Widens: every rounding that we put in the graph is gone, but for constants that clean_casts
// rounded, which keep their rounded values. A 16-bit input of the model that a 16-bit node read as
// it is gets a cast to f32. Bodies of control flow likewise; what goes in and out of them is f32
// already. Leaves alone: casts and 16-bit values that came with the model.
#include "passes/precision/to_f32.h"

#include <map>

#include "base/error.h"
#include "compiler/ir/builder.h"
#include "compiler/ir/walk.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/padding/remove_padding.h"
#include "passes/pass_through.h"
#include "passes/precision/keep_dims.h"

namespace halfnote {
namespace {

constexpr std::string_view kInserted = "cast inserted";  // how insert_casts begins its reason

class Widener {
 public:
  explicit Widener(Graph& graph) : graph_(graph) {}

  void run() {
    remove_padding(graph_);
    for (NodeId id : graph_.all_nodes()) remove_cast(id);
    widen(graph_.main());
    for (NodeId id : graph_.all_nodes()) graph_.node(id).precision = {};
    erase_unused_initializers(graph_);
  }

 private:
  void remove_cast(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op != "Cast" || !node.domain.empty() || !node.precision.reason.starts_with(kInserted))
      return;
    pass_through(graph_, id);
  }

  /// A body before its node, whose inference reads the types in it.
  void widen(RegionId region) {
    for (NodeId id : graph_.nodes(region)) {
      for (RegionId body : graph_.subgraphs(id)) widen(body);
      widen_operands(id);
      retype(id);
    }
  }

  bool low(ValueId value) const {
    return value.valid() && is_16bit_float(graph_.value(value).type.dtype);
  }

  bool is_constant(ValueId value) const {
    return graph_.value(value).kind == ValueKind::kInitializer;
  }

  /// The 16-bit operands of a node that we had decided to run in 16 bits: constants, and what the
  /// model itself has in 16 bits (clean_casts took its way through f32 out).
  void widen_operands(NodeId id) {
    if (!is_16bit_float(graph_.node(id).precision.dtype)) return;
    const std::vector<ValueId> inputs(graph_.inputs(id).begin(), graph_.inputs(id).end());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!low(inputs[i])) continue;
      graph_.set_input(id, i, is_constant(inputs[i]) ? wide(inputs[i]) : cast_of(inputs[i], id));
    }
    const Attribute* out = graph_.node(id).attributes.find("out_dtype");
    if (out != nullptr)
      graph_.node(id).attributes.set("out_dtype", static_cast<int64_t>(DType::kF32));
  }

  ValueId wide(ValueId constant) {
    auto [found, is_new] = wide_.try_emplace(constant, ValueId{});
    if (is_new) {
      const Value& value = graph_.value(constant);
      found->second = graph_.add_initializer(graph_.unique_name(value.name + ".wide"),
                                             value.tensor.cast_to(DType::kF32));
    }
    return found->second;
  }

  /// The value in f32; the cast stands before the first node that reads it, in each body anew.
  ValueId cast_of(ValueId value, NodeId reader) {
    auto [found, is_new] = casts_.try_emplace({value, graph_.node(reader).region}, ValueId{});
    if (is_new) {
      Builder b(graph_, graph_.before(reader), infer_node);
      found->second = b.cast(b.value(value), DType::kF32).id;
    }
    return found->second;
  }

  /// Infers the results afresh; what inference cannot know stays as it was, in f32.
  void retype(NodeId id) {
    const std::vector<ValueId> outputs(graph_.outputs(id).begin(), graph_.outputs(id).end());
    std::vector<ValueType> before;
    for (ValueId output : outputs) {
      before.push_back(output.valid() ? graph_.value(output).type : ValueType{});
      if (output.valid()) graph_.value(output).type = {};
    }
    infer_node(graph_, id);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].valid()) complete(graph_.value(outputs[i]), before[i]);
    }
  }

  static void complete(Value& value, const ValueType& before) {
    ValueType& type = value.type;
    if (type.dtype == DType::kUndefined) {
      type = before;
      if (is_16bit_float(type.dtype)) type.dtype = DType::kF32;
      return;
    }
    keep_dims(value, before);
  }

  Graph& graph_;
  std::map<ValueId, ValueId> wide_;                        // constants
  std::map<std::pair<ValueId, RegionId>, ValueId> casts_;  // of what the model has in 16 bits
};

}  // namespace

void to_f32(Graph& graph) { Widener(graph).run(); }

}  // namespace halfnote
