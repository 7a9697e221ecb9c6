// undo_autocast: the 16-bit compute of an export becomes f32; our own policy decides afterwards.
//
//   x1 = Cast <f16> (x)   w1 = Cast <f16> (w)   y1 = Gemm (x1, w1)   y = Cast <f32> (y1)
//       ──▶   y = Gemm (x, w)
//
//   y = MatMul (x: f16 input, w: f16 weight), an output
//       ──▶   x1 = Cast <f32> (x)   w: f32   y1 = MatMul (x1, w)   y = Cast <f16> (y1)
//
// Widens: what autocast, or a model in half, rounded is not rounded any more; f32 holds every f16
// and bf16, so weights and constants keep their values. Running statistics and weights are master
// values in f32 thereby: an update below the rounding of a 16-bit weight would be lost.
// Kept: 16-bit inputs and outputs of the graph, with a cast at the border; a rounding that the
// model asks for, which is a cast to 16 bits that only casts to another type read, with nothing
// computed between; casts from and to integers, bools and f64, in f32 instead of 16 bits. Leaves
// alone: models without 16-bit values, or with training steps.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/exporters/repair_types.h"
#include "passes/pass_through.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

// Attributes of op-set 23 and of our own ops that hold an element type.
constexpr std::string_view kTypeAttributes[] = {"dtype",        "out_dtype", "output_datatype",
                                                "output_dtype", "precision", "softmax_precision",
                                                "stash_type"};

constexpr auto kF32Code = static_cast<int64_t>(DType::kF32);

ValueType widened(ValueType type) {
  if (is_16bit_float(type.dtype)) type.dtype = DType::kF32;
  if (type.element) type.element = std::make_shared<const ValueType>(widened(*type.element));
  return type;
}

bool holds_16bit(const ValueType& type) {
  return is_16bit_float(type.dtype) || (type.element && holds_16bit(*type.element));
}

class Undo {
 public:
  Undo(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  /// Says what was done, for the user; nothing when nothing was.
  std::string run() {
    if (!has_16bit()) return "";
    check_borders();
    for (ValueId output : graph_.outputs()) output_types_.push_back(graph_.value(output).type);
    find_kept();
    widen_inputs();
    widen_initializers();
    for (NodeId id : graph_.all_nodes()) widen_node(id);
    if (!changed_) return "";
    retype();
    narrow_outputs();
    for (NodeId id : graph_.all_nodes()) remove_if_idle(id);
    return what_was_done();
  }

 private:
  bool low(ValueId value) const {
    return value.valid() && is_16bit_float(graph_.value(value).type.dtype);
  }

  bool has_16bit() const {
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      if (graph_.value(ValueId{i}).alive && holds_16bit(graph_.value(ValueId{i}).type)) return true;
    }
    return false;
  }

  /// A border needs a cast, which only a tensor can have.
  void check_borders() const {
    const auto check = [&](ValueId id) {
      const Value& value = graph_.value(id);
      if (value.type.is_tensor() || !holds_16bit(value.type)) return;
      throw Error(ErrorCode::kUnsupported, "a container of 16-bit tensors crosses the border")
          .at({{}, value.name, {}})
          .expected("tensors, or a container of f32", to_string(value.type))
          .hint("let the model take and give the tensors themselves, or f32");
    };
    for (ValueId id : graph_.inputs()) check(id);
    for (ValueId id : graph_.outputs()) check(id);
  }

  bool is_graph_output(const Use& use) const {
    return use.kind == UseKind::kRegionOutput && use.owner == graph_.main().index;
  }

  /// Do only casts to another type, and outputs of the graph, read the value?
  bool only_casts_read(ValueId value) const {
    const auto converts = [&](NodeId id) {
      return is_cast(graph_.node(id)) && !is_repair(graph_.node(id)) &&
             graph_.value(graph_.output(id)).type.dtype != graph_.value(value).type.dtype;
    };
    const auto uses = graph_.uses(value);
    return !uses.empty() && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
      return is_graph_output(use) || (use.by_node() && converts(use.node()));
    });
  }

  bool is_output(ValueId value) const {
    const auto uses = graph_.uses(value);
    return std::any_of(uses.begin(), uses.end(),
                       [&](const Use& use) { return is_graph_output(use); });
  }

  /// The roundings that stay. A cast to the type that its operand has rounds nothing.
  void find_kept() {
    for (NodeId id : graph_.all_nodes()) {
      const Node& node = graph_.node(id);
      if (!is_cast(node) || is_repair(node) || !low(graph_.output(id))) continue;
      const ValueId result = graph_.output(id);
      const ValueId source = graph_.input(id, 0);
      if (graph_.value(source).type.dtype == graph_.value(result).type.dtype) continue;
      if (!only_casts_read(result)) continue;
      kept_.insert(id);
      if (!is_output(result)) ++roundings_;
    }
  }

  /// One shared cast behind the input; casts read the input itself.
  void widen_inputs() {
    for (ValueId input : graph_.inputs()) {
      if (!low(input)) continue;
      const auto wants_f32 = [&](const Use& use) {
        return !is_graph_output(use) && !(use.by_node() && is_cast(graph_.node(use.node())));
      };
      const auto uses = graph_.uses(input);
      if (std::none_of(uses.begin(), uses.end(), wants_f32)) continue;
      Builder b(graph_, graph_.before(graph_.first(graph_.main())), context_.infer);
      b.set_origin(graph_.value(input).name);
      const Expr wide = b.cast(b.value(input), DType::kF32);
      graph_.replace_uses_if(input, wide.id, wants_f32);
      changed_ = true;
    }
  }

  void widen_initializers() {
    for (uint32_t region = 0; region < graph_.region_count(); ++region) {
      for (ValueId id : graph_.initializers(RegionId{region})) {
        if (!low(id)) continue;
        Value& value = graph_.value(id);
        value.tensor = value.tensor.cast_to(DType::kF32);
        value.type.dtype = DType::kF32;
        ++constants_;
        changed_ = true;
      }
    }
  }

  void widen_node(NodeId id) {
    Node& node = graph_.node(id);
    if (kept_.contains(id)) return;
    if (!is_cast(node)) {
      widen_attributes(node.attributes);
      for (ValueId result : graph_.outputs(id)) {
        changed_ |= result.valid() && holds_16bit(graph_.value(result).type);
      }
      return;
    }
    if (low(graph_.output(id))) {
      ++to_[graph_.value(graph_.output(id)).type.dtype];
      node.attributes.set("to", kF32Code);
      touched_.insert(id);
      changed_ = true;
    } else if (low(graph_.input(id, 0)) && is_widened(graph_.input(id, 0))) {
      ++back_;
      touched_.insert(id);
    }
  }

  /// Of a 16-bit value: not an input of the graph, no rounding that stays.
  bool is_widened(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    if (producer.valid()) return !kept_.contains(producer);
    return graph_.value(value).kind != ValueKind::kInput;
  }

  void widen_attributes(Attributes& attributes) {
    const Attributes before = attributes;
    for (const auto& [name, attribute] : before) {
      const auto* code = std::get_if<int64_t>(&attribute);
      const auto* tensor = std::get_if<Tensor>(&attribute);
      const auto* type = std::get_if<ValueType>(&attribute);
      const bool names_type = std::find(std::begin(kTypeAttributes), std::end(kTypeAttributes),
                                        name) != std::end(kTypeAttributes);
      if (code != nullptr && names_type && is_16bit_float(static_cast<DType>(*code))) {
        attributes.set(name, kF32Code);
      } else if (tensor != nullptr && is_16bit_float(tensor->dtype())) {
        attributes.set(name, tensor->cast_to(DType::kF32));
        ++constants_;
      } else if (type != nullptr && holds_16bit(*type)) {
        attributes.set(name, widened(*type));
      } else {
        continue;
      }
      changed_ = true;
    }
  }

  void retype() {
    for (uint32_t i = 0; i < graph_.value_count(); ++i) {
      Value& value = graph_.value(ValueId{i});
      if (value.alive && is_widened(ValueId{i})) value.type = widened(value.type);
    }
    for (NodeId id : graph_.all_nodes()) graph_.node(id).precision = {};
    infer_graph(graph_);
  }

  /// An output keeps its name and type.
  void narrow_outputs() {
    const std::vector<ValueId> outputs(graph_.outputs().begin(), graph_.outputs().end());
    std::map<ValueId, ValueId> narrowed;
    for (uint32_t i = 0; i < outputs.size(); ++i) {
      const DType dtype = output_types_[i].dtype;
      if (graph_.value(outputs[i]).type.dtype == dtype || !is_16bit_float(dtype)) continue;
      auto [found, is_new] = narrowed.try_emplace(outputs[i], ValueId{});
      if (is_new) found->second = narrow(outputs[i], dtype);
      graph_.replace_use({UseKind::kRegionOutput, graph_.main().index, i}, found->second);
    }
  }

  ValueId narrow(ValueId value, DType dtype) {
    const std::string name = graph_.value(value).name;
    Builder b(graph_, graph_.end(), context_.infer);
    const ValueId cast = b.cast(b.value(value), dtype).id;
    // A weight that is an output itself keeps its name; nothing else bears it.
    if (graph_.value(value).kind != ValueKind::kResult) return cast;
    graph_.rename(value, graph_.unique_name(name + ".f32"));
    graph_.rename(cast, name);
    return cast;
  }

  /// Takes away a cast that has nothing to convert any more.
  void remove_if_idle(NodeId id) {
    if (!touched_.contains(id)) return;
    const ValueId result = graph_.output(id);
    const ValueId source = graph_.input(id, 0);
    if (graph_.value(source).type.dtype != graph_.value(result).type.dtype) return;
    pass_through(graph_, id);
  }

  static void add(std::string& text, int count, const std::string& one, const std::string& many) {
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + (count == 1 ? one : many);
  }

  std::string what_was_done() const {
    std::string undone;
    for (const auto& [dtype, count] : to_) {
      const std::string type(short_name(dtype));
      add(undone, count, "cast to " + type, "casts to " + type);
    }
    add(undone, back_, "cast back", "casts back");
    add(undone, constants_, "16-bit weight or constant", "16-bit weights and constants");
    std::string text = "16-bit compute of the model is f32 until the policy decides";
    if (!undone.empty()) text += "; undone: " + undone;
    std::string kept;
    add(kept, roundings_, "rounding that the model asks for", "roundings that the model asks for");
    return kept.empty() ? text : text + "; kept: " + kept;
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<ValueType> output_types_;
  std::set<NodeId> kept_, touched_;
  std::map<DType, int> to_;  // casts to 16 bits that were undone
  int back_ = 0, constants_ = 0, roundings_ = 0;
  bool changed_ = false;
};

}  // namespace

bool undo_autocast(Model& model, PassContext& context) {
  if (model.is_training()) return false;
  const std::string done = Undo(model.graph, context).run();
  if (done.empty()) return false;
  context.note(model.source, done);
  return true;
}

}  // namespace halfnote
