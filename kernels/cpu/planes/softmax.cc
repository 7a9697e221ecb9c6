// Softmax, LogSoftmax and their gradients along an axis that is not the innermost one, a row of
// positions at a time; sums over the axis are f64, in order.
#include <cmath>

#include "kernels/cpu/planes/rows.h"

namespace halfnote::cpu::planes {

namespace {

template <class T>
void softmax(const T* x, const Block& block, int64_t classes, T* y) {
  Room<float> most, sum;
  Room<double> sums;
  sum_exponentials(x, block, classes, most, sums);
  for (size_t i = 0; i < static_cast<size_t>(block.count); ++i)
    sum[i] = static_cast<float>(sums[i]);
  for_rows(x, block, classes, [&](int64_t c, const float* row) {
    write_row(y, block, c,
              [&](float* to) { loops()->shares(row, block.count, most.data(), sum.data(), to); });
  });
}

template <class T>
void log_softmax(const T* x, const Block& block, int64_t classes, T* y) {
  const LogSums sums(x, block, classes);
  for_rows(x, block, classes, [&](int64_t c, const float* row) {
    write_row(y, block, c, [&](float* to) { sums.of_row(row, block.count, to); });
  });
}

using Gradient = void (*)(const float*, const float*, int64_t, const float*, float*);

/// dx from dy, y and Σ y·dy (of Softmax) or Σ dy (of LogSoftmax).
template <class T>
void gradient(const T* dy, const T* y, const Block& block, int64_t classes, bool of_log, T* dx) {
  Room<double> sums;
  Room<float> sum, room;
  std::fill_n(sums.data(), block.count, 0.0);
  for_rows(dy, block, classes, [&](int64_t c, const float* row) {
    if (of_log) return loops()->add(row, block.count, sums.data());
    const float* factor = load_block(y + block.first + c * block.stride, block.count, room.data());
    loops()->add_products(factor, row, block.count, sums.data());
  });
  for (size_t i = 0; i < static_cast<size_t>(block.count); ++i)
    sum[i] = static_cast<float>(sums[i]);
  const Gradient loop = of_log ? loops()->log_softmax_gradient : loops()->softmax_gradient;
  for_rows(dy, block, classes, [&](int64_t c, const float* row) {
    const float* result = load_block(y + block.first + c * block.stride, block.count, room.data());
    write_row(dx, block, c, [&](float* to) { loop(result, row, block.count, sum.data(), to); });
  });
}

enum class Form { kSoftmax, kLogSoftmax };

template <Form form>
Prepared prepare_forward(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  const Lines lines = lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  if (std::string why = lines_refusal(lines, call.inputs[0]); !why.empty())
    return Prepared::no(why);
  return fast::for_small_float(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [lines, threads = call.threads](const KernelBuffers& buffers) {
      for_blocks(lines, threads, [&](const Block& block) {
        constexpr auto kRun = form == Form::kSoftmax ? softmax<T> : log_softmax<T>;
        kRun(buffers.in<T>(0), block, lines.length, buffers.out<T>(0));
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

template <Form form>
Prepared prepare_gradient(const KernelCall& call) {
  for (size_t i = 0; i < 2; ++i) {
    if (!call.has_input(i) || !call.has_output(0)) return Prepared::no("an operand is missing");
    if (call.inputs[i].dtype != call.outputs[0].dtype)
      return Prepared::no("operands of different types");
    if (call.inputs[i].shape != call.outputs[0].shape)
      return Prepared::no("operands of different shapes");
  }
  const Lines lines = lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  if (std::string why = lines_refusal(lines, call.inputs[0]); !why.empty())
    return Prepared::no(why);
  return fast::for_small_float(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [lines, threads = call.threads](const KernelBuffers& buffers) {
      for_blocks(lines, threads, [&](const Block& block) {
        gradient(buffers.in<T>(0), buffers.in<T>(1), block, lines.length, form == Form::kLogSoftmax,
                 buffers.out<T>(0));
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

}  // namespace

std::vector<KernelRow> softmax_rows() {
  constexpr std::string_view kName = "fast.softmax_planes";
  return {
      {"", "LogSoftmax", kName, prepare_forward<Form::kLogSoftmax>},
      {"", "Softmax", kName, prepare_forward<Form::kSoftmax>},
      {"ai.halfnote", "LogSoftmaxGrad", kName, prepare_gradient<Form::kLogSoftmax>},
      {"ai.halfnote", "SoftmaxGrad", kName, prepare_gradient<Form::kSoftmax>},
  };
}

}  // namespace halfnote::cpu::planes
