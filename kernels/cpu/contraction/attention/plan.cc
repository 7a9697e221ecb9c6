#include "kernels/cpu/contraction/attention/plan.h"

#include <map>

#include "base/error.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu::attention {
namespace {

void require(const KernelCall& call, bool holds, size_t index, const Shape& expected) {
  if (holds) return;
  const Shape got = index < call.inputs.size() ? call.inputs[index].shape : Shape{};
  throw model_error(call, "operand " + std::to_string(index) + " has the wrong shape")
      .expected(to_string(expected), to_string(got));
}

Shape with_tail(const Shape& batch, std::initializer_list<int64_t> tail) {
  Shape shape = batch;
  shape.insert(shape.end(), tail);
  return shape;
}

/// The strides by which a term is broadcast to the scores.
Term plan_term(const KernelCall& call, size_t input, const Shape& scores) {
  const Shape& own = call.inputs[input].shape;
  require(call, own.size() <= scores.size(), input, scores);
  const size_t missing = scores.size() - own.size();
  Shape strides(scores.size(), 0);
  int64_t stride = 1;
  for (size_t d = scores.size(); d-- > missing;) {
    const int64_t size = own[d - missing];
    require(call, size == 1 || size == scores[d], input, scores);
    strides[d] = size == 1 ? 0 : stride;
    stride *= size;
  }
  Term term;
  term.input = input;
  term.dtype = call.inputs[input].dtype;
  term.row = strides[scores.size() - 2];
  term.column = strides[scores.size() - 1];
  term.strides.assign(strides.begin(), strides.end() - 2);
  term.starts = {0};
  for (size_t d = 0; d + 2 < scores.size(); ++d) {
    std::vector<int64_t> starts;
    for (const int64_t start : term.starts) {
      for (int64_t i = 0; i < scores[d]; ++i) starts.push_back(start + i * strides[d]);
    }
    term.starts = std::move(starts);
  }
  return term;
}

/// The shape that is meant by one that is stored, and packed, so.
Shape meant(const Operand& operand, bool rows_first, bool packed = false) {
  const Shape part = packed ? part_of_packed(operand.shape) : operand.shape;
  return rows_first ? swap_rows_and_heads(part) : part;
}

RowLayout layout_of(const Shape& meant_shape, bool rows_first) {
  const size_t rank = meant_shape.size();
  return {rows_first ? meant_shape[rank - 3] : 1, meant_shape[rank - 2], meant_shape[rank - 1]};
}

void read_sizes(const KernelCall& call, size_t q, AttentionPlan& plan, Shape& batch) {
  const AttentionAttributes::RowsFirst& first = plan.attributes.rows_first;
  const bool packed = plan.attributes.packed;
  const Shape query = meant(call.inputs[q], first.q, packed),
              key = meant(call.inputs[q + 1], first.k, packed),
              value = meant(call.inputs[q + 2], first.v, packed);
  const size_t rank = query.size();
  require(call, rank >= 2, q, {0, 0});
  require(call, key.size() == rank, q + 1, query);
  require(call, value.size() == rank, q + 2, query);
  batch.assign(query.begin(), query.end() - 2);
  plan.batch_dims = batch;
  plan.batches = element_count(batch);
  plan.m = query[rank - 2];
  plan.d = query[rank - 1];
  plan.n = value[rank - 2];
  plan.e = value[rank - 1];
  const bool trans = plan.attributes.trans_k;
  // Of K and V alike: fewer heads, each of which a group of heads of Q reads.
  Shape read = batch;
  const int64_t heads = rank > 2 ? batch.back() : 1, own = rank > 2 ? key[rank - 3] : 1;
  if (!packed && own > 0 && own < heads && heads % own == 0) read.back() = own;
  const Shape key_shape =
      trans ? with_tail(read, {plan.d, plan.n}) : with_tail(read, {plan.n, plan.d});
  require(call, key == key_shape, q + 1, key_shape);
  require(call, value == with_tail(read, {plan.n, plan.e}), q + 2,
          with_tail(read, {plan.n, plan.e}));
  plan.q = layout_of(query, first.q);
  plan.k = layout_of(key, first.k);
  plan.v = layout_of(value, first.v);
  plan.k.group = plan.v.group = rank > 2 && read.back() > 0 ? heads / read.back() : 1;
  plan.y = layout_of(with_tail(batch, {plan.m, plan.e}), first.y);
  RowLayout* const parts[] = {&plan.q, &plan.k, &plan.v};
  for (int64_t i = 0; packed && i < 3; ++i) {
    parts[i]->parts = 3;
    parts[i]->part = i;
  }
}

void check_gradient(const KernelCall& call, const AttentionPlan& plan, const Shape& batch) {
  const Shape result = with_tail(batch, {plan.m, plan.e}), sums = with_tail(batch, {plan.m});
  for (const size_t index : {kGradY, kGradResult}) {
    const Shape shape = meant(call.inputs[index], plan.attributes.rows_first.y);
    require(call, shape == result, index, result);
  }
  for (const size_t index : {kGradMost, kGradSum})
    require(call, call.inputs[index].shape == sums, index, sums);
}

std::string type_refusal(const KernelCall& call, const AttentionPlan& plan, bool gradient) {
  const DType wide = plan.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (!is_real(plan.dtype)) return "Q is no float";
  const size_t first = gradient ? kGradY : 0, last = gradient ? kGradResult : 2;
  for (size_t i = first; i <= last; ++i) {
    if (call.inputs[i].dtype != plan.dtype) return "operands of different types";
  }
  for (const size_t i : {kGradMost, kGradSum}) {
    if (gradient && call.inputs[i].dtype != wide) return "MAX or SUM is not f32";
  }
  for (const size_t i : {1, 2}) {
    if (!gradient && call.has_output(i) && call.outputs[i].dtype != wide)
      return "MAX or SUM is not f32";
  }
  for (const Operand& output : call.outputs) {
    if (output.present() && !is_real(output.dtype)) return "a result is no float";
  }
  if (plan.dropout) {
    for (const size_t i : {plan.dropout->seed, plan.dropout->step}) {
      if (call.inputs[i].dtype != DType::kI64) return "seed and step are not i64";
      if (call.inputs[i].size() != 1) return "seed and step are no scalars";
    }
  }
  int wanted = 0;
  for (const Term& term : plan.terms) {
    if (!term.hides() && !is_real(term.dtype)) return "a term is neither float nor bool";
    if (term.gradient == 0) continue;
    ++wanted;
    if (term.hides()) return "the gradient of a bool term";
    if (term.column != 1 || term.row != plan.n) return "the gradient of a term that is broadcast";
    if (call.outputs[term.gradient].dtype != wide) return "the gradient of a term is not f32";
  }
  return wanted > 1 ? "gradients of several terms" : "";
}

}  // namespace

const Term* AttentionPlan::differentiated() const {
  for (const Term& term : terms) {
    if (term.gradient != 0) return &term;
  }
  return nullptr;
}

AttentionPlan plan_attention(const KernelCall& call, bool gradient, std::string* refusal) {
  const size_t q = gradient ? kGradQ : 0, first = gradient ? kGradTerms : 3;
  for (size_t i = 0; i < std::max(first, call.inputs.size()); ++i) {
    if (!call.has_input(i)) throw model_error(call, "operand " + std::to_string(i) + " is missing");
  }
  AttentionPlan plan;
  plan.attributes = read_attention(attributes_of(call), call.inputs.size() - first);
  plan.dtype = call.inputs[q].dtype;
  plan.threads = call.threads;
  Shape batch;
  read_sizes(call, q, plan, batch);
  if (gradient) check_gradient(call, plan, batch);
  if (const auto ratio = plan.attributes.ratio) {
    const size_t seed = call.inputs.size() - 2;
    plan.dropout = ProbabilityDropout{static_cast<uint32_t>(plan.attributes.node),
                                      keep_threshold(*ratio), keep_factor(*ratio), seed, seed + 1};
  }
  for (size_t i = first; i < first + plan.attributes.terms; ++i) {
    plan.terms.push_back(plan_term(call, i, with_tail(batch, {plan.m, plan.n})));
    plan.terms.back().hidden = plan.attributes.hidden[i - first];
    const size_t output = 3 + i - first;
    if (gradient && call.has_output(output)) plan.terms.back().gradient = output;
  }
  std::map<int64_t, std::vector<int64_t>> groups;
  const Term* wanted = plan.differentiated();
  const int64_t group = plan.k.group;
  for (int64_t b = 0; b < plan.batches; ++b) {
    const int64_t of_term = wanted && group == 1 ? wanted->starts[static_cast<size_t>(b)] : 0;
    groups[wanted ? of_term : b / group].push_back(b);
  }
  for (auto& [start, members] : groups) plan.groups.push_back(std::move(members));
  *refusal = type_refusal(call, plan, gradient);
  return plan;
}

}  // namespace halfnote::cpu::attention
