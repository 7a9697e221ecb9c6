// Products of 8-bit operands: MatMulInteger, ConvInteger with an i32 result, QLinearMatMul and
// QLinearConv with an 8-bit one. Operands less their zero points are laid out in f64, which holds
// every product and sum exactly.
#include "kernels/cpu/contraction/conv_loops.h"
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/quantized/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// Where an operand, its scale and its zero point stand among the inputs; -1: nowhere.
struct Slots {
  int value = -1, scale = -1, zero = -1;
};

/// The inputs of the four ops.
struct Form {
  Slots a, b, y;
  int bias = -1;
};
constexpr Form kIntegerForm = {{0, -1, 2}, {1, -1, 3}, {}};
constexpr Form kLinearForm = {{0, 1, 2}, {3, 4, 5}, {-1, 6, 7}, 8};

bool present(const KernelCall& call, int slot) {
  return slot >= 0 && call.has_input(static_cast<size_t>(slot));
}

/// A scale or zero point: one number, or one for each row or column of its operand.
struct Parameter {
  int slot = -1;
  DType dtype = DType::kUndefined;
  int64_t count = 0;
  double fallback = 0;

  double at(const KernelBuffers& buffers, int64_t index) const {
    if (dtype == DType::kUndefined) return fallback;
    return read_element(buffers.inputs[static_cast<size_t>(slot)], dtype, count == 1 ? 0 : index);
  }
};

Parameter parameter(const KernelCall& call, int slot, double fallback) {
  if (!present(call, slot)) return {-1, DType::kUndefined, 0, fallback};
  const Operand& operand = call.inputs[static_cast<size_t>(slot)];
  return {slot, operand.dtype, operand.size(), fallback};
}

/// Every element of `operand` less its zero point; `line(i)` says which zero point is its.
template <class Line>
void subtract_zero(const KernelBuffers& buffers, const Slots& slots, const Operand& operand,
                   const Parameter& zero, double* to, Line&& line) {
  const std::byte* from = buffers.inputs[static_cast<size_t>(slots.value)];
  for (int64_t i = 0; i < operand.size(); ++i)
    to[i] = read_element(from, operand.dtype, i) - zero.at(buffers, line(i));
}

/// The reason why operands and parameters do not fit, or an empty string. `rows` and `columns` are
/// those of the result that parameters of a and b may be for.
std::string unfit(const KernelCall& call, const Form& form, int64_t rows, int64_t columns) {
  const auto check = [&](int slot, int64_t many) {
    if (!present(call, slot)) return true;
    const Operand& operand = call.inputs[static_cast<size_t>(slot)];
    return is_element(operand.dtype) && (operand.size() == 1 || operand.size() == many);
  };
  const bool fits = check(form.a.scale, rows) && check(form.a.zero, rows) &&
                    check(form.b.scale, columns) && check(form.b.zero, columns) &&
                    check(form.y.scale, 1) && check(form.y.zero, 1);
  return fits ? "" : "a scale or zero point does not fit";
}

/// Scales of a, b and y, and the zero point of y; writes one result.
struct Finish {
  Parameter a, b, y, zero;
  DType dtype = DType::kUndefined;

  void operator()(const KernelBuffers& buffers, double sum, int64_t row, int64_t column,
                  int64_t index) const {
    if (dtype == DType::kI32) {
      reinterpret_cast<int32_t*>(buffers.outputs[0])[index] = static_cast<int32_t>(sum);
      return;
    }
    const double factor = a.at(buffers, row) * b.at(buffers, column) / y.at(buffers, 0);
    write_quantized(quantized(sum * factor, zero.at(buffers, 0)), buffers.outputs[0], dtype, index,
                    Overflow::kSaturate);
  }
};

Finish finish_of(const KernelCall& call, const Form& form) {
  return {parameter(call, form.a.scale, 1), parameter(call, form.b.scale, 1),
          parameter(call, form.y.scale, 1), parameter(call, form.y.zero, 0), call.outputs[0].dtype};
}

/// The call with operands a and b alone, as the plans of the float ops want it.
KernelCall plain_call(const KernelCall& call, const Form& form) {
  KernelCall plain = call;
  plain.inputs = {call.inputs[static_cast<size_t>(form.a.value)],
                  call.inputs[static_cast<size_t>(form.b.value)]};
  return plain;
}

template <const Form& kForm>
Prepared prepare_matmul(const KernelCall& call) {
  if (!present(call, kForm.b.value) || !call.has_output(0)) {
    return Prepared::no("an operand is missing");
  }
  const KernelCall plain = plain_call(call, kForm);
  const MatmulPlan plan = plan_matmul(plain);
  if (std::string reason = unfit(call, kForm, plan.m, plan.n); !reason.empty()) {
    return Prepared::no(reason);
  }
  const Operand a = plain.inputs[0], b = plain.inputs[1];
  const Parameter a_zero = parameter(call, kForm.a.zero, 0);
  const Parameter b_zero = parameter(call, kForm.b.zero, 0);
  WorkspacePlan room;
  const size_t a_room = room.add_elements<double>(a.size());
  const size_t b_room = room.add_elements<double>(b.size());
  const auto body = [=, finish = finish_of(call, kForm)](const KernelBuffers& buffers) {
    double *left = part<double>(buffers, a_room), *right = part<double>(buffers, b_room);
    subtract_zero(buffers, kForm.a, a, a_zero, left,
                  [&](int64_t i) { return plan.k == 0 ? 0 : i / plan.k % plan.m; });
    subtract_zero(buffers, kForm.b, b, b_zero, right, [&](int64_t i) { return i % plan.n; });
    for (int64_t batch = 0; batch < plan.batches(); ++batch) {
      const double* first = left + plan.a_of[static_cast<size_t>(batch)] * plan.m * plan.k;
      const double* second = right + plan.b_of[static_cast<size_t>(batch)] * plan.k * plan.n;
      for (int64_t i = 0; i < plan.m * plan.n; ++i) {
        const int64_t row = i / plan.n, column = i % plan.n;
        double sum = 0;
        for (int64_t k = 0; k < plan.k; ++k)
          sum += first[row * plan.k + k] * second[k * plan.n + column];
        finish(buffers, sum, row, column, batch * plan.m * plan.n + i);
      }
    }
  };
  return make_kernel(body, room.size());
}

/// One row of one filter, as add_channel() sums it.
void conv_row(const ConvPlan& p, const double* x, const double* w, int64_t n, int64_t m,
              int64_t line, double* sums) {
  const int64_t channels = p.group_channels();
  const int64_t first = m / p.group_filters() * channels;
  for (int64_t c = 0; c < channels; ++c) {
    add_channel(p, x + (n * p.channels + first + c) * p.in_size(),
                w + (m * channels + c) * p.kernel_size(), line / p.out[1], line % p.out[1], 0,
                p.out[2], sums);
  }
}

template <const Form& kForm>
Prepared prepare_conv(const KernelCall& call) {
  if (!present(call, kForm.b.value) || !call.has_output(0)) {
    return Prepared::no("an operand is missing");
  }
  const KernelCall plain = plain_call(call, kForm);
  if (std::string why = conv_rank_refusal(plain.inputs[0].shape); !why.empty()) {
    return Prepared::no(why);
  }
  const ConvPlan plan = plan_conv(plain);
  if (std::string reason = unfit(call, kForm, 1, plan.filters); !reason.empty()) {
    return Prepared::no(reason);
  }
  const Operand x = plain.inputs[0], w = plain.inputs[1];
  const Parameter x_zero = parameter(call, kForm.a.zero, 0);
  const Parameter w_zero = parameter(call, kForm.b.zero, 0);
  const Parameter bias = parameter(call, kForm.bias, 0);
  if (bias.slot >= 0 && bias.count != plan.filters) return Prepared::no("the bias does not fit");
  WorkspacePlan room;
  const size_t x_room = room.add_elements<double>(x.size());
  const size_t w_room = room.add_elements<double>(w.size());
  const size_t row_room = room.add_elements<double>(plan.out[2]);
  const auto body = [=, finish = finish_of(call, kForm)](const KernelBuffers& buffers) {
    double *data = part<double>(buffers, x_room), *weights = part<double>(buffers, w_room);
    double* sums = part<double>(buffers, row_room);
    const int64_t per_filter = plan.group_channels() * plan.kernel_size();
    subtract_zero(buffers, kForm.a, x, x_zero, data, [](int64_t) { return 0; });
    subtract_zero(buffers, kForm.b, w, w_zero, weights, [&](int64_t i) { return i / per_filter; });
    const int64_t lines = plan.out[0] * plan.out[1];
    for (int64_t block = 0; block < plan.batch * plan.filters * lines; ++block) {
      const int64_t m = block / lines % plan.filters;
      std::fill_n(sums, plan.out[2], bias.at(buffers, m));
      conv_row(plan, data, weights, block / lines / plan.filters, m, block % lines, sums);
      for (int64_t j = 0; j < plan.out[2]; ++j)
        finish(buffers, sums[j], 0, m, block * plan.out[2] + j);
    }
  };
  return make_kernel(body, room.size());
}

}  // namespace

std::vector<KernelRow> product_rows() {
  return {
      {"", "ConvInteger", "reference", prepare_conv<kIntegerForm>},
      {"", "MatMulInteger", "reference", prepare_matmul<kIntegerForm>},
      {"", "QLinearConv", "reference", prepare_conv<kLinearForm>},
      {"", "QLinearMatMul", "reference", prepare_matmul<kLinearForm>},
  };
}

}  // namespace halfnote::cpu
