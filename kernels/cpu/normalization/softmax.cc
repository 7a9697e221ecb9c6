// Softmax, LogSoftmax and Hardmax along one axis. The maximum is subtracted first, the sum is kept
// in double.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

template <class M>
struct LineSum {
  M maximum = 0;
  double sum = 0;  // of exp(x - maximum)
};

template <class T>
LineSum<Math<T>> sum_line(const T* x, const Lines& lines) {
  using M = Math<T>;
  LineSum<M> line;
  line.maximum = -std::numeric_limits<M>::infinity();
  for (int64_t i = 0; i < lines.length; ++i) {
    line.maximum = std::max(line.maximum, load(x[i * lines.stride]));
  }
  for (int64_t i = 0; i < lines.length; ++i) {
    line.sum += std::exp(load(x[i * lines.stride]) - line.maximum);
  }
  return line;
}

struct Softmax {
  template <class T>
  static void run(const T* x, T* y, const Lines& lines) {
    using M = Math<T>;
    const LineSum<M> line = sum_line(x, lines);
    for (int64_t i = 0; i < lines.length * lines.stride; i += lines.stride) {
      y[i] = store<T>(std::exp(load(x[i]) - line.maximum) / static_cast<M>(line.sum));
    }
  }
};

struct LogSoftmax {
  template <class T>
  static void run(const T* x, T* y, const Lines& lines) {
    using M = Math<T>;
    const LineSum<M> line = sum_line(x, lines);
    const auto log_sum = static_cast<M>(std::log(line.sum));
    for (int64_t i = 0; i < lines.length * lines.stride; i += lines.stride) {
      y[i] = store<T>(load(x[i]) - line.maximum - log_sum);
    }
  }
};

/// 1 at the first maximum, 0 elsewhere.
struct Hardmax {
  template <class T>
  static void run(const T* x, T* y, const Lines& lines) {
    int64_t best = 0;
    for (int64_t i = 0; i < lines.length * lines.stride; i += lines.stride) {
      if (load(x[i]) > load(x[best])) best = i;
    }
    for (int64_t i = 0; i < lines.length * lines.stride; i += lines.stride) {
      y[i] = store<T>(i == best ? 1 : 0);
    }
  }
};

template <class Op>
Prepared prepare(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  const Lines lines = lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [lines, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const int64_t start = lines.start(line);
          Op::run(buffers.in<T>(0) + start, buffers.out<T>(0) + start, lines);
        }
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

}  // namespace

std::vector<KernelRow> softmax_rows() {
  return {
      {"", "Hardmax", "reference", prepare<Hardmax>},
      {"", "LogSoftmax", "reference", prepare<LogSoftmax>},
      {"", "Softmax", "reference", prepare<Softmax>},
  };
}

}  // namespace halfnote::cpu
