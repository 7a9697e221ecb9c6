// Dropout: the gradients of both forms, and the body of ai.halfnote.Dropout: Philox4x32-10 in
// uint64 ops.
#include <array>
#include <cmath>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote::stateful {
namespace {

constexpr double kWord = 0x1p32;

Expr word(Builder& b, double number) { return b.scalar(DType::kU64, number); }
Expr low_word(Expr x) { return x.builder->op("BitwiseAnd", {x, word(*x.builder, kWord - 1)}); }
Expr high_word(Expr x) {
  return x.builder->op("BitShift", {x, word(*x.builder, 32)},
                       {{"direction", std::string("RIGHT")}});
}
Expr exclusive_or(Expr a, Expr b) { return a.builder->op("BitwiseXor", {a, b}); }

/// The four random words of each counter. Every number stands in the lower half of a uint64, so a
/// product of two is exact.
std::array<Expr, 4> philox(std::array<Expr, 4> counter, std::array<Expr, 2> key) {
  Builder& b = *key[0].builder;
  const Expr factor_a = word(b, 0xD2511F53u), factor_b = word(b, 0xCD9E8D57u);
  const Expr step_a = word(b, 0x9E3779B9u), step_b = word(b, 0xBB67AE85u);
  for (int round = 0; round < 10; ++round) {
    const Expr p = counter[0] * factor_a;
    const Expr q = counter[2] * factor_b;
    counter = {exclusive_or(exclusive_or(high_word(q), counter[1]), key[0]), low_word(q),
               exclusive_or(exclusive_or(high_word(p), counter[3]), key[1]), low_word(p)};
    if (round == 9) break;
    key = {low_word(key[0] + step_a), low_word(key[1] + step_b)};
  }
  return counter;
}

/// A word for each of `count` elements in order, as a 1-D uint64 tensor.
Expr words_for(Expr count, Expr seed, Expr step, int64_t node) {
  Builder& b = *count.builder;
  const Expr all = b.reshape(random_words(count, seed, step, node), b.ints({-1}));
  return b.op("Slice", {all, b.ints({0}), b.reshape(count, b.ints({1}))});
}

}  // namespace

Expr random_words(Expr count, Expr seed, Expr step, int64_t node) {
  Builder& b = *count.builder;
  const Expr groups = (count + 3.0) / 4.0;
  const Expr group = b.cast(
      b.op("Range", {b.scalar(DType::kI64, 0), groups, b.scalar(DType::kI64, 1)}), DType::kU64);
  const Expr key = b.cast(seed, DType::kU64);
  const auto words = philox({low_word(group), high_word(group), low_word(b.cast(step, DType::kU64)),
                             word(b, static_cast<double>(static_cast<uint32_t>(node)))},
                            {low_word(key), high_word(key)});
  std::vector<Expr> columns;
  for (const Expr& w : words) columns.push_back(unsqueeze(w, {1}));
  return b.ops("Concat", columns, 1, {{"axis", int64_t{1}}})[0];
}

std::vector<Expr> inference_dropout_gradient(GradientContext& rule) {
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  results[0] = rule.grads[0];
  if (results.size() < 3 || !rule.inputs[2].valid()) return results;
  const Tensor* training = rule.graph().constant(rule.inputs[2].id);
  if (training != nullptr && training->at_as_int(0) == 0) return results;
  const Tensor* ratio = rule.graph().constant(rule.inputs[1].id);
  if (ratio != nullptr && ratio->at_as_double(0) == 0) return results;
  throw Error(ErrorCode::kUnsupported, "a Dropout in training form has no gradient of its own")
      .expected("ai.halfnote.Dropout, or training_mode false",
                training == nullptr ? "training_mode computed in the graph" : "training_mode true")
      .hint("the pass force_training rewrites it; do not skip that pass");
}

std::vector<Expr> dropout_gradient(GradientContext& rule) {
  return {rule.b.op("Dropout", {rule.grads[0], rule.inputs[1], rule.inputs[2]}, rule.attributes(),
                    kHalfnoteDomain),
          rule.b.none(), rule.b.none()};
}

float keep_factor(float ratio) { return ratio < 1 ? 1 / (1 - ratio) : 0.0f; }

Expr kept_elements(Expr x, Expr seed, Expr step, int64_t node, float ratio) {
  Builder& b = *x.builder;
  const Expr count = x.type().has_concrete_shape()
                         ? b.constant(Tensor::scalar(element_count(concrete(x.shape()))))
                         : b.op("Size", {x});
  const Expr words = words_for(count, seed, step, node);
  // u ≥ ratio with u = r·2⁻³² is r ≥ ratio·2³², which is exact in integers.
  const double threshold = std::ceil(static_cast<double>(ratio) * kWord);
  return reshape_exactly(b.op("GreaterOrEqual", {words, word(b, threshold)}), b.shape_of(x));
}

std::vector<Expr> dropout_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr x = body.inputs[0];
  const float ratio = body.attributes.get_float("ratio", 0.5f);
  if (!(ratio >= 0 && ratio <= 1)) {
    throw Error(ErrorCode::kModel, "the ratio of Dropout is no probability")
        .expected("a number in [0, 1]", std::to_string(ratio));
  }
  const Expr wide = b.to_math(x);
  const Expr keep = kept_elements(wide, body.inputs[1], body.inputs[2],
                                  body.attributes.get_int("node", 0), ratio);
  const Expr scaled = wide * static_cast<double>(keep_factor(ratio));
  return {b.cast(mask_zero(keep, scaled), x.dtype())};
}

}  // namespace halfnote::stateful
