// MatMul and Gemm, ONNX's and ours.
//
// With Y = op(A)·op(B), op the transpose where its flag is set:
//   dA = dY·op(B)ᵀ, or op(B)·dYᵀ where A is transposed;   dB = op(A)ᵀ·dY, or dYᵀ·op(A) where B is.
// ONNX cannot transpose inside a MatMul, so the gradients are ai.halfnote.MatMul.
#include <algorithm>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

Expr transposed_matmul(Builder& b, Expr a, bool trans_a, Expr other, bool trans_b) {
  Attributes attributes;
  if (trans_a) attributes.set("transA", int64_t{1});
  if (trans_b) attributes.set("transB", int64_t{1});
  return b.op("MatMul", {a, other}, std::move(attributes), kHalfnoteDomain);
}

/// (…, rows, columns) as (all rows, columns).
Expr flatten_rows(Expr x) {
  if (x.rank() == 2) return x;
  Builder& b = *x.builder;
  const Dim last = x.shape().back();
  if (last.known() && last.value > 0) return b.reshape(x, b.ints({-1, last.value}));
  const SymbolicShape rows(x.shape().begin(), x.shape().end() - 1);
  if (last.known() && is_concrete(rows))  // no columns: -1 would stand for any number of rows
    return reshape_exactly(x, b.ints({element_count(concrete(rows)), last.value}));
  const int64_t rank = x.rank();
  const Expr columns = dims_of(x, rank - 1, rank);
  return b.reshape(x, b.op("Concat", {b.ints({-1}), columns}, {{"axis", int64_t{0}}}));
}

struct Product {
  Expr a, b, grad;  // rank 2 or more each
  bool trans_a = false, trans_b = false;
};

/// dA, broadcast undone.
Expr left_gradient(Builder& b, const Product& p) {
  const Expr full = p.trans_a ? transposed_matmul(b, p.b, p.trans_b, p.grad, true)
                              : transposed_matmul(b, p.grad, false, p.b, !p.trans_b);
  return b.sum_to(full, p.a);
}

/// dB, broadcast undone. A 2-D weight under batched activations takes one product over all rows.
Expr right_gradient(Builder& b, const Product& p) {
  const bool weight = p.b.rank() == 2 && p.a.rank() > 2 && !p.trans_a;
  const Expr a = weight ? flatten_rows(p.a) : p.a;
  const Expr grad = weight ? flatten_rows(p.grad) : p.grad;
  const Expr full = p.trans_b ? transposed_matmul(b, grad, true, a, p.trans_a)
                              : transposed_matmul(b, a, !p.trans_a, grad, false);
  return b.sum_to(full, p.b);
}

Expr swap_last_two(Expr x) {
  std::vector<int64_t> perm = axes_between(0, x.rank());
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return x.builder->transpose(x, std::move(perm));
}

void check_inner(const Dim& a, const Dim& b) {
  if (!a.known() || !b.known() || a.value == b.value) return;
  throw Error(ErrorCode::kModel, "the inner dims of the product differ")
      .expected(std::to_string(a.value), std::to_string(b.value));
}

}  // namespace

std::vector<ValueType> infer_matmul(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  SymbolicShape a = operand_shape(graph, node, 0);
  SymbolicShape b = operand_shape(graph, node, 1);
  if (a.size() < 2 || b.size() < 2) {
    throw Error(ErrorCode::kModel, "an operand of MatMul is no matrix")
        .expected("rank 2 or more", to_string(a) + " and " + to_string(b));
  }
  if (attributes.get_int("transA", 0) != 0) std::swap(a[a.size() - 1], a[a.size() - 2]);
  if (attributes.get_int("transB", 0) != 0) std::swap(b[b.size() - 1], b[b.size() - 2]);
  check_inner(a.back(), b[b.size() - 2]);

  const size_t rank = std::max(a.size(), b.size());
  SymbolicShape y;
  for (size_t i = 0; i + 2 < rank; ++i) {
    const Dim one(1);
    const Dim& left = i + a.size() < rank ? one : a[i + a.size() - rank];
    const Dim& right = i + b.size() < rank ? one : b[i + b.size() - rank];
    y.push_back(broadcast_dim(left, right));
  }
  y.push_back(a[a.size() - 2]);
  y.push_back(b.back());
  const DType dtype = out_dtype_of(attributes, operand_type(graph, node, 0).dtype);
  return {ValueType::tensor(dtype, std::move(y))};
}

std::vector<ValueType> infer_gemm(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  SymbolicShape a = operand_shape(graph, node, 0);
  SymbolicShape b = operand_shape(graph, node, 1);
  if (a.size() != 2 || b.size() != 2) {
    throw Error(ErrorCode::kModel, "an operand of Gemm is no matrix")
        .expected("rank 2", to_string(a) + " and " + to_string(b));
  }
  if (attributes.get_int("transA", 0) != 0) std::swap(a[0], a[1]);
  if (attributes.get_int("transB", 0) != 0) std::swap(b[0], b[1]);
  check_inner(a[1], b[0]);
  const DType dtype = out_dtype_of(attributes, operand_type(graph, node, 0).dtype);
  return {ValueType::tensor(dtype, {a[0], b[1]})};
}

std::vector<Expr> matmul_body(BodyContext& body) {
  Expr a = body.b.to_math(body.inputs[0]);
  Expr b = body.b.to_math(body.inputs[1]);
  if (body.attributes.get_int("transA", 0) != 0) a = swap_last_two(a);
  if (body.attributes.get_int("transB", 0) != 0) b = swap_last_two(b);
  return {body.b.cast(body.b.op("MatMul", {a, b}), body.output_types[0].dtype)};
}

std::vector<Expr> gemm_body(BodyContext& body) {
  std::vector<Expr> operands;
  for (const Expr& input : body.inputs) {
    operands.push_back(input.valid() ? body.b.to_math(input) : input);
  }
  Attributes attributes = body.attributes;
  attributes.erase("out_dtype");
  const Expr y = body.b.ops("Gemm", operands, 1, std::move(attributes))[0];
  return {body.b.cast(y, body.output_types[0].dtype)};
}

std::vector<Expr> matmul_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  Product p{rule.inputs[0], rule.inputs[1], rule.grads[0]};
  const bool vector_a = p.a.rank() == 1, vector_b = p.b.rank() == 1;
  // A vector is a matrix of one row (A) or one column (B); Y lacks that dim.
  if (vector_b) {
    p.b = unsqueeze(p.b, {1});
    p.grad = unsqueeze(p.grad, {-1});
  }
  if (vector_a) {
    p.a = unsqueeze(p.a, {0});
    p.grad = unsqueeze(p.grad, {-2});
  }
  Expr da = b.none(), db = b.none();
  if (rule.needed[0]) da = left_gradient(b, p);
  if (rule.needed[1]) db = right_gradient(b, p);
  if (vector_a && da.valid()) da = squeeze(da, {0});
  if (vector_b && db.valid()) db = squeeze(db, {1});
  return {da, db};
}

std::vector<Expr> transposed_matmul_gradient(GradientContext& rule) {
  const Attributes& attributes = rule.attributes();
  const Product p{rule.inputs[0], rule.inputs[1],
                  rule.b.cast(rule.grads[0], rule.inputs[0].dtype()),
                  attributes.get_int("transA", 0) != 0, attributes.get_int("transB", 0) != 0};
  return {rule.needed[0] ? left_gradient(rule.b, p) : rule.b.none(),
          rule.needed[1] ? right_gradient(rule.b, p) : rule.b.none()};
}

std::vector<Expr> gemm_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const bool ta = rule.attributes().get_int("transA", 0) != 0;
  const bool tb = rule.attributes().get_int("transB", 0) != 0;
  const float alpha = rule.attributes().get_float("alpha", 1.0f);
  const float beta = rule.attributes().get_float("beta", 1.0f);
  const Expr grad = b.cast(rule.grads[0], rule.inputs[0].dtype());
  const auto product = [&](Expr left, bool trans_left, Expr right, bool trans_right) {
    Attributes attributes;
    if (trans_left) attributes.set("transA", int64_t{1});
    if (trans_right) attributes.set("transB", int64_t{1});
    if (alpha != 1.0f) attributes.set("alpha", alpha);
    return b.op("Gemm", {left, right}, std::move(attributes), kHalfnoteDomain);
  };

  std::vector<Expr> results(rule.inputs.size(), b.none());
  const Expr x = rule.inputs[0], w = rule.inputs[1];
  if (rule.needed[0]) results[0] = ta ? product(w, tb, grad, true) : product(grad, false, w, !tb);
  if (rule.needed[1]) results[1] = tb ? product(grad, true, x, ta) : product(x, !ta, grad, false);
  if (results.size() > 2 && rule.needed[2]) {
    const Expr sum = b.sum_to(grad, rule.inputs[2]);
    results[2] = beta == 1.0f ? sum : sum * static_cast<double>(beta);
  }
  return results;
}

}  // namespace halfnote::contraction
