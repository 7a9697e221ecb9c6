// The rules of a product, and the emulated library: both hold every request against them.
#include "kernels/cuda/libraries/blas.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/libraries/lt_algorithm.h"
#include "kernels/cuda/libraries/lt_request.h"
#include "kernels/math/elementwise.h"

namespace halfnote::libraries {

namespace {

bool types_go_together(DType ab, DType d) {
  if (ab == DType::kF32 || ab == DType::kF64) return d == ab;
  return is_16bit_float(ab) && (d == ab || d == DType::kF32);
}

std::string unfit_epilogue(const MatmulProblem& p) {
  if (p.epilogue == Epilogue::kNone) return {};
  if (p.batches != 1) return "an epilogue of a stack";
  if (p.d == DType::kF64) return "an epilogue in f64";
  const bool has_aux = p.has_aux || is_gradient(p.epilogue);
  if (has_aux && !has_bits(p.epilogue) && p.n % kLtAuxElements != 0)
    return "rows of what a gradient reads that are no multiple of 8 elements";
  if (p.has_sums && !is_gradient(p.epilogue)) return "sums that belong to no gradient";
  return p.has_bias && !is_activation(p.epilogue) ? "a bias beside a gradient or sums" : "";
}

}  // namespace

std::string illegal_matmul(const MatmulProblem& p) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (!types_go_together(p.ab, p.d)) {
    return "no product of " + std::string(short_name(p.ab)) + " gives " +
           std::string(short_name(p.d));
  }
  if (p.m <= 0 || p.n <= 0 || p.k <= 0 || p.batches <= 0) return "an empty matrix";
  if (p.m > kMost || p.n > kMost || p.k > kMost || p.batches > kMost) return "a matrix too large";
  // One D a matrix; A and B may be one for all.
  const bool a_fits = p.stride_a == 0 || p.stride_a >= p.m * p.k;
  const bool b_fits = p.stride_b == 0 || p.stride_b >= p.k * p.n;
  const bool d_fits = p.batches == 1 || p.stride_d >= p.m * p.n;
  if (!a_fits || !b_fits || !d_fits) return "matrices that overlap";
  return unfit_epilogue(p);
}

void refuse_algorithm(std::string_view library, std::string_view name, const std::string& why) {
  throw Error(ErrorCode::kUsage, "an algorithm that " + std::string(library) + " does not take")
      .expected("one that it takes for this call", "\"" + std::string(name) + "\": " + why)
      .hint("measure again with --tune");
}

}  // namespace halfnote::libraries

namespace halfnote::cuda_emulated {

namespace {

using libraries::Blas;
using libraries::Epilogue;
using libraries::MatmulOperands;
using libraries::MatmulProblem;

/// Row i of op(X) as numbers: elements `step` apart.
void load_row(const std::byte* from, DType dtype, int64_t first, int64_t step, int64_t count,
              double* to) {
  if (step == 1) {
    cpu::load_reals(from, dtype, first, count, to);
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = cpu::read_real(from, dtype, first + i * step);
}

/// As tensor cores read an f32 operand: to 10 bits of mantissa, the nearest, ties away from 0.
void round_to_tf32(std::vector<double>& numbers) {
  for (double& number : numbers) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(number));
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    number = std::bit_cast<float>(finite ? (bits + 0x1000u) & ~0x1fffu : bits);
  }
}

/// The epilogue of row i: its aux, and what `beside` sums down the columns.
void finish_row(const MatmulProblem& p, const MatmulOperands& operands, int64_t i,
                std::vector<double>& sums, std::vector<double>& beside) {
  if (p.epilogue == Epilogue::kNone || libraries::sums_operand(p.epilogue)) return;
  auto* aux = static_cast<std::byte*>(operands.aux);
  auto* bits = static_cast<uint8_t*>(operands.aux) + i * p.ld_aux() / 8;
  std::vector<double> inner(sums.size());
  if (p.epilogue == Epilogue::kGelu && p.has_aux)
    cpu::store_reals(sums.data(), p.n, p.d, aux, i * p.ld_aux());
  if (p.epilogue == Epilogue::kGeluGrad)
    cpu::load_reals(aux, p.d, i * p.ld_aux(), p.n, inner.data());
  if (p.epilogue == Epilogue::kRelu && p.has_aux) std::fill_n(bits, p.ld_aux() / 8, uint8_t{0});
  for (size_t j = 0; j < sums.size(); ++j) {
    const auto bit = static_cast<uint8_t>(1u << j % 8);
    double& z = sums[j];
    switch (p.epilogue) {
      case Epilogue::kRelu:
        if (p.has_aux && z > 0) bits[j / 8] = static_cast<uint8_t>(bits[j / 8] | bit);
        z = math::Relu::value(z, {});
        break;
      case Epilogue::kGelu:
        z = math::GeluTanh::value(z, {});
        break;
      case Epilogue::kReluGrad:
        z = (bits[j / 8] & bit) != 0 ? z : 0;
        break;
      default:
        z = math::GeluTanh::gradient(z, inner[j], {});
    }
    beside[j] += z;
  }
}

void multiply(const MatmulProblem& p, const MatmulOperands& operands) {
  const auto* a = static_cast<const std::byte*>(operands.a);
  const auto* b = static_cast<const std::byte*>(operands.b);
  auto* d = static_cast<std::byte*>(operands.d);
  const auto at = [](int64_t elements) { return static_cast<size_t>(elements); };
  std::vector<double> rows(at(p.k * p.n)), row(at(p.k)), sums(at(p.n)), old(at(p.n));
  std::vector<double> bias(at(p.n), 0.0), beside(at(p.n), 0.0);
  if (p.has_bias) {
    cpu::load_reals(static_cast<const std::byte*>(operands.bias), p.d, 0, p.n, bias.data());
  }
  for (int64_t batch = 0; batch < p.batches; ++batch) {
    for (int64_t i = 0; i < p.k; ++i) {
      const int64_t first = batch * p.stride_b + i * (p.trans_b ? 1 : p.n);
      load_row(b, p.ab, first, p.trans_b ? p.k : 1, p.n, rows.data() + i * p.n);
    }
    if (p.tf32) round_to_tf32(rows);
    for (int64_t i = 0; i < p.m; ++i) {
      const int64_t first = batch * p.stride_a + i * (p.trans_a ? 1 : p.k);
      load_row(a, p.ab, first, p.trans_a ? p.m : 1, p.k, row.data());
      if (p.tf32) round_to_tf32(row);
      const int64_t out = batch * p.stride_d + i * p.n;
      sums.assign(sums.size(), 0.0);
      for (int64_t k = 0; k < p.k; ++k) {
        const double factor = row[at(k)];
        const double* from = rows.data() + k * p.n;
        for (int64_t j = 0; j < p.n; ++j) sums[at(j)] += factor * from[j];
      }
      if (p.beta != 0) cpu::load_reals(d, p.d, out, p.n, old.data());
      for (int64_t j = 0; j < p.n; ++j) {
        sums[at(j)] *= p.alpha;
        if (p.beta != 0) sums[at(j)] += p.beta * old[at(j)];
        sums[at(j)] += bias[at(j)];
      }
      finish_row(p, operands, i, sums, beside);
      cpu::store_reals(sums.data(), p.n, p.d, d, out);
      if (p.epilogue == Epilogue::kSumsOfA) {
        const double sum = std::accumulate(row.begin(), row.end(), 0.0);
        cpu::store_reals(&sum, 1, p.d, static_cast<std::byte*>(operands.sums), i);
      }
    }
    if (p.epilogue == Epilogue::kSumsOfB) {
      for (int64_t i = 0; i < p.k * p.n; ++i) beside[at(i % p.n)] += rows[at(i)];
    }
  }
  if (p.has_sums || p.epilogue == Epilogue::kSumsOfB)
    cpu::store_reals(beside.data(), p.n, p.d, static_cast<std::byte*>(operands.sums), 0);
}

/// Nothing in a workspace survives a call: its ends are spoilt.
void spoil(void* workspace) {
  constexpr size_t kEnd = 256;
  auto* first = static_cast<std::byte*>(workspace);
  std::memset(first, 0xff, kEnd);
  std::memset(first + libraries::kLtWorkspace - kEnd, 0xff, kEnd);
}

std::function<bool(const libraries::LtRequest&)>& refused_requests() {
  static std::function<bool(const libraries::LtRequest&)> refused;
  return refused;
}

std::vector<MatmulCall>*& recorded_calls() {
  static std::vector<MatmulCall>* calls = nullptr;
  return calls;
}

/// The emulated library pretends to have algorithms, with the same results: a sum that is not
/// split, one of other tiles, and for long sums a split one.
class EmulatedAlgorithm final : public libraries::MatmulAlgorithm {
 public:
  explicit EmulatedAlgorithm(std::string_view named) : name(named) {}
  const std::string name;
};

std::vector<std::string> pretended(const MatmulProblem& p) {
  libraries::LtAlgorithm one{.id = 1, .tile = 15}, split = one;
  split.split_k = 4;
  split.reduction = libraries::kLtSumInComputeType;
  std::vector<std::string> names = {libraries::name_of(one)};
  one.tile = 20;
  names.push_back(libraries::name_of(one));
  if (p.k > p.n) names.push_back(libraries::name_of(split));
  return names;
}

/// Asks for what cuBLASLt would be asked, by its rules; the products are plain loops.
class EmulatedBlas final : public Blas {
 public:
  size_t workspace_bytes(const MatmulProblem&) const override {
    return libraries::kLtWorkspaceRoom;
  }
  std::string refusal(const MatmulProblem& problem, uint32_t alignment) override {
    std::string why = libraries::illegal_matmul(problem);
    if (!why.empty()) return why;
    for (const uint32_t least : {0u, alignment}) {
      if (!refused(libraries::least_request(problem, least))) return {};
    }
    return libraries::kNoMatmulKernel;
  }
  std::vector<std::string> algorithms(const MatmulProblem& problem) override {
    const bool taken = libraries::illegal_matmul(problem).empty() &&
                       !refused(libraries::least_request(problem, libraries::kPlannedAlignment));
    return taken ? pretended(problem) : std::vector<std::string>();
  }
  std::shared_ptr<const libraries::MatmulAlgorithm> algorithm(const MatmulProblem& problem,
                                                              std::string_view name) override {
    const std::vector<std::string> names = algorithms(problem);
    if (std::find(names.begin(), names.end(), name) == names.end())
      libraries::refuse_algorithm("the emulated library", name, "it has none of that name");
    return std::make_shared<EmulatedAlgorithm>(name);
  }
  void matmul(Stream& stream, const MatmulProblem& problem,
              const MatmulOperands& operands) override {
    const libraries::LtOperands given = libraries::lt_operands(operands);
    const libraries::LtRequest request = libraries::lt_request(problem, given);
    std::string why = libraries::illegal_matmul(problem);
    if (why.empty()) why = libraries::illegal_request(request, given);
    if (!why.empty()) throw Error(ErrorCode::kInternal, "an illegal matrix product: " + why);
    if (refused(request)) throw Error(ErrorCode::kInternal, "a matrix product without a kernel");
    if (recorded_calls() != nullptr)
      recorded_calls()->push_back({request, given, name_of(operands.algorithm)});
    auto& queue = static_cast<EmulatedStream&>(stream);
    ++queue.device().count().launches;
    queue.enqueue([=] {
      multiply(problem, operands);
      spoil(given.workspace);
    });
  }

 private:
  static std::string name_of(const libraries::MatmulAlgorithm* algorithm) {
    return algorithm == nullptr ? "" : static_cast<const EmulatedAlgorithm*>(algorithm)->name;
  }
  static bool refused(const libraries::LtRequest& request) {
    return refused_requests() != nullptr && refused_requests()(request);
  }
};

}  // namespace

void refuse_matmuls(std::function<bool(const libraries::LtRequest&)> refused) {
  refused_requests() = std::move(refused);
}

void record_matmuls(std::vector<MatmulCall>* calls) { recorded_calls() = calls; }

libraries::Blas& blas() {
  static EmulatedBlas library;
  return library;
}

}  // namespace halfnote::cuda_emulated
