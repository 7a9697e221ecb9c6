// RNNGrad, GRUGrad and LSTMGrad: back through time, then one product each for dX, dW and dR.
//
// A step back turns dh (and dc) of the new state into da, the gradient of what goes into the
// activations, and da into dh of the old state by a product with R. da is kept for all steps: in
// math precision for dB and dP, and in the type of X as the operand of the products. A GRU's last
// gate has another da for its hidden part, so the side of R keeps blocks of its own.
#include <array>
#include <cstring>
#include <vector>

#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/contraction/recurrent/backward_plan.h"
#include "kernels/cpu/contraction/recurrent/cells.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {
namespace {

template <class M>
class BackwardRun {
 public:
  BackwardRun(const BackwardCall<InnerProduct>& call, const KernelBuffers& buffers)
      : call_(call), p_(call.p), buffers_(buffers) {}

  void run() {
    check_lengths(p_, lengths());
    const std::byte* x = time_major();
    std::fill_n(room(call_.dx), p_.rows() * p_.inputs, M(0));
    for (int64_t d = 0; d < p_.directions(); ++d) {
      start(d);
      for (int64_t s = p_.steps; s-- > 0;) step_back(p_.time(d, s));
      finish(x);
    }
    store_dx();
  }

 private:
  const int32_t* lengths() const { return buffers_.in<int32_t>(call_.slots.lengths); }
  const std::byte* input(size_t index) const {
    return index < buffers_.inputs.size() ? buffers_.inputs[index] : nullptr;
  }
  std::byte* output(size_t index) const {
    return index < buffers_.outputs.size() ? buffers_.outputs[index] : nullptr;
  }
  M* room(size_t offset) const { return part<M>(buffers_, offset); }
  std::byte* bytes(size_t offset) const { return buffers_.workspace + offset; }
  size_t in_type(int64_t elements) const { return static_cast<size_t>(elements) * call_.element; }
  int64_t grain() const { return std::max<int64_t>(1, 2048 / std::max<int64_t>(1, p_.hidden)); }

  const std::byte* time_major() const {
    if (!p_.r.batch_first) return buffers_.inputs[0];
    std::byte* to = bytes(call_.x);
    for (int64_t t = 0; t < p_.steps; ++t) {
      for (int64_t row = 0; row < p_.batch; ++row, to += in_type(p_.inputs)) {
        std::memcpy(to, buffers_.inputs[0] + in_type(p_.x_at(t, row)), in_type(p_.inputs));
      }
    }
    return bytes(call_.x);
  }

  /// Reads states and parameters of direction d, and lays out the state before every step.
  void start(int64_t d) {
    d_ = d;
    const int64_t n = p_.hidden;
    gates_ = reinterpret_cast<const M*>(input(call_.slots.gates)) + d * p_.rows() * p_.width();
    const M* stash = call_.template stash<M>(buffers_);
    stash_ = stash == nullptr ? nullptr : stash + d * p_.rows() * n;
    cell_ = {&p_.r, d, n, nullptr};
    if (input(call_.slots.p) != nullptr) {
      load_reals(input(call_.slots.p), call_.p_type, 3 * d * n, 3 * n, room(call_.peepholes));
      cell_.peepholes = room(call_.peepholes);
    }
    for (int64_t row = 0; row < p_.batch; ++row) {
      load_state(call_.slots.dy_h, row, room(call_.dh) + row * n);
      if (!call_.lstm()) continue;
      load_state(call_.slots.dy_c, row, room(call_.dc) + row * n);
      load_state(call_.slots.initial_c, row, room(call_.c0) + row * n);
    }
    std::fill_n(room(call_.back), p_.batch * n, M(0));
    parallel_blocks(p_.rows(), 64, call_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) keep_old_state(at / p_.batch, at % p_.batch);
    });
  }

  void load_state(size_t index, int64_t row, M* to) const {
    if (input(index) == nullptr) {
      std::fill_n(to, p_.hidden, M(0));
    } else {
      load_reals(input(index), call_.input_types[index], p_.state_at(d_, row), p_.hidden, to);
    }
  }

  /// The time of the step before, −1 or T at the first.
  int64_t before(int64_t t) const { return p_.r.reverse[static_cast<size_t>(d_)] ? t + 1 : t - 1; }
  bool is_first(int64_t t) const { return before(t) < 0 || before(t) >= p_.steps; }

  /// The state before step (t, row), in the type of X: Y of the step before, or the initial one. Y
  /// is zero beyond a row's length, where a reverse direction has not begun yet.
  void keep_old_state(int64_t t, int64_t row) {
    std::byte* const to = bytes(call_.old_state) + in_type((t * p_.batch + row) * p_.hidden);
    const size_t line = in_type(p_.hidden);
    if (!is_first(t) && before(t) < length_of(p_, lengths(), row)) {
      std::memcpy(to, input(call_.slots.y) + in_type(p_.y_at(before(t), d_, row)), line);
    } else if (const std::byte* initial = input(call_.slots.initial_h)) {
      std::memcpy(to, initial + in_type(p_.state_at(d_, row)), line);
    } else {
      std::memset(to, 0, line);
    }
  }

  /// The vectors of one row of one step.
  struct Row {
    int64_t at;  // t·B + row
    const M *a, *c_old;
    M *dh, *dc, *da, *old, *scratch;
  };

  void step_back(int64_t t) {
    if (call_.resets_first()) {
      rows(t, [&](const Row& r) { open_reset_row(r); });
      call_.product_back[1].run(side(1, t), weight_rows(1), room(call_.reset_back),
                                bytes(call_.product));
      rows(
          t, [&](const Row& r) { close_reset_row(r); }, Pass::kAgain);
    } else {
      rows(t, [&](const Row& r) { row_back(r); });
    }
    call_.product_back[0].run(side(0, t), weight_rows(0), room(call_.back), bytes(call_.product));
  }

  /// da of block `index` of the recurrent side, from time t on, in the type of X.
  std::byte* side(size_t index, int64_t t) const {
    const Side& side = call_.sides[index];
    return bytes(side.typed) + in_type(t * p_.batch * side.width);
  }
  const std::byte* weight_rows(size_t index) const {
    return input(2) + in_type(d_ * p_.r_size() + call_.sides[index].first * p_.hidden);
  }

  enum class Pass { kFirst, kAgain };

  /// Runs `body` on the rows that are not over at time t; the others get no gradient. The first
  /// pass gathers dh: what came back from the later step, plus dY.
  template <class Body>
  void rows(int64_t t, Body&& body, Pass pass = Pass::kFirst) {
    const int64_t n = p_.hidden;
    parallel_blocks(p_.batch, grain(), call_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const Row r = row_at(t, row);
        if (pass == Pass::kFirst) add_to(r.dh, room(call_.back) + row * n, n);
        if (t >= length_of(p_, lengths(), row)) {
          clear_row(r);
          continue;
        }
        if (pass == Pass::kFirst) {
          if (const std::byte* dy = input(call_.slots.dy)) {
            load_reals(dy, call_.input_types[call_.slots.dy], p_.y_at(t, d_, row), n, r.scratch);
            add_to(r.dh, r.scratch, n);
          }
        }
        load_reals(bytes(call_.old_state), call_.type, r.at * n, n, r.old);
        body(r);
      }
    });
  }

  Row row_at(int64_t t, int64_t row) const {
    const int64_t n = p_.hidden, at = t * p_.batch + row;
    M* const scratch = room(call_.scratch) + row * kCellScratch * n;
    Row r{at,      gates_ + at * p_.width(),         nullptr,         room(call_.dh) + row * n,
          nullptr, room(call_.da) + at * p_.width(), scratch + 6 * n, scratch};
    if (!call_.lstm()) return r;
    r.dc = room(call_.dc) + row * n;
    r.c_old = is_first(t) ? room(call_.c0) + row * n : stash_ + (before(t) * p_.batch + row) * n;
    return r;
  }

  void clear_row(const Row& r) {
    std::fill_n(r.da, p_.width(), M(0));
    for (const Side& side : call_.sides) {
      if (side.own) std::fill_n(room(side.math) + r.at * side.width, side.width, M(0));
    }
    // An operand of dR's product, where zeros do not hide what is no number.
    if (call_.resets_first()) {
      std::memset(bytes(call_.reset_state) + in_type(r.at * p_.hidden), 0, in_type(p_.hidden));
    }
    publish(r);
  }

  /// Rounds da, and the blocks of the recurrent side, to the type of X.
  void publish(const Row& r) {
    store_reals(r.da, p_.width(), call_.type, bytes(call_.da_typed), r.at * p_.width());
    for (const Side& side : call_.sides) {
      if (!side.own) continue;
      store_reals(room(side.math) + r.at * side.width, side.width, call_.type, bytes(side.typed),
                  r.at * side.width);
    }
  }

  /// Row of a step without a reset gate before the product; dh becomes what goes straight into the
  /// old state.
  void row_back(const Row& r) {
    const int64_t n = p_.hidden;
    if (call_.lstm()) {
      lstm_backward(cell_, r.a, stash_ + r.at * n, r.c_old, r.dh, r.dc, r.da, r.scratch);
      std::fill_n(r.dh, n, M(0));
    } else if (call_.gru()) {
      linear_gru_back(r);
    } else {
      cell_.act(0, r.a, r.scratch);
      cell_.slope(0, r.a, r.scratch, r.scratch);
      for (int64_t j = 0; j < n; ++j) r.da[j] = r.dh[j] * r.scratch[j];
      std::fill_n(r.dh, n, M(0));
    }
    publish(r);
  }

  /// GRU with linear_before_reset: an = x + r∘q, so dq = dan∘r and dar = dan∘q∘r'.
  void linear_gru_back(const Row& r) {
    const int64_t n = p_.hidden;
    M *dan = r.da + 2 * n, *dar = r.da + n, *gate = r.scratch, *slope = gate + n;
    const M* q = stash_ + r.at * n;
    M* const own = room(call_.sides[0].math) + r.at * 3 * n;
    gru_backward(cell_, r.a, r.old, r.dh, r.da, dan, r.dh, r.scratch);
    cell_.act(0, r.a + n, gate);
    cell_.slope(0, r.a + n, gate, slope);
    for (int64_t j = 0; j < n; ++j) dar[j] = dan[j] * q[j] * slope[j];
    std::copy_n(r.da, 2 * n, own);
    for (int64_t j = 0; j < n; ++j) own[2 * n + j] = dan[j] * gate[j];
  }

  /// GRU that resets first, until the product that gives d(r∘h) from dan.
  void open_reset_row(const Row& r) {
    const int64_t n = p_.hidden;
    gru_backward(cell_, r.a, r.old, r.dh, r.da, r.da + 2 * n, r.dh, r.scratch);
    std::fill_n(r.da + n, n, M(0));
    std::copy_n(r.da + 2 * n, n, room(call_.sides[1].math) + r.at * n);
    store_reals(r.da + 2 * n, n, call_.type, bytes(call_.sides[1].typed), r.at * n);
  }

  /// … and after it: dar = d(r∘h)∘h∘r', and d(r∘h)∘r goes into the old state.
  void close_reset_row(const Row& r) {
    const int64_t n = p_.hidden;
    M *gate = r.scratch, *slope = gate + n, *reset = slope + n;
    const M* back = room(call_.reset_back) + r.at % p_.batch * n;
    cell_.act(0, r.a + n, gate);
    cell_.slope(0, r.a + n, gate, slope);
    for (int64_t j = 0; j < n; ++j) r.da[n + j] = back[j] * r.old[j] * slope[j];
    for (int64_t j = 0; j < n; ++j) r.dh[j] += back[j] * gate[j];
    for (int64_t j = 0; j < n; ++j) reset[j] = r.old[j] * gate[j];
    std::copy_n(r.da, 2 * n, room(call_.sides[0].math) + r.at * 2 * n);
    store_reals(reset, n, call_.type, bytes(call_.reset_state), r.at * n);
    publish(r);
  }

  /// The gradients of a direction that sum over all steps.
  void finish(const std::byte* x) {
    const int64_t n = p_.hidden;
    if (std::byte* dw = output(1)) {
      call_.weight_w.run(bytes(call_.da_typed), x, dw + sized(1, d_ * p_.w_size()),
                         bytes(call_.product));
    }
    for (size_t i = 0; i < call_.sides.size() && output(2) != nullptr; ++i) {
      const Side& side = call_.sides[i];
      const size_t state = i == 0 ? call_.old_state : call_.reset_state;
      call_.weight_r[i].run(side_all(side), bytes(state),
                            output(2) + sized(2, d_ * p_.r_size() + side.first * n),
                            bytes(call_.product));
    }
    if (output(0) != nullptr) add_dx();
    if (output(3) != nullptr) store_db();
    if (output(call_.slots.dp) != nullptr) store_dp();
    for (int64_t row = 0; row < p_.batch; ++row) {
      M* const dh = room(call_.dh) + row * n;
      add_to(dh, room(call_.back) + row * n, n);
      store_state(call_.slots.d_initial_h, row, dh);
      if (call_.lstm()) store_state(call_.slots.d_initial_c, row, room(call_.dc) + row * n);
    }
  }

  const std::byte* side_all(const Side& side) const { return bytes(side.typed); }
  /// Bytes of `elements` of result `index`.
  size_t sized(size_t index, int64_t elements) const {
    return static_cast<size_t>(elements) * size_of(call_.output_types[index]);
  }

  void store_state(size_t index, int64_t row, const M* from) const {
    if (output(index) == nullptr) return;
    store_reals(from, p_.hidden, call_.output_types[index], output(index), p_.state_at(d_, row));
  }

  void add_dx() {
    call_.input_x.run(bytes(call_.da_typed), input(1) + in_type(d_ * p_.w_size()),
                      room(call_.dx_one), bytes(call_.product));
    parallel_blocks(p_.rows() * p_.inputs, kElementGrain, call_.threads,
                    [&](int64_t begin, int64_t end) {
                      add_to(room(call_.dx) + begin, room(call_.dx_one) + begin, end - begin);
                    });
  }

  void store_dx() const {
    if (output(0) == nullptr) return;
    parallel_blocks(p_.rows(), 64, call_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        store_reals(room(call_.dx) + at * p_.inputs, p_.inputs, call_.output_types[0], output(0),
                    p_.x_at(at / p_.batch, at % p_.batch));
      }
    });
  }

  /// Adds up columns [begin, end) of a (rows, width) matrix, in the order of the rows.
  static void sum_columns(const M* from, int64_t rows, int64_t width, int64_t begin, int64_t end,
                          M* to) {
    std::fill(to + begin, to + end, M(0));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = begin; j < end; ++j) to[j] += from[row * width + j];
    }
  }

  /// dWb sums da, dRb the blocks of the recurrent side.
  void store_db() {
    const int64_t width = p_.width();
    M* const sums = room(call_.sums);
    const auto sum = [&](const M* from, int64_t columns, M* to) {
      parallel_blocks(columns, 64, call_.threads, [&](int64_t begin, int64_t end) {
        sum_columns(from, p_.rows(), columns, begin, end, to);
      });
    };
    sum(room(call_.da), width, sums);
    for (const Side& side : call_.sides) {
      if (side.own) sum(room(side.math), side.width, sums + width + side.first);
    }
    if (!call_.sides[0].own) std::copy_n(sums, width, sums + width);
    store_reals(sums, 2 * width, call_.output_types[3], output(3), 2 * d_ * width);
  }

  /// dP of i and f meet the old cell, that of o the new one.
  void store_dp() {
    const int64_t n = p_.hidden;
    M* const sums = room(call_.sums);
    constexpr std::array<int64_t, 3> kBlocks = {0, 1, 2};  // i, o, f of da, as in P
    parallel_blocks(n, 64, call_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t block : kBlocks)
        std::fill(sums + block * n + begin, sums + block * n + end, M(0));
      for (int64_t t = 0; t < p_.steps; ++t) {
        for (int64_t row = 0; row < p_.batch; ++row) {
          const Row r = row_at(t, row);
          for (int64_t block : kBlocks) {
            const M* c = block == 1 ? stash_ + r.at * n : r.c_old;
            for (int64_t j = begin; j < end; ++j) sums[block * n + j] += r.da[block * n + j] * c[j];
          }
        }
      }
    });
    store_reals(sums, 3 * n, call_.output_types[call_.slots.dp], output(call_.slots.dp),
                3 * d_ * n);
  }

  const BackwardCall<InnerProduct>& call_;
  const RecurrentPlan& p_;
  const KernelBuffers& buffers_;
  Cell<M> cell_;
  int64_t d_ = 0;
  const M *gates_ = nullptr, *stash_ = nullptr;
};

Prepared prepare(const KernelCall& call, std::string_view only) {
  BackwardCall<InnerProduct> b;
  b.p = plan_recurrent_grad(call);
  if (std::string why = recurrent_type_refusal(call, b.p, true); !why.empty()) {
    return Prepared::no(why);
  }
  return for_math_type(call.inputs[0].dtype, [&]<class M>() -> Prepared {
    WorkspacePlan workspace;
    if (std::string why = lay_out_backward(call, only, dtype_of<M>(), b, workspace); !why.empty()) {
      return Prepared::no("an inner product has no kernel: " + why);
    }
    return make_kernel([b](const KernelBuffers& buffers) { BackwardRun<M>(b, buffers).run(); },
                       workspace.size());
  });
}

Prepared prepare_products(const KernelCall& call) {
  if (call.has_input(0) && call.inputs[0].dtype == DType::kF64) {
    return Prepared::no("f64 has reference products only");
  }
  return prepare(call, {});
}
Prepared prepare_reference(const KernelCall& call) { return prepare(call, "reference"); }

}  // namespace

std::vector<KernelRow> recurrent_grad_rows() {
  std::vector<KernelRow> rows;
  for (std::string_view op : {"GRUGrad", "LSTMGrad", "RNNGrad"}) {
    rows.push_back({"ai.halfnote", op, "fast.products", prepare_products});
    rows.push_back({"ai.halfnote", op, "reference", prepare_reference});
  }
  return rows;
}

}  // namespace halfnote::cpu
