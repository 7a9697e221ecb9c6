// Contractions: products with weights and with each other, convolutions, recurrences, attention.
#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

Shape leading(const Shape& shape, size_t drop) { return Shape(shape.begin(), shape.end() - drop); }

Expr swapped(Growth& g, Expr x) {
  Ints perm;
  for (size_t i = 0; i < g.shape(x).size(); ++i) perm.push_back(static_cast<int64_t>(i));
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return g.op("Transpose", {x}, {{"perm", perm}});
}

void matmul(Growth& g) {
  const Expr x = g.any(1, 4, 1024);
  const Shape s = g.shape(x);
  const int64_t k = s.back(), n = g.size();
  if (g.chance(15)) return g.keep(g.op("MatMul", {x, g.weight({k})}));
  if (g.chance(25)) return g.keep(g.op("MatMul", {x, swapped(g, g.weight({n, k}))}));
  Shape w = {k, n};
  if (s.size() >= 3 && g.chance(40)) {
    Shape batch = leading(s, 2);
    if (g.chance(30)) batch[0] = 1;
    w.insert(w.begin(), batch.begin(), batch.end());
  }
  if (s.size() == 2 && g.chance(15)) w.insert(w.begin(), 2);
  g.keep(g.op("MatMul", {x, g.weight(w)}));
}

/// Two values of the pool: x times its own transpose, or what fits.
void product_of_values(Growth& g) {
  const Expr x = g.any(2, 4, 512);
  if (g.chance(50)) return g.keep(g.op("MatMul", {x, swapped(g, x)}));
  const Shape s = g.shape(x);
  Shape other = s;
  other[s.size() - 2] = s.back();
  other.back() = g.size();
  g.keep(g.op("MatMul", {x, g.like(other)}));
}

void gemm(Growth& g) {
  const Expr x = g.any(2, 2, 1024);
  const Shape s = g.shape(x);
  const bool ta = g.chance(30), tb = g.chance(40);
  const int64_t m = ta ? s[1] : s[0], k = ta ? s[0] : s[1], n = g.size();
  std::vector<Expr> operands = {x, g.weight(tb ? Shape{n, k} : Shape{k, n})};
  const Shape biases[] = {{}, {n}, {1, n}, {m, 1}, {m, n}, {1, 1}};
  if (g.chance(75)) operands.push_back(g.like(g.one_of(biases)));
  Attributes attributes = {{"transA", int64_t{ta}}, {"transB", int64_t{tb}}};
  if (g.chance(30)) attributes.set("alpha", 0.5f);
  if (g.chance(30)) attributes.set("beta", g.chance(20) ? 0.0f : 1.5f);
  g.keep(g.op("Gemm", operands, attributes));
}

/// Kernel, strides, dilations and pads for the spatial dims of `s`, as attributes; the kernel.
Attributes window(Growth& g, const Shape& s, Ints& kernel, bool dilates) {
  Ints strides, dilations, pads(2 * (s.size() - 2));
  for (size_t d = 2; d < s.size(); ++d) {
    kernel.push_back(1 + g.pick(static_cast<int>(std::min<int64_t>(3, s[d] + 1))));
    strides.push_back(g.chance(70) ? 1 : 2);
    dilations.push_back(dilates && g.chance(15) ? 2 : 1);
    pads[d - 2] = g.pick(static_cast<int>(kernel.back()));
    pads[d - 2 + s.size() - 2] = g.pick(static_cast<int>(kernel.back()));
  }
  Attributes attributes = {{"kernel_shape", kernel}, {"strides", strides}};
  if (dilates) attributes.set("dilations", dilations);
  if (g.chance(15)) {
    attributes.set("auto_pad", std::string(g.chance(50) ? "SAME_UPPER" : "SAME_LOWER"));
  } else {
    attributes.set("pads", pads);
  }
  return attributes;
}

Expr pictures(Growth& g) {
  if (g.chance(60)) return g.any(3, 4, 1024);
  const Expr x = g.any(2, 5, 1024);
  const Shape s = g.shape(x);
  const int64_t rest = s[0] == 0 ? 0 : element_count(s) / s[0];
  const Shape goals[] = {{s[0], 1, rest}, {s[0], rest, 1, 1}, {s[0], 1, 1, rest}};
  Ints goal = g.one_of(goals);
  return g.op("Reshape", {x, g.constant_of(Tensor::of<int64_t>({static_cast<int64_t>(goal.size())},
                                                               std::span<const int64_t>(goal)))});
}

void conv(Growth& g) {
  const Expr x = pictures(g);
  const Shape s = g.shape(x);
  Ints kernel;
  Attributes attributes = window(g, s, kernel, true);
  const int64_t groups = g.chance(30) && s[1] > 0 ? s[1] : 1;
  const int64_t to = groups * g.between(1, 4);
  attributes.set("group", groups);
  Shape w = {to, groups == 0 ? 0 : s[1] / groups};
  w.insert(w.end(), kernel.begin(), kernel.end());
  std::vector<Expr> operands = {x, g.weight(w)};
  if (g.chance(60)) operands.push_back(g.weight({to}));
  g.keep(g.op("Conv", operands, attributes));
}

void conv_transpose(Growth& g) {
  const Expr x = pictures(g);
  const Shape s = g.shape(x);
  Ints kernel;
  Attributes attributes = window(g, s, kernel, false);
  attributes.erase("auto_pad");
  Shape w = {s[1], g.between(1, 3)};
  w.insert(w.end(), kernel.begin(), kernel.end());
  std::vector<Expr> operands = {x, g.weight(w)};
  if (g.chance(50)) operands.push_back(g.weight({w[1]}));
  g.keep(g.op("ConvTranspose", operands, attributes));
}

void einsum(Growth& g) {
  const Expr x = g.any(2, 3, 512);
  const Shape s = g.shape(x);
  const int64_t n = g.size();
  const auto with = [&](const char* equation, const Shape& other) {
    g.keep(g.op("Einsum", {x, g.like(other)}, {{"equation", std::string(equation)}}));
  };
  if (s.size() == 3) {
    if (g.chance(50)) return with("bij,bkj->bik", {s[0], n, s[2]});
    return with("bij,jk->kbi", {s[2], n});
  }
  switch (g.pick(4)) {
    case 0:
      return with("ij,jk->ki", {s[1], n});
    case 1:
      return with("ij,ij->j", s);
    case 2:
      return with("ij,k->ikj", {n});
    default:
      return g.keep(g.op("Einsum", {x}, {{"equation", std::string("ij->i")}}));
  }
}

/// Equations with dots, repeated letters, letters that only one operand has, one or three operands.
void einsum_of_any_kind(Growth& g) {
  const auto with = [&](const char* equation, const std::vector<Expr>& operands) {
    g.keep(g.op("Einsum", operands, {{"equation", std::string(equation)}}));
  };
  const Expr x = g.any(2, 4, 256);
  const Shape s = g.shape(x);
  const int64_t last = s.back(), n = g.size();
  switch (g.pick(6)) {
    case 0:
      return with("...i,ij->...j", {x, g.like({last, n})});
    case 1:
      return with("...i,...i->...", {x, g.like(s)});
    case 2:
      return with("...ij->...ji", {x});
    case 3:
      return with("...i,i->", {x, g.like({last})});
    case 4: {
      if (s.size() != 2) throw Misfit();
      return with("ij,jk,kl->il", {x, g.like({last, n}), g.like({n, g.size()})});
    }
    default: {
      if (s.size() != 2 || s[0] != s[1]) throw Misfit();
      return with(g.chance(50) ? "ii->i" : "ii->", {x});
    }
  }
}

/// Positions turned into rotations, in both layouts, of a part of each head or all of it.
void rotary(Growth& g) {
  const int64_t batch = g.between(1, 2), length = g.between(1, 4), heads = g.between(1, 3);
  const int64_t size = 2 * g.between(1, 3), rows = length + 2;
  const int64_t turned = size > 2 && g.chance(30) ? size - 2 : size;
  const bool flat = g.chance(50);
  const Expr x =
      g.like(flat ? Shape{batch, length, heads * size} : Shape{batch, heads, length, size});
  const bool placed = g.chance(60);
  const Shape cache = placed ? Shape{rows, turned / 2} : Shape{batch, length, turned / 2};
  std::vector<Expr> operands = {g.op("Tanh", {x}), g.constant(cache), g.constant(cache)};
  if (placed) {
    Tensor places(DType::kI64, {batch, length});
    for (int64_t& place : places.mutable_data<int64_t>()) place = g.pick(static_cast<int>(rows));
    operands.push_back(g.constant_of(std::move(places)));
  }
  Attributes attributes = {{"interleaved", int64_t{g.chance(50)}}};
  if (turned != size) attributes.set("rotary_embedding_dim", turned);
  if (flat) attributes.set("num_heads", heads);
  g.keep(g.op("RotaryEmbedding", operands, attributes));
}

/// Away from 0, where the gradient of a determinant is tame: near the identity.
void determinant(Growth& g) {
  const int64_t n = g.between(1, 4);
  Tensor one(DType::kF32, {n, n});
  for (int64_t i = 0; i < n; ++i) one.mutable_data<float>()[static_cast<size_t>(i * (n + 1))] = 2;
  const Shape shape = g.chance(50) ? Shape{n, n} : Shape{g.between(0, 3), n, n};
  const Expr near = g.op("Add", {g.op("Tanh", {g.like(shape)}), g.constant_of(std::move(one))});
  g.keep(g.op("Det", {near}));
}

void recurrence(Growth& g) {
  struct Kind {
    const char* op;
    int64_t gates;
    int outputs;
  };
  static constexpr Kind kKinds[] = {{"LSTM", 4, 3}, {"GRU", 3, 2}, {"RNN", 1, 2}};
  const Expr x = g.any(3, 3, 512);
  const Shape s = g.shape(x);
  const Kind kind = g.one_of(kKinds);
  const int64_t hidden = g.between(1, 3);
  static constexpr const char* kDirections[] = {"forward", "reverse", "bidirectional"};
  const std::string direction = g.one_of(kDirections);
  const int64_t ways = direction == "bidirectional" ? 2 : 1;
  const int64_t rows = kind.gates * hidden;
  std::vector<Expr> operands = {x, g.weight({ways, rows, s[2]}), g.weight({ways, rows, hidden})};
  const bool whole = g.chance(40);  // lengths, first states and what comes behind them too
  if (whole || g.chance(60)) operands.push_back(g.weight({ways, 2 * rows}));
  if (whole) {
    Tensor lengths(DType::kI32, {s[1]});
    for (int32_t& length : lengths.mutable_data<int32_t>()) {
      length = g.pick(static_cast<int>(s[0]) + 1);
    }
    operands.push_back(g.chance(50) ? g.constant_of(std::move(lengths)) : g.builder().none());
    operands.push_back(g.chance(70) ? g.like({ways, s[1], hidden}) : g.builder().none());
    if (kind.gates == 4) {
      operands.push_back(g.chance(70) ? g.like({ways, s[1], hidden}) : g.builder().none());
      if (g.chance(50)) operands.push_back(g.weight({ways, 3 * hidden}));
    }
  }
  Attributes attributes = {{"hidden_size", hidden}, {"direction", direction}};
  if (kind.gates == 3) attributes.set("linear_before_reset", int64_t{g.chance(50)});
  if (kind.gates == 4 && g.chance(20)) attributes.set("input_forget", int64_t{1});
  if (g.chance(20)) attributes.set("clip", 0.75f);
  const std::vector<Expr> results = g.ops(kind.op, operands, kind.outputs, attributes);
  g.keep(results[0]);
  if (g.chance(50)) g.keep(results[1]);
}

void attention(Growth& g) {
  const Expr x = g.any(3, 3, 512);
  const Shape s = g.shape(x);
  const int64_t heads = g.between(1, 2), width = g.between(1, 4);
  std::vector<Expr> operands;
  for (int i = 0; i < 3; ++i) {
    operands.push_back(g.op("MatMul", {x, g.weight({s[2], heads * width})}));
  }
  g.keep(g.op(
      "Attention", operands,
      {{"q_num_heads", heads}, {"kv_num_heads", heads}, {"is_causal", int64_t{g.chance(50)}}}));
}

/// Heads in four dims, some of them sharing keys; a mask, a cap, what came before.
void attention_of_any_kind(Growth& g) {
  const int64_t batch = g.between(1, 2), groups = g.between(1, 2), shared = g.between(1, 2);
  const int64_t queries = g.between(1, 4), keys = g.between(1, 4), width = g.between(1, 4);
  const int64_t out = g.between(1, 4), past = g.chance(30) ? g.between(1, 2) : 0;
  const auto value = [&](const Shape& shape) { return g.op("Tanh", {g.like(shape)}); };
  std::vector<Expr> operands = {value({batch, groups * shared, queries, width}),
                                value({batch, groups, keys, width}),
                                value({batch, groups, keys, out})};
  if (g.chance(50)) {
    const Shape shapes[] = {{queries, past + keys}, {batch, 1, queries, past + keys}};
    const Shape& shape = g.one_of(shapes);
    if (g.chance(50)) {
      operands.push_back(g.like(shape));
    } else {
      Tensor mask(DType::kBool, shape);
      for (bool& seen : mask.mutable_data<bool>()) seen = g.chance(75);
      for (size_t i = 0; i < static_cast<size_t>(mask.size());
           i += static_cast<size_t>(past + keys)) {
        mask.mutable_data<bool>()[i] = true;  // nobody sees nothing
      }
      operands.push_back(g.constant_of(std::move(mask)));
    }
  } else if (past > 0) {
    operands.push_back(g.builder().none());
  }
  if (past > 0) {
    operands.push_back(value({batch, groups, past, width}));
    operands.push_back(value({batch, groups, past, out}));
  }
  Attributes attributes = {{"is_causal", int64_t{g.chance(40)}}};
  if (g.chance(30)) attributes.set("softcap", 2.0f);
  if (g.chance(30)) attributes.set("scale", 0.5f);
  const std::vector<Expr> results = g.ops("Attention", operands, past > 0 ? 3 : 1, attributes);
  g.keep(results[0]);
  if (past > 0 && g.chance(50)) g.keep(results[1]);
}

/// Attention as exporters spell it.
void spelled_attention(Growth& g) {
  const Expr x = g.any(3, 4, 512);
  const Shape s = g.shape(x);
  const int64_t width = g.between(1, 8);
  const Expr q = g.op("MatMul", {x, g.weight({s.back(), width})});
  const Expr k = g.op("MatMul", {x, g.weight({s.back(), width})});
  Expr scores = g.op("MatMul", {q, swapped(g, k)});
  scores = g.op("Mul", {scores, g.constant_of(Tensor::scalar(0.5f))});
  if (g.chance(40)) scores = g.op("Add", {scores, g.constant({s[s.size() - 2], s[s.size() - 2]})});
  const Expr shares = g.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  g.keep(g.op("MatMul", {shares, g.op("MatMul", {x, g.weight({s.back(), width})})}));
}

}  // namespace

void grow_contraction(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {matmul,
                                                matmul,
                                                matmul,
                                                product_of_values,
                                                gemm,
                                                gemm,
                                                conv,
                                                conv,
                                                conv_transpose,
                                                einsum,
                                                recurrence,
                                                recurrence,
                                                attention,
                                                spelled_attention,
                                                einsum_of_any_kind,
                                                attention_of_any_kind,
                                                rotary,
                                                determinant};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
