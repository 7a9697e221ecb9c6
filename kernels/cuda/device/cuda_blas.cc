// cuBLASLt, opened when the first product is planned: who trains on the CPU does not need it.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/libraries/lt_algorithm.h"
#include "kernels/cuda/libraries/lt_request.h"

namespace halfnote::cuda {

namespace {

using libraries::Blas;
using libraries::Epilogue;
using libraries::MatmulOperands;
using libraries::MatmulProblem;

using libraries::LtAlgorithm;
using libraries::LtMatrix;
using libraries::LtOperands;
using libraries::LtRequest;

// Every function that is used, by its name in the library.
#define HN_CUBLAS_FUNCTIONS(X)            \
  X(cublasLtCreate)                       \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoConfigGetAttribute) \
  X(cublasLtMatmulAlgoConfigSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulAlgoInit)               \
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

void make_matrix(Matrix& matrix, const LtMatrix& m) {
  check_blas(cublas().cublasLtMatrixLayoutCreate(&matrix.handle, data_type(m.dtype),
                                                 static_cast<uint64_t>(m.rows),
                                                 static_cast<uint64_t>(m.columns), m.leading),
             "cublasLtMatrixLayoutCreate");
  const auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t size) {
    check_blas(cublas().cublasLtMatrixLayoutSetAttribute(matrix.handle, attribute, value, size),
               "cublasLtMatrixLayoutSetAttribute");
  };
  const auto count = static_cast<int32_t>(m.batches);
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.stride, sizeof(m.stride));
}

/// Calls `body(attribute, field)` for all that the library lets be set.
template <class Algorithm, class Body>
void for_settings(Algorithm& a, const Body& body) {
  body(CUBLASLT_ALGO_CONFIG_TILE_ID, a.tile);
  body(CUBLASLT_ALGO_CONFIG_STAGES_ID, a.stages);
  body(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, a.split_k);
  body(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, a.reduction);
  body(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, a.swizzle);
  body(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, a.option);
  body(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, a.inner_shape);
  body(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, a.cluster_shape);
}

LtAlgorithm read_algorithm(const cublasLtMatmulAlgo_t& from) {
  LtAlgorithm a;
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& field) {
    size_t written = 0;
    check_blas(cublas().cublasLtMatmulAlgoConfigGetAttribute(&from, attribute, &field,
                                                             sizeof(field), &written),
               "cublasLtMatmulAlgoConfigGetAttribute");
  };
  read(CUBLASLT_ALGO_CONFIG_ID, a.id);
  for_settings(a, read);
  return a;
}

cublasComputeType_t compute_type(const LtRequest& r) {
  if (r.compute == DType::kF64) return CUBLAS_COMPUTE_64F;
  return r.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cublasLtEpilogue_t native_epilogue(const LtRequest& r) {
  const bool aux = r.aux != DType::kUndefined;
  int all = 0;  // the library's epilogues are sums of bits
  switch (r.epilogue) {
    case Epilogue::kNone:
      break;
    case Epilogue::kRelu:
      all = aux ? CUBLASLT_EPILOGUE_RELU_AUX : CUBLASLT_EPILOGUE_RELU;
      break;
    case Epilogue::kGelu:
      all = aux ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
      break;
    case Epilogue::kReluGrad:
      return r.has_sums ? CUBLASLT_EPILOGUE_DRELU_BGRAD : CUBLASLT_EPILOGUE_DRELU;
    case Epilogue::kGeluGrad:
      return r.has_sums ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kSumsOfA:
      return CUBLASLT_EPILOGUE_BGRADA;
    case Epilogue::kSumsOfB:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  if (r.has_bias) all |= CUBLASLT_EPILOGUE_BIAS;
  return static_cast<cublasLtEpilogue_t>(all);
}

/// A request as the library's own handles.
struct Request {
  MatmulDesc operation;
  Matrix first, second, result;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Request(const LtRequest& r) {
    check_blas(
        cublas().cublasLtMatmulDescCreate(&operation.handle, compute_type(r), data_type(r.scale)),
        "cublasLtMatmulDescCreate");
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, r.trans_a);
    set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, r.trans_b);
    if (r.has_bias || r.epilogue != Epilogue::kNone) {
      set_operation(CUBLASLT_MATMUL_DESC_EPILOGUE, native_epilogue(r));
    }
    if (r.has_bias || r.has_sums)
      set_operation(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(r.d.dtype));
    if (r.aux != DType::kUndefined) {
      set_operation(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, r.aux_leading);
      set_operation(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, r.aux_stride);
    }
    make_matrix(first, r.a);
    make_matrix(second, r.b);
    make_matrix(result, r.d);
  }

  void set_transpose(cublasLtMatmulDescAttributes_t which, bool transposed) {
    set_operation(which, transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  }
  /// The heuristics read the addresses, too. A bias and sums go to one place, and never together.
  void set_addresses(const void* bias, const void* aux, const void* sums) const {
    if (sums != nullptr) bias = sums;
    if (bias != nullptr) set_operation(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (aux != nullptr) set_operation(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  }
  void set_least_addresses(const LtRequest& least) const {
    const libraries::LeastOperands at = libraries::least_operands(least);
    set_addresses(at.bias, at.aux, at.sums);
  }
  template <class V>
  void set_operation(cublasLtMatmulDescAttributes_t which, const V& value) const {
    check_blas(
        cublas().cublasLtMatmulDescSetAttribute(operation.handle, which, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
  }

  /// The library's first suggestions among those that add in a fixed order and round once.
  std::vector<cublasLtMatmulAlgo_t> suggestions(cublasLtHandle_t handle, const LtRequest& r,
                                                size_t most) const {
    Preference preference;
    check_blas(cublas().cublasLtMatmulPreferenceCreate(&preference.handle),
               "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_blas(cublas().cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value,
                                                               sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(libraries::kLtWorkspace));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, libraries::allowed_reductions(r));
    // An f32 result is aligned to its elements even where an operand of 16 bits is not.
    const auto least = [&](const LtMatrix& m) {
      return std::max(r.alignment, static_cast<uint32_t>(size_of(m.dtype)));
    };
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, least(r.a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, least(r.b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, least(r.d));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, least(r.d));
    std::vector<cublasLtMatmulHeuristicResult_t> found(most);
    int count = 0;
    const cublasStatus_t status = cublas().cublasLtMatmulAlgoGetHeuristic(
        handle, operation.handle, first.handle, second.handle, result.handle, result.handle,
        preference.handle, static_cast<int>(most), found.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check_blas(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> all;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      if (found[i].state == CUBLAS_STATUS_SUCCESS) all.push_back(found[i].algo);
    }
    return all;
  }

  /// Takes the first suggestion, if there is one.
  bool choose(cublasLtHandle_t handle, const LtRequest& r) {
    const std::vector<cublasLtMatmulAlgo_t> found = suggestions(handle, r, 1);
    if (!found.empty()) algorithm = found.front();
    return !found.empty();
  }

  /// Takes the algorithm with these settings; gives the reason if the library does not.
  std::string choose(cublasLtHandle_t handle, const LtRequest& r, const LtAlgorithm& wanted) {
    if (!libraries::is_allowed(wanted, r)) return "it rounds sums, or adds in no fixed order";
    const cudaDataType_t d = data_type(r.d.dtype);
    if (cublas().cublasLtMatmulAlgoInit(handle, compute_type(r), data_type(r.scale),
                                        data_type(r.a.dtype), data_type(r.b.dtype), d, d, wanted.id,
                                        &algorithm) != CUBLAS_STATUS_SUCCESS)
      return "it has no algorithm of that number";
    bool taken = true;
    for_settings(wanted, [&](cublasLtMatmulAlgoConfigAttributes_t attribute, const auto& field) {
      taken &= cublas().cublasLtMatmulAlgoConfigSetAttribute(
                   &algorithm, attribute, &field, sizeof(field)) == CUBLAS_STATUS_SUCCESS;
    });
    cublasLtMatmulHeuristicResult_t checked{};
    taken = taken && cublas().cublasLtMatmulAlgoCheck(
                         handle, operation.handle, first.handle, second.handle, result.handle,
                         result.handle, &algorithm, &checked) == CUBLAS_STATUS_SUCCESS;
    if (!taken) return "it refuses the settings";
    return checked.workspaceSize <= libraries::kLtWorkspace ? "" : "it wants more workspace";
  }
};

/// An algorithm by its name, for one problem; operands lie as the plan puts buffers.
class NamedAlgorithm final : public libraries::MatmulAlgorithm {
 public:
  NamedAlgorithm(cublasLtHandle_t handle, const LtRequest& wanted, const LtAlgorithm& settings)
      : asked(wanted), request(wanted) {
    request.set_least_addresses(wanted);
    refusal = request.choose(handle, wanted, settings);
  }
  LtRequest asked;
  Request request;
  std::string refusal;
};

class CublasLt final : public Blas {
 public:
  CublasLt() { check_blas(cublas().cublasLtCreate(&handle_), "cublasLtCreate"); }

  size_t workspace_bytes(const MatmulProblem&) const override {
    return libraries::kLtWorkspaceRoom;
  }

  std::string refusal(const MatmulProblem& p, uint32_t alignment) override {
    std::string why = libraries::illegal_matmul(p);
    if (!why.empty()) return why;
    for (const uint32_t least : {0u, alignment}) {
      if (find_least(p, least) != nullptr) return {};
    }
    return libraries::kNoMatmulKernel;
  }

  /// What is measured is what a plan file's name gives again: suggestions that their settings
  /// alone do not give again are left out.
  std::vector<std::string> algorithms(const MatmulProblem& p) override {
    if (!libraries::illegal_matmul(p).empty()) return {};
    const LtRequest least = libraries::least_request(p, libraries::kPlannedAlignment);
    Request request(least);
    request.set_least_addresses(least);
    std::vector<std::string> names;
    for (const cublasLtMatmulAlgo_t& each :
         request.suggestions(handle_, least, libraries::kMostMatmulAlgorithms)) {
      const LtAlgorithm settings = read_algorithm(each);
      if (!NamedAlgorithm(handle_, least, settings).refusal.empty()) continue;
      const std::string name = libraries::name_of(settings);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return names;
  }

  std::shared_ptr<const libraries::MatmulAlgorithm> algorithm(const MatmulProblem& p,
                                                              std::string_view name) override {
    const std::optional<LtAlgorithm> settings = libraries::lt_algorithm(name);
    if (!settings) libraries::refuse_algorithm("cuBLASLt", name, "no algorithm's name");
    auto made = std::make_shared<NamedAlgorithm>(
        handle_, libraries::least_request(p, libraries::kPlannedAlignment), *settings);
    if (!made->refusal.empty()) libraries::refuse_algorithm("cuBLASLt", name, made->refusal);
    return made;
  }

  void matmul(Stream& stream, const MatmulProblem& p, const MatmulOperands& operands) override {
    const LtOperands given = libraries::lt_operands(operands);
    const LtRequest wanted = libraries::lt_request(p, given);
    std::string why = libraries::illegal_matmul(p);
    if (why.empty()) why = libraries::illegal_request(wanted, given);
    if (!why.empty()) throw Error(ErrorCode::kInternal, "an illegal matrix product: " + why);
    const Request& request = operands.algorithm != nullptr ? named(*operands.algorithm, wanted)
                                                           : usable(p, wanted, given);
    request.set_addresses(given.bias, given.aux, given.sums);
    const double wide[] = {p.alpha, p.beta};
    const float narrow[] = {p.alpha, p.beta};
    const bool f64 = wanted.scale == DType::kF64;
    const auto scalar = [&](int i) {
      return f64 ? static_cast<const void*>(wide + i) : static_cast<const void*>(narrow + i);
    };
    check_blas(cublas().cublasLtMatmul(handle_, request.operation.handle, scalar(0), given.a,
                                       request.first.handle, given.b, request.second.handle,
                                       scalar(1), given.d, request.result.handle, given.d,
                                       request.result.handle, &request.algorithm, given.workspace,
                                       libraries::kLtWorkspace, native(stream)),
               "cublasLtMatmul");
  }

 private:
  using Key = std::array<int64_t, 31>;

  static Key key_of(const LtRequest& r, bool adds) {
    Key key{static_cast<int64_t>(r.compute),
            r.trans_a,
            r.trans_b,
            r.alignment,
            adds,
            r.has_bias,
            r.tf32,
            static_cast<int64_t>(r.epilogue),
            r.has_sums,
            static_cast<int64_t>(r.aux),
            r.aux_leading,
            r.aux_stride};
    size_t at = 12;
    for (const LtMatrix* m : {&r.a, &r.b, &r.d}) {
      for (const int64_t number : {static_cast<int64_t>(m->dtype), m->rows, m->columns, m->leading,
                                   m->batches, m->stride}) {
        key[at++] = number;
      }
    }
    return key;
  }

  /// Null where the library has no kernel.
  const Request* find(const LtRequest& wanted, bool adds, const void* bias, const void* aux,
                      const void* sums) {
    const auto [known, is_new] = requests_.try_emplace(key_of(wanted, adds));
    if (is_new) {
      auto made = std::make_unique<Request>(wanted);
      made->set_addresses(bias, aux, sums);
      if (made->choose(handle_, wanted)) known->second = std::move(made);
    }
    return known->second.get();
  }

  static const Request& named(const libraries::MatmulAlgorithm& algorithm, LtRequest wanted) {
    const auto& made = static_cast<const NamedAlgorithm&>(algorithm);
    const bool aligned = wanted.alignment >= made.asked.alignment;
    wanted.alignment = made.asked.alignment;
    if (!aligned || !(wanted == made.asked))
      throw Error(ErrorCode::kInternal, "an algorithm that was made for another product");
    return made.request;
  }

  const Request* find_least(const MatmulProblem& p, uint32_t alignment) {
    const LtRequest least = libraries::least_request(p, alignment);
    const libraries::LeastOperands at = libraries::least_operands(least);
    return find(least, p.beta != 0, at.bias, at.aux, at.sums);
  }

  /// What was found for these addresses, or for all with less alignment, as refusal() has asked.
  const Request& usable(const MatmulProblem& p, const LtRequest& wanted, const LtOperands& given) {
    if (const Request* found = find(wanted, p.beta != 0, given.bias, given.aux, given.sums))
      return *found;
    for (uint32_t alignment = libraries::kPlannedAlignment; alignment > 0; alignment /= 2) {
      if (wanted.alignment < alignment) continue;
      if (const Request* found = find_least(p, alignment)) return *found;
    }
    throw Error(ErrorCode::kInternal, libraries::kNoMatmulKernel);
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Request>> requests_;
};

}  // namespace

libraries::Blas& blas() {
  // Never destroyed, as cuDNN's plans are not: at exit the library may be gone before.
  static CublasLt& library = *new CublasLt;
  return library;
}

std::string blas_version() {
  try {
    const size_t version = cublas().cublasLtGetVersion();
    return "cuBLASLt " + std::to_string(version / 10000) + "." +
           std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDevice) throw;
    return "no cuBLASLt";
  }
}

}  // namespace halfnote::cuda
