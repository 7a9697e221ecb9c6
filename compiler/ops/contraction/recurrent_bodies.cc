// Bodies of RNN, GRU and LSTM of ai.halfnote: the steps written out.
//
// A step is ONNX's own operator on one time and one direction, forward, so that every attribute
// means there what it means in ONNX:
//   , h, c = LSTM <direction's activations> (x[t], W[d], R[d], B[d], , h, c, P[d])
// Rows beyond their length keep h and c. The state is rounded to the type of X between steps. Only
// a GRU that resets first is spelled out, since its r∘h is rounded too. What goes into the
// activations follows for all times at once from X and the states before each step.
#include "base/error.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/contraction/recurrent_parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

/// One direction of a call: operands in math precision, then what the steps leave, by time.
struct ForwardDirection {
  int64_t d = 0;
  Expr w, r, bias, peepholes;  // (1, G·H, …); bias and peepholes may be invalid
  std::vector<Expr> x, mask;   // one a time; mask empty without sequence_lens
  Expr h, c;                   // (1, B, H)
  std::vector<Expr> old_h, old_c, cells, y;
};

/// The attributes of a single step of ONNX's operator.
Attributes step_attributes(const BodySizes& sizes, int64_t d) {
  const Recurrence& r = sizes.r;
  std::vector<std::string> names;
  std::vector<float> alpha, beta;
  for (int64_t i = 0; i < r.functions(); ++i) {
    const Activation& f = r.activation(d, i);
    names.emplace_back(activation_name(f.kind));
    if (takes_alpha(f.kind)) alpha.push_back(f.alpha);
    if (takes_beta(f.kind)) beta.push_back(f.beta);
  }
  Attributes attributes = {{"hidden_size", sizes.hidden}, {"activations", names}};
  if (!alpha.empty()) attributes.set("activation_alpha", alpha);
  if (!beta.empty()) attributes.set("activation_beta", beta);
  if (r.clip) attributes.set("clip", *r.clip);
  if (r.coupled) attributes.set("input_forget", int64_t{1});
  if (r.linear_before_reset) attributes.set("linear_before_reset", int64_t{1});
  return attributes;
}

class RecurrentBody {
 public:
  RecurrentBody(BodyContext& body, RecurrentOp op)
      : body_(body),
        b_(body.b),
        op_(body.inputs.size() > 2 ? name_of(op) : ""),
        sizes_(body_sizes(body, op)),
        dtype_(body.inputs[0].dtype()) {}

  std::vector<Expr> build() {
    const bool batch_first = sizes_.r.batch_first;
    x_ = recurrent_input(body_, 0, batch_first);
    if (has(4)) masks_ = within_length(sizes_, body_.inputs[4], 0);
    std::vector<Expr> y, y_h, y_c, gates, more;
    for (int64_t d = 0; d < sizes_.r.directions(); ++d) {
      ForwardDirection run = start(d);
      for (int64_t s = 0; s < sizes_.steps; ++s) step(run, sizes_.time(d, s));
      y.push_back(unsqueeze(concat(run.y, 0), {1}));
      y_h.push_back(run.h);
      if (lstm()) y_c.push_back(run.c);
      add_stash(run, gates, more);
    }
    Expr all = concat(y, 1);  // (T, D, B, H)
    if (batch_first) all = b_.transpose(all, {2, 0, 1, 3});
    std::vector<Expr> results = {b_.cast(all, dtype_), state(y_h)};
    if (lstm()) results.push_back(state(y_c));
    results.push_back(concat(gates, 0));
    if (!more.empty()) results.push_back(concat(more, 0));
    return results;
  }

 private:
  static std::string name_of(RecurrentOp op) {
    return op == RecurrentOp::kRnn ? "RNN" : op == RecurrentOp::kGru ? "GRU" : "LSTM";
  }
  bool lstm() const { return sizes_.r.op == RecurrentOp::kLstm; }
  bool gru() const { return sizes_.r.op == RecurrentOp::kGru; }
  bool resets_first() const { return gru() && !sizes_.r.linear_before_reset; }
  bool has(size_t input) const {
    return input < body_.inputs.size() && body_.inputs[input].valid();
  }
  Expr state(const std::vector<Expr>& directions) {
    return b_.cast(in_layout(concat(directions, 0), sizes_.r.batch_first), dtype_);
  }
  Expr parameter(size_t input, int64_t d) {
    return has(input) ? direction_of(b_.to_math(body_.inputs[input]), d) : b_.none();
  }

  ForwardDirection start(int64_t d) {
    ForwardDirection run;
    run.d = d;
    run.w = parameter(1, d);
    run.r = parameter(2, d);
    run.bias = parameter(3, d);
    run.h = initial_state(sizes_, x_, recurrent_input(body_, 5, sizes_.r.batch_first), d);
    if (lstm()) {
      run.peepholes = parameter(7, d);
      run.c = initial_state(sizes_, x_, recurrent_input(body_, 6, sizes_.r.batch_first), d);
    }
    run.x = split(x_, 0, sizes_.steps);
    if (masks_.valid()) run.mask = split(masks_, 0, sizes_.steps);
    const auto count = static_cast<size_t>(sizes_.steps);
    run.old_h.resize(count);
    run.old_c.resize(count);
    run.cells.resize(count);
    run.y.resize(count);
    if (resets_first()) {
      projected_ = split(projection(run, 0, 3) + summed_bias(run, 0, 3), 0, sizes_.steps);
    }
    return run;
  }

  void step(ForwardDirection& run, int64_t time) {
    const auto t = static_cast<size_t>(time);
    run.old_h[t] = run.h;
    if (lstm()) run.old_c[t] = run.c;
    Expr h = b_.none(), c = b_.none();
    if (resets_first()) {
      h = reset_step(run, t);
    } else if (lstm()) {
      const auto out =
          b_.ops(op_, {run.x[t], run.w, run.r, run.bias, b_.none(), run.h, run.c, run.peepholes}, 3,
                 step_attributes(sizes_, run.d));
      h = out[1];
      c = out[2];
    } else {
      h = b_.ops(op_, {run.x[t], run.w, run.r, run.bias, b_.none(), run.h}, 2,
                 step_attributes(sizes_, run.d))[1];
    }
    h = rounded(h, dtype_);
    run.y[t] = h;
    if (!run.mask.empty()) {
      run.y[t] = mask_zero(run.mask[t], h);
      h = where(run.mask[t], h, run.h);
      if (lstm()) c = where(run.mask[t], c, run.c);
    }
    run.h = h;
    run.c = c;
    run.cells[t] = c;
  }

  /// X·Wᵀ of gate blocks [from, to) for all times, (T, B, blocks·H).
  Expr projection(const ForwardDirection& run, int64_t from, int64_t to) {
    return b_.op("MatMul", {x_, blocks(run.w, from, to)});
  }
  /// Rows of W or R as a matrix to multiply with from the right.
  Expr blocks(Expr weight, int64_t from, int64_t to) {
    const Expr rows = squeeze(slice(weight, 1, from * sizes_.hidden, to * sizes_.hidden), {0});
    return b_.transpose(rows, {1, 0});
  }
  /// Wb (half 0) or Rb (half 1) of blocks [from, to), (blocks·H); zero without B.
  Expr half_bias(const ForwardDirection& run, int64_t half, int64_t from, int64_t to) {
    if (!run.bias.valid()) return b_.scalar(x_.dtype(), 0);
    const int64_t base = half * sizes_.r.gates();
    return squeeze(slice(run.bias, 1, (base + from) * sizes_.hidden, (base + to) * sizes_.hidden),
                   {0});
  }
  Expr summed_bias(const ForwardDirection& run, int64_t from, int64_t to) {
    return half_bias(run, 0, from, to) + half_bias(run, 1, from, to);
  }

  /// h' = (1 − z)∘n + z∘h of a GRU that resets first.
  Expr reset_step(const ForwardDirection& run, size_t t) {
    const int64_t n = sizes_.hidden;
    const Expr zr =
        slice(projected_[t], 2, 0, 2 * n) + b_.op("MatMul", {run.h, blocks(run.r, 0, 2)});
    const std::vector<Expr> gate = split(zr, 2, 2);
    const Expr z = activation(sizes_, run.d, 0, gate[0]);
    const Expr reset = rounded(activation(sizes_, run.d, 0, gate[1]) * run.h, dtype_);
    const Expr last =
        slice(projected_[t], 2, 2 * n, 3 * n) + b_.op("MatMul", {reset, blocks(run.r, 2, 3)});
    return (1.0 - z) * activation(sizes_, run.d, 1, last) + z * run.h;
  }

  /// Zero beyond the lengths, with a dim for the direction in front.
  Expr stash(Expr x) { return unsqueeze(masks_.valid() ? mask_zero(masks_, x) : x, {0}); }

  /// What goes into the activations, and cells or the hidden part.
  void add_stash(const ForwardDirection& run, std::vector<Expr>& gates, std::vector<Expr>& more) {
    const Expr old = concat(run.old_h, 0);
    if (lstm()) {
      Expr a = plain_gates(run, old, 0, 4);
      if (run.peepholes.valid()) a = a + peephole_part(run);
      gates.push_back(stash(a));
      more.push_back(unsqueeze(concat(run.cells, 0), {0}));
    } else if (!gru()) {
      gates.push_back(stash(plain_gates(run, old, 0, 1)));
    } else {
      add_gru_stash(run, old, gates, more);
    }
  }

  Expr plain_gates(const ForwardDirection& run, Expr old, int64_t from, int64_t to) {
    return projection(run, from, to) + b_.op("MatMul", {old, blocks(run.r, from, to)}) +
           summed_bias(run, from, to);
  }

  /// P∘c of the gates i, o, f; zero for the last one.
  Expr peephole_part(const ForwardDirection& run) {
    const Expr old = concat(run.old_c, 0), cells = concat(run.cells, 0);
    const Expr zero = b_.constant(Tensor(x_.dtype(), {1, sizes_.hidden}));
    const Expr factors = concat({run.peepholes, zero}, 1);
    return concat({old, cells, old, old}, 2) * factors;
  }

  void add_gru_stash(const ForwardDirection& run, Expr old, std::vector<Expr>& gates,
                     std::vector<Expr>& more) {
    const Expr zr = plain_gates(run, old, 0, 2);
    const Expr r = activation(sizes_, run.d, 0, split(zr, 2, 2)[1]);
    Expr last = projection(run, 2, 3) + half_bias(run, 0, 2, 3);
    if (sizes_.r.linear_before_reset) {
      const Expr hidden = b_.op("MatMul", {old, blocks(run.r, 2, 3)}) + half_bias(run, 1, 2, 3);
      last = last + r * hidden;
      more.push_back(stash(hidden));
    } else {
      last = last + b_.op("MatMul", {rounded(r * old, dtype_), blocks(run.r, 2, 3)}) +
             half_bias(run, 1, 2, 3);
    }
    gates.push_back(stash(concat({zr, last}, 2)));
  }

  BodyContext& body_;
  Builder& b_;
  const std::string op_;
  const BodySizes sizes_;
  const DType dtype_;
  Expr x_, masks_;
  std::vector<Expr> projected_;  // of a GRU that resets first, by time
};

}  // namespace

std::vector<Expr> recurrent_body(BodyContext& body, RecurrentOp op) {
  return RecurrentBody(body, op).build();
}

}  // namespace halfnote::contraction
