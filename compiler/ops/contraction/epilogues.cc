// GemmActivation, GemmActivationGrad and GemmSums of ai.halfnote (base/ops/epilogue.h). The pass
// fuse-epilogues makes them for a GPU, behind everything that asks for gradients or precision.
//
//   GemmActivation:      Z = op(A)·op(B) + bias,  Y = activation(Z), saved: what its gradient reads
//   GemmActivationGrad:  Z = op(A)·op(B),  dX = activation'(saved, Z), sums of dX down its columns
//   GemmSums:            Y = op(A)·op(B),  sums of op(A) or op(B) along k
#include <vector>

#include "base/error.h"
#include "base/ops/epilogue.h"
#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

/// As many results as the node has.
std::vector<ValueType> first_results(const Graph& graph, NodeId node, std::vector<ValueType> all) {
  if (graph.outputs(node).size() < all.size()) all.resize(graph.outputs(node).size());
  return all;
}

/// What an activation of a (rows, columns) product leaves to its gradient.
ValueType saved_type(const Attributes& attributes, const ValueType& y) {
  if (gemm_activation(attributes) == GemmActivation::kGelu) return y;
  const Dim& columns = (*y.shape)[1];
  const Dim bytes = columns.known() ? Dim(mask_row_bytes(columns.value)) : Dim();
  return ValueType::tensor(DType::kU8, {(*y.shape)[0], bytes});
}

Expr product_of(BodyContext& body) {
  Attributes attributes;
  for (const char* name : {"transA", "transB"}) {
    if (body.attributes.get_int(name, 0) != 0) attributes.set(name, int64_t{1});
  }
  std::vector<Expr> operands = {body.b.to_math(body.inputs[0]), body.b.to_math(body.inputs[1])};
  return body.b.ops("Gemm", operands, 1, std::move(attributes))[0];
}

/// 1, 2, 4, … 128: what a bit is worth, by its place in a byte.
Expr worth_of_bits(Builder& b) {
  std::vector<int64_t> worth;
  for (int64_t bit = 1; bit < 256; bit *= 2) worth.push_back(bit);
  return b.cast(b.ints(worth), DType::kI32);
}

/// The bits of a (rows, columns) condition as bytes, (rows, row bytes).
Expr packed(Expr condition, int64_t columns) {
  Builder& b = *condition.builder;
  const int64_t bytes = mask_row_bytes(columns);
  const Expr bits = b.cast(condition, DType::kI32);
  const Expr whole = b.op("Pad", {bits, b.ints({0, 0, 0, bytes * 8 - columns})});
  const Expr rows = dims_of(condition, 0, 1);
  const Expr shape = b.op("Concat", {rows, b.ints({bytes, 8})}, {{"axis", int64_t{0}}});
  const Expr grouped = reshape_exactly(whole, shape) * worth_of_bits(b);
  return b.cast(b.reduce_sum(grouped, {2}, false), DType::kU8);
}

/// The first `columns` bits of each row of bytes, as a condition.
Expr unpacked(Expr bytes, int64_t columns) {
  Builder& b = *bytes.builder;
  const Expr of_bits = unsqueeze(b.cast(bytes, DType::kI32), {2}) / worth_of_bits(b);
  const Expr odd = b.op("Mod", {of_bits, b.scalar(DType::kI32, 2)});
  const Expr shape = b.op("Concat", {dims_of(bytes, 0, 1), b.ints({mask_row_bytes(columns) * 8})},
                          {{"axis", int64_t{0}}});
  const Expr whole = reshape_exactly(odd, shape);
  const Expr first = b.op("Slice", {whole, b.ints({0}), b.ints({columns}), b.ints({1})});
  return b.cast(first, DType::kBool);
}

int64_t columns_of(const ValueType& y) { return require_static(*y.shape, 1, "a mask of bits")[0]; }

bool has_result(const BodyContext& body, size_t index) {
  return index < body.output_types.size() && body.output_types[index].dtype != DType::kUndefined;
}

}  // namespace

std::vector<ValueType> infer_gemm_activation(const Graph& graph, NodeId node) {
  const ValueType y = infer_gemm(graph, node)[0];
  return first_results(graph, node, {y, saved_type(graph.node(node).attributes, y)});
}

std::vector<ValueType> infer_gemm_activation_grad(const Graph& graph, NodeId node) {
  const ValueType dx = infer_gemm(graph, node)[0];
  const ValueType sums = ValueType::tensor(dx.dtype, {(*dx.shape)[1]});
  const ValueType wanted = saved_type(graph.node(node).attributes, dx);
  const ValueType& saved = operand_type(graph, node, 2);
  if (saved.dtype != wanted.dtype) {
    throw Error(ErrorCode::kModel, "what an activation leaves to its gradient is of another type")
        .expected(std::string(short_name(wanted.dtype)), std::string(short_name(saved.dtype)));
  }
  return first_results(graph, node, {dx, sums});
}

std::vector<ValueType> infer_gemm_sums(const Graph& graph, NodeId node) {
  const ValueType y = infer_gemm(graph, node)[0];
  const bool of_a = sums_are_of_a(graph.node(node).attributes);
  return first_results(graph, node, {y, ValueType::tensor(y.dtype, {(*y.shape)[of_a ? 0 : 1]})});
}

std::vector<Expr> gemm_activation_body(BodyContext& body) {
  Builder& b = body.b;
  Expr z = product_of(body);
  if (body.inputs.size() > 2 && body.inputs[2].valid()) z = z + b.to_math(body.inputs[2]);
  const DType dtype = body.output_types[0].dtype;
  const bool relu = gemm_activation(body.attributes) == GemmActivation::kRelu;
  const Expr y =
      relu ? b.op("Relu", {z}) : b.op("Gelu", {z}, {{"approximate", std::string("tanh")}});
  std::vector<Expr> results = {b.cast(y, dtype)};
  if (has_result(body, 1)) {
    results.push_back(relu ? packed(b.op("Greater", {z, b.scalar(z.dtype(), 0)}),
                                    columns_of(body.output_types[0]))
                           : b.cast(z, dtype));
  } else if (body.output_types.size() > 1) {
    results.push_back(b.none());
  }
  return results;
}

std::vector<Expr> gemm_activation_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr z = product_of(body);
  const DType dtype = body.output_types[0].dtype;
  Expr dx = b.none();
  if (gemm_activation(body.attributes) == GemmActivation::kRelu) {
    dx = mask_zero(unpacked(body.inputs[2], columns_of(body.output_types[0])), z);
  } else {
    const Attributes tanh = {{"approximate", std::string("tanh")}};
    const Expr saved = b.to_math(body.inputs[2]);
    BodyContext inner{b, tanh, {z, saved}, {z.type()}};
    dx = find_operator(kHalfnoteDomain, "GeluGrad")->body(inner)[0];
  }
  std::vector<Expr> results = {b.cast(dx, dtype)};
  if (has_result(body, 1)) {
    results.push_back(b.cast(b.reduce_sum(dx, {0}, false), dtype));
  } else if (body.output_types.size() > 1) {
    results.push_back(b.none());
  }
  return results;
}

std::vector<Expr> gemm_sums_body(BodyContext& body) {
  Builder& b = body.b;
  const bool of_a = sums_are_of_a(body.attributes);
  const bool swapped = body.attributes.get_int(of_a ? "transA" : "transB", 0) != 0;
  const int64_t along_k = of_a == swapped ? 0 : 1;  // op(A) is (m, k), op(B) is (k, n)
  const DType dtype = body.output_types[0].dtype;
  const Expr sums = b.reduce_sum(b.to_math(body.inputs[of_a ? 0 : 1]), {along_k}, false);
  return {b.cast(product_of(body), dtype), b.cast(sums, dtype)};
}

}  // namespace halfnote::contraction
