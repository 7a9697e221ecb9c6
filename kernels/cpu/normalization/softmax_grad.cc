// The gradients of Softmax, dX = Y·(dY − Σ dY·Y), and of LogSoftmax, dX = dY − exp(Y)·Σ dY. Sums
// are in double.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

struct SoftmaxGrad {
  template <class M>
  static double term(M dy, M y) {
    return static_cast<double>(dy) * y;
  }
  template <class M>
  static M value(M dy, M y, M sum) {
    return y * (dy - sum);
  }
};

struct LogSoftmaxGrad {
  template <class M>
  static double term(M dy, M) {
    return dy;
  }
  template <class M>
  static M value(M dy, M y, M sum) {
    return dy - std::exp(y) * sum;
  }
};

template <class Op>
Prepared prepare(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw model_error(call, "an operand is missing");
  }
  require_size(call, 0, call.inputs[1].size());
  const DType type = call.inputs[0].dtype;
  if (call.inputs[1].dtype != type || call.outputs[0].dtype != type) {
    return Prepared::no("operands of different types");
  }
  const Lines lines = lines_along(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  return for_float_type(type, [&]<class T>() {
    using M = Math<T>;
    const auto body = [lines, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const int64_t first = lines.start(line), last = first + lines.length * lines.stride;
          const T* dy = buffers.in<T>(0);
          const T* y = buffers.in<T>(1);
          double sum = 0;
          for (int64_t i = first; i < last; i += lines.stride) {
            sum += Op::term(load(dy[i]), load(y[i]));
          }
          for (int64_t i = first; i < last; i += lines.stride) {
            buffers.out<T>(0)[i] =
                store<T>(Op::value(load(dy[i]), load(y[i]), static_cast<M>(sum)));
          }
        }
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

}  // namespace

std::vector<KernelRow> softmax_grad_rows() {
  return {
      {"ai.halfnote", "LogSoftmaxGrad", "reference", prepare<LogSoftmaxGrad>},
      {"ai.halfnote", "SoftmaxGrad", "reference", prepare<SoftmaxGrad>},
  };
}

}  // namespace halfnote::cpu
