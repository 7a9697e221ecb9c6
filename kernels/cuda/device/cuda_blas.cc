// cuBLASLt, opened when the first product is planned: who trains on the CPU does not need it.
#include <cublasLt.h>

#include <array>
#include <cstring>
#include <map>

#include "base/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/libraries/library.h"

namespace halfnote::cuda {

namespace {

using libraries::Blas;
using libraries::MatmulOperands;
using libraries::MatmulProblem;

constexpr size_t kWorkspace = size_t{32} << 20;  // what the fastest Hopper kernels want

// Every function that is used, by its name in the library.
#define HN_CUBLAS_FUNCTIONS(X)            \
  X(cublasLtCreate)                       \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)

struct Functions {
#define HN_FIELD(name) decltype(&::name) name = nullptr;
  HN_CUBLAS_FUNCTIONS(HN_FIELD)
#undef HN_FIELD
};

constexpr libraries::LibraryName kCublas = {
    "cuBLAS", "libcublasLt.so.13",
    "install CUDA 13's libraries (a toolkit, or the Python package nvidia-cublas), and name their "
    "folder in HALFNOTE_CUDA_LIBRARIES"};

Functions load_functions() {
  void* library = libraries::open_library(kCublas);
  Functions functions;
#define HN_LOAD_FUNCTION(name) \
  functions.name =             \
      reinterpret_cast<decltype(&::name)>(libraries::find_function(library, kCublas, #name));
  HN_CUBLAS_FUNCTIONS(HN_LOAD_FUNCTION)
#undef HN_LOAD_FUNCTION
  return functions;
}

const Functions& cublas() {
  static const Functions functions = load_functions();
  return functions;
}

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::kInternal, std::string(call) + " failed with status " +
                                        std::to_string(static_cast<int>(status)));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

/// Creates and destroys one of the library's descriptors.
template <class Handle, auto Functions::*Destroy>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) (cublas().*Destroy)(handle);
  }
};

using MatmulDesc = Owned<cublasLtMatmulDesc_t, &Functions::cublasLtMatmulDescDestroy>;
using Matrix = Owned<cublasLtMatrixLayout_t, &Functions::cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &Functions::cublasLtMatmulPreferenceDestroy>;

void make_matrix(Matrix& matrix, DType dtype, int64_t rows, int64_t columns, int64_t batches,
                 int64_t stride) {
  check_blas(cublas().cublasLtMatrixLayoutCreate(&matrix.handle, data_type(dtype),
                                                 static_cast<uint64_t>(rows),
                                                 static_cast<uint64_t>(columns), rows),
             "cublasLtMatrixLayoutCreate");
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t size) {
    check_blas(cublas().cublasLtMatrixLayoutSetAttribute(matrix.handle, attribute, value, size),
               "cublasLtMatrixLayoutSetAttribute");
  };
  const auto count = static_cast<int32_t>(batches);
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride));
}

/// A problem as the library sees it: column-major, so D transposed is op(B) transposed times op(A)
/// transposed, and the operands change places.
struct Request {
  MatmulDesc operation;
  Matrix first, second, result;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Request(const MatmulProblem& p) {
    const bool f64 = p.ab == DType::kF64;
    check_blas(cublas().cublasLtMatmulDescCreate(&operation.handle,
                                                 f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                                 f64 ? CUDA_R_64F : CUDA_R_32F),
               "cublasLtMatmulDescCreate");
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_b);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_a);
    make_matrix(first, p.ab, p.trans_b ? p.k : p.n, p.trans_b ? p.n : p.k, p.batches, p.stride_b);
    make_matrix(second, p.ab, p.trans_a ? p.m : p.k, p.trans_a ? p.k : p.m, p.batches, p.stride_a);
    make_matrix(result, p.d, p.n, p.m, p.batches, p.stride_d);
  }

  void set_transpose(cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_blas(
        cublas().cublasLtMatmulDescSetAttribute(operation.handle, which, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
  }

  /// The library's first suggestion among those that add in a fixed order.
  void choose(cublasLtHandle_t handle, uint32_t alignment) {
    Preference preference;
    check_blas(cublas().cublasLtMatmulPreferenceCreate(&preference.handle),
               "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_blas(cublas().cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value,
                                                               sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                              CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(attribute, alignment);
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    check_blas(cublas().cublasLtMatmulAlgoGetHeuristic(handle, operation.handle, first.handle,
                                                       second.handle, result.handle, result.handle,
                                                       preference.handle, 1, &found, &count),
               "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0) throw Error(ErrorCode::kUnsupported, "cuBLAS has no kernel for a product");
    algorithm = found.algo;
  }
};

/// The largest power of two up to 256 that divides all addresses.
uint32_t common_alignment(const MatmulOperands& operands) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(operands.a) |
                        reinterpret_cast<uintptr_t>(operands.b) |
                        reinterpret_cast<uintptr_t>(operands.d) | 256;
  return static_cast<uint32_t>(all & (~all + 1));
}

class CublasLt final : public Blas {
 public:
  CublasLt() { check_blas(cublas().cublasLtCreate(&handle_), "cublasLtCreate"); }

  size_t workspace_bytes(const MatmulProblem&) const override { return kWorkspace; }

  void matmul(Stream& stream, const MatmulProblem& p, const MatmulOperands& operands) override {
    std::string why = libraries::illegal_matmul(p);
    if (why.empty()) why = libraries::illegal_operands(p, operands);
    if (!why.empty()) throw Error(ErrorCode::kInternal, "an illegal matrix product: " + why);
    const Request& request = find(p, common_alignment(operands));
    const double wide[] = {p.alpha, p.beta};
    const float narrow[] = {p.alpha, p.beta};
    const bool f64 = p.ab == DType::kF64;
    const auto scalar = [&](int i) {
      return f64 ? static_cast<const void*>(wide + i) : static_cast<const void*>(narrow + i);
    };
    check_blas(cublas().cublasLtMatmul(handle_, request.operation.handle, scalar(0), operands.b,
                                       request.first.handle, operands.a, request.second.handle,
                                       scalar(1), operands.d, request.result.handle, operands.d,
                                       request.result.handle, &request.algorithm,
                                       operands.workspace, kWorkspace, native(stream)),
               "cublasLtMatmul");
  }

 private:
  using Key = std::array<int64_t, 14>;

  const Request& find(const MatmulProblem& p, uint32_t alignment) {
    const Key key = {static_cast<int64_t>(p.ab),
                     static_cast<int64_t>(p.d),
                     p.m,
                     p.n,
                     p.k,
                     p.trans_a,
                     p.trans_b,
                     p.batches,
                     p.stride_a,
                     p.stride_b,
                     p.stride_d,
                     p.beta != 0,
                     alignment,
                     0};
    auto& request = requests_[key];
    if (request == nullptr) {
      auto made = std::make_unique<Request>(p);
      made->choose(handle_, alignment);
      request = std::move(made);
    }
    return *request;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Request>> requests_;
};

}  // namespace

libraries::Blas& blas() {
  static CublasLt library;
  return library;
}

}  // namespace halfnote::cuda
