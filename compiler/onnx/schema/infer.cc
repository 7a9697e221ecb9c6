// Runs the inference function of a schema directly on the IR: the context below hands it types,
// attributes and small constants as protos, one at a time and only when asked.
#include <google/protobuf/arena.h>
#include <onnx/defs/schema.h>

#include <memory>

#include "base/error.h"
#include "compiler/onnx/proto/tensor.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/schema.h"
#include "compiler/onnx/schema/guard.h"
#include "compiler/onnx/schema/lookup.h"
#include "compiler/onnx/schema/merge.h"
#include "compiler/onnx/schema/node_proto.h"
#include "compiler/onnx/schema/plain_types.h"
#include "compiler/onnx/schema/propagate.h"
#include "compiler/onnx/schema/refine.h"

namespace halfnote {
namespace {

using proto::merge_types;

/// Infers one subgraph: types come in from the node, go through its nodes, and out to the node.
class RegionInferencer : public onnx::GraphInferencer {
 public:
  RegionInferencer(Graph& graph, RegionId region, const InferNode& nested)
      : graph_(graph), region_(region), nested_(nested) {}

  std::vector<const onnx::TypeProto*> doInferencing(
      const std::vector<const onnx::TypeProto*>& input_types,
      const std::vector<const onnx::TensorProto*>&) override {
    const auto inputs = graph_.inputs(region_);
    if (input_types.size() != inputs.size()) {
      throw Error(ErrorCode::kModel, "a subgraph has the wrong number of inputs")
          .expected(std::to_string(input_types.size()), std::to_string(inputs.size()));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (input_types[i] == nullptr) continue;
      Value& value = graph_.value(inputs[i]);
      value.type = merge_types(value.type, proto::read_type(*input_types[i]), value.name);
    }
    for (NodeId node : graph_.nodes(region_)) nested_(graph_, node);
    types_.clear();
    std::vector<const onnx::TypeProto*> results;
    for (ValueId output : graph_.outputs(region_)) {
      types_.push_back(std::make_unique<onnx::TypeProto>());
      proto::write_type(graph_.value(output).type, *types_.back());
      results.push_back(types_.back().get());
    }
    return results;
  }

 private:
  Graph& graph_;
  RegionId region_;
  const InferNode& nested_;
  std::vector<std::unique_ptr<onnx::TypeProto>> types_;
};

class Context : public onnx::InferenceContext {
 public:
  Context(Graph& graph, NodeId node, const onnx::OpSchema& schema, int64_t opset,
          const InferNode& nested)
      : graph_(graph),
        node_(node),
        schema_(schema),
        nested_(nested),
        attributes_(graph.node(node).attributes),
        propagator_(graph, opset),
        input_types_(graph.inputs(node).size()),
        input_data_(graph.inputs(node).size()) {
    for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
      output_types_.push_back(make<onnx::TypeProto>());
    }
  }

  /// What the node leaves out has the default of the schema: the library's own rules do not always
  /// take it (STFT's `onesided`).
  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    if (const onnx::AttributeProto* given = attributes_.get(name)) return given;
    const auto known = schema_.attributes().find(name);
    if (known == schema_.attributes().end()) return nullptr;
    const onnx::AttributeProto& absent = known->second.default_value;
    return absent.type() == onnx::AttributeProto::UNDEFINED ? nullptr : &absent;
  }
  size_t getNumInputs() const override { return input_types_.size(); }
  size_t getNumOutputs() const override { return output_types_.size(); }
  bool hasInput(size_t index) const override { return graph_.input(node_, index).valid(); }
  bool hasOutput(size_t index) override { return graph_.output(node_, index).valid(); }

  const onnx::TypeProto* getInputType(size_t index) const override {
    const ValueId input = graph_.input(node_, index);
    if (!input.valid() || graph_.value(input).type.kind == TypeKind::kUnknown) return nullptr;
    auto& type = input_types_[index];
    if (type == nullptr) {
      type = make<onnx::TypeProto>();
      proto::write_type(graph_.value(input).type, *type);
    }
    return type;
  }
  const onnx::TensorProto* getInputData(size_t index) const override {
    const Tensor* tensor = graph_.constant(graph_.input(node_, index));
    if (tensor == nullptr || tensor->byte_size() > proto::kMaxConstantBytes) return nullptr;
    auto& data = input_data_[index];
    if (data == nullptr) {
      data = make<onnx::TensorProto>();
      proto::write_tensor(*tensor, "", *data);
    }
    return data;
  }
  onnx::TypeProto* getOutputType(size_t index) override {
    if (index >= output_types_.size()) {
      throw Error(ErrorCode::kModel, "the node has too few results")
          .expected("at least " + std::to_string(index + 1), std::to_string(output_types_.size()));
    }
    return output_types_[index];
  }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto* getSymbolicInput(size_t index) const override {
    return propagator_.value_of(graph_.input(node_, index));
  }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string& name) override {
    const Attribute* attribute = graph_.node(node_).attributes.find(name);
    const auto* region = attribute == nullptr ? nullptr : std::get_if<RegionId>(attribute);
    if (region == nullptr) {
      throw Error(ErrorCode::kModel, "attribute \"" + name + "\" is missing")
          .expected("a graph", attribute == nullptr ? "nothing" : "another type");
    }
    regions_.push_back(std::make_unique<RegionInferencer>(graph_, *region, nested_));
    return regions_.back().get();
  }

 private:
  template <class Message>
  Message* make() const {
    return google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

  Graph& graph_;
  NodeId node_;
  const onnx::OpSchema& schema_;
  const InferNode& nested_;
  proto::AttributeProtos attributes_;
  mutable proto::Propagator propagator_;
  // All protos of one inference lie in one place, and mostly ask for no memory: that took longer
  // than what is done with them.
  char room_[4096];
  mutable google::protobuf::Arena arena_{room_, sizeof room_};
  mutable std::vector<onnx::TypeProto*> input_types_;
  mutable std::vector<onnx::TensorProto*> input_data_;
  std::vector<onnx::TypeProto*> output_types_;
  std::vector<std::unique_ptr<RegionInferencer>> regions_;
};

bool all_inputs_typed(const Graph& graph, NodeId node) {
  for (ValueId input : graph.inputs(node)) {
    if (input.valid() && graph.value(input).type.kind == TypeKind::kUnknown) return false;
  }
  return true;
}

/// `[ShapeInferenceError] text` without the bracket.
std::string plain_message(const std::exception& error) {
  std::string text = error.what();
  if (text.starts_with("[")) {
    const size_t end = text.find("] ");
    if (end != std::string::npos) text.erase(0, end + 2);
  }
  return text;
}

void check_arity(const Graph& graph, NodeId node, const onnx::OpSchema& schema) {
  const auto check = [](const char* what, size_t count, int least, int most) {
    const auto number = static_cast<int64_t>(count);
    if (number >= least && number <= most) return;
    const bool open = most == std::numeric_limits<int>::max();
    throw Error(ErrorCode::kModel, std::string("wrong number of ") + what)
        .expected(open            ? "at least " + std::to_string(least)
                  : least == most ? std::to_string(least)
                                  : std::to_string(least) + " to " + std::to_string(most),
                  std::to_string(number));
  };
  check("inputs", graph.inputs(node).size(), schema.min_input(), schema.max_input());
  check("outputs", graph.outputs(node).size(), schema.min_output(), schema.max_output());
}

/// Open dims of results get the name of the value and the axis: `y_d0`.
void name_open_dims(Value& value) {
  if (!value.type.is_tensor() || !value.type.shape) return;
  for (size_t axis = 0; axis < value.type.shape->size(); ++axis) {
    Dim& dim = (*value.type.shape)[axis];
    if (!dim.known() && dim.symbol.empty()) dim.symbol = value.name + "_d" + std::to_string(axis);
  }
}

bool names_input_dim(const Graph& graph, const std::string& symbol) {
  for (ValueId input : graph.inputs(graph.main())) {
    const ValueType& type = graph.value(input).type;
    if (!type.shape) continue;
    for (const Dim& dim : *type.shape) {
      if (!dim.known() && dim.symbol == symbol) return true;
    }
  }
  return false;
}

/// Exporters declare a fresh symbol for each result (`unk__755`); that it is a dim of an input is
/// worth more.
void prefer_input_dims(const Graph& graph, ValueType& merged, const ValueType& inferred) {
  if (!merged.shape || !inferred.shape || merged.shape->size() != inferred.shape->size()) return;
  for (size_t i = 0; i < merged.shape->size(); ++i) {
    Dim& dim = (*merged.shape)[i];
    const Dim& by_rule = (*inferred.shape)[i];
    const bool differ =
        !dim.known() && !by_rule.known() && !by_rule.symbol.empty() && dim.symbol != by_rule.symbol;
    if (differ && names_input_dim(graph, by_rule.symbol)) dim = by_rule;
  }
}

/// ` strides = [0, 1]`, ` axis = 2`; nothing for what would not fit into a message.
std::string attribute_text(const std::string& name, const Attribute& attribute) {
  if (const auto* number = std::get_if<int64_t>(&attribute)) {
    return " " + name + " = " + std::to_string(*number);
  }
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute)) {
    return numbers->size() > kMaxRank * 2 ? ""
                                          : " " + name + " = " + to_string(std::span(*numbers));
  }
  const auto* word = std::get_if<std::string>(&attribute);
  return word == nullptr || word->size() > 80 ? "" : " " + name + " = \"" + *word + "\"";
}

/// `the operands are "x" float[2,3], "w" float[4,5], the attributes axis = 2`: what did not fit.
std::string facts_of(const Graph& graph, NodeId node) {
  constexpr size_t kShown = 8;
  std::string text, attributes;
  for (const auto& [name, attribute] : graph.node(node).attributes) {
    const std::string one = attribute_text(name, attribute);
    if (!one.empty()) attributes += (attributes.empty() ? "; the attributes" : ",") + one;
  }
  size_t shown = 0;
  for (ValueId input : graph.inputs(node)) {
    if (!input.valid()) continue;
    if (shown == kShown) return text + ", …" + attributes;
    const Value& value = graph.value(input);
    text += (shown++ == 0 ? "the operands are \"" : ", \"") + value.name + "\" " +
            to_string(value.type);
  }
  return text + attributes;
}

/// The type that inference found; a size below 0 comes from a window or padding that is too large.
ValueType read_result(const onnx::TypeProto& type, const std::string& name) {
  try {
    return proto::read_type(type);
  } catch (const Error& error) {
    if (!error.value().starts_with("-")) throw;
    throw Error(ErrorCode::kModel, "a result would have a size below 0")
        .expected("0 or more", error.value())
        .hint("it is \"" + name +
              "\": a window is larger than what it moves over, or more is cut off than there is");
  }
}

void run_inference(const onnx::OpSchema& schema, const Graph& graph, NodeId node,
                   Context& context) {
  try {
    schema.GetTypeAndShapeInferenceFunction()(context);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    std::string message = plain_message(error);
    while (message.ends_with('.') || message.ends_with('\n')) message.pop_back();
    if (message.ends_with(" in "))
      message.resize(message.size() - 4);  // the node has no name there
    throw Error(ErrorCode::kModel, std::move(message)).hint(facts_of(graph, node));
  }
}

/// Joins what was inferred with what the value is declared to be.
void give_type(const Graph& graph, Value& value, ValueType inferred) {
  if (value.type.kind == TypeKind::kUnknown) {
    value.type = std::move(inferred);
  } else if (!(value.type == inferred)) {
    value.type = merge_types(value.type, inferred, value.name);
    prefer_input_dims(graph, value.type, inferred);
  }
}

void name_open_dims(Graph& graph, NodeId node) {
  for (ValueId output : graph.outputs(node)) {
    const bool named = output.valid() && graph.value(output).region == graph.main();
    if (named) name_open_dims(graph.value(output));
  }
}

}  // namespace

void infer_with_schema(Graph& graph, NodeId node, int64_t opset, const InferNode& nested) {
  const InferNode by_schema = [opset, &by_schema](Graph& inner, NodeId id) {
    infer_with_schema(inner, id, opset, by_schema);
  };
  try {
    if (auto type = proto::plain_result_type(graph, node, opset)) {
      give_type(graph, graph.value(graph.output(node)), std::move(*type));
      return name_open_dims(graph, node);
    }
    const onnx::OpSchema& schema = proto::require_schema(graph.node(node), opset);
    check_arity(graph, node, schema);
    proto::guard_inference(graph.node(node));
    if (!all_inputs_typed(graph, node)) return;
    proto::refuse_small_output(graph, node);
    Context context(graph, node, schema, opset, nested ? nested : by_schema);
    run_inference(schema, graph, node, context);
    const auto outputs = graph.outputs(node);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid()) continue;
      Value& value = graph.value(outputs[i]);
      give_type(graph, value, read_result(*context.getOutputType(i), value.name));
    }
    proto::refine_reshape(graph, node);
    name_open_dims(graph, node);
  } catch (Error& error) {
    throw error.within(proto::place_of(graph, node));
  }
}

}  // namespace halfnote
