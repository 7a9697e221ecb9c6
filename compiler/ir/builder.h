// Builds nodes in a graph, typed as they are made. Gradient rules, function bodies and passes are
// written with it:
//
//   Builder b(graph, graph.before(node), infer);
//   Expr dx = dy * y * (1.0 - y);
//
// Arithmetic on expressions makes Add, Sub, Mul, Div; a number takes the type of the other side.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

class Builder;

/// A value in the hands of a builder. Invalid stands for an absent optional input.
struct Expr {
  Builder* builder = nullptr;
  ValueId id;

  bool valid() const { return id.valid(); }
  const ValueType& type() const;
  DType dtype() const { return type().dtype; }
  /// The symbolic shape; throws Error(kUnsupported) where the rank is unknown.
  const SymbolicShape& shape() const;
  int rank() const { return static_cast<int>(shape().size()); }
};

/// Sets the types of a node's results; throws Error when the node is wrong. Empty: results stay
/// untyped.
using InferNode = std::function<void(Graph&, NodeId)>;

class Builder {
 public:
  Builder(Graph& graph, InsertPoint at, InferNode infer)
      : graph_(graph), at_(at), infer_(std::move(infer)) {}

  Graph& graph() { return graph_; }
  void set_insert_point(InsertPoint at) { at_ = at; }
  InsertPoint insert_point() const { return at_; }
  /// Role, origin and name prefix that new nodes get.
  void set_role(Role role) { role_ = role; }
  Role role() const { return role_; }
  void set_origin(SharedText origin) { origin_ = std::move(origin); }
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

  Expr value(ValueId id) { return {this, id}; }
  Expr none() { return {this, ValueId{}}; }
  /// A node with one result.
  Expr op(std::string_view op, std::initializer_list<Expr> inputs, Attributes attributes = {},
          std::string_view domain = {}) {
    return ops(op, std::vector<Expr>(inputs), 1, std::move(attributes), domain)[0];
  }
  /// A node with `outputs` results.
  std::vector<Expr> ops(std::string_view op, const std::vector<Expr>& inputs, int outputs,
                        Attributes attributes = {}, std::string_view domain = {});
  /// The node made last.
  NodeId last() const { return last_; }

  Expr constant(Tensor tensor, std::string_view hint = "const");
  Expr scalar(DType dtype, double number) { return constant(Tensor::scalar_of(dtype, number)); }
  /// A 1-D int64 constant.
  Expr ints(const std::vector<int64_t>& numbers);
  Expr cast(Expr x, DType dtype);
  /// The type in which a body computes: f64 stays, every other float is cast to f32.
  Expr to_math(Expr x) { return cast(x, x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32); }
  /// Shape(x): a constant where all dims are known.
  Expr shape_of(Expr x);
  /// Sums `x` over the axes along which `target` was broadcast to the shape of `x`, so that the
  /// result has the shape of `target`. Where symbolic dims leave open whether an axis was
  /// broadcast, the graph finds out from both shapes.
  Expr sum_to(Expr x, Expr target);
  Expr reduce_sum(Expr x, const std::vector<int64_t>& axes, bool keep_dims);
  Expr reshape(Expr x, Expr shape);
  Expr transpose(Expr x, std::vector<int64_t> perm);

 private:
  /// The same for operands of one rank, along the axes that are still open.
  Expr sum_where_they_differ(Expr x, Expr target);

  Graph& graph_;
  InsertPoint at_;
  InferNode infer_;
  Role role_ = Role::kForward;
  SharedText origin_;
  std::string prefix_;
  NodeId last_;
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator/(Expr a, Expr b);
Expr operator+(Expr a, double b);
Expr operator-(Expr a, double b);
Expr operator*(Expr a, double b);
Expr operator/(Expr a, double b);
Expr operator+(double a, Expr b);
Expr operator-(double a, Expr b);
Expr operator*(double a, Expr b);
Expr operator/(double a, Expr b);
Expr operator-(Expr a);
/// Where(condition, yes, no).
Expr where(Expr condition, Expr yes, Expr no);

}  // namespace halfnote
