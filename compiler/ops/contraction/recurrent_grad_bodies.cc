// Bodies of RNNGrad, GRUGrad and LSTMGrad: back through the steps, written out.
//
// Everything that does not depend on later steps is computed for all times at once: with a the
// input of an activation and y its value, an LSTM's step back is
//   do = dh∘(h(c)∘o')      dc += dh∘(o∘h'(c)) + do∘Po        (' the slope of the activation)
//   di = dc∘(n∘i')         df = dc∘(c_old∘f')      dn = dc∘(i∘n')
//   dc = dc∘f + di∘Pi + df∘Pf      dh = [di do df dn]·R
// The products see da rounded to the type of X. Beyond its length a row has factors of 0 and keeps
// dh and dc. A GRU's last gate has another da on the side of R (recurrent/backward.cc).
#include "base/error.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/contraction/recurrent_parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

using Exprs = std::vector<Expr>;

/// Where the operands of <Op>Grad stand.
struct Slots {
  size_t c0, p, y, gates, more, dy;
};
constexpr size_t kNone = 99;

Slots slots_of(RecurrentOp op) {
  if (op == RecurrentOp::kLstm) return {5, 6, 7, 8, 9, 10};
  if (op == RecurrentOp::kGru) return {kNone, kNone, 5, 6, 7, 8};
  return {kNone, kNone, 5, 6, kNone, 7};
}

/// What the steps of one direction read and leave, by time.
struct BackwardDirection {
  int64_t d = 0;
  Expr w, r, peepholes;        // (G·H, I), (G·H, H); peepholes (1, 3·H), may be invalid
  Expr old_h, old_c;           // (T, B, H)
  std::vector<Exprs> factors;  // each split by time
  Exprs keep;                  // 1 beyond the length, else 0; empty without sequence_lens
  Exprs dy;                    // empty without dY
  Expr dh, dc;                 // (1, B, H)
  Exprs da, side;              // (1, B, G·H); side: that of R, where it is another
};

class RecurrentGradBody {
 public:
  RecurrentGradBody(BodyContext& body, RecurrentOp op)
      : body_(body),
        b_(body.b),
        sizes_(body_sizes(body, op)),
        slots_(slots_of(op)),
        dtype_(body.inputs[0].dtype()) {}

  Exprs build() {
    x_ = recurrent_input(body_, 0, sizes_.r.batch_first);
    if (has(3)) mask_ = b_.cast(within_length(sizes_, body_.inputs[3], 0), x_.dtype());
    for (int64_t d = 0; d < sizes_.r.directions(); ++d) {
      BackwardDirection run = start(d);
      prepare_factors(run);
      for (int64_t s = sizes_.steps; s-- > 0;) {
        step(run, static_cast<size_t>(sizes_.time(d, s)));
      }
      finish(run);
    }
    return results();
  }

 private:
  bool lstm() const { return sizes_.r.op == RecurrentOp::kLstm; }
  bool gru() const { return sizes_.r.op == RecurrentOp::kGru; }
  bool resets_first() const { return gru() && !sizes_.r.linear_before_reset; }
  bool has(size_t input) const {
    return input < body_.inputs.size() && body_.inputs[input].valid();
  }
  Expr in_math(size_t input) { return b_.to_math(body_.inputs[input]); }
  Expr state_input(size_t input, int64_t d) {
    return initial_state(sizes_, x_, recurrent_input(body_, input, sizes_.r.batch_first), d);
  }
  /// Y or dY of direction d as (T, B, H).
  Expr sequence(size_t input, int64_t d) {
    Expr all = in_math(input);
    if (sizes_.r.batch_first) all = b_.transpose(all, {1, 2, 0, 3});
    return squeeze(slice(all, 1, d, d + 1), {1});
  }
  Expr stash(size_t input, int64_t d) { return squeeze(slice(in_math(input), 0, d, d + 1), {0}); }

  BackwardDirection start(int64_t d) {
    BackwardDirection run;
    run.d = d;
    run.w = squeeze(direction_of(in_math(1), d), {0});
    run.r = squeeze(direction_of(in_math(2), d), {0});
    run.old_h = old_states(sequence(slots_.y, d), state_input(4, d), d, true);
    if (lstm()) {
      if (has(slots_.p)) run.peepholes = direction_of(in_math(slots_.p), d);
      run.old_c = old_states(stash(slots_.more, d), state_input(slots_.c0, d), d, false);
      run.dc = state_input(slots_.dy + 2, d);
    }
    if (has(slots_.dy)) run.dy = split(sequence(slots_.dy, d), 0, sizes_.steps);
    run.dh = state_input(slots_.dy + 1, d);
    if (mask_.valid()) run.keep = split(1.0 - mask_, 0, sizes_.steps);
    run.da.resize(static_cast<size_t>(sizes_.steps));
    run.side.resize(static_cast<size_t>(sizes_.steps));
    return run;
  }

  /// The state before each step: `states` moved on by one, `initial` at the first. `ends_in_zero`:
  /// beyond its length a row has zeros, where a reverse direction has not begun yet.
  Expr old_states(Expr states, Expr initial, int64_t d, bool ends_in_zero) {
    const bool reverse = sizes_.r.reverse[static_cast<size_t>(d)];
    if (sizes_.steps == 1) return initial;
    if (!reverse) return concat({initial, slice(states, 0, 0, sizes_.steps - 1)}, 0);
    const Expr moved = concat({slice(states, 0, 1, sizes_.steps), initial}, 0);
    if (!ends_in_zero || !mask_.valid()) return moved;
    return b_.op("Where", {within_length(sizes_, body_.inputs[3], 1), moved, initial});
  }

  Expr act(const BackwardDirection& run, int64_t function, Expr a) {
    return activation(sizes_, run.d, function, a);
  }
  Expr slope(const BackwardDirection& run, int64_t function, Expr a, Expr y) {
    return activation_slope(sizes_, run.d, function, a, y);
  }
  /// A factor of the steps, 0 beyond the lengths.
  void add_factor(BackwardDirection& run, Expr factor) {
    run.factors.push_back(split(mask_.valid() ? factor * mask_ : factor, 0, sizes_.steps));
  }

  void prepare_factors(BackwardDirection& run) {
    const Exprs a = split(stash(slots_.gates, run.d), 2, sizes_.r.gates());
    if (lstm()) return prepare_lstm(run, a);
    if (gru()) return prepare_gru(run, a);
    add_factor(run, slope(run, 0, a[0], act(run, 0, a[0])));
  }

  void prepare_lstm(BackwardDirection& run, const Exprs& a) {
    const Expr c = stash(slots_.more, run.d);
    const Expr i = act(run, 0, a[0]), o = act(run, 0, a[1]), n = act(run, 1, a[3]);
    const Expr hc = act(run, 2, c);
    const Expr f = sizes_.r.coupled ? 1.0 - i : act(run, 0, a[2]);
    add_factor(run, hc * slope(run, 0, a[1], o));
    add_factor(run, o * slope(run, 2, c, hc));
    add_factor(run, (sizes_.r.coupled ? n - run.old_c : n) * slope(run, 0, a[0], i));
    add_factor(run, i * slope(run, 1, a[3], n));
    add_factor(run, sizes_.r.coupled ? run.old_c * b_.scalar(x_.dtype(), 0)
                                     : run.old_c * slope(run, 0, a[2], f));
    // Beyond its length a row keeps dc as it is.
    const Expr kept = mask_.valid() ? f * mask_ + (1.0 - mask_) : f;
    run.factors.push_back(split(kept, 0, sizes_.steps));
  }

  void prepare_gru(BackwardDirection& run, const Exprs& a) {
    const Expr z = act(run, 0, a[0]), r = act(run, 0, a[1]), n = act(run, 1, a[2]);
    add_factor(run, (run.old_h - n) * slope(run, 0, a[0], z));
    add_factor(run, (1.0 - z) * slope(run, 1, a[2], n));
    const Expr inner = resets_first() ? run.old_h : stash(slots_.more, run.d);
    add_factor(run, inner * slope(run, 0, a[1], r));
    add_factor(run, r);
    add_factor(run, z);
    if (resets_first()) reset_state_.push_back(rounded(r * run.old_h, dtype_));
  }

  void step(BackwardDirection& run, size_t t) {
    const Expr dh = run.dy.empty() ? run.dh : run.dh + run.dy[t];
    Expr back;
    if (lstm()) {
      back = lstm_step(run, dh, t);
    } else if (gru()) {
      back = gru_step(run, dh, t);
    } else {
      run.da[t] = dh * run.factors[0][t];
      back = through_r(run.da[t], run.r);
    }
    run.dh = run.keep.empty() ? back : back + run.keep[t] * run.dh;
  }

  Expr through_r(Expr da, Expr r) { return b_.op("MatMul", {rounded(da, dtype_), r}); }
  Expr peephole(const BackwardDirection& run, int64_t block) {
    return slice(run.peepholes, 1, block * sizes_.hidden, (block + 1) * sizes_.hidden);
  }

  Expr lstm_step(BackwardDirection& run, Expr dh, size_t t) {
    const auto& f = run.factors;
    const Expr output = dh * f[0][t];
    Expr dc = run.dc + dh * f[1][t];
    if (run.peepholes.valid()) dc = dc + output * peephole(run, 1);
    const Expr in = dc * f[2][t], last = dc * f[3][t], forget = dc * f[4][t];
    run.da[t] = concat({in, output, forget, last}, 2);
    run.dc = dc * f[5][t];
    if (run.peepholes.valid()) {
      run.dc = run.dc + in * peephole(run, 0) + forget * peephole(run, 2);
    }
    return through_r(run.da[t], run.r);
  }

  Expr gru_step(BackwardDirection& run, Expr dh, size_t t) {
    const auto& f = run.factors;
    const int64_t n = sizes_.hidden;
    const Expr update = dh * f[0][t], last = dh * f[1][t], direct = dh * f[4][t];
    if (!resets_first()) {
      const Expr reset = last * f[2][t];
      run.da[t] = concat({update, reset, last}, 2);
      run.side[t] = concat({update, reset, last * f[3][t]}, 2);
      return direct + through_r(run.side[t], run.r);
    }
    const Expr back = through_r(last, slice(run.r, 0, 2 * n, 3 * n));
    const Expr reset = back * f[2][t];
    run.da[t] = concat({update, reset, last}, 2);
    return direct + back * f[3][t] +
           through_r(concat({update, reset}, 2), slice(run.r, 0, 0, 2 * n));
  }

  /// (T, B, n) as (T·B, n).
  Expr flat(Expr x, int64_t width) {
    const SymbolicShape& shape = x.shape();
    if (!is_concrete(shape) || element_count(concrete(shape)) > 0)
      return b_.reshape(x, b_.ints({-1, width}));
    const SymbolicShape rows(shape.begin(), shape.end() - 1);  // -1 would stand for any number
    return reshape_exactly(x, b_.ints({element_count(concrete(rows)), width}));
  }
  Expr product_over_steps(Expr da, int64_t width, Expr other, int64_t columns) {
    const Expr left = b_.transpose(flat(da, width), {1, 0});
    return b_.op("MatMul", {left, flat(other, columns)});
  }

  void finish(BackwardDirection& run) {
    const int64_t n = sizes_.hidden, width = sizes_.r.gates() * n;
    const Expr da = concat(run.da, 0), typed = rounded(da, dtype_);
    const Expr dx = b_.op("MatMul", {typed, run.w});
    dx_ = dx_.valid() ? dx_ + dx : dx;
    dw_.push_back(unsqueeze(product_over_steps(typed, width, x_, sizes_.inputs), {0}));
    const bool own_side = gru() && !resets_first();
    const Expr side = own_side ? concat(run.side, 0) : da;
    const Expr side_typed = own_side ? rounded(side, dtype_) : typed;
    Expr dr;
    if (resets_first()) {
      const Expr zr = slice(typed, 2, 0, 2 * n), last = slice(typed, 2, 2 * n, 3 * n);
      dr = concat({product_over_steps(zr, 2 * n, run.old_h, n),
                   product_over_steps(last, n, reset_state_.back(), n)},
                  0);
    } else {
      dr = product_over_steps(side_typed, width, run.old_h, n);
    }
    dr_.push_back(unsqueeze(dr, {0}));
    const Expr wb = b_.reduce_sum(da, {0, 1}, false);
    const Expr rb = own_side ? b_.reduce_sum(side, {0, 1}, false) : wb;
    db_.push_back(unsqueeze(concat({wb, rb}, 0), {0}));
    dh_.push_back(run.dh);
    if (!lstm()) return;
    dc_.push_back(run.dc);
    const Exprs blocks = split(da, 2, 4);
    const Expr cells = stash(slots_.more, run.d);
    const Expr met = concat({blocks[0] * run.old_c, blocks[1] * cells, blocks[2] * run.old_c}, 2);
    dp_.push_back(unsqueeze(b_.reduce_sum(met, {0, 1}, false), {0}));
  }

  Exprs results() {
    const bool batch_first = sizes_.r.batch_first;
    const DType wide = out_dtype_of(body_.attributes, dtype_);
    const auto state = [&](const Exprs& parts) {
      return b_.cast(in_layout(concat(parts, 0), batch_first), dtype_);
    };
    Exprs all = {b_.cast(in_layout(dx_, batch_first), dtype_), b_.cast(concat(dw_, 0), wide),
                 b_.cast(concat(dr_, 0), wide), concat(db_, 0), state(dh_)};
    if (!lstm()) return all;
    all.push_back(state(dc_));
    all.push_back(concat(dp_, 0));
    return all;
  }

  BodyContext& body_;
  Builder& b_;
  const BodySizes sizes_;
  const Slots slots_;
  const DType dtype_;
  Expr x_, mask_, dx_;  // mask_: 1 within the length, else 0, in math precision
  Exprs dw_, dr_, db_, dh_, dc_, dp_, reset_state_;
};

}  // namespace

std::vector<Expr> recurrent_grad_body(BodyContext& body, RecurrentOp op) {
  return RecurrentGradBody(body, op).build();
}

}  // namespace halfnote::contraction
