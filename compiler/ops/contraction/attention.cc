// Attention and RotaryEmbedding in simpler ops.
//
//   Y = Softmax(softcap(Q·scale · Kᵀ) + mask) · V        on (B, heads, S, D)
//
// The 3-D form (B, S, heads·D) is reshaped and transposed. With fewer heads in K and V than in Q
// (grouped queries), each is repeated for its group: then this is attention as all others write it,
// which devices know as a whole, and the copies are small beside its scores. Bool and causal masks
// choose −inf by Where, which is exact in every float type; a float mask is added.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/extent.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

int64_t known_size(Expr x, int64_t axis, const char* what) {
  const Dim dim = x.shape()[static_cast<size_t>(axis)];
  if (dim.known()) return dim.value;
  throw Error(ErrorCode::kUnsupported, std::string(what) + " is not a number")
      .expected("a fixed size of dim " + std::to_string(axis), to_string(x.shape()))
      .hint("fix the dim with --dim NAME=N");
}

int64_t positive(LowerContext& rule, const char* name) {
  const int64_t value = rule.attributes().get_int(name, 0);
  if (value > 0) return value;
  throw Error(ErrorCode::kModel, std::string("attribute ") + name + " is missing")
      .expected("a number of heads, as the operands are 3-D", std::to_string(value));
}

/// (B, S, heads·D) as (B, S, heads, D).
Expr split_heads(Expr x, int64_t heads) {
  const int64_t hidden = known_size(x, 2, "the hidden size");
  if (heads < 1 || hidden % heads != 0) {
    throw Error(ErrorCode::kModel, "the number of heads does not divide the hidden size")
        .expected("a divisor of " + std::to_string(hidden), std::to_string(heads));
  }
  return reshape_to(
      x, {{{x, 0}}, {{x, 1}}, {Extent::number(heads)}, {Extent::number(hidden / heads)}});
}

/// (B, S, heads·D) or (B, heads, S, D) as the latter.
Expr by_head(LowerContext& rule, size_t index, const char* heads) {
  const Expr x = rule.inputs[index];
  if (x.rank() == 4) return x;
  if (x.rank() == 3) return rule.b.transpose(split_heads(x, positive(rule, heads)), {0, 2, 1, 3});
  throw Error(ErrorCode::kModel, "an operand of Attention has the wrong rank")
      .expected("rank 3 or 4", to_string(x.shape()));
}

/// `past` before the rows of `x`.
Expr with_past(LowerContext& rule, size_t past, Expr x) {
  if (!rule.has_input(past)) return x;
  return rule.b.ops("Concat", {rule.inputs[past], x}, 1, {{"axis", int64_t{2}}})[0];
}

/// The operands on (B, heads, S, D), and the sizes that go with them.
struct Heads {
  Expr query, key, value;
  int64_t group = 1;  // heads of Q for each of K
};

Heads heads_of(LowerContext& rule) {
  if (rule.has_input(6)) {
    throw Error(ErrorCode::kUnsupported, "Attention with nonpad_kv_seqlen")
        .hint("give the padding as attn_mask");
  }
  Heads heads{by_head(rule, 0, "q_num_heads"), by_head(rule, 1, "kv_num_heads"),
              by_head(rule, 2, "kv_num_heads")};
  heads.key = with_past(rule, 4, heads.key);
  if (rule.has_input(5)) {  // as many values as keys
    heads.value = with_past(rule, 5, heads.value);
    SymbolicShape shape = heads.value.shape();
    shape[2] = heads.key.shape()[2];
    with_shape(heads.value, shape);
  }
  const Dim q = heads.query.shape()[1], k = heads.key.shape()[1];
  if (q.same_as(k)) return heads;
  const int64_t many = known_size(heads.query, 1, "the number of heads of Q");
  const int64_t few = known_size(heads.key, 1, "the number of heads of K");
  if (few < 1 || many % few != 0) {
    throw Error(ErrorCode::kModel, "the heads of K do not divide those of Q")
        .expected("a divisor of " + std::to_string(many), std::to_string(few));
  }
  heads.group = many / few;
  return heads;
}

/// K or V with as many heads as Q has.
Expr for_each_query(const Heads& heads, Expr x) {
  if (heads.group == 1) return x;
  Builder& b = *x.builder;
  const Extent group = Extent::number(heads.group);
  const Expr sizes = sizes_of(b, {{x, 0}, {x, 1}, group, {x, 2}, {x, 3}});
  SymbolicShape shape = x.shape();
  shape.insert(shape.begin() + 2, group.dim());
  const Expr repeated = with_shape(b.op("Expand", {unsqueeze(x, {2}), sizes}), shape);
  return reshape_to(repeated, {{{x, 0}}, {{heads.query, 1}}, {{x, 2}}, {{x, 3}}});
}

Expr scaled_query(LowerContext& rule, Expr query) {
  Builder& b = rule.b;
  const Attribute* given = rule.attributes().find("scale");
  if (given != nullptr) return query * static_cast<double>(rule.attributes().get_float("scale", 1));
  const Dim size = query.shape()[3];
  if (size.known()) return query * (1 / std::sqrt(static_cast<double>(size.value)));
  const Expr count = count_along(query, {3}, query.dtype());
  return query / b.op("Sqrt", {count});
}

/// 0 … size − 1 as int64.
Expr counting(Builder& b, const Extent& size) {
  const auto number = [&](int64_t n) { return b.constant(Tensor::scalar<int64_t>(n)); };
  const Expr count =
      size.dim().known() ? number(size.dim().value) : b.reshape(sizes_of(b, {size}), b.ints({}));
  return with_shape(b.op("Range", {number(0), count, number(1)}), {size.dim()});
}

/// May query i (row) see key j (column)? Keys of the past always, then those up to its own.
Expr causal_mask(LowerContext& rule, const Heads& heads) {
  Builder& b = rule.b;
  Expr rows = counting(b, {heads.query, 2});
  if (rule.has_input(4)) rows = rows + b.reshape(sizes_of(b, {{rule.inputs[4], 2}}), b.ints({1}));
  return b.op("GreaterOrEqual", {unsqueeze(rows, {1}), counting(b, {heads.key, 2})});
}

/// The mask with as many columns as there are keys: those that it lacks are hidden.
Expr full_mask(Expr mask, Expr key) {
  Builder& b = *mask.builder;
  const Dim own = mask.shape().back(), all = key.shape()[2];
  if (!own.known() || !all.known() || own.value >= all.value || own.is(1)) return mask;
  const bool is_bool = mask.dtype() == DType::kBool;
  const Expr hidden = is_bool ? b.constant(Tensor::scalar<bool>(false))
                              : b.scalar(mask.dtype(), -std::numeric_limits<double>::infinity());
  return b.op("Pad", {mask, b.ints({0, all.value - own.value}), hidden, b.ints({-1})});
}

Expr masked(LowerContext& rule, const Heads& heads, Expr scores) {
  Builder& b = rule.b;
  const auto choose = [&](Expr mask, Expr x) {
    const Expr hidden = b.scalar(x.dtype(), -std::numeric_limits<double>::infinity());
    return with_shape(b.op("Where", {mask, x, hidden}), x.shape());
  };
  if (rule.has_input(3)) {
    const Expr mask = full_mask(rule.inputs[3], heads.key);
    scores = mask.dtype() == DType::kBool
                 ? choose(mask, scores)
                 : with_shape(scores + b.cast(mask, scores.dtype()), scores.shape());
  }
  if (rule.attributes().get_int("is_causal", 0) != 0) {
    scores = choose(causal_mask(rule, heads), scores);
  }
  return scores;
}

/// Softmax along the keys, in the type that softmax_precision asks for.
Expr probabilities(LowerContext& rule, Expr scores) {
  Builder& b = rule.b;
  const DType type = scores.dtype();
  const int64_t code = rule.attributes().get_int("softmax_precision", static_cast<int64_t>(type));
  const auto wanted = dtype_from_onnx(code);
  if (!wanted || !is_float(*wanted)) {
    throw Error(ErrorCode::kModel, "attribute softmax_precision is no float type")
        .expected("the code of a float type", std::to_string(code));
  }
  return b.cast(b.op("Softmax", {b.cast(scores, *wanted)}, {{"axis", int64_t{-1}}}), type);
}

}  // namespace

std::vector<Expr> lower_attention(LowerContext& rule) {
  Builder& b = rule.b;
  const Heads heads = heads_of(rule);
  const Expr query = scaled_query(rule, heads.query);
  const Expr key = for_each_query(heads, heads.key);
  const Expr raw = b.op("MatMul", {query, b.transpose(key, {0, 1, 3, 2})});
  Expr capped = raw;
  if (const double cap = rule.attributes().get_float("softcap", 0); cap > 0) {
    capped = b.op("Tanh", {raw / cap}) * cap;
  }
  const Expr scores = masked(rule, heads, capped);
  const Expr weights = probabilities(rule, scores);
  Expr y = b.op("MatMul", {weights, for_each_query(heads, heads.value)});
  if (rule.inputs[0].rank() == 3) {
    y = b.transpose(y, {0, 2, 1, 3});
    y = reshape_to(y, {{{y, 0}}, {{y, 1}}, {{y, 2}, {y, 3}}});
  }
  const Expr stages[] = {raw, capped, scores, weights};
  const int64_t mode = rule.attributes().get_int("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3) {
    throw Error(ErrorCode::kModel, "invalid qk_matmul_output_mode")
        .expected("0, 1, 2 or 3", std::to_string(mode));
  }
  return {y, heads.key, heads.value, stages[mode]};
}

namespace {

/// The two halves of the last dim of x, or its even and odd elements.
std::vector<Expr> rotated_halves(Expr x, int64_t size, bool interleaved) {
  Builder& b = *x.builder;
  const Expr sizes = interleaved ? b.ints({1, 1}) : b.ints({size / 2, size / 2});
  if (!interleaved) return b.ops("Split", {x, sizes}, 2, {{"axis", int64_t{-1}}});
  const Extent pairs = Extent::number(size / 2), two = Extent::number(2);
  const Expr apart = reshape_to(x, {{{x, 0}}, {{x, 1}}, {{x, 2}}, {pairs}, {two}});
  std::vector<Expr> parts = b.ops("Split", {apart, sizes}, 2, {{"axis", int64_t{-1}}});
  for (Expr& part : parts) part = squeeze(part, {4});
  return parts;
}

/// The inverse of rotated_halves.
Expr joined(Expr real, Expr imaginary, int64_t size, bool interleaved) {
  Builder& b = *real.builder;
  const Attributes last = {{"axis", int64_t{-1}}};
  if (!interleaved) return b.ops("Concat", {real, imaginary}, 1, last)[0];
  const Expr pairs = b.ops("Concat", {unsqueeze(real, {4}), unsqueeze(imaginary, {4})}, 1, last)[0];
  return reshape_to(pairs, {{{real, 0}}, {{real, 1}}, {{real, 2}}, {Extent::number(size)}});
}

}  // namespace

std::vector<Expr> lower_rotary_embedding(LowerContext& rule) {
  Builder& b = rule.b;
  const Expr input = rule.inputs[0];
  const bool flat = input.rank() == 3;
  const Expr x = flat ? split_heads(input, positive(rule, "num_heads")) : input;
  if (x.rank() != 4) {
    throw Error(ErrorCode::kModel, "the operand of RotaryEmbedding has the wrong rank")
        .expected("rank 3 or 4", to_string(input.shape()));
  }
  const int64_t head = known_size(x, 3, "the head size");
  int64_t size = rule.attributes().get_int("rotary_embedding_dim", 0);
  if (size == 0) size = head;
  if (size < 2 || size > head || size % 2 != 0) {
    throw Error(ErrorCode::kModel, "invalid rotary_embedding_dim")
        .expected("an even number up to " + std::to_string(head), std::to_string(size));
  }
  const bool interleaved = rule.attributes().get_int("interleaved", 0) != 0;
  // Caches are (B, S, size / 2), or (positions, size / 2) to be looked up: broadcast over heads.
  const auto cache = [&](size_t index) {
    Expr table = rule.inputs[index];
    if (rule.has_input(3)) table = b.op("Gather", {table, rule.inputs[3]}, {{"axis", int64_t{0}}});
    return unsqueeze(table, {flat ? 2 : 1});
  };
  const Expr cosine = cache(1), sine = cache(2);
  std::vector<Expr> parts = {x};
  if (size < head) {
    parts = b.ops("Split", {x, b.ints({size, head - size})}, 2, {{"axis", int64_t{-1}}});
  }
  const std::vector<Expr> halves = rotated_halves(parts[0], size, interleaved);
  const Expr real = with_shape(cosine * halves[0] - sine * halves[1], halves[0].shape());
  const Expr imaginary = with_shape(sine * halves[0] + cosine * halves[1], halves[0].shape());
  parts[0] = joined(real, imaginary, size, interleaved);
  Expr y = parts[0];
  if (parts.size() > 1) y = b.ops("Concat", parts, 1, {{"axis", int64_t{-1}}})[0];
  if (flat) y = reshape_to(y, {{{input, 0}}, {{input, 1}}, {{input, 2}}});
  return {y};
}

}  // namespace halfnote::contraction
