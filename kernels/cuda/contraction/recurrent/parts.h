// What the recurrent kernels share: products, activations of a cell, vectors by row.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cpu/contraction/recurrent/product.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/support.h"
#include "kernels/math/activation.h"

namespace halfnote::HN_CUDA {

/// A matrix product of the library, with the interface of cpu::InnerProduct.
class DeviceProduct {
 public:
  static DeviceProduct prepare(const cpu::ProductShape& shape, DType type, DType out,
                               int /*threads*/, std::string_view /*only*/) {
    DeviceProduct product;
    libraries::MatmulProblem& p = product.problem_;
    p.ab = type;
    p.d = out;
    p.m = shape.m;
    p.n = shape.n;
    p.k = shape.k;
    p.trans_a = shape.trans_a;
    p.trans_b = shape.trans_b;
    p.stride_d = p.m * p.n;
    product.results_ = shape.m * shape.n;
    if (product.results_ == 0 || shape.k == 0) return product;
    // Every operand begins at a row of a larger matrix.
    const auto row = [](int64_t elements, DType dtype) {
      return elements * static_cast<int64_t>(size_of(dtype));
    };
    product.refusal_ = blas().refusal(
        p,
        libraries::alignment_behind({row(p.lda(), type), row(p.ldb(), type), row(p.ldd(), out)}));
    if (product.ready()) product.bytes_ = blas().workspace_bytes(p);
    return product;
  }

  bool ready() const { return refusal_.empty(); }
  const std::string& refusal() const { return refusal_; }
  size_t workspace_bytes() const { return bytes_; }
  void run(Stream& stream, const void* a, const void* b, void* d, void* workspace) const {
    if (results_ == 0) return;
    if (problem_.k == 0)  // sums of nothing; the library takes none
      return stream.fill(d, 0, static_cast<size_t>(results_) * size_of(problem_.d));
    blas().matmul(stream, problem_, {a, b, d, workspace});
  }

 private:
  libraries::MatmulProblem problem_;
  int64_t results_ = 0;
  size_t bytes_ = 0;
  std::string refusal_;
};

/// The activations of one direction, as a kernel's argument.
template <class M>
struct Cell {
  Activation functions[3];
  bool clips = false, coupled = false;
  M bound = 0;

  Cell() = default;
  Cell(const Recurrence& r, int64_t direction)
      : clips(r.clip.has_value()),
        coupled(r.coupled),
        bound(static_cast<M>(r.clip.value_or(0.0f))) {
    for (int64_t f = 0; f < r.functions(); ++f) functions[f] = r.activation(direction, f);
  }

  /// f(x), and f'(x) by its value y.
  __device__ M value(int function, M x) const {
    const Activation& f = functions[function];
    M y = 0;
    math::with_activation(f.kind, [&]<ActivationKind kKind>() {
      y = math::activation<kKind>(x, static_cast<M>(f.alpha), static_cast<M>(f.beta));
    });
    return y;
  }
  __device__ M derivative(int function, M x, M y) const {
    const Activation& f = functions[function];
    M slope = 0;
    math::with_activation(f.kind, [&]<ActivationKind kKind>() {
      slope = math::activation_slope<kKind>(x, y, static_cast<M>(f.alpha), static_cast<M>(f.beta));
    });
    return slope;
  }
  /// The same of a gate, whose x is cut to [−bound, bound] first.
  __device__ M act(int function, M x) const {
    return value(function, clips ? (x > bound ? bound : x < -bound ? -bound : x) : x);
  }
  __device__ M slope(int function, M x, M y) const {
    return clips && (x > bound || x < -bound) ? M(0) : derivative(function, x, y);
  }
};

/// Where the vectors of each row begin: at + row·step.
struct RowsAt {
  int64_t at = 0, step = 0;
  __device__ int64_t operator()(int64_t row) const { return at + row * step; }
};

/// The places of a plan that a kernel needs. All are linear in the row.
inline RowsAt y_rows(const cpu::RecurrentPlan& p, int64_t time, int64_t direction) {
  const int64_t first = p.y_at(time, direction, 0);
  return {first, p.y_at(time, direction, 1) - first};
}
inline RowsAt state_rows(const cpu::RecurrentPlan& p, int64_t direction) {
  const int64_t first = p.state_at(direction, 0);
  return {first, p.state_at(direction, 1) - first};
}

/// X as (T·B, I), from (B, T, I).
template <class T>
struct ToTimeMajor {
  const T* from;
  T* to;
  Divisor inputs, batch;
  int64_t steps;
  __device__ void operator()(int64_t i) const {
    const int64_t vector = inputs.quotient(i), time = batch.quotient(vector);
    const int64_t row = vector - time * batch.value();
    to[i] = from[(row * steps + time - vector) * inputs.value() + i];
  }
};

/// A vector of each row in math precision; without a source zeros.
template <class M>
struct LoadRows {
  RealPointer from;
  RowsAt rows;
  Divisor width;
  M* to;
  __device__ void operator()(int64_t i) const {
    const int64_t row = width.quotient(i);
    to[i] =
        from.data == nullptr ? M(0) : static_cast<M>(from[rows(row) + (i - row * width.value())]);
  }
};

template <class M>
struct StoreRows {
  const M* from;
  RowsAt rows;
  Divisor width;
  RealOutput to;
  __device__ void operator()(int64_t i) const {
    const int64_t row = width.quotient(i);
    to.write(rows(row) + (i - row * width.value()), static_cast<double>(from[i]));
  }
};

/// Notes a length outside 0 … T.
struct CheckLength {
  const int32_t* lengths;
  int64_t steps;
  FaultPlace fault;
  __device__ void operator()(int64_t row) const {
    if (lengths[row] < 0 || lengths[row] > steps) {
      note_fault(fault, DeviceFault::kLength, lengths[row], steps);
    }
  }
};

/// Is a row over at `time`?
struct Lengths {
  const int32_t* lengths = nullptr;
  __device__ bool over(int64_t time, int64_t row) const {
    return lengths != nullptr && time >= lengths[row];
  }
};

}  // namespace halfnote::HN_CUDA
