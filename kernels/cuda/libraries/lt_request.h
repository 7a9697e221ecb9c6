// What cublasLtMatmul is asked for a product, as data: the descriptors before they are the
// library's. CUDA's side turns them into handles, the emulated one holds them against the library's
// rules, and tests record them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/cuda/libraries/blas.h"

namespace halfnote::libraries {

/// What the fastest kernels of an H200 want, and where the library's documentation wants it to lie.
inline constexpr size_t kLtWorkspace = size_t{32} << 20;
inline constexpr size_t kLtWorkspaceAlignment = 256;
/// To ask of the plan, which aligns its own way.
inline constexpr size_t kLtWorkspaceRoom = kLtWorkspace + kLtWorkspaceAlignment;

/// A matrix in memory, column-major: element (i, j) at i + j·leading.
struct LtMatrix {
  DType dtype = DType::kUndefined;
  int64_t rows = 0, columns = 0, leading = 0;
  int64_t batches = 1, stride = 0;  // elements from matrix to matrix

  friend bool operator==(const LtMatrix&, const LtMatrix&) = default;
};

/// D = alpha·op(A)·op(B) + beta·C, plus a bias of D's type to each row, and an epilogue; C and D
/// are one.
struct LtRequest {
  DType compute = DType::kUndefined;  // of the sums
  DType scale = DType::kUndefined;    // of alpha and beta
  bool trans_a = false, trans_b = false;
  LtMatrix a, b, d;
  bool has_bias = false;
  Epilogue epilogue = Epilogue::kNone;  // kSumsOfA is of this A, which is the problem's B
  bool has_sums = false;                // of D's rows, or of an operand
  /// The auxiliary matrix, as large as D; its leading dimension and stride count bits for a mask.
  DType aux = DType::kUndefined;  // kU8 for a mask; undefined: there is none
  int64_t aux_leading = 0, aux_stride = 0;
  bool tf32 = false;       // f32 operands are rounded to TF32, for tensor cores
  uint32_t alignment = 0;  // bytes that all addresses are a multiple of

  friend bool operator==(const LtRequest&, const LtRequest&) = default;
};

/// The addresses of a request, in the library's order.
struct LtOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* workspace = nullptr;  // kLtWorkspace bytes
  const void* bias = nullptr;
  void* aux = nullptr;
  void* sums = nullptr;
};

/// The elements of what is summed: of D's rows, or of an operand's rows or columns.
int64_t elements_of_sums(const LtRequest& request);

/// A product of row-major matrices as one of column-major ones: D transposed is op(B) transposed
/// times op(A) transposed, so A and B change places.
LtRequest lt_request(const MatmulProblem& problem, const LtOperands& operands);
LtOperands lt_operands(const MatmulOperands& operands);

/// The request of a problem whose operands are aligned to their elements and no more, if no
/// alignment is given: what has a kernel there has one everywhere.
LtRequest least_request(const MatmulProblem& problem, uint32_t alignment = 0);
/// The problem as it is asked for when nothing is known of the addresses but that alignment, and
/// addresses of bias, aux and sums to go with it. The library's heuristics read these addresses,
/// not what is there.
struct LeastOperands {
  const void* bias = nullptr;
  void* aux = nullptr;
  void* sums = nullptr;
};
LeastOperands least_operands(const LtRequest& request);
/// Where an auxiliary matrix begins.
inline constexpr uint32_t kLtAuxAlignment = 16;

inline constexpr const char* kNoMatmulKernel = "cuBLASLt has no kernel for such a product";

/// The rule of cuBLASLt's documentation that the request breaks; empty if it keeps all: types that
/// go together, extents that fit each other and 32 bits, leading dimensions, equal numbers of
/// batches, results that do not overlap each other or an operand, addresses aligned to their
/// elements and as promised, a workspace that is there and aligned; a bias of one matrix that is
/// not f64; an epilogue of one matrix with the operands that it asks for and no others, an
/// auxiliary matrix whose rows begin at whole groups of bits or elements.
std::string illegal_request(const LtRequest& request, const LtOperands& operands);

}  // namespace halfnote::libraries

namespace halfnote::cuda_emulated {

/// A product that the emulated library was asked for.
struct MatmulCall {
  libraries::LtRequest request;
  libraries::LtOperands operands;
  std::string algorithm;  // its name; empty: the library's choice
};
/// For tests: from now on every call is put there when it is made (not when it runs); null:
/// nowhere.
void record_matmuls(std::vector<MatmulCall>* calls);
/// For tests: from now on the library has no kernel for such requests; null: it has one for
/// all.
void refuse_matmuls(std::function<bool(const libraries::LtRequest&)> refused);

}  // namespace halfnote::cuda_emulated
