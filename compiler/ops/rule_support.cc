#include "compiler/ops/rule_support.h"

#include <algorithm>

#include "base/error.h"
#include "base/low_bit.h"
#include "compiler/ir/query.h"

namespace halfnote {

const ValueType& operand_type(const Graph& graph, NodeId node, size_t index) {
  const ValueId value = graph.input(node, index);
  if (!value.valid()) {
    throw Error(ErrorCode::kModel, "operand " + std::to_string(index) + " is missing");
  }
  const ValueType& type = graph.value(value).type;
  if (!type.is_tensor()) {
    throw Error(ErrorCode::kModel, "operand " + std::to_string(index) + " is no tensor")
        .expected("a tensor", to_string(type));
  }
  return type;
}

const SymbolicShape& operand_shape(const Graph& graph, NodeId node, size_t index) {
  const ValueType& type = operand_type(graph, node, index);
  if (!type.shape) {
    throw Error(ErrorCode::kUnsupported,
                "the rank of operand " + std::to_string(index) + " is unknown")
        .expected("a tensor of known rank", to_string(type))
        .hint("fix the input shapes (--dim NAME=N) or export with static ranks");
  }
  return *type.shape;
}

namespace {

/// Shape(X) + constant, as padding spells a shape; nothing where a symbolic dim would grow.
std::optional<SymbolicShape> enlarged_shape(const Graph& graph, NodeId add) {
  const Node& node = graph.node(add);
  if (node.op != "Add" || !node.domain.empty()) return std::nullopt;
  const Tensor* more = graph.constant(graph.input(add, 1));
  if (more == nullptr || more->dtype() != DType::kI64) return std::nullopt;
  SymbolicShape shape = spelled_shape(graph, add, 0);
  if (more->size() != static_cast<int64_t>(shape.size())) return std::nullopt;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t grown = more->at_as_int(static_cast<int64_t>(i));
    if (grown != 0 && !shape[i].known()) return std::nullopt;
    if (grown != 0) shape[i] = Dim{checked_add(shape[i].value, grown)};
  }
  return shape;
}

}  // namespace

SymbolicShape spelled_shape(const Graph& graph, NodeId node, size_t index) {
  const ValueId value = graph.input(node, index);
  const SymbolicShape& own = operand_shape(graph, node, index);
  if (own.size() != 1) {
    throw Error(ErrorCode::kModel, "operand " + std::to_string(index) + " is no shape")
        .expected("a 1-D int64 tensor", to_string(graph.value(value).type));
  }
  if (const Tensor* constant = graph.constant(value)) return symbolic(constant->to_ints());
  const NodeId producer = graph.value(value).producer;
  if (producer.valid()) {
    const Node& source = graph.node(producer);
    const bool whole = !source.attributes.has("start") && !source.attributes.has("end");
    if (is_op(source, "Shape") && whole) {
      const ValueType& type = operand_type(graph, producer, 0);
      if (type.shape) return *type.shape;
    }
    if (auto enlarged = enlarged_shape(graph, producer)) return *enlarged;
  }
  if (!own[0].known()) {
    throw Error(ErrorCode::kUnsupported, "the rank of the result is unknown")
        .expected("a shape of known length", to_string(own));
  }
  return SymbolicShape(static_cast<size_t>(own[0].value));
}

bool may_be_alike(const SymbolicShape& a, const SymbolicShape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Dim& x, const Dim& y) {
    return !x.known() || !y.known() || x.value == y.value;
  });
}

Dim broadcast_dim(const Dim& a, const Dim& b) {
  if (a.same_as(b) || b.is(1)) return a;
  if (a.is(1)) return b;
  if (a.known() && b.known()) {
    throw Error(ErrorCode::kModel, "the shapes of the operands do not broadcast")
        .expected("dims that are equal or 1",
                  std::to_string(a.value) + " and " + std::to_string(b.value));
  }
  if (a.known()) return a;  // a symbol beside a number above 1 is that number or 1
  if (b.known()) return b;
  return Dim();
}

DType out_dtype_of(const Attributes& attributes, DType fallback) {
  if (!attributes.has("out_dtype")) return fallback;
  const int64_t code = attributes.get_int("out_dtype", 0);
  const auto dtype = dtype_from_onnx(code);
  if (!dtype || !(*dtype == DType::kF64 || *dtype == DType::kF32 || is_16bit_float(*dtype))) {
    throw Error(ErrorCode::kModel, "attribute out_dtype is no float type")
        .expected("the code of f64, f32, f16 or bf16", std::to_string(code));
  }
  return *dtype;
}

DType math_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

std::optional<std::vector<int64_t>> constant_ints(const Graph& graph, ValueId value) {
  if (!value.valid()) return std::nullopt;
  const Tensor* constant = graph.constant(value);
  if (constant == nullptr) return std::nullopt;
  return constant->to_ints();
}

std::vector<int64_t> axes_between(int64_t from, int64_t to) {
  std::vector<int64_t> axes;
  for (int64_t axis = from; axis < to; ++axis) axes.push_back(axis);
  return axes;
}

std::vector<int64_t> axes_but_channel(int64_t rank) {
  std::vector<int64_t> axes = axes_between(2, rank);
  axes.insert(axes.begin(), 0);
  return axes;
}

std::vector<int64_t> require_static(const SymbolicShape& shape, size_t from, const char* what) {
  std::vector<int64_t> dims;
  for (size_t i = from; i < shape.size(); ++i) {
    if (!shape[i].known()) {
      throw Error(ErrorCode::kUnsupported, std::string(what) + " needs fixed sizes")
          .expected("numbers from dim " + std::to_string(from) + " on", to_string(shape))
          .hint("fix the symbolic dims with --dim NAME=N");
    }
    dims.push_back(shape[i].value);
  }
  return dims;
}

Expr unsqueeze(Expr x, std::vector<int64_t> axes) {
  if (axes.empty()) return x;
  return x.builder->op("Unsqueeze", {x, x.builder->ints(axes)});
}

Expr squeeze(Expr x, std::vector<int64_t> axes) {
  if (axes.empty()) return x;
  return x.builder->op("Squeeze", {x, x.builder->ints(axes)});
}

Expr expand_like(Expr x, Expr like) {
  return x.builder->op("Expand", {x, x.builder->shape_of(like)});
}

DType gradient_dtype(DType dtype) {
  return is_float(dtype) && is_low_bit(dtype) ? DType::kF32 : dtype;
}

ValueType gradient_type(ValueType type) {
  if (type.is_tensor()) type.dtype = gradient_dtype(type.dtype);
  return type;
}

std::vector<Expr> no_slope(GradientContext& rule) {
  return std::vector<Expr>(rule.inputs.size(), rule.b.none());
}

std::vector<Expr> no_values(GradientContext& rule) { return no_slope(rule); }

Expr zero_gradient(Expr like) {
  return zeros(gradient_dtype(like.dtype()), like.builder->shape_of(like));
}

Expr zeros(DType dtype, Expr shape) {
  return shape.builder->op("ConstantOfShape", {shape}, {{"value", Tensor(dtype, {1})}});
}

Expr reshape_exactly(Expr x, Expr shape) {
  const auto sizes = constant_ints(x.builder->graph(), shape.id);
  const bool plain = !sizes || std::find(sizes->begin(), sizes->end(), 0) == sizes->end();
  if (plain) return x.builder->reshape(x, shape);
  return x.builder->op("Reshape", {x, shape}, {{"allowzero", int64_t{1}}});
}

Expr dims_of(Expr x, int64_t from, int64_t to) {
  const SymbolicShape shape = x.shape();
  std::vector<int64_t> numbers;
  for (int64_t i = from; i < to; ++i) numbers.push_back(shape[static_cast<size_t>(i)].value);
  const bool known = std::find_if(numbers.begin(), numbers.end(),
                                  [](int64_t n) { return n < 0; }) == numbers.end();
  if (known) return x.builder->ints(numbers);
  return x.builder->op("Shape", {x}, {{"start", from}, {"end", to}});
}

Expr count_along(Expr x, const std::vector<int64_t>& axes, DType dtype) {
  const SymbolicShape shape = x.shape();
  int64_t count = 1;
  bool known = true;
  for (int64_t axis : axes) {
    const Dim& dim = shape[static_cast<size_t>(axis)];
    known = known && dim.known();
    if (known) count = checked_mul(count, dim.value);
  }
  Builder& b = *x.builder;
  if (known) return b.scalar(dtype, static_cast<double>(count));
  const Expr dims = b.op("Gather", {b.op("Shape", {x}), b.ints(axes)});
  return b.cast(b.op("ReduceProd", {dims}, {{"keepdims", int64_t{0}}}), dtype);
}

Expr mean_keep(Expr x, const std::vector<int64_t>& axes) {
  return x.builder->op("ReduceMean", {x, x.builder->ints(axes)});
}

Expr mask_zero(Expr mask, Expr x) {
  return x.builder->op("Where", {mask, x, x.builder->scalar(x.dtype(), 0)});
}

Expr channels_last(Expr x) {
  std::vector<int64_t> order = axes_between(0, x.rank());
  std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  return x.builder->transpose(x, std::move(order));
}

Expr channels_second(Expr x) {
  std::vector<int64_t> order = axes_between(0, x.rank());
  std::rotate(order.begin() + 1, order.end() - 1, order.end());
  return x.builder->transpose(x, std::move(order));
}

Expr per_channel(Expr vector, int rank) {
  return rank <= 2 ? vector : unsqueeze(vector, axes_between(1, rank - 1));
}

}  // namespace halfnote
