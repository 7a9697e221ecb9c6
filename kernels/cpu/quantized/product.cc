// Products of 8-bit operands: MatMulInteger, ConvInteger with an i32 result, QLinearMatMul and
// QLinearConv with an 8-bit one. Operands less their zero points are laid out in f64, which holds
// every product and sum exactly.
#include "kernels/cpu/quantized/product.h"

#include "kernels/cpu/contraction/conv_loops.h"
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

const Form& form_of(const KernelCall& call) {
  return call.op.starts_with("QLinear") ? kLinearForm : kIntegerForm;
}

ProductParameter parameter(const KernelCall& call, int slot, double fallback) {
  const auto at = static_cast<size_t>(slot);
  if (slot < 0 || !call.has_input(at)) return {0, DType::kUndefined, 0, fallback};
  return {at, call.inputs[at].dtype, call.inputs[at].size(), fallback};
}

double value_of(const ProductParameter& of, const KernelBuffers& buffers, int64_t index) {
  if (of.dtype == DType::kUndefined) return of.fallback;
  return read_element(buffers.inputs[of.slot], of.dtype, of.count == 1 ? 0 : index);
}

/// Every element of an operand less its zero point; `line(i)` says which zero point is its.
template <class Line>
void subtract_zero(const KernelBuffers& buffers, size_t slot, DType dtype, int64_t size,
                   const ProductParameter& zero, double* to, Line&& line) {
  for (int64_t i = 0; i < size; ++i)
    to[i] = read_element(buffers.inputs[slot], dtype, i) - value_of(zero, buffers, line(i));
}

/// The reason why parameters do not fit, or an empty string. `rows` and `columns` are those of the
/// result that parameters of a and b may be for.
std::string unfit(const ProductPlan& plan, int64_t rows, int64_t columns) {
  const auto fits = [](const ProductParameter& of, int64_t many) {
    return of.dtype == DType::kUndefined ||
           (is_element(of.dtype) && (of.count == 1 || of.count == many));
  };
  const bool all = fits(plan.a_scale, rows) && fits(plan.a_zero, rows) &&
                   fits(plan.b_scale, columns) && fits(plan.b_zero, columns) &&
                   fits(plan.y_scale, 1) && fits(plan.y_zero, 1);
  return all ? "" : "a scale or zero point does not fit";
}

/// Writes one result.
void finish(const ProductPlan& plan, const KernelBuffers& buffers, double sum, int64_t row,
            int64_t column, int64_t index) {
  if (plan.y_type == DType::kI32) {
    reinterpret_cast<int32_t*>(buffers.outputs[0])[index] = static_cast<int32_t>(sum);
    return;
  }
  const double factor = value_of(plan.a_scale, buffers, row) *
                        value_of(plan.b_scale, buffers, column) /
                        value_of(plan.y_scale, buffers, 0);
  write_quantized(quantized(sum * factor, value_of(plan.y_zero, buffers, 0)), buffers.outputs[0],
                  plan.y_type, index, Overflow::kSaturate);
}

/// The plan of the operands; `plain` becomes the call with a and b alone, as the plans of the float
/// ops want it.
std::string plan_operands(const KernelCall& call, ProductPlan& plan, KernelCall& plain) {
  const Form& form = form_of(call);
  plan.a = static_cast<size_t>(form.a.value);
  plan.b = static_cast<size_t>(form.b.value);
  if (!call.has_input(plan.a) || !call.has_input(plan.b) || !call.has_output(0)) {
    return "an operand is missing";
  }
  const Operand &a = call.inputs[plan.a], &b = call.inputs[plan.b];
  plan.a_type = a.dtype;
  plan.b_type = b.dtype;
  plan.y_type = call.outputs[0].dtype;
  plan.a_size = a.size();
  plan.b_size = b.size();
  if (!is_element(plan.a_type) || !is_element(plan.b_type) || !is_element(plan.y_type)) {
    return "no numbers";
  }
  plan.a_scale = parameter(call, form.a.scale, 1);
  plan.b_scale = parameter(call, form.b.scale, 1);
  plan.y_scale = parameter(call, form.y.scale, 1);
  plan.a_zero = parameter(call, form.a.zero, 0);
  plan.b_zero = parameter(call, form.b.zero, 0);
  plan.y_zero = parameter(call, form.y.zero, 0);
  plan.bias = parameter(call, form.bias, 0);
  plain = call;
  plain.inputs = {a, b};
  return {};
}

Prepared prepare_matmul(const KernelCall& call) {
  ProductPlan plan;
  MatmulPlan p;
  if (std::string why = plan_quantized_matmul(call, plan, p); !why.empty()) {
    return Prepared::no(why);
  }
  WorkspacePlan room;
  const size_t a_room = room.add_elements<double>(plan.a_size);
  const size_t b_room = room.add_elements<double>(plan.b_size);
  const auto body = [=](const KernelBuffers& buffers) {
    double *left = part<double>(buffers, a_room), *right = part<double>(buffers, b_room);
    subtract_zero(buffers, plan.a, plan.a_type, plan.a_size, plan.a_zero, left,
                  [&](int64_t i) { return p.k == 0 ? 0 : i / p.k % p.m; });
    subtract_zero(buffers, plan.b, plan.b_type, plan.b_size, plan.b_zero, right,
                  [&](int64_t i) { return i % p.n; });
    for (int64_t batch = 0; batch < p.batches(); ++batch) {
      const double* first = left + p.a_of[static_cast<size_t>(batch)] * p.m * p.k;
      const double* second = right + p.b_of[static_cast<size_t>(batch)] * p.k * p.n;
      for (int64_t i = 0; i < p.m * p.n; ++i) {
        const int64_t row = i / p.n, column = i % p.n;
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += first[row * p.k + k] * second[k * p.n + column];
        finish(plan, buffers, sum, row, column, batch * p.m * p.n + i);
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

Prepared prepare_conv(const KernelCall& call) {
  ProductPlan plan;
  ConvPlan p;
  if (std::string why = plan_quantized_conv(call, plan, p); !why.empty()) return Prepared::no(why);
  WorkspacePlan room;
  const size_t x_room = room.add_elements<double>(plan.a_size);
  const size_t w_room = room.add_elements<double>(plan.b_size);
  const size_t row_room = room.add_elements<double>(p.out[2]);
  const auto body = [=](const KernelBuffers& buffers) {
    double *data = part<double>(buffers, x_room), *weights = part<double>(buffers, w_room);
    double* sums = part<double>(buffers, row_room);
    const int64_t per_filter = p.group_channels() * p.kernel_size();
    subtract_zero(buffers, plan.a, plan.a_type, plan.a_size, plan.a_zero, data,
                  [](int64_t) { return 0; });
    subtract_zero(buffers, plan.b, plan.b_type, plan.b_size, plan.b_zero, weights,
                  [&](int64_t i) { return i / per_filter; });
    const int64_t lines = p.out[0] * p.out[1];
    for (int64_t block = 0; block < p.batch * p.filters * lines; ++block) {
      const int64_t m = block / lines % p.filters;
      std::fill_n(sums, p.out[2], value_of(plan.bias, buffers, m));
      conv_row(p, data, weights, block / lines / p.filters, m, block % lines, sums);
      for (int64_t j = 0; j < p.out[2]; ++j)
        finish(plan, buffers, sums[j], 0, m, block * p.out[2] + j);
    }
  };
  return make_kernel(body, room.size());
}

}  // namespace

std::string plan_quantized_matmul(const KernelCall& call, ProductPlan& plan, MatmulPlan& product) {
  KernelCall plain;
  if (std::string why = plan_operands(call, plan, plain); !why.empty()) return why;
  product = plan_matmul(plain);
  return unfit(plan, product.m, product.n);
}

std::string plan_quantized_conv(const KernelCall& call, ProductPlan& plan, ConvPlan& product) {
  KernelCall plain;
  if (std::string why = plan_operands(call, plan, plain); !why.empty()) return why;
  if (std::string why = conv_rank_refusal(plain.inputs[0].shape); !why.empty()) return why;
  product = plan_conv(plain);
  if (std::string why = unfit(plan, 1, product.filters); !why.empty()) return why;
  const bool has_bias = plan.bias.dtype != DType::kUndefined;
  return has_bias && plan.bias.count != product.filters ? "the bias does not fit" : "";
}

std::vector<KernelRow> product_rows() {
  return {
      {"", "ConvInteger", "reference", prepare_conv},
      {"", "MatMulInteger", "reference", prepare_matmul},
      {"", "QLinearConv", "reference", prepare_conv},
      {"", "QLinearMatMul", "reference", prepare_matmul},
  };
}

}  // namespace halfnote::cpu
