// Runs the data propagation functions of the schemas on demand, from the value that is asked for
// back to constants and Shape nodes.
#include "compiler/onnx/schema/propagate.h"

#include <onnx/defs/schema.h>

#include "base/error.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/schema/lookup.h"
#include "compiler/onnx/schema/node_proto.h"

namespace halfnote::proto {
namespace {

constexpr int64_t kMaxElementsFollowed = 64;
constexpr int kMaxDepth = 100;

bool is_index(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

/// What the schema's propagation function sees of one node.
class Context : public onnx::DataPropagationContext {
 public:
  Context(Propagator& propagator, NodeId node)
      : propagator_(propagator),
        graph_(propagator.graph()),
        node_(node),
        attributes_(graph_.node(node).attributes),
        types_(graph_.inputs(node).size()),
        output_types_(graph_.outputs(node).size()) {}

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    return attributes_.get(name);
  }
  size_t getNumInputs() const override { return graph_.inputs(node_).size(); }
  size_t getNumOutputs() const override { return graph_.outputs(node_).size(); }
  const onnx::TypeProto* getInputType(size_t index) const override {
    return type_of(graph_.input(node_, index), types_, index);
  }
  const onnx::TypeProto* getOutputType(size_t index) const override {
    return type_of(graph_.output(node_, index), output_types_, index);
  }
  const onnx::TensorShapeProto* getInputData(size_t index) override {
    return propagator_.value_or_open(graph_.input(node_, index));
  }
  void addOutputData(size_t index, onnx::TensorShapeProto&& data) override {
    if (index < 1) result = std::make_unique<onnx::TensorShapeProto>(std::move(data));
  }

  std::unique_ptr<onnx::TensorShapeProto> result;  // of output 0

 private:
  using Types = std::vector<std::unique_ptr<onnx::TypeProto>>;
  const onnx::TypeProto* type_of(ValueId value, Types& types, size_t index) const {
    if (!value.valid() || index >= types.size()) return nullptr;
    if (graph_.value(value).type.kind == TypeKind::kUnknown) return nullptr;
    if (types[index] == nullptr) {
      types[index] = std::make_unique<onnx::TypeProto>();
      write_type(graph_.value(value).type, *types[index]);
    }
    return types[index].get();
  }

  Propagator& propagator_;
  const Graph& graph_;
  NodeId node_;
  AttributeProtos attributes_;
  mutable Types types_, output_types_;
};

}  // namespace

Propagator::~Propagator() = default;

const onnx::TensorShapeProto* Propagator::value_of(ValueId value) {
  if (!value.valid()) return nullptr;
  const auto found = known_.find(value.index);
  if (found != known_.end()) return found->second.get();
  if (depth_ >= kMaxDepth) return nullptr;
  ++depth_;
  Shape computed = compute(value);
  --depth_;
  return known_.emplace(value.index, std::move(computed)).first->second.get();
}

Propagator::Shape Propagator::compute(ValueId id) {
  const Value& value = graph_.value(id);
  if (!value.type.is_tensor() || !is_index(value.type.dtype)) return nullptr;
  if (const Tensor* tensor = graph_.constant(id)) {
    if (tensor->shape().size() > 1 || tensor->size() > kMaxElementsFollowed) return nullptr;
    auto shape = std::make_unique<onnx::TensorShapeProto>();
    for (int64_t number : tensor->to_ints()) shape->add_dim()->set_dim_value(number);
    return shape;
  }
  if (value.kind != ValueKind::kResult || value.output != 0 || budget_-- <= 0) return nullptr;
  const Node& node = graph_.node(value.producer);
  const onnx::OpSchema* schema = find_schema(node.domain, node.op, opset_);
  if (schema == nullptr || !schema->has_data_propagation_function()) return nullptr;
  Context context(*this, value.producer);
  try {
    schema->GetDataPropagationFunction()(context);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    return nullptr;  // nothing is known then; the node's own inference judges it
  }
  return std::move(context.result);
}

const onnx::TensorShapeProto* Propagator::value_or_open(ValueId id) {
  if (const auto* known = value_of(id)) return known;
  if (!id.valid()) return nullptr;
  const auto found = open_.find(id.index);
  if (found != open_.end()) return found->second.get();
  const ValueType& type = graph_.value(id).type;
  const bool countable = type.is_tensor() && type.rank() == 1 && (*type.shape)[0].known() &&
                         (*type.shape)[0].value <= kMaxElementsFollowed;
  Shape open;
  if (countable) {
    open = std::make_unique<onnx::TensorShapeProto>();
    for (int64_t i = 0; i < (*type.shape)[0].value; ++i) open->add_dim();
  }
  return open_.emplace(id.index, std::move(open)).first->second.get();
}

}  // namespace halfnote::proto
