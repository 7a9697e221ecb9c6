// The emulated library: every problem is held against cuDNN's rules, and answered by plain loops in
// f32 over the block of weights as cuDNN lays it out, sums in f64.
#include "kernels/cuda/libraries/rnn.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"

namespace halfnote::cuda_emulated {

namespace {

using libraries::Rnn;
using libraries::rnn_part;
using libraries::RnnCell;
using libraries::RnnOperands;
using libraries::RnnProblem;
using libraries::RnnSlopes;

struct RnnWatch {
  std::vector<RecordedRnn>* calls = nullptr;
  const char* refusal = nullptr;
};
RnnWatch& rnn_watch() {
  static RnnWatch watch;
  return watch;
}

/// Numbers that are kept for the gradient, an element of Y each: gates, then the cell, or the
/// hidden part of a GRU's last gate. Behind a step back: what went into the activations, by W and
/// by R (which differ in a GRU's last gate).
int64_t kept_numbers(const RnnProblem& p) { return p.cell == RnnCell::kTanh ? 1 : p.gates() + 1; }
size_t kept_bytes(const RnnProblem& p) {
  return static_cast<size_t>(kept_numbers(p) * p.rows() * p.outputs()) * sizeof(float);
}

double squash(double x) { return 1 / (1 + std::exp(-x)); }

/// One direction of a layer.
class Layer {
 public:
  Layer(const RnnProblem& p, const RnnOperands& o, int64_t direction)
      : p_(p),
        o_(o),
        d_(direction),
        n_(p.hidden),
        kept_(o.reserve == nullptr
                  ? nullptr
                  : static_cast<float*>(o.reserve) + d_ * kept_numbers(p) * p.rows() * p.hidden) {}

  void forward() {
    for (int64_t row = 0; row < p_.batch; ++row) {
      std::vector<double> h = state(o_.h0, row), c = state(o_.c0, row);
      for (int64_t s = 0; s < p_.steps; ++s) advance(time(s), row, h, c);
      put_state(o_.h, row, h);
      if (p_.cell == RnnCell::kLstm) put_state(o_.c, row, c);
    }
  }

  void backward(const RnnSlopes& slopes) {
    for (int64_t row = 0; row < p_.batch; ++row) {
      std::vector<double> dh = state(slopes.dh, row), dc = state(slopes.dc, row);
      for (int64_t s = p_.steps; s-- > 0;) step_back(slopes, s, row, dh, dc);
      put_state(slopes.dh0, row, dh);
      if (p_.cell == RnnCell::kLstm) put_state(slopes.dc0, row, dc);
    }
    if (slopes.dweights != nullptr) add_weights(static_cast<float*>(slopes.dweights));
  }

 private:
  int64_t time(int64_t step) const { return d_ == 0 ? step : p_.steps - 1 - step; }
  std::vector<double> state(const void* from, int64_t row) const {
    std::vector<double> values(static_cast<size_t>(n_), 0);
    const auto* at = static_cast<const float*>(from) + (d_ * p_.batch + row) * n_;
    if (from != nullptr) values.assign(at, at + n_);
    return values;
  }
  void put_state(void* to, int64_t row, const std::vector<double>& values) const {
    if (to == nullptr) return;
    auto* at = static_cast<float*>(to) + (d_ * p_.batch + row) * n_;
    for (int64_t j = 0; j < n_; ++j) at[j] = static_cast<float>(values[static_cast<size_t>(j)]);
  }
  const float* matrix(int64_t index) const {
    return static_cast<const float*>(o_.weights) + rnn_part(p_, d_, index).matrix;
  }
  double bias(int64_t index, int64_t j) const {
    return static_cast<const float*>(o_.weights)[rnn_part(p_, d_, index).bias + j];
  }
  const float* x_at(int64_t t, int64_t row) const {
    return static_cast<const float*>(o_.x) + (t * p_.batch + row) * p_.inputs;
  }
  int64_t y_at(int64_t t, int64_t row) const {
    return (t * p_.batch + row) * p_.outputs() + d_ * n_;
  }
  float& y(int64_t t, int64_t row, int64_t j) const {
    return static_cast<float*>(o_.y)[y_at(t, row) + j];
  }
  /// Number `k` that is kept of an element.
  float& kept(int64_t k, int64_t t, int64_t row, int64_t j) const {
    return kept_[((t * p_.batch + row) * kept_numbers(p_) + k) * n_ + j];
  }

  double of_input(int64_t gate, int64_t t, int64_t row, int64_t j) const {
    double sum = bias(gate, j);
    const float *w = matrix(gate) + j * p_.inputs, *x = x_at(t, row);
    for (int64_t k = 0; k < p_.inputs; ++k) sum += static_cast<double>(w[k]) * x[k];
    return sum;
  }
  double of_state(int64_t gate, const std::vector<double>& h, int64_t j) const {
    double sum = bias(p_.gates() + gate, j);
    const float* r = matrix(p_.gates() + gate) + j * n_;
    for (int64_t k = 0; k < n_; ++k) sum += r[k] * h[static_cast<size_t>(k)];
    return sum;
  }

  void advance(int64_t t, int64_t row, std::vector<double>& h, std::vector<double>& c) const {
    const std::vector<double> old = h;
    for (int64_t j = 0; j < n_; ++j) {
      const auto at = static_cast<size_t>(j);
      double a[4] = {}, q = 0;
      for (int64_t gate = 0; gate < p_.gates(); ++gate) {
        const double back = of_state(gate, old, j);
        const bool resets = p_.cell == RnnCell::kGru && gate == 2;
        if (resets) q = back;
        a[gate] = of_input(gate, t, row, j) + (resets ? a[0] * back : back);
        const bool sigmoid = p_.cell != RnnCell::kTanh && gate != 2;
        a[gate] = sigmoid ? squash(a[gate]) : std::tanh(a[gate]);
      }
      if (p_.cell == RnnCell::kLstm) {
        c[at] = static_cast<float>(a[1] * c[at] + a[0] * a[2]);
        h[at] = a[3] * std::tanh(c[at]);
      } else {
        h[at] = p_.cell == RnnCell::kGru ? (1 - a[1]) * a[2] + a[1] * old[at] : a[0];
      }
      h[at] = static_cast<float>(h[at]);
      y(t, row, j) = static_cast<float>(h[at]);
      if (kept_ == nullptr) continue;
      for (int64_t gate = 0; gate < p_.gates(); ++gate)
        kept(gate, t, row, j) = static_cast<float>(a[gate]);
      if (p_.cell == RnnCell::kTanh) continue;
      kept(p_.gates(), t, row, j) = static_cast<float>(p_.cell == RnnCell::kLstm ? c[at] : q);
    }
  }

  double old_state(int64_t step, int64_t row, int64_t j) const {
    if (step > 0) return y(time(step - 1), row, j);
    if (o_.h0 == nullptr) return 0;
    return static_cast<const float*>(o_.h0)[(d_ * p_.batch + row) * n_ + j];
  }
  double old_cell(int64_t step, int64_t row, int64_t j) const {
    if (step > 0) return kept(4, time(step - 1), row, j);
    if (o_.c0 == nullptr) return 0;
    return static_cast<const float*>(o_.c0)[(d_ * p_.batch + row) * n_ + j];
  }

  /// Leaves da in the place of the gates; behind a GRU's, the last one's as R has it.
  void step_back(const RnnSlopes& slopes, int64_t step, int64_t row, std::vector<double>& dh,
                 std::vector<double>& dc) const {
    const int64_t t = time(step), gates = p_.gates();
    std::vector<double> before(static_cast<size_t>(n_), 0);  // dh of the old state
    for (int64_t j = 0; j < n_; ++j) {
      const auto at = static_cast<size_t>(j);
      const double up = dh[at] + static_cast<const float*>(slopes.dy)[y_at(t, row) + j];
      const double a0 = kept(0, t, row, j);
      if (p_.cell == RnnCell::kTanh) {
        kept(0, t, row, j) = static_cast<float>(up * (1 - a0 * a0));
        continue;
      }
      const double a1 = kept(1, t, row, j), a2 = kept(2, t, row, j);
      if (p_.cell == RnnCell::kGru) {
        const double q = kept(3, t, row, j), dn = up * (1 - a1) * (1 - a2 * a2);
        kept(0, t, row, j) = static_cast<float>(dn * q * a0 * (1 - a0));
        kept(1, t, row, j) =
            static_cast<float>(up * (old_state(step, row, j) - a2) * a1 * (1 - a1));
        kept(2, t, row, j) = static_cast<float>(dn);
        kept(3, t, row, j) = static_cast<float>(dn * a0);
        before[at] = up * a1;
        continue;
      }
      const double a3 = kept(3, t, row, j), of_c = std::tanh(kept(4, t, row, j));
      const double of_cell = dc[at] + up * a3 * (1 - of_c * of_c);
      kept(0, t, row, j) = static_cast<float>(of_cell * a2 * a0 * (1 - a0));
      kept(1, t, row, j) = static_cast<float>(of_cell * old_cell(step, row, j) * a1 * (1 - a1));
      kept(2, t, row, j) = static_cast<float>(of_cell * a0 * (1 - a2 * a2));
      kept(3, t, row, j) = static_cast<float>(up * of_c * a3 * (1 - a3));
      dc[at] = of_cell * a1;
    }
    for (int64_t gate = 0; gate < gates; ++gate) {
      const float* r = matrix(gates + gate);
      for (int64_t j = 0; j < n_; ++j) {
        const double da = kept(of_recurrent(gate), t, row, j);
        for (int64_t k = 0; k < n_; ++k) before[static_cast<size_t>(k)] += da * r[j * n_ + k];
      }
    }
    dh = before;
    add_dx(static_cast<float*>(slopes.dx) + (t * p_.batch + row) * p_.inputs, t, row);
  }
  /// The place of da of a gate on the side of R.
  int64_t of_recurrent(int64_t gate) const {
    return p_.cell == RnnCell::kGru && gate == 2 ? 3 : gate;
  }

  /// The first direction sets, the second adds.
  void add_dx(float* dx, int64_t t, int64_t row) const {
    for (int64_t k = 0; k < p_.inputs; ++k) {
      double sum = d_ == 0 ? 0 : dx[k];
      for (int64_t gate = 0; gate < p_.gates(); ++gate) {
        const float* w = matrix(gate);
        for (int64_t j = 0; j < n_; ++j)
          sum += static_cast<double>(kept(gate, t, row, j)) * w[j * p_.inputs + k];
      }
      dx[k] = static_cast<float>(sum);
    }
  }

  void add_weights(float* to) const {
    const int64_t gates = p_.gates();
    for (int64_t index = 0; index < 2 * gates; ++index) {
      const bool recurrent = index >= gates;
      const int64_t of = recurrent ? of_recurrent(index - gates) : index;
      const int64_t width = recurrent ? n_ : p_.inputs;
      const libraries::RnnPart part = rnn_part(p_, d_, index);
      for (int64_t j = 0; j < n_; ++j) {
        for (int64_t k = 0; k < width; ++k) {
          to[part.matrix + j * width + k] +=
              static_cast<float>(over_rows([&](int64_t s, int64_t t, int64_t row) -> double {
                return kept(of, t, row, j) *
                       (recurrent ? old_state(s, row, k) : double{x_at(t, row)[k]});
              }));
        }
        to[part.bias + j] += static_cast<float>(over_rows(
            [&](int64_t, int64_t t, int64_t row) -> double { return kept(of, t, row, j); }));
      }
    }
  }
  template <class Term>
  double over_rows(const Term& term) const {
    double sum = 0;
    for (int64_t s = 0; s < p_.steps; ++s) {
      for (int64_t row = 0; row < p_.batch; ++row) sum += term(s, time(s), row);
    }
    return sum;
  }

  const RnnProblem& p_;
  const RnnOperands& o_;
  int64_t d_, n_;
  float* kept_;
};

class EmulatedRnn final : public Rnn {
 public:
  explicit EmulatedRnn(RnnProblem problem) : problem_(problem) {}

  size_t workspace_bytes() const override { return kRoom; }
  size_t reserve_bytes() const override { return problem_.training ? kept_bytes(problem_) : 0; }

  void forward(Stream& stream, const RnnOperands& operands) const override {
    put(stream, operands, nullptr, [p = problem_, operands] {
      for (int64_t d = 0; d < p.directions; ++d) Layer(p, operands, d).forward();
      std::memset(operands.workspace, 0xff, kRoom);  // nothing in it survives a call
    });
  }
  void gradient(Stream& stream, const RnnOperands& operands,
                const RnnSlopes& slopes) const override {
    put(stream, operands, &slopes, [p = problem_, operands, slopes] {
      for (int64_t d = 0; d < p.directions; ++d) Layer(p, operands, d).backward(slopes);
      std::memset(operands.workspace, 0xff, kRoom);
      std::memset(operands.reserve, 0xff, kept_bytes(p));  // the library may leave anything there
    });
  }

 private:
  static constexpr size_t kRoom = 1024;

  template <class Work>
  void put(Stream& stream, const RnnOperands& operands, const RnnSlopes* slopes,
           Work&& work) const {
    if (std::string why = libraries::illegal_operands(problem_, operands, slopes); !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal recurrent layer: " + why);
    if (rnn_watch().calls != nullptr) rnn_watch().calls->push_back({problem_, slopes != nullptr});
    auto& queue = static_cast<EmulatedStream&>(stream);
    ++queue.device().count().launches;
    queue.enqueue(std::forward<Work>(work));
  }

  RnnProblem problem_;
};

}  // namespace

void record_rnns(std::vector<RecordedRnn>* calls) { rnn_watch().calls = calls; }
void refuse_rnns(const char* why) { rnn_watch().refusal = why; }

std::shared_ptr<const Rnn> plan_emulated(const RnnProblem& problem, std::string& refusal) {
  refusal = libraries::illegal_rnn(problem);
  if (refusal.empty() && rnn_watch().refusal != nullptr) refusal = rnn_watch().refusal;
  return refusal.empty() ? std::make_shared<EmulatedRnn>(problem) : nullptr;
}

}  // namespace halfnote::cuda_emulated
