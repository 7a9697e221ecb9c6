// Matrix products of a library, behind one narrow class: cuBLASLt on a GPU, plain loops under the
// emulation, and for tests a recorder that also holds every request against the library's rules.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/ops/epilogue.h"
#include "kernels/device.h"

namespace halfnote::libraries {

/// What is made of the sums Z before they are rounded to D.
enum class Epilogue : uint8_t {
  kNone,
  kRelu,  // max(Z, 0); aux, if there is one, gets a bit for each element: is Z > 0?
  kGelu,  // x·(1 + tanh u)/2 with u = sqrt(2/pi)·(x + 0.044715·x³); aux, if there is one, gets Z
  kReluGrad,  // Z where the bit of aux is set, else 0
  kGeluGrad,  // Z times the derivative of kGelu at aux
  kSumsOfA,   // Z; beside it the sums of op(A) along k
  kSumsOfB,   // Z; beside it the sums of op(B) along k
};
/// May aux stay away? It is what the activation's gradient reads.
constexpr bool is_activation(Epilogue e) { return e == Epilogue::kRelu || e == Epilogue::kGelu; }
constexpr bool is_gradient(Epilogue e) {
  return e == Epilogue::kReluGrad || e == Epilogue::kGeluGrad;
}
constexpr bool sums_operand(Epilogue e) {
  return e == Epilogue::kSumsOfA || e == Epilogue::kSumsOfB;
}
constexpr bool has_bits(Epilogue e) { return e == Epilogue::kRelu || e == Epilogue::kReluGrad; }

/// Rows of aux are whole groups of so many bits, or elements where it holds numbers.
inline constexpr int64_t kLtBits = 128, kLtAuxElements = 8;

/// D = alpha·op(A)·op(B) + beta·D, row-major, for every matrix of a stack, plus a bias of D's type
/// for each column of a single one, and for a single one an epilogue. Accumulation is in f32 (f64
/// for f64), the result is rounded once.
struct MatmulProblem {
  DType ab = DType::kUndefined;  // of A and B
  DType d = DType::kUndefined;
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  int64_t batches = 1;
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;  // elements from matrix to matrix
  float alpha = 1, beta = 0;
  bool has_bias = false;
  Epilogue epilogue = Epilogue::kNone;
  bool has_aux = false;   // of an activation; its gradient has one in any case
  bool has_sums = false;  // of a gradient: the sums of D's columns before they are rounded
  bool tf32 = false;      // f32 operands may be rounded to TF32

  int64_t lda() const { return trans_a ? m : k; }
  int64_t ldb() const { return trans_b ? k : n; }
  int64_t ldd() const { return n; }
  /// From row to row of aux: bits where it holds bits, else elements of D's type.
  int64_t ld_aux() const { return has_bits(epilogue) ? mask_row_bytes(n) * 8 : n; }
};

/// One of the library's ways to compute a problem.
class MatmulAlgorithm {
 public:
  virtual ~MatmulAlgorithm() = default;
};

struct MatmulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* workspace = nullptr;
  const void* bias = nullptr;  // n elements
  void* aux = nullptr;         // m rows, written by an activation, read by its gradient
  void* sums = nullptr;        // of D's type: m elements of kSumsOfA, else n
  /// Of Blas::algorithm() for this problem; null: the library's first suggestion.
  const MatmulAlgorithm* algorithm = nullptr;
};

/// Why a library would refuse the problem or give something else than asked for; empty if it would
/// not. These are cuBLASLt's rules: type combinations, sizes that fit its 32 bits, strides, what
/// an epilogue goes with.
std::string illegal_matmul(const MatmulProblem& problem);

/// Of every buffer of a plan.
inline constexpr uint32_t kPlannedAlignment = 16;
/// What stays of it, in bytes, behind so many bytes each.
constexpr uint32_t alignment_behind(std::initializer_list<int64_t> offsets) {
  int64_t all = kPlannedAlignment;
  for (const int64_t offset : offsets) all |= offset;
  return static_cast<uint32_t>(all & -all);
}

/// What a library says of the name of an algorithm that it lacks, or that does not take a call.
[[noreturn]] void refuse_algorithm(std::string_view library, std::string_view name,
                                   const std::string& why);

/// As many of its algorithms the library is asked for.
inline constexpr size_t kMostMatmulAlgorithms = 12;

class Blas {
 public:
  virtual ~Blas() = default;
  virtual size_t workspace_bytes(const MatmulProblem& problem) const = 0;
  /// Why the library cannot compute the problem; empty if it can, with operands at addresses that
  /// are multiples of their elements and of `alignment`: the plan's, unless products begin behind
  /// batches of odd sizes. To be asked before the problem is computed: never while a step is
  /// captured.
  virtual std::string refusal(const MatmulProblem& problem,
                              uint32_t alignment = kPlannedAlignment) = 0;
  /// The names of up to kMostMatmulAlgorithms algorithms that the library suggests, best first, for
  /// a problem whose operands begin where the plan puts buffers. Only what gives the same bits on
  /// every run, rounds once and fits the workspace.
  virtual std::vector<std::string> algorithms(const MatmulProblem& problem) = 0;
  /// The algorithm of that name. Throws Error(kUsage) if the library does not take it for the
  /// problem; never during a capture.
  virtual std::shared_ptr<const MatmulAlgorithm> algorithm(const MatmulProblem& problem,
                                                           std::string_view name) = 0;
  virtual void matmul(Stream& stream, const MatmulProblem& problem,
                      const MatmulOperands& operands) = 0;
};

}  // namespace halfnote::libraries

namespace halfnote::cuda {
/// cuBLASLt. Throws Error(kDevice) if it is not installed.
libraries::Blas& blas();
}  // namespace halfnote::cuda

namespace halfnote::cuda_emulated {
libraries::Blas& blas();
}  // namespace halfnote::cuda_emulated
