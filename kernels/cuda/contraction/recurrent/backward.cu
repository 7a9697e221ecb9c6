// RNNGrad, GRUGrad and LSTMGrad: back through time with a kernel and a product a step (two of each
// for a GRU that resets first), then one product each for dX, dW and dR. Planned as on the CPU; a
// thread owns an element of the state. Column sums go over slices of rows, merged in order.
#include "kernels/cpu/contraction/recurrent/backward_plan.h"
#include "kernels/cuda/columns.h"
#include "kernels/cuda/contraction/recurrent/library.h"
#include "kernels/cuda/contraction/recurrent/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using BackwardCall = cpu::BackwardCall<DeviceProduct>;

/// The state before every step, in the type of X: Y of the step before, or the initial one. Y is
/// zero beyond a row's length, where a reverse direction has not begun yet.
template <class T>
struct KeepOldState {
  const T *y, *initial;
  T* to;
  Lengths lengths;
  Divisor hidden, batch;
  int64_t steps, y_step;  // elements of Y from time to time
  RowsAt y_at, initial_at;
  int delta;  // to the step before: −1, or 1 in a reverse direction
  __device__ void operator()(int64_t i) const {
    const int64_t at = hidden.quotient(i), j = i - at * hidden.value();
    const int64_t time = batch.quotient(at), row = at - time * batch.value();
    const int64_t before = time + delta;
    if (before >= 0 && before < steps && !lengths.over(before, row)) {
      to[i] = y[y_at(row) + before * y_step + j];
    } else {
      to[i] = initial == nullptr ? T{} : initial[initial_at(row) + j];
    }
  }
};

template <class M>
struct FillZero {
  M* to;
  __device__ void operator()(int64_t i) const { to[i] = 0; }
};

/// The blocks of the recurrent side that are not those of W: in math precision, and in the type of
/// X. Both begin at this step.
template <class T>
struct OwnSide {
  Math<T>* math = nullptr;
  T* typed = nullptr;
  int64_t width = 0;

  __device__ void write(int64_t row, int64_t column, Math<T> value) const {
    if (math == nullptr) return;
    math[row * width + column] = value;
    typed[row * width + column] = store_number<T>(value);
  }
};

/// One step of one direction: element (row, j) of the state.
template <class T>
struct StepBack {
  using M = Math<T>;
  RecurrentOp op;
  Cell<M> cell;
  Divisor hidden;
  Lengths lengths;
  int64_t time, width;
  const M *gates, *stash, *c_old, *peepholes;  // of this step
  const M *back, *reset_back;                  // what came back from the later step
  RealPointer dy;
  RowsAt dy_at;
  const T* old_state;  // of this step
  M *dh, *dc, *da;
  T *da_typed, *reset_state;
  OwnSide<T> sides[2];

  struct Element {
    int64_t i, row, j, n;
    const M* a;
    bool over;
  };
  __device__ Element element(int64_t i) const {
    const int64_t n = hidden.value(), row = hidden.quotient(i);
    const int64_t j = i - row * n;
    return {i, row, j, n, gates + row * width + j, lengths.over(time, row)};
  }
  /// dh of the new state: what came back, plus dY; no dY for a row that is over.
  __device__ M gather(const Element& e) const {
    M sum = dh[e.i] + back[e.i];
    if (!e.over && dy.data != nullptr) sum += static_cast<M>(dy[dy_at(e.row) + e.j]);
    return sum;
  }
  /// Sets da of a gate, for W.
  __device__ void put(const Element& e, int gate, M value) const {
    const int64_t at = e.row * width + gate * e.n + e.j;
    da[at] = value;
    if (da_typed != nullptr) da_typed[at] = store_number<T>(value);
  }
  __device__ void clear(const Element& e) const {
    for (int64_t gate = 0; gate * e.n < width; ++gate) put(e, static_cast<int>(gate), M(0));
    for (const OwnSide<T>& side : sides) {
      for (int64_t column = e.j; column < side.width; column += e.n) side.write(e.row, column, 0);
    }
  }

  struct GruParts {
    M daz, dan, direct;
  };
  /// da of the gates z and n, and what goes straight into the old state.
  __device__ GruParts gru(const Element& e, M upstream) const {
    const M h_old = load_number(old_state[e.i]);
    const M z = cell.act(0, e.a[0]), g = cell.act(1, e.a[2 * e.n]);
    return {upstream * (h_old - g) * cell.slope(0, e.a[0], z),
            upstream * (1 - z) * cell.slope(1, e.a[2 * e.n], g), upstream * z};
  }
};

template <class T>
struct RowBack {
  using M = Math<T>;
  StepBack<T> s;
  __device__ void operator()(int64_t i) const {
    const auto e = s.element(i);
    const M upstream = s.gather(e);
    if (e.over) {
      s.dh[i] = upstream;
      s.clear(e);
    } else if (s.op == RecurrentOp::kLstm) {
      lstm(e, upstream);
    } else if (s.op == RecurrentOp::kGru) {
      linear_gru(e, upstream);
    } else {
      s.put(e, 0, upstream * s.cell.slope(0, e.a[0], s.cell.act(0, e.a[0])));
      s.dh[i] = 0;
    }
  }

  __device__ void lstm(const typename StepBack<T>::Element& e, M upstream) const {
    const M ai = e.a[0], ao = e.a[e.n], af = e.a[2 * e.n], an = e.a[3 * e.n];
    const M c = s.stash[e.i], c_old = s.c_old[e.i];
    const M in = s.cell.act(0, ai), out = s.cell.act(0, ao), g = s.cell.act(1, an);
    const M of_c = s.cell.value(2, c);
    const M dao = upstream * of_c * s.cell.slope(0, ao, out);
    M dc = s.dc[e.i] + upstream * out * s.cell.derivative(2, c, of_c);
    if (s.peepholes != nullptr) dc += dao * s.peepholes[e.n + e.j];
    M forget = 1 - in, dai = 0, daf = 0;
    if (s.cell.coupled) {
      dai = dc * (g - c_old) * s.cell.slope(0, ai, in);
    } else {
      forget = s.cell.act(0, af);
      dai = dc * g * s.cell.slope(0, ai, in);
      daf = dc * c_old * s.cell.slope(0, af, forget);
    }
    const M dan = dc * in * s.cell.slope(1, an, g);
    dc *= forget;
    if (s.peepholes != nullptr) {
      dc += dai * s.peepholes[e.j] + daf * s.peepholes[2 * e.n + e.j];
    }
    s.dc[e.i] = dc;
    s.dh[e.i] = 0;
    s.put(e, 0, dai);
    s.put(e, 1, dao);
    s.put(e, 2, daf);
    s.put(e, 3, dan);
  }

  /// With linear_before_reset: an = x + r∘q, so dq = dan∘r and dar = dan∘q∘r'.
  __device__ void linear_gru(const typename StepBack<T>::Element& e, M upstream) const {
    const auto parts = s.gru(e, upstream);
    const M reset = s.cell.act(0, e.a[e.n]);
    const M dar = parts.dan * s.stash[e.i] * s.cell.slope(0, e.a[e.n], reset);
    s.dh[e.i] = parts.direct;
    s.put(e, 0, parts.daz);
    s.put(e, 1, dar);
    s.put(e, 2, parts.dan);
    s.sides[0].write(e.row, e.j, parts.daz);
    s.sides[0].write(e.row, e.n + e.j, dar);
    s.sides[0].write(e.row, 2 * e.n + e.j, parts.dan * reset);
  }
};

/// GRU that resets first, until the product that gives d(r∘h) from dan.
template <class T>
struct OpenReset {
  using M = Math<T>;
  StepBack<T> s;
  __device__ void operator()(int64_t i) const {
    const auto e = s.element(i);
    const M upstream = s.gather(e);
    if (e.over) {
      s.dh[i] = upstream;
      s.clear(e);
      return;
    }
    const auto parts = s.gru(e, upstream);
    s.dh[i] = parts.direct;
    s.put(e, 0, parts.daz);
    s.put(e, 2, parts.dan);
    s.sides[0].write(e.row, e.j, parts.daz);
    s.sides[1].write(e.row, e.j, parts.dan);
  }
};

/// … and after it: dar = d(r∘h)∘h∘r', and d(r∘h)∘r goes into the old state.
template <class T>
struct CloseReset {
  using M = Math<T>;
  StepBack<T> s;
  __device__ void operator()(int64_t i) const {
    const auto e = s.element(i);
    if (e.over) {
      s.reset_state[i] = T{};
      return;
    }
    const M h_old = load_number(s.old_state[i]), reset = s.cell.act(0, e.a[e.n]);
    const M dar = s.reset_back[i] * h_old * s.cell.slope(0, e.a[e.n], reset);
    s.dh[i] += s.reset_back[i] * reset;
    s.put(e, 1, dar);
    s.sides[0].write(e.row, e.n + e.j, dar);
    s.reset_state[i] = store_number<T>(h_old * reset);
  }
};

/// dh of the initial state: what is left there, plus what came back from the first step.
template <class M>
struct AddBack {
  M* dh;
  const M* back;
  __device__ void operator()(int64_t i) const { dh[i] += back[i]; }
};

/// dX in math precision, from (T·B, I) to the layout of X.
template <class M>
struct StoreDx {
  const M* from;
  RealOutput to;
  Divisor inputs, batch;
  int64_t steps;
  bool batch_first;
  __device__ void operator()(int64_t i) const {
    if (!batch_first) {
      to.write(i, static_cast<double>(from[i]));
      return;
    }
    const int64_t vector = inputs.quotient(i), time = batch.quotient(vector);
    const int64_t row = vector - time * batch.value();
    to.write((row * steps + time - vector) * inputs.value() + i, static_cast<double>(from[i]));
  }
};

template <class M>
struct AddTo {
  M* to;
  const M* from;
  bool first;
  __device__ void operator()(int64_t i) const { to[i] = first ? from[i] : to[i] + from[i]; }
};

/// The sum of a column over all rows (columns.h), times a cell where `c` is given: dP of i and f
/// meet the old cell, that of o the new one.
template <class M>
struct SumColumn : AddedParts {
  const M* from;
  int64_t rows, width;
  const M *stash, *c0;  // cells after each step, and before the first
  int64_t hidden, step_rows;
  bool reverse;
  RealOutput to;
  int64_t at;
  __device__ double part(int64_t row, int64_t column) const {
    M value = from[row * width + column];
    if (stash != nullptr) value *= cell(row, column);
    return static_cast<double>(value);
  }
  __device__ void finish(int64_t column, double sum) const { to.write(at + column, sum); }
  __device__ M cell(int64_t row, int64_t column) const {
    const int64_t gate = column / hidden, j = column - gate * hidden;
    if (gate == 1) return stash[row * hidden + j];
    const int64_t before = reverse ? row + step_rows : row - step_rows;
    return before < 0 || before >= rows ? c0[row % step_rows * hidden + j]
                                        : stash[before * hidden + j];
  }
};

template <class T>
class BackwardRun {
 public:
  using M = Math<T>;
  BackwardRun(const BackwardCall& call, const KernelBuffers& buffers)
      : call_(call), p_(call.p), buffers_(buffers), stream_(stream_of(buffers)) {}

  void run() {
    if (const int32_t* lengths = buffers_.in<int32_t>(call_.slots.lengths)) {
      for_each(stream_, p_.batch, CheckLength{lengths, p_.steps, stream_.fault()});
    }
    const T* x = buffers_.in<T>(0);
    if (p_.r.batch_first) {
      for_each(
          stream_, p_.rows() * p_.inputs,
          ToTimeMajor<T>{x, room<T>(call_.x), Divisor(p_.inputs), Divisor(p_.batch), p_.steps});
      x = room<T>(call_.x);
    }
    for (int64_t d = 0; d < p_.directions(); ++d) {
      start(d);
      for (int64_t s = p_.steps; s-- > 0;) step_back(d, p_.time(d, s));
      finish(d, x);
    }
    if (buffers_.out<std::byte>(0) == nullptr) return;
    for_each(stream_, p_.rows() * p_.inputs,
             StoreDx<M>{room<M>(call_.dx), out(0), Divisor(p_.inputs), Divisor(p_.batch), p_.steps,
                        p_.r.batch_first});
  }

 private:
  template <class A>
  A* room(size_t offset) const {
    return reinterpret_cast<A*>(buffers_.workspace + offset);
  }
  std::byte* products() const { return buffers_.workspace + call_.product; }
  int64_t cells() const { return p_.batch * p_.hidden; }
  RealPointer in(size_t i) const { return {buffers_.in<std::byte>(i), call_.input_types[i]}; }
  RealOutput out(size_t i) const { return {buffers_.out<std::byte>(i), call_.output_types[i]}; }
  std::byte* out_at(size_t i, int64_t element) const {
    return buffers_.out<std::byte>(i) +
           static_cast<size_t>(element) * size_of(call_.output_types[i]);
  }
  bool reverse(int64_t d) const { return p_.r.reverse[static_cast<size_t>(d)]; }
  int64_t before(int64_t d, int64_t t) const { return reverse(d) ? t + 1 : t - 1; }
  const M* stash(int64_t d) const {
    const M* all = call_.template stash<M>(buffers_);
    return all == nullptr ? nullptr : all + d * p_.rows() * p_.hidden;
  }

  void start(int64_t d) const {
    const RowsAt rows = state_rows(p_, d);
    const Divisor by(p_.hidden);
    const auto load = [&](size_t index, size_t to) {
      const RealPointer from = index < call_.input_types.size() ? in(index) : RealPointer{};
      for_each(stream_, cells(), LoadRows<M>{from, rows, by, room<M>(to)});
    };
    load(call_.slots.dy_h, call_.dh);
    if (call_.lstm()) {
      load(call_.slots.dy_c, call_.dc);
      load(call_.slots.initial_c, call_.c0);
    }
    if (call_.p_type != DType::kUndefined) {
      for_each(stream_, 3 * p_.hidden,
               LoadRows<M>{in(call_.slots.p),
                           {3 * d * p_.hidden, 0},
                           Divisor(3 * p_.hidden),
                           room<M>(call_.peepholes)});
    }
    for_each(stream_, cells(), FillZero<M>{room<M>(call_.back)});
    const int64_t y_step = p_.y_at(1, d, 0) - p_.y_at(0, d, 0);
    for_each(stream_, p_.rows() * p_.hidden,
             KeepOldState<T>{buffers_.in<T>(call_.slots.y),
                             buffers_.in<T>(call_.slots.initial_h),
                             room<T>(call_.old_state),
                             {buffers_.in<int32_t>(call_.slots.lengths)},
                             by,
                             Divisor(p_.batch),
                             p_.steps,
                             y_step,
                             y_rows(p_, 0, d),
                             rows,
                             reverse(d) ? 1 : -1});
  }

  StepBack<T> step(int64_t d, int64_t t) const {
    const int64_t n = p_.hidden, at = t * p_.batch, width = p_.width();
    const int64_t earlier = before(d, t);
    const bool first = earlier < 0 || earlier >= p_.steps;
    StepBack<T> s{};
    s.op = p_.r.op;
    s.cell = Cell<M>(p_.r, d);
    s.hidden = Divisor(n);
    s.lengths = {buffers_.in<int32_t>(call_.slots.lengths)};
    s.time = t;
    s.width = width;
    s.gates = buffers_.in<M>(call_.slots.gates) + (d * p_.rows() + at) * width;
    if (const M* all = stash(d)) {
      s.stash = all + at * n;
      s.c_old = all + earlier * cells();
    }
    if (call_.lstm() && first) s.c_old = room<M>(call_.c0);
    if (call_.p_type != DType::kUndefined) s.peepholes = room<M>(call_.peepholes);
    s.back = room<M>(call_.back);
    s.reset_back = call_.resets_first() ? room<M>(call_.reset_back) : nullptr;
    s.dy = in(call_.slots.dy);
    s.dy_at = y_rows(p_, t, d);
    s.old_state = room<T>(call_.old_state) + at * n;
    s.dh = room<M>(call_.dh);
    s.dc = call_.lstm() ? room<M>(call_.dc) : nullptr;
    s.da = room<M>(call_.da) + at * width;
    s.da_typed = call_.da_typed == call_.da ? nullptr : room<T>(call_.da_typed) + at * width;
    s.reset_state = call_.resets_first() ? room<T>(call_.reset_state) + at * n : nullptr;
    for (size_t i = 0; i < call_.sides.size(); ++i) {
      const cpu::Side& side = call_.sides[i];
      if (!side.own) continue;
      s.sides[i] = {room<M>(side.math) + at * side.width, room<T>(side.typed) + at * side.width,
                    side.width};
    }
    return s;
  }

  void step_back(int64_t d, int64_t t) const {
    const StepBack<T> s = step(d, t);
    if (call_.resets_first()) {
      for_each(stream_, cells(), OpenReset<T>{s});
      product_back(1, d, t, room<M>(call_.reset_back));
      for_each(stream_, cells(), CloseReset<T>{s});
    } else {
      for_each(stream_, cells(), RowBack<T>{s});
    }
    product_back(0, d, t, room<M>(call_.back));
  }

  void product_back(size_t index, int64_t d, int64_t t, M* to) const {
    const cpu::Side& side = call_.sides[index];
    const T* r = buffers_.in<T>(2) + d * p_.r_size() + side.first * p_.hidden;
    call_.product_back[index].run(stream_, room<T>(side.typed) + t * p_.batch * side.width, r, to,
                                  products());
  }

  /// The gradients of a direction that sum over all steps.
  void finish(int64_t d, const T* x) const {
    if (buffers_.out<std::byte>(1) != nullptr) {
      call_.weight_w.run(stream_, room<T>(call_.da_typed), x, out_at(1, d * p_.w_size()),
                         products());
    }
    for (size_t i = 0; i < call_.sides.size() && buffers_.out<std::byte>(2) != nullptr; ++i) {
      const cpu::Side& side = call_.sides[i];
      const size_t state = i == 0 ? call_.old_state : call_.reset_state;
      call_.weight_r[i].run(stream_, room<T>(side.typed), room<T>(state),
                            out_at(2, d * p_.r_size() + side.first * p_.hidden), products());
    }
    if (buffers_.out<std::byte>(0) != nullptr) {
      call_.input_x.run(stream_, room<T>(call_.da_typed), buffers_.in<T>(1) + d * p_.w_size(),
                        room<M>(call_.dx_one), products());
      for_each(stream_, p_.rows() * p_.inputs,
               AddTo<M>{room<M>(call_.dx), room<M>(call_.dx_one), d == 0});
    }
    sum_parameters(d);
    for_each(stream_, cells(), AddBack<M>{room<M>(call_.dh), room<M>(call_.back)});
    store_state(call_.slots.d_initial_h, d, call_.dh);
    if (call_.lstm()) store_state(call_.slots.d_initial_c, d, call_.dc);
  }

  void store_state(size_t index, int64_t d, size_t from) const {
    if (buffers_.out<std::byte>(index) == nullptr) return;
    for_each(stream_, cells(),
             StoreRows<M>{room<M>(from), state_rows(p_, d), Divisor(p_.hidden), out(index)});
  }

  /// dB, whose halves are those of Wb and Rb, and dP.
  void sum_parameters(int64_t d) const {
    const int64_t width = p_.width(), rows = p_.rows();
    const auto sum = [&](const M* from, int64_t columns, int64_t at) {
      merge_columns(
          stream_, SumColumn<M>{{}, from, rows, columns, nullptr, nullptr, 1, 1, false, out(3), at},
          columns, rows);
    };
    if (buffers_.out<std::byte>(3) != nullptr) {
      sum(room<M>(call_.da), width, 2 * d * width);
      for (const cpu::Side& side : call_.sides) {
        sum(room<M>(side.math), side.width, (2 * d + 1) * width + side.first);
      }
    }
    const size_t dp = call_.slots.dp;
    if (buffers_.out<std::byte>(dp) == nullptr) return;
    merge_columns(stream_,
                  SumColumn<M>{{},
                               room<M>(call_.da),
                               rows,
                               width,
                               stash(d),
                               room<M>(call_.c0),
                               p_.hidden,
                               p_.batch,
                               reverse(d),
                               out(dp),
                               3 * d * p_.hidden},
                  3 * p_.hidden, rows);
  }

  const BackwardCall& call_;
  const cpu::RecurrentPlan& p_;
  const KernelBuffers& buffers_;
  Stream& stream_;
};

Prepared prepare_gradient(const KernelCall& call) {
  BackwardCall b;
  b.p = cpu::plan_recurrent_grad(call);
  if (std::string why = cpu::recurrent_type_refusal(call, b.p, true); !why.empty()) {
    return Prepared::no(why);
  }
  if (b.p.r.reserve > 0 && library_takes(call, b.p, true)) return Prepared::no(kReserveOfLibrary);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    cpu::WorkspacePlan workspace;
    const DType math = dtype_of<Math<T>>();
    if (std::string why = cpu::lay_out_backward(call, {}, math, b, workspace); !why.empty()) {
      return Prepared::no("an inner product has no kernel: " + why);
    }
    return make_kernel([b](const KernelBuffers& buffers) { BackwardRun<T>(b, buffers).run(); },
                       workspace.size());
  });
}

}  // namespace

std::vector<KernelRow> recurrent_gradient_rows() {
  std::vector<KernelRow> rows;
  for (std::string_view op : {"GRUGrad", "LSTMGrad", "RNNGrad"}) {
    rows.push_back({"ai.halfnote", op, "dnn.recurrent", prepare_library_recurrent_gradient});
    rows.back().alone = true;
    rows.push_back({"ai.halfnote", op, "own.recurrent", prepare_gradient});
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
