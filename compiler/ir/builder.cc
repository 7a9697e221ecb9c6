#include "compiler/ir/builder.h"

#include "base/error.h"

namespace halfnote {

const ValueType& Expr::type() const { return builder->graph().value(id).type; }

const SymbolicShape& Expr::shape() const {
  const ValueType& t = type();
  if (!t.is_tensor() || !t.shape) {
    throw Error(ErrorCode::kUnsupported,
                "the rank of value \"" + builder->graph().value(id).name + "\" is unknown")
        .expected("a tensor of known rank", to_string(t))
        .hint("fix the input shapes (--dim NAME=N) or export with static ranks");
  }
  return *t.shape;
}

std::vector<Expr> Builder::ops(std::string_view op, const std::vector<Expr>& inputs, int outputs,
                               Attributes attributes, std::string_view domain) {
  NodeSpec spec;
  spec.op = op;
  spec.domain = domain;
  spec.attributes = std::move(attributes);
  for (const Expr& input : inputs) spec.inputs.push_back(input.id);
  std::vector<std::string> names(static_cast<size_t>(outputs));
  for (std::string& output : names) output = prefix_ + std::string(op);
  last_ = graph_.create(std::move(spec), std::move(names), at_);
  Node& node = graph_.node(last_);
  node.role = role_;
  node.origin = origin_;
  node.name = graph_.value(graph_.output(last_)).name;
  if (infer_) infer_(graph_, last_);
  std::vector<Expr> results;
  for (ValueId result : graph_.outputs(last_)) results.push_back(value(result));
  return results;
}

Expr Builder::constant(Tensor tensor, std::string_view hint) {
  const ValueId id = graph_.add_initializer(prefix_ + std::string(hint), std::move(tensor));
  graph_.value(id).made = true;
  return value(id);
}

Expr Builder::ints(const std::vector<int64_t>& numbers) {
  return constant(Tensor::of<int64_t>({static_cast<int64_t>(numbers.size())}, numbers));
}

Expr Builder::cast(Expr x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return op("Cast", {x}, {{"to", static_cast<int64_t>(dtype)}});
}

Expr Builder::shape_of(Expr x) {
  const ValueType& type = x.type();
  if (type.has_concrete_shape()) return ints(concrete(*type.shape));
  return op("Shape", {x});
}

Expr Builder::reduce_sum(Expr x, const std::vector<int64_t>& axes, bool keep_dims) {
  if (axes.empty()) return x;
  return op("ReduceSum", {x, ints(axes)}, {{"keepdims", int64_t{keep_dims}}});
}

Expr Builder::reshape(Expr x, Expr shape) { return op("Reshape", {x, shape}); }

Expr Builder::transpose(Expr x, std::vector<int64_t> perm) {
  return op("Transpose", {x}, {{"perm", std::move(perm)}});
}

Expr Builder::sum_to(Expr x, Expr target) {
  const SymbolicShape from = x.shape();
  const SymbolicShape to = target.shape();
  if (to.size() > from.size()) {
    throw Error(ErrorCode::kInternal,
                "a gradient has a lower rank than \"" + graph_.value(target.id).name + "\"")
        .expected("a rank of at least " + std::to_string(to.size()), to_string(from));
  }
  const size_t lead = from.size() - to.size();
  std::vector<int64_t> leading, kept;
  for (size_t i = 0; i < lead; ++i) leading.push_back(static_cast<int64_t>(i));
  bool open = false;
  for (size_t i = lead; i < from.size(); ++i) {
    const Dim& goal = to[i - lead];
    if (goal.same_as(from[i])) continue;
    if (goal.is(1)) {
      kept.push_back(static_cast<int64_t>(i));
    } else {
      open |= !goal.known();  // a known dim above 1 was not broadcast
    }
  }
  Expr result = reduce_sum(x, kept, true);
  result = reduce_sum(result, leading, false);
  return open ? sum_where_they_differ(result, target) : result;
}

Expr Builder::sum_where_they_differ(Expr x, Expr target) {
  const SymbolicShape to = target.shape();
  const DType dtype = x.dtype();
  SymbolicShape shape = x.shape();
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].known() || to[i].same_as(shape[i])) continue;
    const auto axis = static_cast<int64_t>(i);
    const auto size_of = [&](Expr y) {
      return op("Shape", {y}, {{"start", axis}, {"end", axis + 1}});
    };
    const Expr goal = size_of(target);
    const Expr same = op("Equal", {size_of(x), goal});
    // Of an axis that was broadcast, each slice holds the sum; the first of them is left.
    const Expr sums = op("Where", {same, x, reduce_sum(x, {axis}, true)});
    x = op("Slice", {sums, ints({0}), goal, ints({axis})});
    shape[i] = to[i];
    graph_.value(x.id).type = ValueType::tensor(dtype, shape);
  }
  return x;
}

namespace {

Expr binary(const char* op, Expr a, Expr b) { return a.builder->op(op, {a, b}); }
Expr number_like(Expr x, double number) { return x.builder->scalar(x.dtype(), number); }

}  // namespace

Expr operator+(Expr a, Expr b) { return binary("Add", a, b); }
Expr operator-(Expr a, Expr b) { return binary("Sub", a, b); }
Expr operator*(Expr a, Expr b) { return binary("Mul", a, b); }
Expr operator/(Expr a, Expr b) { return binary("Div", a, b); }
Expr operator+(Expr a, double b) { return a + number_like(a, b); }
Expr operator-(Expr a, double b) { return a - number_like(a, b); }
Expr operator*(Expr a, double b) { return a * number_like(a, b); }
Expr operator/(Expr a, double b) { return a / number_like(a, b); }
Expr operator+(double a, Expr b) { return number_like(b, a) + b; }
Expr operator-(double a, Expr b) { return number_like(b, a) - b; }
Expr operator*(double a, Expr b) { return number_like(b, a) * b; }
Expr operator/(double a, Expr b) { return number_like(b, a) / b; }
Expr operator-(Expr a) { return a.builder->op("Neg", {a}); }

Expr where(Expr condition, Expr yes, Expr no) {
  return condition.builder->op("Where", {condition, yes, no});
}

}  // namespace halfnote
