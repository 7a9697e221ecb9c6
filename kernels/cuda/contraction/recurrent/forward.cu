// RNN, GRU and LSTM, ONNX's and those of ai.halfnote, which also write what their backward reads:
// one product for the inputs of all steps, then a product and a kernel a step (two for a GRU that
// resets first). Planned as on the CPU; a thread owns an element of the state.
#include "kernels/cpu/contraction/recurrent/forward_plan.h"
#include "kernels/cuda/contraction/recurrent/library.h"
#include "kernels/cuda/contraction/recurrent/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using namespace cpu::recurrent;  // NOLINT(google-build-using-namespace): names of operands
using ForwardCall = cpu::ForwardCall<DeviceProduct>;

/// Wb + Rb; the last gate of a GRU with linear_before_reset keeps its Rb apart, behind the others.
template <class M>
struct LoadBias {
  RealPointer b;
  int64_t at, width, summed, hidden;
  M* to;
  __device__ void operator()(int64_t j) const {
    if (b.data == nullptr) {
      to[j] = 0;
    } else if (j < width) {
      const M own = static_cast<M>(b[at + j]);
      to[j] = j < summed ? own + static_cast<M>(b[at + width + j]) : own;
    } else {
      to[j] = summed < width ? static_cast<M>(b[at + width + 2 * hidden + (j - width)]) : M(0);
    }
  }
};

/// One step of one direction: element (row, j) of the state.
template <class T>
struct Step {
  using M = Math<T>;
  RecurrentOp op;
  bool linear_before_reset;
  Cell<M> cell;
  Divisor hidden;
  Lengths lengths;
  int64_t time, width;
  M* gates;  // of this step: (B, width)
  const M *recurrent, *bias, *peepholes;
  M *h, *c, *stash;            // stash of this step, or null
  T *state, *reset_state, *y;  // y may be null
  RowsAt y_at;

  /// Part `gate` of the recurrent product, which has `parts` of them.
  __device__ M back(int64_t row, int64_t j, int gate, int parts) const {
    return recurrent[(row * parts + gate) * hidden.value() + j];
  }
  __device__ void store(int64_t i, int64_t row, int64_t j, M value) const {
    const T rounded = store_number<T>(value);
    state[i] = rounded;
    h[i] = load_number(rounded);
    if (y != nullptr) y[y_at(row) + j] = rounded;
  }
  /// A row beyond its length: Y, gates and hidden are zero, state and cell stay.
  __device__ void skip(int64_t i, int64_t row, int64_t j) const {
    const int64_t n = hidden.value();
    for (int64_t at = row * width + j; at < (row + 1) * width; at += n) gates[at] = 0;
    if (y != nullptr) y[y_at(row) + j] = T{};
    if (stash != nullptr) stash[i] = op == RecurrentOp::kLstm ? c[i] : M(0);
  }
};

/// The first half of a step of a GRU that resets first: z and r, then r∘h.
template <class T>
struct ResetElement {
  using M = Math<T>;
  Step<T> s;
  __device__ void operator()(int64_t i) const {
    const int64_t n = s.hidden.value(), row = s.hidden.quotient(i), j = i - row * n;
    if (s.lengths.over(s.time, row)) {
      s.reset_state[i] = T{};
      return;
    }
    M* a = s.gates + row * s.width + j;
    for (int gate = 0; gate < 2; ++gate) {
      a[gate * n] = a[gate * n] + s.back(row, j, gate, 2) + s.bias[gate * n + j];
    }
    s.reset_state[i] = store_number<T>(s.cell.act(0, a[n]) * s.h[i]);
  }
};

template <class T>
struct AdvanceElement {
  using M = Math<T>;
  Step<T> s;
  __device__ void operator()(int64_t i) const {
    const int64_t n = s.hidden.value(), row = s.hidden.quotient(i), j = i - row * n;
    if (s.lengths.over(s.time, row)) {
      s.skip(i, row, j);
      return;
    }
    M* a = s.gates + row * s.width + j;
    switch (s.op) {
      case RecurrentOp::kLstm:
        s.store(i, row, j, lstm(a, i, row, j, n));
        return;
      case RecurrentOp::kGru:
        s.store(i, row, j, gru(a, i, row, j, n));
        return;
      default:
        a[0] = a[0] + s.back(row, j, 0, 1) + s.bias[j];
        s.store(i, row, j, s.cell.act(0, a[0]));
    }
  }

  __device__ M lstm(M* a, int64_t i, int64_t row, int64_t j, int64_t n) const {
    for (int gate = 0; gate < 4; ++gate) {
      a[gate * n] = a[gate * n] + s.back(row, j, gate, 4) + s.bias[gate * n + j];
    }
    M c = s.c[i];
    if (s.peepholes != nullptr) {
      a[0] += s.peepholes[j] * c;
      a[2 * n] += s.peepholes[2 * n + j] * c;
    }
    const M in = s.cell.act(0, a[0]);
    const M forget = s.cell.coupled ? 1 - in : s.cell.act(0, a[2 * n]);
    c = forget * c + in * s.cell.act(1, a[3 * n]);
    if (s.peepholes != nullptr) a[n] += s.peepholes[n + j] * c;
    s.c[i] = c;
    if (s.stash != nullptr) s.stash[i] = c;
    return s.cell.value(2, c) * s.cell.act(0, a[n]);
  }

  __device__ M gru(M* a, int64_t i, int64_t row, int64_t j, int64_t n) const {
    if (s.linear_before_reset) {
      for (int gate = 0; gate < 2; ++gate) {
        a[gate * n] = a[gate * n] + s.back(row, j, gate, 3) + s.bias[gate * n + j];
      }
      const M q = s.back(row, j, 2, 3) + s.bias[s.width + j];  // the hidden part of the last gate
      if (s.stash != nullptr) s.stash[i] = q;
      a[2 * n] = a[2 * n] + s.bias[2 * n + j] + s.cell.act(0, a[n]) * q;
    } else {
      a[2 * n] = a[2 * n] + s.back(row, j, 0, 1) + s.bias[2 * n + j];
    }
    const M z = s.cell.act(0, a[0]);
    return (1 - z) * s.cell.act(1, a[2 * n]) + z * s.h[i];
  }
};

template <class T>
class ForwardRun {
 public:
  using M = Math<T>;
  ForwardRun(const ForwardCall& call, const KernelBuffers& buffers)
      : call_(call), p_(call.p), buffers_(buffers), stream_(stream_of(buffers)) {}

  void run() {
    if (const int32_t* lengths = buffers_.in<int32_t>(kLengths)) {
      for_each(stream_, p_.batch, CheckLength{lengths, p_.steps, stream_.fault()});
    }
    const T* x = buffers_.in<T>(kX);
    if (p_.r.batch_first) {
      T* to = room<T>(call_.x);
      for_each(stream_, p_.rows() * p_.inputs,
               ToTimeMajor<T>{x, to, Divisor(p_.inputs), Divisor(p_.batch), p_.steps});
      x = to;
    }
    for (int64_t d = 0; d < p_.directions(); ++d) run_direction(d, x);
  }

 private:
  template <class A>
  A* room(size_t offset) const {
    return reinterpret_cast<A*>(buffers_.workspace + offset);
  }
  std::byte* products() const { return buffers_.workspace + call_.product; }
  int64_t cells() const { return p_.batch * p_.hidden; }

  void run_direction(int64_t d, const T* x) {
    load(d);
    M* const all = buffers_.out<M>(call_.gates_output());
    M* const gates = all != nullptr ? all + d * p_.rows() * p_.width() : room<M>(call_.gates);
    M* stash = call_.template stash<M>(buffers_);
    if (stash != nullptr) stash += d * p_.rows() * p_.hidden;
    call_.input.run(stream_, x, buffers_.in<T>(kW) + d * p_.w_size(), gates, products());
    for (int64_t i = 0; i < p_.steps; ++i) run_step(d, p_.time(d, i), gates, stash);
    const RowsAt rows = state_rows(p_, d);
    store(1, call_.type, rows, room<M>(call_.h));
    if (call_.lstm()) store(2, call_.type, rows, room<M>(call_.c));
  }

  void load(int64_t d) const {
    const int64_t width = p_.width(), n = p_.hidden;
    const RealPointer b{buffers_.in<std::byte>(kB), call_.b_type};
    const int64_t summed = p_.r.linear_before_reset ? 2 * n : width;
    for_each(stream_, width + n,
             LoadBias<M>{b, 2 * d * width, width, summed, n, room<M>(call_.bias)});
    if (call_.p_type != DType::kUndefined) {
      for_each(stream_, 3 * n,
               LoadRows<M>{{buffers_.inputs[kP], call_.p_type},
                           {3 * d * n, 0},
                           Divisor(3 * n),
                           room<M>(call_.peepholes)});
    }
    const RowsAt rows = state_rows(p_, d);
    const Divisor by(n);
    for_each(
        stream_, cells(),
        LoadRows<M>{{buffers_.in<std::byte>(kInitialH), call_.type}, rows, by, room<M>(call_.h)});
    for_each(stream_, cells(),
             StoreRows<M>{room<M>(call_.h), {0, n}, by, {room<T>(call_.state), call_.type}});
    if (!call_.lstm()) return;
    for_each(
        stream_, cells(),
        LoadRows<M>{{buffers_.in<std::byte>(kInitialC), call_.c_type}, rows, by, room<M>(call_.c)});
  }

  void store(size_t output, DType type, const RowsAt& rows, const M* from) const {
    std::byte* to = buffers_.out<std::byte>(output);
    if (to == nullptr) return;
    for_each(stream_, cells(), StoreRows<M>{from, rows, Divisor(p_.hidden), {to, type}});
  }

  void run_step(int64_t d, int64_t t, M* gates, M* stash) const {
    const T* r = buffers_.in<T>(kR) + d * p_.r_size();
    M* const recurrent = room<M>(call_.recurrent);
    call_.step.run(stream_, room<T>(call_.state), r, recurrent, products());
    const Step<T> step{p_.r.op,
                       p_.r.linear_before_reset,
                       Cell<M>(p_.r, d),
                       Divisor(p_.hidden),
                       {buffers_.in<int32_t>(kLengths)},
                       t,
                       p_.width(),
                       gates + t * p_.batch * p_.width(),
                       recurrent,
                       room<M>(call_.bias),
                       call_.p_type == DType::kUndefined ? nullptr : room<M>(call_.peepholes),
                       room<M>(call_.h),
                       room<M>(call_.c),
                       stash == nullptr ? nullptr : stash + t * cells(),
                       room<T>(call_.state),
                       room<T>(call_.reset_state),
                       buffers_.out<T>(0),
                       y_rows(p_, t, d)};
    if (call_.resets_first()) {
      for_each(stream_, cells(), ResetElement<T>{step});
      call_.reset.run(stream_, room<T>(call_.reset_state), r + 2 * p_.hidden * p_.hidden, recurrent,
                      products());
    }
    for_each(stream_, cells(), AdvanceElement<T>{step});
  }

  const ForwardCall& call_;
  const cpu::RecurrentPlan& p_;
  const KernelBuffers& buffers_;
  Stream& stream_;
};

Prepared prepare(const KernelCall& call) {
  ForwardCall f;
  f.p = cpu::plan_recurrent(call);
  if (std::string why = cpu::recurrent_type_refusal(call, f.p, false); !why.empty()) {
    return Prepared::no(why);
  }
  if (f.p.r.reserve > 0 && library_takes(call, f.p, false)) return Prepared::no(kReserveOfLibrary);
  return for_float_type(call.inputs[kX].dtype, [&]<class T>() -> Prepared {
    cpu::WorkspacePlan workspace;
    const DType math = dtype_of<Math<T>>();
    if (std::string why = cpu::lay_out_forward(call, {}, math, f, workspace); !why.empty()) {
      return Prepared::no("an inner product has no kernel: " + why);
    }
    return make_kernel([f](const KernelBuffers& buffers) { ForwardRun<T>(f, buffers).run(); },
                       workspace.size());
  });
}

}  // namespace

std::vector<KernelRow> recurrent_forward_rows() {
  std::vector<KernelRow> rows;
  for (std::string_view domain : {"", "ai.halfnote"}) {
    for (std::string_view op : {"GRU", "LSTM", "RNN"}) {
      rows.push_back({domain, op, "dnn.recurrent", prepare_library_recurrent});
      rows.back().alone = true;
      rows.push_back({domain, op, "own.recurrent", prepare});
    }
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
