// repair_types: exports under autocast whose types contradict each other become valid.
//
//   y: f16 = LayerNormalization (x: f16, scale: f32)
//     ──▶   x1 = Cast <f32> (x)   y1 = LayerNormalization (x1, scale)   y = Cast <f16> (y1)
//
// PyTorch takes operands of several float types and promotes them; its exporters leave that out
// where they know one type only. The casts that the promotion implies are written down: 16-bit
// operands that stand beside f32 ones, or that the operator does not take in the model's op-set,
// become f32; a result keeps the type that the file declares. Each repair is a note with the node.
// Widens: nothing is rounded that PyTorch did not round. Refused are 16-bit operands beside f64 or
// integers: what was meant is open. Leaves alone: models without 16-bit values, training models.
#include "passes/exporters/repair_types.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/onnx/schema.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr std::string_view kReason = "repaired: promoted to a type that fits";

/// Operands that one type variable of the schema binds to one type.
struct TypeGroup {
  const SchemaParameter* parameter = nullptr;
  std::vector<size_t> slots;
  std::set<DType> dtypes;
};

bool any_16bit(const std::set<DType>& dtypes) {
  return std::any_of(dtypes.begin(), dtypes.end(), is_16bit_float);
}

/// `f16 and f32`.
std::string listed(const std::set<DType>& dtypes) {
  std::string text;
  for (DType dtype : dtypes) text += (text.empty() ? "" : " and ") + std::string(short_name(dtype));
  return text;
}

class Repair {
 public:
  Repair(Graph& graph, PassContext& context, int64_t opset)
      : graph_(graph), context_(context), opset_(opset) {}

  bool run() {
    if (!has_16bit()) return false;
    for (const SchemaOp& op : all_schema_ops()) {
      if (op.domain.empty()) schemas_.emplace(op.name, &op);
    }
    for (NodeId node : graph_.nodes()) visit(node);
    return changed_;
  }

 private:
  bool has_16bit() const {
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      const Value& value = graph_.value(ValueId{i});
      if (value.alive && is_16bit_float(value.type.dtype)) return true;
    }
    for (NodeId id : graph_.all_nodes()) {
      for (const auto& [name, attribute] : graph_.node(id).attributes) {
        const auto* code = std::get_if<int64_t>(&attribute);
        const auto* tensor = std::get_if<Tensor>(&attribute);
        const bool type = name == "to" || name == "dtype";
        if (code != nullptr && type && is_16bit_float(static_cast<DType>(*code))) return true;
        if (tensor != nullptr && is_16bit_float(tensor->dtype())) return true;
      }
    }
    return false;
  }

  /// Nodes in bodies come here while the node that owns them is inferred.
  void visit(NodeId id) {
    if (graph_.node(id).domain.empty()) promote_operands(id);
    std::vector<ValueType> declared;
    for (ValueId output : graph_.outputs(id)) {
      declared.push_back(output.valid() ? graph_.value(output).type : ValueType{});
      if (output.valid()) open_type(graph_.value(output).type);
    }
    const std::vector<ValueType> formal = formal_types(id);
    try {
      infer(id);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnsupported && error.problem() == kRefusal) throw;
      restore(id, declared);  // infer-shapes says what is wrong
      return;
    }
    for (size_t i = 0; i < declared.size(); ++i) give_declared(id, i, declared[i]);
    for (size_t i = 0; i < declared.size(); ++i) {
      const ValueId output = graph_.output(id, i);
      changed_ |= output.valid() && !(graph_.value(output).type == declared[i]);
    }
    changed_ |= formal != formal_types(id);
  }

  /// The types of what the bodies of a node are given.
  std::vector<ValueType> formal_types(NodeId id) const {
    std::vector<ValueType> types;
    for (RegionId region : graph_.subgraphs(id)) {
      for (ValueId input : graph_.inputs(region)) types.push_back(graph_.value(input).type);
    }
    return types;
  }

  void infer(NodeId id) {
    const InferNode nested = [this](Graph&, NodeId inner) { visit(inner); };
    if (graph_.node(id).domain.empty() && has_schema("", graph_.node(id).op, opset_))
      infer_with_schema(graph_, id, opset_, nested);
    else
      context_.infer(graph_, id);
  }

  static void open_type(ValueType& type) {
    if (type.is_tensor() && is_float(type.dtype)) type.dtype = DType::kUndefined;
  }

  void restore(NodeId id, const std::vector<ValueType>& declared) {
    for (size_t i = 0; i < declared.size(); ++i) {
      if (graph_.output(id, i).valid()) graph_.value(graph_.output(id, i)).type = declared[i];
    }
  }

  const SchemaVersion* schema_of(const Node& node) const {
    const auto found = schemas_.find(node.op);
    if (found == schemas_.end()) return nullptr;
    const SchemaVersion* version = found->second->in(opset_);
    return version != nullptr ? version : found->second->in(kOpsetVersion);
  }

  std::map<std::string, TypeGroup> groups_of(NodeId id, const SchemaVersion& schema) const {
    std::map<std::string, TypeGroup> groups;
    for (size_t i = 0; i < graph_.inputs(id).size() && !schema.inputs.empty(); ++i) {
      const SchemaParameter& parameter = schema.inputs[std::min(i, schema.inputs.size() - 1)];
      const ValueId input = graph_.input(id, i);
      const bool free = parameter.option == ParameterOption::kVariadic && !parameter.homogeneous;
      if (free || !input.valid() || !graph_.value(input).type.is_tensor()) continue;
      if (graph_.value(input).type.dtype == DType::kUndefined) continue;
      TypeGroup& group = groups[parameter.type_variable];
      if (group.parameter == nullptr) group.parameter = &parameter;
      group.slots.push_back(i);
      group.dtypes.insert(graph_.value(input).type.dtype);
    }
    return groups;
  }

  void promote_operands(NodeId id) {
    const SchemaVersion* schema = schema_of(graph_.node(id));
    if (schema == nullptr) return;
    for (const auto& [variable, group] : groups_of(id, *schema)) {
      const std::vector<DType>& taken = group.parameter->dtypes;
      const auto takes = [&](DType dtype) {
        return std::find(taken.begin(), taken.end(), dtype) != taken.end();
      };
      const bool fit = std::all_of(group.dtypes.begin(), group.dtypes.end(), takes);
      if (!any_16bit(group.dtypes) || (group.dtypes.size() == 1 && fit)) continue;
      const auto wide = [](DType t) { return t != DType::kF32 && !is_16bit_float(t); };
      if (std::any_of(group.dtypes.begin(), group.dtypes.end(), wide)) refuse(id, group);
      if (!takes(DType::kF32)) continue;
      for (size_t slot : group.slots) widen(id, slot);
      note(id, group);
    }
  }

  void widen(NodeId id, size_t slot) {
    const ValueId source = graph_.input(id, slot);
    if (!is_16bit_float(graph_.value(source).type.dtype)) return;
    auto [found, is_new] = wide_.try_emplace({source, graph_.node(id).region}, ValueId{});
    if (is_new) found->second = cast(source, DType::kF32, graph_.before(id), id);
    graph_.set_input(id, slot, found->second);
  }

  ValueId cast(ValueId source, DType dtype, InsertPoint at, NodeId owner) {
    Builder b(graph_, at, context_.infer);
    b.set_origin(graph_.label(owner));
    const ValueId result = b.cast(b.value(source), dtype).id;
    graph_.node(b.last()).precision = {dtype, std::string(kReason)};
    changed_ = true;
    return result;
  }

  void note(NodeId id, const TypeGroup& group) {
    const std::string types = listed(group.dtypes);
    const std::string why = group.dtypes.size() == 1 ? types + ", which " + graph_.node(id).op +
                                                           " does not take in "
                                                           "op-set " +
                                                           std::to_string(opset_)
                                                     : types + ", which ONNX does not mix";
    context_.note(graph_.label(id),
                  "the export gives it " + why + ": computed in f32, as PyTorch promotes them");
  }

  [[noreturn]] void refuse(NodeId id, const TypeGroup& group) const {
    throw Error(ErrorCode::kUnsupported, kRefusal)
        .at({{}, graph_.label(id), graph_.node(id).op})
        .expected("one type for \"" + group.parameter->name + "\" and its like",
                  listed(group.dtypes))
        .hint("export the f32 model, without autocast and .half(): --precision does the rest");
  }

  /// A result is of the type that the file declares: whoever reads it counts on that.
  void give_declared(NodeId id, size_t index, const ValueType& declared) {
    const ValueId output = graph_.output(id, index);
    if (!output.valid() || !declared.is_tensor()) return;
    const DType is = graph_.value(output).type.dtype, wanted = declared.dtype;
    if (is == DType::kUndefined) {
      graph_.value(output).type.dtype = wanted;
      return;
    }
    const auto narrow = [](DType t) { return t == DType::kF32 || is_16bit_float(t); };
    if (is == wanted || !narrow(is) || !narrow(wanted)) return;
    const std::string name = graph_.value(output).name;
    const ValueId result = cast(output, wanted, graph_.after(id), id);
    const NodeId made = graph_.value(result).producer;
    graph_.replace_uses_if(output, result, [&](const Use& use) { return use.node() != made; });
    graph_.rename(output, graph_.unique_name(name + ".promoted"));
    graph_.rename(result, name);
  }

  static constexpr const char* kRefusal = "operands of different types";

  Graph& graph_;
  PassContext& context_;
  const int64_t opset_;
  std::map<std::string, const SchemaOp*> schemas_;
  std::map<std::pair<ValueId, RegionId>, ValueId> wide_;
  bool changed_ = false;
};

}  // namespace

bool is_repair(const Node& node) { return is_cast(node) && node.precision.reason == kReason; }

bool repair_types(Model& model, PassContext& context) {
  if (model.is_training()) return false;
  const auto opset = model.opsets.find("");
  return Repair(model.graph, context, opset == model.opsets.end() ? kOpsetVersion : opset->second)
      .run();
}

}  // namespace halfnote
