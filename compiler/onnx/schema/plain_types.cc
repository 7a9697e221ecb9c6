// Half the nodes of a training step are such ops, and most of them are inferred more than once:
// the schema's way builds a dozen protos for each. The tests ask both for the same nodes.
#include "compiler/onnx/schema/plain_types.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace halfnote::proto {
namespace {

// In all these op-sets the ops below infer alike.
constexpr int64_t kFrom = 14, kTo = 23;

constexpr std::array<std::string_view, 11> kUnary = {
    "Abs", "Erf", "Exp", "Identity", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid", "Sqrt", "Tanh"};
constexpr std::array<std::string_view, 4> kBinary = {"Add", "Div", "Mul", "Sub"};

template <size_t N>
bool holds(const std::array<std::string_view, N>& sorted, std::string_view op) {
  return std::binary_search(sorted.begin(), sorted.end(), op);
}

/// The type of an operand, if it is a tensor whose element type is known.
const ValueType* tensor_type(const Graph& graph, NodeId node, size_t index) {
  const ValueId input = graph.input(node, index);
  if (!input.valid()) return nullptr;
  const ValueType& type = graph.value(input).type;
  return type.is_tensor() && type.dtype != DType::kUndefined ? &type : nullptr;
}

bool same_dims(std::span<const Dim> a, std::span<const Dim> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Dim& x, const Dim& y) { return x.same_as(y); });
}

/// Does broadcasting `from` against `to` give `to`? No where that is not certain.
bool spreads_over(const SymbolicShape& from, const SymbolicShape& to) {
  return from.size() <= to.size() &&
         std::equal(from.rbegin(), from.rend(), to.rbegin(),
                    [](const Dim& x, const Dim& y) { return x.is(1) || x.same_as(y); });
}

std::optional<ValueType> broadcast_type(const ValueType& a, const ValueType& b) {
  if (!a.shape || !b.shape) return std::nullopt;
  if (spreads_over(*b.shape, *a.shape)) return a;
  if (spreads_over(*a.shape, *b.shape)) return ValueType::tensor(a.dtype, *b.shape);
  return std::nullopt;
}

/// (..., M, K) times (K, N), or times (..., K, N) of the same leading dims.
std::optional<ValueType> product_type(const ValueType& a, const ValueType& b) {
  if (a.rank() < 2 || b.rank() < 2) return std::nullopt;
  const std::span<const Dim> left(*a.shape), right(*b.shape);
  const bool fits =
      left.back().same_as(right[right.size() - 2]) &&
      (right.size() == 2 || same_dims(left.first(left.size() - 2), right.first(right.size() - 2)));
  if (!fits) return std::nullopt;
  ValueType type = a;
  type.shape->back() = right.back();
  return type;
}

std::optional<ValueType> cast_type(const Graph& graph, NodeId node, const ValueType& from) {
  const Attribute* attribute = graph.node(node).attributes.find("to");
  const auto* code = attribute == nullptr ? nullptr : std::get_if<int64_t>(attribute);
  if (code == nullptr) return std::nullopt;
  const auto dtype = dtype_from_onnx(*code);
  if (!dtype || *dtype == DType::kUndefined) return std::nullopt;
  ValueType type = from;
  type.dtype = *dtype;
  return type;
}

/// Only as a tensor, which nearly all are.
std::optional<ValueType> constant_type(const Attributes& attributes) {
  const Attribute* attribute = attributes.size() == 1 ? attributes.find("value") : nullptr;
  const Tensor* tensor = attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
  if (tensor == nullptr || !tensor->defined()) return std::nullopt;
  return ValueType::tensor(tensor->dtype(), symbolic(tensor->shape()));
}

}  // namespace

std::optional<ValueType> plain_result_type(const Graph& graph, NodeId node, int64_t opset) {
  const Node& data = graph.node(node);
  const size_t inputs = graph.inputs(node).size();
  const bool known = data.domain.empty() && opset >= kFrom && opset <= kTo && inputs <= 2 &&
                     graph.outputs(node).size() == 1;
  if (!known) return std::nullopt;
  if (inputs == 0) return data.op == "Constant" ? constant_type(data.attributes) : std::nullopt;
  const ValueType* first = tensor_type(graph, node, 0);
  if (first == nullptr) return std::nullopt;
  if (inputs == 1) {
    if (data.op == "Cast") return cast_type(graph, node, *first);
    return holds(kUnary, data.op) ? std::optional(*first) : std::nullopt;
  }
  const ValueType* second = tensor_type(graph, node, 1);
  if (second == nullptr) return std::nullopt;
  if (data.op == "MatMul") return product_type(*first, *second);
  return holds(kBinary, data.op) ? broadcast_type(*first, *second) : std::nullopt;
}

}  // namespace halfnote::proto
