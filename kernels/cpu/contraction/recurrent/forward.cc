// RNN, GRU and LSTM, ONNX's and those of ai.halfnote, which also write what their backward reads.
//
// The input projection of all steps is one product, X·Wᵀ; each step then adds its recurrent one and
// runs its rows in parallel. The products run on the best kernel for their type (row `products`) or
// on the reference. Gates and cells are in math precision; the state is rounded to the type of X
// once a step, since it is an operand of the next product.
#include <cstring>

#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/contraction/recurrent/cells.h"
#include "kernels/cpu/contraction/recurrent/forward_plan.h"
#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cpu/contraction/recurrent/product.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {
namespace {

using namespace recurrent;  // NOLINT(google-build-using-namespace): names of operands

template <class M>
class ForwardRun {
 public:
  ForwardRun(const ForwardCall<InnerProduct>& call, const KernelBuffers& buffers)
      : call_(call), p_(call.p), buffers_(buffers) {}

  void run() {
    check_lengths(p_, lengths());
    const std::byte* x = time_major();
    for (int64_t d = 0; d < p_.directions(); ++d) run_direction(d, x);
  }

 private:
  const int32_t* lengths() const { return buffers_.in<int32_t>(kLengths); }
  M* room(size_t offset) const { return part<M>(buffers_, offset); }
  std::byte* bytes(size_t offset) const { return buffers_.workspace + offset; }
  int64_t grain() const { return std::max<int64_t>(1, 2048 / std::max<int64_t>(1, p_.hidden)); }

  /// X as (T·B, I).
  const std::byte* time_major() const {
    if (!p_.r.batch_first) return buffers_.inputs[kX];
    std::byte* to = bytes(call_.x);
    const size_t line = static_cast<size_t>(p_.inputs) * call_.element;
    for (int64_t t = 0; t < p_.steps; ++t) {
      for (int64_t row = 0; row < p_.batch; ++row, to += line) {
        std::memcpy(to, buffers_.inputs[kX] + static_cast<size_t>(p_.x_at(t, row)) * call_.element,
                    line);
      }
    }
    return bytes(call_.x);
  }

  const std::byte* weights(size_t index, int64_t elements) const {
    return buffers_.inputs[index] + static_cast<size_t>(elements) * call_.element;
  }

  void run_direction(int64_t d, const std::byte* x) {
    load_parameters(d);
    load_states(d);
    M* const all = buffers_.out<M>(call_.gates_output());
    gates_ = all != nullptr ? all + d * p_.rows() * p_.width() : room(call_.gates);
    M* const more = call_.template stash<M>(buffers_);
    stash_ = more != nullptr ? more + d * p_.rows() * p_.hidden : nullptr;
    call_.input.run(x, weights(kW, d * p_.w_size()), gates_, bytes(call_.product));
    for (int64_t s = 0; s < p_.steps; ++s) run_step(d, p_.time(d, s));
    store_states(d);
  }

  /// Biases and peepholes of a direction in M. Wb + Rb, but the last gate of a GRU with
  /// linear_before_reset keeps its Rb apart, behind the others.
  void load_parameters(int64_t d) {
    const int64_t width = p_.width(), n = p_.hidden;
    bias_ = room(call_.bias);
    std::fill_n(bias_, width + n, M(0));
    if (call_.b_type != DType::kUndefined) {
      M* const both = room(call_.scratch);  // 9·H or more
      load_reals(buffers_.inputs[kB], call_.b_type, 2 * d * width, 2 * width, both);
      const int64_t summed = p_.r.linear_before_reset ? 2 * n : width;
      for (int64_t j = 0; j < width; ++j) bias_[j] = both[j] + (j < summed ? both[width + j] : 0);
      if (p_.r.linear_before_reset) std::copy_n(both + width + 2 * n, n, bias_ + width);
    }
    cell_ = {&p_.r, d, n, nullptr};
    if (call_.p_type == DType::kUndefined) return;
    M* const peepholes = room(call_.peepholes);
    load_reals(buffers_.inputs[kP], call_.p_type, 3 * d * n, 3 * n, peepholes);
    cell_.peepholes = peepholes;
  }

  void load_states(int64_t d) {
    h_ = room(call_.h);
    c_ = call_.lstm() ? room(call_.c) : nullptr;
    for (int64_t row = 0; row < p_.batch; ++row) {
      load_state(kInitialH, call_.type, d, row, h_ + row * p_.hidden);
      if (call_.lstm()) load_state(kInitialC, call_.c_type, d, row, c_ + row * p_.hidden);
    }
    store_reals(h_, p_.batch * p_.hidden, call_.type, bytes(call_.state), 0);
  }

  void load_state(size_t index, DType type, int64_t d, int64_t row, M* to) const {
    const std::byte* from = index < buffers_.inputs.size() ? buffers_.inputs[index] : nullptr;
    if (from == nullptr) {
      std::fill_n(to, p_.hidden, M(0));
    } else {
      load_reals(from, type, p_.state_at(d, row), p_.hidden, to);
    }
  }

  void store_states(int64_t d) const {
    for (int64_t row = 0; row < p_.batch; ++row) {
      const int64_t at = p_.state_at(d, row);
      if (std::byte* y_h = output(1)) {
        store_reals(h_ + row * p_.hidden, p_.hidden, call_.type, y_h, at);
      }
      if (std::byte* y_c = call_.lstm() ? output(2) : nullptr) {
        store_reals(c_ + row * p_.hidden, p_.hidden, call_.type, y_c, at);
      }
    }
  }

  std::byte* output(size_t index) const {
    return index < buffers_.outputs.size() ? buffers_.outputs[index] : nullptr;
  }

  void run_step(int64_t d, int64_t t) {
    const std::byte* r = weights(kR, d * p_.r_size());
    M* const rec = room(call_.recurrent);
    call_.step.run(bytes(call_.state), r, rec, bytes(call_.product));
    if (call_.resets_first()) {
      rows(t, [&](int64_t row, M* a, M* scratch) { reset_row(row, a, scratch); });
      call_.reset.run(bytes(call_.reset_state),
                      r + static_cast<size_t>(2 * p_.hidden * p_.hidden) * call_.element,
                      room(call_.recurrent), bytes(call_.product));
    }
    rows(
        t,
        [&](int64_t row, M* a, M* scratch) {
          M* const h = h_ + row * p_.hidden;
          advance_row(t, row, a, h, scratch);
          store_reals(h, p_.hidden, call_.type, bytes(call_.state), row * p_.hidden);
          load_reals(bytes(call_.state), call_.type, row * p_.hidden, p_.hidden, h);
          if (std::byte* y = output(0)) {
            store_reals(h, p_.hidden, call_.type, y, p_.y_at(t, d, row));
          }
        },
        [&](int64_t row) { skip_row(d, t, row); });
  }

  /// `body(row, gates of the row, scratch)` for the rows that are not yet over at time t, `over`
  /// for the others.
  template <class Body, class Over>
  void rows(int64_t t, Body&& body, Over&& over) {
    parallel_blocks(p_.batch, grain(), call_.threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (t >= length_of(p_, lengths(), row)) {
          over(row);
          continue;
        }
        body(row, gates_ + (t * p_.batch + row) * p_.width(),
             room(call_.scratch) + row * kCellScratch * p_.hidden);
      }
    });
  }
  template <class Body>
  void rows(int64_t t, Body&& body) {
    rows(t, body, [](int64_t) {});
  }

  /// A row beyond its length: Y, gates and hidden are zero, state and cell stay.
  void skip_row(int64_t d, int64_t t, int64_t row) {
    std::fill_n(gates_ + (t * p_.batch + row) * p_.width(), p_.width(), M(0));
    if (std::byte* y = output(0)) {
      const auto line = static_cast<size_t>(p_.hidden) * call_.element;
      std::memset(y + static_cast<size_t>(p_.y_at(t, d, row)) * call_.element, 0, line);
    }
    if (stash_ == nullptr) return;
    M* const kept = stash_ + (t * p_.batch + row) * p_.hidden;
    if (call_.lstm()) {
      std::copy_n(c_ + row * p_.hidden, p_.hidden, kept);
    } else {
      std::fill_n(kept, p_.hidden, M(0));
    }
  }

  /// GRU that resets first: the gates z and r, then r∘h for the product of the last gate.
  void reset_row(int64_t row, M* a, M* scratch) {
    const int64_t n = p_.hidden;
    add_to(a, room(call_.recurrent) + row * 2 * n, 2 * n);
    add_to(a, bias_, 2 * n);
    cell_.act(0, a + n, scratch);
    for (int64_t j = 0; j < n; ++j) scratch[j] *= h_[row * n + j];
    store_reals(scratch, n, call_.type, bytes(call_.reset_state), row * n);
  }

  /// Finishes the gates of a row and moves its state on.
  void advance_row(int64_t t, int64_t row, M* a, M* h, M* scratch) {
    const int64_t n = p_.hidden, width = p_.width();
    if (call_.resets_first()) {
      add_to(a + 2 * n, room(call_.recurrent) + row * n, n);
      add_to(a + 2 * n, bias_ + 2 * n, n);
      return gru_forward(cell_, a, h, scratch);
    }
    M* const rec = room(call_.recurrent) + row * width;
    const int64_t plain = call_.gru() ? 2 * n : width;
    add_to(a, rec, plain);
    add_to(a, bias_, width);
    if (call_.lstm()) {
      M* const c = c_ + row * n;
      lstm_forward(cell_, a, c, h, scratch);
      if (stash_ != nullptr) std::copy_n(c, n, stash_ + (t * p_.batch + row) * n);
      return;
    }
    if (!call_.gru()) return cell_.act(0, a, h);
    M* const q = rec + 2 * n;  // the hidden part of the last gate
    add_to(q, bias_ + width, n);
    if (stash_ != nullptr) std::copy_n(q, n, stash_ + (t * p_.batch + row) * n);
    cell_.act(0, a + n, scratch);
    for (int64_t j = 0; j < n; ++j) a[2 * n + j] += scratch[j] * q[j];
    gru_forward(cell_, a, h, scratch);
  }

  const ForwardCall<InnerProduct>& call_;
  const RecurrentPlan& p_;
  const KernelBuffers& buffers_;
  Cell<M> cell_;
  M *gates_ = nullptr, *stash_ = nullptr, *bias_ = nullptr, *h_ = nullptr, *c_ = nullptr;
};

Prepared prepare(const KernelCall& call, std::string_view only) {
  ForwardCall<InnerProduct> f;
  f.p = plan_recurrent(call);
  if (std::string why = recurrent_type_refusal(call, f.p, false); !why.empty()) {
    return Prepared::no(why);
  }
  return for_math_type(call.inputs[kX].dtype, [&]<class M>() -> Prepared {
    WorkspacePlan workspace;
    if (std::string why = lay_out_forward(call, only, dtype_of<M>(), f, workspace); !why.empty()) {
      return Prepared::no("an inner product has no kernel: " + why);
    }
    return make_kernel([f](const KernelBuffers& buffers) { ForwardRun<M>(f, buffers).run(); },
                       workspace.size());
  });
}

Prepared prepare_products(const KernelCall& call) {
  if (call.has_input(kX) && call.inputs[kX].dtype == DType::kF64) {
    return Prepared::no("f64 has reference products only");
  }
  return prepare(call, {});
}
Prepared prepare_reference(const KernelCall& call) { return prepare(call, "reference"); }

}  // namespace

std::vector<KernelRow> recurrent_rows() {
  std::vector<KernelRow> rows;
  for (std::string_view domain : {"", "ai.halfnote"}) {
    for (std::string_view op : {"GRU", "LSTM", "RNN"}) {
      rows.push_back({domain, op, "fast.products", prepare_products});
      rows.push_back({domain, op, "reference", prepare_reference});
    }
  }
  return rows;
}

}  // namespace halfnote::cpu
