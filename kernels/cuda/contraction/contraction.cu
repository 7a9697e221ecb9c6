// MatMul and Gemm, ONNX's own and those of ai.halfnote: planned as on the CPU, carried out by the
// library in as few calls as the batch dims allow. C of a Gemm is added by the library where it is
// a bias, a number for each column, and the library can; else it is laid out in the result first,
// unless the plan has put the result where C is, and the product is added to it there. What the
// library has no kernel for is computed by plain loops.
#include <array>

#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/contraction/attention/parts.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::MatmulPlan;
using libraries::MatmulProblem;

/// One call of the library: where its matrices begin.
struct Product {
  int64_t a = 0, b = 0, d = 0;
  MatmulProblem problem;
};

/// May the result be added to C where it lies?
bool adds_in_place(const KernelCall& call, const MatmulPlan& plan) {
  return plan.has_c && plan.beta == 1 && plan.c_row == plan.n && plan.c_column == 1 &&
         call.inputs[2].dtype == call.outputs[0].dtype;
}

/// Is C what the library adds to each row?
bool is_bias(const KernelCall& call, const MatmulPlan& plan) {
  if (!plan.has_c || plan.batches() != 1 || plan.beta != 1) return false;
  const DType dtype = call.outputs[0].dtype;
  return plan.c_row == 0 && plan.c_column == 1 && call.inputs[2].dtype == dtype &&
         dtype != DType::kF64;
}

enum class BiasBy : uint8_t { kLibrary, kSpread };

MatmulProblem problem_of(const KernelCall& call, const MatmulPlan& plan, BiasBy bias) {
  MatmulProblem p;
  p.ab = call.inputs[0].dtype;
  p.d = call.outputs[0].dtype;
  p.m = plan.m;
  p.n = plan.n;
  p.k = plan.k;
  p.trans_a = plan.trans_a;
  p.trans_b = plan.trans_b;
  p.alpha = plan.alpha;
  p.has_bias = bias == BiasBy::kLibrary && is_bias(call, plan);
  p.tf32 = call.tf32 && p.ab == DType::kF32;
  p.beta = plan.has_c && !p.has_bias ? 1.0f : 0.0f;  // C is there already, times beta
  p.stride_d = plan.m * plan.n;
  return p;
}

/// Runs of batches whose A and B advance evenly: one call each. Usually that is one call.
std::vector<Product> products_of(const KernelCall& call, const MatmulPlan& plan, BiasBy bias) {
  std::vector<Product> all;
  const int64_t count = plan.batches();
  for (int64_t first = 0; first < count;) {
    const auto a = [&](int64_t i) { return plan.a_of[static_cast<size_t>(i)]; };
    const auto b = [&](int64_t i) { return plan.b_of[static_cast<size_t>(i)]; };
    Product product{a(first) * plan.m * plan.k, b(first) * plan.k * plan.n, first * plan.m * plan.n,
                    problem_of(call, plan, bias)};
    int64_t last = first + 1;
    if (last < count) {
      const int64_t step_a = a(last) - a(first), step_b = b(last) - b(first);
      if (step_a >= 0 && step_b >= 0) {
        while (last < count && a(last) - a(last - 1) == step_a && b(last) - b(last - 1) == step_b) {
          ++last;
        }
        product.problem.stride_a = step_a * plan.m * plan.k;
        product.problem.stride_b = step_b * plan.k * plan.n;
      }
    }
    product.problem.batches = last - first;
    all.push_back(product);
    first = last;
  }
  return all;
}

template <class T>
struct SpreadC {
  RealPointer c;
  T* to;
  int64_t columns, row_step, column_step;
  float beta;
  __device__ void operator()(int64_t i) const {
    const int64_t at = i / columns * row_step + i % columns * column_step;
    to[i] = store_number<T>(static_cast<Math<T>>(static_cast<double>(beta) * c[at]));
  }
};

template <class T>
struct FillZero {
  T* to;
  __device__ void operator()(int64_t i) const { to[i] = T{}; }
};

/// An element of the results a thread, its sum in f64.
template <class T>
struct ProductElement {
  MatmulProblem p;
  RealPointer a, b;
  int64_t first_a, first_b;
  T* d;
  __device__ void operator()(int64_t i) const {
    const int64_t batch = i / (p.m * p.n), row = i / p.n % p.m, column = i % p.n;
    const int64_t at_a = first_a + batch * p.stride_a + row * (p.trans_a ? 1 : p.k);
    const int64_t at_b = first_b + batch * p.stride_b + column * (p.trans_b ? p.k : 1);
    const int64_t step_a = p.trans_a ? p.m : 1, step_b = p.trans_b ? 1 : p.n;
    double sum = 0;
    for (int64_t k = 0; k < p.k; ++k) sum += a[at_a + k * step_a] * b[at_b + k * step_b];
    sum *= static_cast<double>(p.alpha);
    T& to = d[batch * p.stride_d + row * p.n + column];
    if (p.beta != 0) sum += static_cast<double>(p.beta) * static_cast<double>(load_number(to));
    to = store_number<T>(static_cast<Math<T>>(sum));
  }
};

template <class T>
void run_plainly(const Product& product, const KernelBuffers& buffers, T* d) {
  const MatmulProblem& p = product.problem;
  for_each(stream_of(buffers), p.batches * p.m * p.n,
           ProductElement<T>{p,
                             {buffers.inputs[0], p.ab},
                             {buffers.inputs[1], p.ab},
                             product.a,
                             product.b,
                             d + product.d});
}

/// Who computes the products.
enum class ProductsBy : uint8_t { kLibrary, kOwn };

std::string refusal_of(const std::vector<Product>& products) {
  for (const Product& product : products) {
    const MatmulProblem& p = product.problem;
    const auto of_ab = static_cast<int64_t>(size_of(p.ab)),
               of_d = static_cast<int64_t>(size_of(p.d));
    const uint32_t alignment =
        libraries::alignment_behind({product.a * of_ab, product.b * of_ab, product.d * of_d});
    if (std::string why = blas().refusal(p, alignment); !why.empty()) return why;
  }
  return {};
}

/// Before the name of an algorithm: C is laid out in the result first, although the library could
/// add it as a bias.
constexpr std::string_view kSpreadFirst = "spread/";

/// The library's algorithms of a call that is one product, by either way of adding C.
std::vector<std::string> algorithms_of(const KernelCall& call, const MatmulPlan& plan) {
  std::vector<std::string> names;
  if (call.outputs[0].size() == 0 || plan.k == 0) return names;
  for (const BiasBy bias : {BiasBy::kLibrary, BiasBy::kSpread}) {
    if (bias == BiasBy::kSpread && !is_bias(call, plan)) continue;
    const std::vector<Product> products = products_of(call, plan, bias);
    if (products.size() != 1) return names;
    const bool marked = bias == BiasBy::kSpread;
    for (const std::string& name : blas().algorithms(products.front().problem))
      names.push_back(marked ? std::string(kSpreadFirst) + name : name);
  }
  return names;
}

/// What a call asks for by KernelCall::algorithm.
struct AskedAlgorithm {
  BiasBy bias = BiasBy::kLibrary;
  std::shared_ptr<const libraries::MatmulAlgorithm> algorithm;
};

AskedAlgorithm asked_algorithm(const KernelCall& call, const MatmulPlan& plan) {
  std::string_view name = call.algorithm;
  const bool spread = name.starts_with(kSpreadFirst);
  if (spread) name.remove_prefix(kSpreadFirst.size());
  AskedAlgorithm asked{spread ? BiasBy::kSpread : BiasBy::kLibrary, nullptr};
  const std::vector<Product> products = products_of(call, plan, asked.bias);
  if (products.size() != 1 || plan.k == 0 || (spread && !is_bias(call, plan)))
    libraries::refuse_algorithm("the product", call.algorithm, "it is another kind of product");
  asked.algorithm = blas().algorithm(products.front().problem, name);
  return asked;
}

template <ProductsBy kBy, class T>
Prepared product_kernel(const KernelCall& call, const MatmulPlan& plan) {
  constexpr bool kOwn = kBy == ProductsBy::kOwn;
  const int64_t count = call.outputs[0].size();
  const bool empty = plan.k == 0;  // the sum of nothing is zero
  const bool asks = !kOwn && count > 0 && !empty;
  AskedAlgorithm asked;
  if (asks && !call.algorithm.empty()) asked = asked_algorithm(call, plan);
  BiasBy bias = kOwn ? BiasBy::kSpread : asked.bias;
  std::vector<Product> products = products_of(call, plan, bias);
  std::string why = asks ? refusal_of(products) : "";
  if (!why.empty() && is_bias(call, plan) && asked.algorithm == nullptr) {
    bias = BiasBy::kSpread;
    products = products_of(call, plan, bias);
    why = refusal_of(products);
  }
  if (!why.empty()) return Prepared::no(why);
  const DType c_type = plan.has_c ? call.inputs[2].dtype : DType::kUndefined;
  const bool has_bias = bias == BiasBy::kLibrary && is_bias(call, plan) && !empty;
  const bool in_place = adds_in_place(call, plan);
  const auto body = [=](const KernelBuffers& buffers) {
    if (count == 0) return;
    T* d = buffers.out<T>(0);
    const bool is_there = in_place && buffers.inputs[2] == buffers.outputs[0];
    if (plan.has_c && !has_bias && !is_there) {
      for_each(
          stream_of(buffers), count,
          SpreadC<T>{{buffers.inputs[2], c_type}, d, plan.n, plan.c_row, plan.c_column, plan.beta});
    } else if (empty && !is_there) {
      for_each(stream_of(buffers), count, FillZero<T>{d});
    }
    if (empty) return;
    const auto size = static_cast<int64_t>(size_of(products.front().problem.ab));
    for (const Product& product : products) {
      if constexpr (kOwn) {
        run_plainly(product, buffers, d);
      } else {
        blas().matmul(stream_of(buffers), product.problem,
                      {.a = buffers.inputs[0] + product.a * size,
                       .b = buffers.inputs[1] + product.b * size,
                       .d = d + product.d,
                       .workspace = buffers.workspace,
                       .bias = has_bias ? buffers.inputs[2] : nullptr,
                       .algorithm = asked.algorithm.get()});
      }
    }
  };
  size_t workspace = 0;
  for (const Product& product : products) {
    if (asks) {
      workspace = std::max(workspace, blas().workspace_bytes(product.problem));
    }
  }
  if (!in_place) return make_kernel(body, workspace);
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input == 2 && output == 0; });
}

/// Why the types of a call do not go together, or an empty string.
std::string unfit_types(const KernelCall& call) {
  if (call.inputs[1].dtype != call.inputs[0].dtype) return "A and B of different types";
  if (call.domain.empty() && call.outputs[0].dtype != call.inputs[0].dtype) {
    return "A and Y of different types";
  }
  if (call.has_input(2) && !cpu::is_real(call.inputs[2].dtype)) return "C is no float";
  return {};
}

template <bool kGemm>
MatmulPlan plan_product(const KernelCall& call) {
  return kGemm ? cpu::plan_gemm(call) : cpu::as_one_product(cpu::plan_matmul(call));
}

template <bool kGemm, ProductsBy kBy>
Prepared prepare_product(const KernelCall& call) {
  const MatmulPlan plan = plan_product<kGemm>(call);
  if (std::string why = unfit_types(call); !why.empty()) return Prepared::no(why);
  // A C of more places than the result has would be rounded before it is added.
  if (plan.has_c && size_of(call.inputs[2].dtype) > size_of(call.outputs[0].dtype)) {
    return Prepared::no("C of a wider type than Y");
  }
  return for_float_type(call.outputs[0].dtype,
                        [&]<class T>() { return product_kernel<kBy, T>(call, plan); });
}

template <bool kGemm>
std::vector<std::string> product_algorithms(const KernelCall& call) {
  return algorithms_of(call, plan_product<kGemm>(call));
}

template <bool kGemm>
std::vector<KernelRow> product_rows(std::string_view domain) {
  const std::string_view op = kGemm ? "Gemm" : "MatMul";
  return {
      {domain,
       op,
       "blas.matmul",
       prepare_product<kGemm, ProductsBy::kLibrary>,
       {},
       RowUse::kFast,
       product_algorithms<kGemm>},
      {domain, op, "own.matmul", prepare_product<kGemm, ProductsBy::kOwn>, {}, RowUse::kFallback}};
}

}  // namespace

std::vector<KernelRow> contraction_kernels() {
  std::vector<KernelRow> rows = conv_library_rows();
  const std::vector<KernelRow> attention = {
      {"ai.halfnote", "Attention", "dnn.attention", prepare_library_attention},
      {"ai.halfnote", "Attention", "own.attention", prepare_attention},
      {"ai.halfnote", "AttentionGrad", "dnn.attention", prepare_library_attention_gradient},
      {"ai.halfnote", "AttentionGrad", "own.attention", prepare_attention_gradient},
  };
  for (const std::vector<KernelRow>& more :
       {conv_rows(), deform_conv_rows(), determinant_rows(), attention, product_rows<true>(""),
        product_rows<false>(""), product_rows<true>("ai.halfnote"),
        product_rows<false>("ai.halfnote"), plain_product_rows(), epilogue_rows(),
        recurrent_forward_rows(), recurrent_gradient_rows()}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
