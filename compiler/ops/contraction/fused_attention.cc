// Attention and AttentionGrad of ai.halfnote (base/ops/attention.h). The pass fuse-attention makes
// them for a device, behind everything that asks for gradients or precision; their bodies write
// the matrices of scores that kernels never hold.
//
//   dP = dY·Vᵀ, dS = P∘(dP − rowsum(dY∘Y)), dQ = dS·K·scale, dK = dSᵀ·Q·scale, dV = Pᵀ·dY
//
// and with a dropout D of P: Y = D(P)·V, dP = D(dY·Vᵀ), dV = D(P)ᵀ·dY.
#include <limits>

#include "base/error.h"
#include "base/ops/attention.h"
#include "compiler/ir/model.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/extent.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote::contraction {
namespace {

/// Operands of AttentionGrad before and behind Q, K, V.
constexpr size_t kForwardTerms = 3, kGradientTerms = 7;

SymbolicShape batch_of(const SymbolicShape& shape) {
  if (shape.size() < 2) {
    throw Error(ErrorCode::kModel, "an operand of Attention is no matrix")
        .expected("rank 2 or more", to_string(shape));
  }
  return {shape.begin(), shape.end() - 2};
}

ValueType tail_type(DType dtype, SymbolicShape batch, std::initializer_list<Dim> tail) {
  batch.insert(batch.end(), tail);
  return ValueType::tensor(dtype, std::move(batch));
}

/// Q's shape, with its heads before the rows.
SymbolicShape query_shape(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  SymbolicShape shape = operand_shape(graph, node, 0);
  if (attributes.get_int("packed", 0) != 0) shape = part_of_packed(std::move(shape));
  return read_rows_first(attributes).q ? swap_rows_and_heads(std::move(shape)) : shape;
}

struct Call {
  Builder& b;
  AttentionAttributes attributes;
  Expr q, k, v;  // in math precision, K as (…, N, D), all with as many heads, before the rows
  std::vector<Expr> terms, stream;  // seed and step of the dropout
  int64_t group = 1;                // heads of Q that read one of K and V
};

Expr swapped(Expr x) {
  std::vector<int64_t> perm = axes_between(0, x.rank());
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return x.builder->transpose(x, std::move(perm));
}

/// (…, rows, heads, size) for (…, heads, rows, size), and back.
Expr turned(Expr x, bool rows_first) {
  if (!rows_first) return x;
  return x.builder->transpose(x, swap_rows_and_heads(axes_between(0, x.rank())));
}

int64_t static_dim(Expr x, size_t axis) {
  return require_static({x.shape()[axis]}, 0, "the number of heads")[0];
}

/// Heads of Q that read one head of K and V.
int64_t group_of(Expr q, Expr k) {
  if (q.rank() < 3) return 1;
  const size_t heads = static_cast<size_t>(q.rank()) - 3;
  const int64_t own = static_dim(k, heads);
  return own == 0 ? 1 : static_dim(q, heads) / own;
}

/// Each head of (…, heads, rows, size) `group` times.
Expr repeated(Expr x, int64_t group) {
  if (group == 1) return x;
  const int64_t heads = static_dim(x, static_cast<size_t>(x.rank()) - 3);
  std::vector<int64_t> from;
  for (int64_t i = 0; i < heads * group; ++i) from.push_back(i / group);
  return x.builder->op("Gather", {x, x.builder->ints(from)}, {{"axis", int64_t{-3}}});
}

/// The sum over each `group` heads.
Expr summed(Expr x, int64_t group) {
  if (group == 1) return x;
  const auto heads = static_cast<size_t>(x.rank()) - 3;
  std::vector<std::vector<Extent>> dims;
  for (size_t i = 0; i < static_cast<size_t>(x.rank()); ++i) {
    if (i == heads) {
      dims.push_back({Extent::number(static_dim(x, heads) / group)});
      dims.push_back({Extent::number(group)});
    } else {
      dims.push_back({{x, static_cast<int64_t>(i)}});
    }
  }
  return x.builder->op("ReduceSum", {reshape_to(x, dims), x.builder->ints({-3})},
                       {{"keepdims", int64_t{0}}});
}

Call read_call(BodyContext& body, size_t q, size_t first_term) {
  Call call{body.b,
            read_attention(body.attributes, body.inputs.size() - first_term),
            body.b.to_math(body.inputs[q]),
            body.b.to_math(body.inputs[q + 1]),
            body.b.to_math(body.inputs[q + 2]),
            {},
            {},
            1};
  const AttentionAttributes::RowsFirst& first = call.attributes.rows_first;
  if (call.attributes.packed) {
    Expr* const parts[] = {&call.q, &call.k, &call.v};
    for (int64_t i = 0; i < 3; ++i)
      *parts[i] =
          body.b.op("Gather", {*parts[i], body.b.scalar(DType::kI64, static_cast<double>(i))},
                    {{"axis", int64_t{-3}}});
  }
  call.q = turned(call.q, first.q);
  call.k = call.attributes.trans_k ? swapped(call.k) : turned(call.k, first.k);
  call.v = turned(call.v, first.v);
  call.group = group_of(call.q, call.k);
  call.k = repeated(call.k, call.group);
  call.v = repeated(call.v, call.group);
  const auto first_operand = body.inputs.begin() + static_cast<std::ptrdiff_t>(first_term),
             stream = body.inputs.end() - (call.attributes.ratio ? 2 : 0);
  call.terms.assign(first_operand, stream);
  call.stream.assign(stream, body.inputs.end());
  return call;
}

bool hides(Expr term) { return term.dtype() == DType::kBool; }

/// May query i see key j?
Expr causal_mask(const Call& call) {
  const auto counting = [&](Expr x) {
    const size_t axis = x.shape().size() - 2;
    const int64_t size = require_static({x.shape()[axis]}, 0, "the length of a sequence")[0];
    return call.b.ints(axes_between(0, size));
  };
  return call.b.op("GreaterOrEqual", {unsqueeze(counting(call.q), {1}), counting(call.k)});
}

Expr scores_of(const Call& call) {
  Builder& b = call.b;
  Expr scores =
      b.op("MatMul", {call.q, swapped(call.k)}) * static_cast<double>(call.attributes.scale);
  const auto hide = [&](Expr mask, double hidden) {
    scores = where(mask, scores, b.scalar(scores.dtype(), hidden));
  };
  for (size_t i = 0; i < call.terms.size(); ++i) {
    const Expr term = call.terms[i];
    if (hides(term)) {
      hide(term, static_cast<double>(call.attributes.hidden[i]));
    } else {
      scores = scores + b.cast(term, scores.dtype());
    }
  }
  if (call.attributes.causal) hide(causal_mask(call), -std::numeric_limits<double>::infinity());
  return scores;
}

/// D of what lies as the scores do.
Expr dropped(const Call& call, Expr x) {
  if (!call.attributes.ratio) return x;
  const float ratio = *call.attributes.ratio;
  const Expr keep =
      stateful::kept_elements(x, call.stream[0], call.stream[1], call.attributes.node, ratio);
  return mask_zero(keep, x * static_cast<double>(stateful::keep_factor(ratio)));
}

Expr without_nan(const Call& call, Expr weights) {
  if (!call.attributes.nan_is_zero) return weights;
  Builder& b = call.b;
  return where(b.op("IsNaN", {weights}), b.scalar(weights.dtype(), 0), weights);
}

}  // namespace

std::vector<ValueType> infer_attention(const Graph& graph, NodeId node) {
  const ValueType& q = operand_type(graph, node, 0);
  const SymbolicShape shape = query_shape(graph, node);
  const SymbolicShape& v = operand_shape(graph, node, 2);
  const SymbolicShape batch = batch_of(shape);
  batch_of(v);
  const Dim queries = shape[shape.size() - 2];
  ValueType y = tail_type(q.dtype, batch, {queries, v.back()});
  if (read_rows_first(graph.node(node).attributes).y) y.shape = swap_rows_and_heads(*y.shape);
  return {std::move(y), tail_type(math_dtype(q.dtype), batch, {queries}),
          tail_type(math_dtype(q.dtype), batch, {queries})};
}

std::vector<ValueType> infer_attention_grad(const Graph& graph, NodeId node) {
  std::vector<ValueType> types;
  const std::vector<int64_t> codes = graph.node(node).attributes.get_ints("out_dtypes");
  for (size_t i = 0; i < 3; ++i) {
    types.push_back(operand_type(graph, node, i + 1));
    if (i >= codes.size()) continue;
    const auto dtype = dtype_from_onnx(codes[i]);
    if (!dtype || !is_float(*dtype)) {
      throw Error(ErrorCode::kModel, "attribute out_dtypes names no float type")
          .expected("the code of a float type", std::to_string(codes[i]));
    }
    types.back().dtype = *dtype;
  }
  const size_t end = graph.inputs(node).size() - dropout_operands(graph.node(node).attributes);
  for (size_t i = kGradientTerms; i < end; ++i) {
    types.push_back(operand_type(graph, node, i));
    types.back().dtype = math_dtype(types[0].dtype);
  }
  types.resize(std::max<size_t>(3, graph.outputs(node).size()));
  return types;
}

std::vector<Expr> attention_body(BodyContext& body) {
  const Call call = read_call(body, 0, kForwardTerms);
  Builder& b = call.b;
  const Expr scores = scores_of(call);
  const Attributes keep = {{"keepdims", int64_t{1}}};
  const Expr axis = b.ints({-1});
  const Expr most = b.op("ReduceMax", {scores, axis}, keep);
  const Expr powers = b.op("Exp", {scores - most});
  const Expr sums = b.op("ReduceSum", {powers, axis}, keep);
  const Expr weights = dropped(call, without_nan(call, powers / sums));
  const Expr y = turned(b.op("MatMul", {weights, call.v}), call.attributes.rows_first.y);
  std::vector<Expr> results = {b.cast(y, body.output_types[0].dtype), squeeze(most, {-1}),
                               squeeze(sums, {-1})};
  results.resize(std::min(results.size(), body.output_types.size()));
  return results;
}

std::vector<Expr> attention_grad_body(BodyContext& body) {
  const Call call = read_call(body, 1, kGradientTerms);
  Builder& b = call.b;
  const AttentionAttributes::RowsFirst& first = call.attributes.rows_first;
  const Expr dy = turned(b.to_math(body.inputs[0]), first.y),
             y = turned(b.to_math(body.inputs[4]), first.y);
  const Expr most = unsqueeze(body.inputs[5], {-1}), sums = unsqueeze(body.inputs[6], {-1});
  const Expr weights = b.op("Exp", {scores_of(call) - most}) / sums;
  const Expr deltas = b.op("ReduceSum", {dy * y, b.ints({-1})}, {{"keepdims", int64_t{1}}});
  Expr slopes = weights * (dropped(call, b.op("MatMul", {dy, swapped(call.v)})) - deltas);
  std::vector<Expr> results(body.output_types.size(), b.none());
  for (size_t i = call.terms.size(); i-- > 0;) {
    const Expr term = call.terms[i];
    if (hides(term)) slopes = mask_zero(term, slopes);
    if (3 + i < results.size() && body.output_types[3 + i].dtype != DType::kUndefined)
      results[3 + i] = b.sum_to(slopes, term);
  }
  slopes = slopes * static_cast<double>(call.attributes.scale);
  const Expr dk = summed(b.op("MatMul", {swapped(slopes), call.q}), call.group);
  const Expr dv =
      summed(b.op("MatMul", {swapped(dropped(call, without_nan(call, weights))), dy}), call.group);
  const Expr gradients[] = {turned(b.op("MatMul", {slopes, call.k}), first.q),
                            call.attributes.trans_k ? swapped(dk) : turned(dk, first.k),
                            turned(dv, first.v)};
  if (call.attributes.packed) {
    std::vector<Expr> parts;
    for (const Expr& gradient : gradients) parts.push_back(unsqueeze(gradient, {-3}));
    const Expr all = b.ops("Concat", parts, 1, {{"axis", int64_t{-3}}})[0];
    results[0] = b.cast(all, body.output_types[0].dtype);
    return results;
  }
  for (size_t i = 0; i < 3 && i < results.size(); ++i) {
    if (body.output_types[i].dtype != DType::kUndefined)
      results[i] = b.cast(gradients[i], body.output_types[i].dtype);
  }
  return results;
}

}  // namespace halfnote::contraction
