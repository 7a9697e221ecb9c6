// cuDNN's graph API, opened when the first convolution or attention is planned. One operation a
// graph, and the addition of a bias; of the engines that the heuristics name, the first that is
// deterministic, exact and supported is taken.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/device/cuda_cudnn.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/libraries/dnn.h"
#include "kernels/cuda/libraries/dnn_request.h"

namespace halfnote::cuda {

namespace {

using libraries::Convolution;
using libraries::ConvOperands;
using libraries::ConvProblem;
using libraries::ConvResult;
using libraries::DnnRequest;
using libraries::DnnTensor;

/// One of the library's descriptors.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check_dnn(cudnn().cudnnBackendCreateDescriptor(type, &handle_), "cudnnBackendCreateDescriptor");
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Descriptor() {
    if (handle_ != nullptr) cudnn().cudnnBackendDestroyDescriptor(handle_);
  }

  cudnnBackendDescriptor_t handle() const { return handle_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values) {
    check_dnn(cudnn().cudnnBackendSetAttribute(handle_, name, type, count, values),
              "cudnnBackendSetAttribute");
  }
  void set(cudnnBackendAttributeName_t name, const Shape& numbers) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(numbers.size()), numbers.data());
  }
  void set(cudnnBackendAttributeName_t name, int64_t number) {
    set(name, CUDNN_TYPE_INT64, 1, &number);
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  /// Fills up to `most` values, and says how many there are.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
              void* values) const {
    int64_t count = 0;
    check_dnn(cudnn().cudnnBackendGetAttribute(handle_, name, type, most, &count, values),
              "cudnnBackendGetAttribute");
    return count;
  }
  cudnnStatus_t try_finalize() { return cudnn().cudnnBackendFinalize(handle_); }
  void finalize() { check_dnn(try_finalize(), "cudnnBackendFinalize"); }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

cudnnDataType_t data_type(DType dtype) {
  if (dtype == DType::kF16) return CUDNN_DATA_HALF;
  return dtype == DType::kBF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/// A virtual one is in no memory: one operation of a graph hands it to another.
Descriptor make_tensor(const DnnTensor& t, bool is_virtual = false) {
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = data_type(t.dtype);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, t.dims);
  made.set(CUDNN_ATTR_TENSOR_STRIDES, t.strides);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, t.id);
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, libraries::kDnnAlignment);
  made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  made.finalize();
  return made;
}

Descriptor make_convolution(const DnnRequest& r) {
  Descriptor made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t compute = data_type(r.compute);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, static_cast<int64_t>(r.stride.size()));
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, r.pad_begin);
  made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, r.pad_end);
  made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, r.dilation);
  made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, r.stride);
  made.finalize();
  return made;
}

/// The names that the three operations have for the same things.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
};

OperationNames names_of(ConvResult wanted) {
  switch (wanted) {
    case ConvResult::kX:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvResult::kW:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  }
}

/// The operation that adds a bias to the sums of a convolution, and what it is made of.
struct BiasOperation {
  Descriptor sums, bias, addition, operation;

  BiasOperation(const DnnRequest& r, const Descriptor& result)
      : sums(make_tensor({'s', r.compute, r.result().dims, r.result().strides}, true)),
        bias(make_tensor(r.bias)),
        addition(CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
        operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
    const cudnnDataType_t compute = data_type(r.compute);
    addition.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    addition.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    addition.finalize();
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, addition);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sums);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    operation.finalize();
  }
};

/// What is planned for: the GPU behind a handle, or one that is only described.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* properties = nullptr;
};

/// A graph of one operation or two, with all that it is made of, which lives as long as its plan.
struct ConvGraph {
  Descriptor x, w, y, convolution, operation, graph;
  std::optional<BiasOperation> bias;

  /// Without a handle, as far as the library goes where there is no GPU.
  ConvGraph(cudnnHandle_t handle, const DnnRequest& r)
      : x(make_tensor(r.x)),
        w(make_tensor(r.w)),
        y(make_tensor(r.y)),
        convolution(make_convolution(r)),
        operation(names_of(r.wanted).type),
        graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    const OperationNames names = names_of(r.wanted);
    const float one = 1, zero = 0;
    const bool gives_x = r.wanted == ConvResult::kX;
    if (r.has_bias()) bias.emplace(r, gives_x ? x : y);
    operation.set(names.x, bias && gives_x ? bias->sums : x);
    operation.set(names.w, w);
    operation.set(names.y, bias && !gives_x ? bias->sums : y);
    operation.set(names.convolution, convolution);
    operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1, &one);
    operation.set(names.beta, CUDNN_TYPE_FLOAT, 1, &zero);
    operation.finalize();
    std::vector<cudnnBackendDescriptor_t> operations = {operation.handle()};
    if (bias) operations.push_back(bias->operation.handle());
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              static_cast<int64_t>(operations.size()), operations.data());
    if (handle != nullptr) {
      graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    }
    graph.finalize();
  }
};

/// The engines with their settings that one of the heuristics proposes, best first.
std::vector<Descriptor> proposals(const Target& target, const Descriptor& graph,
                                  cudnnBackendHeurMode_t mode) {
  constexpr int64_t kMost = 32;
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (target.properties != nullptr)
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.properties);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) return {};
  std::vector<Descriptor> found;
  std::array<cudnnBackendDescriptor_t, kMost> handles{};
  for (cudnnBackendDescriptor_t& handle : handles) {
    handle = found.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).handle();
  }
  const int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       kMost, handles.data());
  while (static_cast<int64_t>(found.size()) > count) found.pop_back();
  return found;
}

/// An engine and its settings, which are numbers: `eng38_k2=5_k13=1`.
std::string name_of(const Descriptor& proposal) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.handle();
  proposal.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  int64_t number = 0;
  engine.get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
  std::vector<Descriptor> knobs;
  std::array<cudnnBackendDescriptor_t, CUDNN_KNOB_TYPE_COUNTS> handles{};
  for (cudnnBackendDescriptor_t& each : handles)
    each = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).handle();
  const int64_t count =
      proposal.get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   CUDNN_KNOB_TYPE_COUNTS, handles.data());
  std::string name = "eng" + std::to_string(number);
  for (size_t i = 0; i < knobs.size() && i < static_cast<size_t>(count); ++i) {
    cudnnBackendKnobType_t type{};
    int64_t value = 0;
    knobs[i].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    knobs[i].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
    name += "_k" + std::to_string(static_cast<int>(type)) + "=" + std::to_string(value);
  }
  return name;
}

/// Does an engine do more than round and add in f32, always in the same order?
bool is_inexact(const Descriptor& proposal, bool tensor_cores) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.handle();
  proposal.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes.data());
  for (int64_t i = 0; i < count; ++i) {
    const cudnnBackendNumericalNote_t note = notes[static_cast<size_t>(i)];
    if (note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP) continue;
    if (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && tensor_cores) continue;
    return true;
  }
  return false;
}

/// An engine with its settings, of a graph.
struct Proposal {
  std::shared_ptr<const ConvGraph> graph;
  std::shared_ptr<const Descriptor> engine;
};

/// A plan, what it is of, and the scratch memory that it wants.
struct MadePlan {
  Proposal proposal;
  Descriptor plan;
  int64_t workspace = 0;
};

std::optional<MadePlan> try_plan(const Target& target, const Proposal& proposal) {
  MadePlan made{proposal, Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)};
  if (target.properties == nullptr) {
    made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target.handle);
  } else {
    made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
  }
  made.plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *proposal.engine);
  if (made.plan.try_finalize() != CUDNN_STATUS_SUCCESS) return std::nullopt;
  made.plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &made.workspace);
  if (made.workspace > libraries::kDnnMostWorkspace) return std::nullopt;
  return made;
}

/// Calls `body(proposal)` for what the heuristics propose that is deterministic and exact, best
/// first, until it says that it has enough.
template <class Body>
void for_exact(const Target& target, const DnnRequest& request, const Body& body) {
  const auto graph = std::make_shared<const ConvGraph>(target.handle, request);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (Descriptor& engine : proposals(target, graph->graph, mode)) {
      if (is_inexact(engine, request.tensor_cores)) continue;
      if (body(Proposal{graph, std::make_shared<const Descriptor>(std::move(engine))})) return;
    }
  }
}

/// The first plan that is deterministic and exact.
std::optional<MadePlan> make_plan(const Target& target, const DnnRequest& request) {
  std::optional<MadePlan> made;
  for_exact(target, request, [&](const Proposal& proposal) {
    made = try_plan(target, proposal);
    return made.has_value();
  });
  return made;
}

/// The plan of one engine.
std::optional<MadePlan> make_plan(const Target& target, const DnnRequest& request,
                                  std::string_view engine) {
  std::optional<MadePlan> made;
  for_exact(target, request, [&](const Proposal& proposal) {
    if (name_of(*proposal.engine) == engine) made = try_plan(target, proposal);
    return made.has_value();
  });
  return made;
}

/// An engine with its settings that has a plan.
struct PlannedEngine {
  std::string name;
  MadePlan plan;
};

/// Best first.
std::vector<PlannedEngine> engines_of(const Target& target, const DnnRequest& request) {
  std::vector<PlannedEngine> found;
  for_exact(target, request, [&](const Proposal& proposal) {
    const std::string name = name_of(*proposal.engine);
    if (std::ranges::find(found, name, &PlannedEngine::name) != found.end()) return false;
    if (std::optional<MadePlan> made = try_plan(target, proposal))
      found.push_back({name, std::move(*made)});
    return found.size() == libraries::kMostEngines;
  });
  return found;
}

class PlannedConvolution final : public Convolution {
 public:
  PlannedConvolution(cudnnHandle_t handle, DnnRequest request, MadePlan made)
      : handle_(handle), request_(std::move(request)), made_(std::move(made)) {}

  size_t workspace_bytes() const override { return static_cast<size_t>(made_.workspace); }
  void run(Stream& stream, const ConvOperands& operands) const override {
    if (std::string why = libraries::illegal_operands(request_, operands, workspace_bytes());
        !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal convolution: " + why);
    const std::array<int64_t, 4> ids = {request_.x.id, request_.w.id, request_.y.id,
                                        request_.bias.id};
    const std::array<const void*, 4> places = {operands.x, operands.w, operands.y, operands.bias};
    const int64_t count = request_.has_bias() ? 4 : 3;
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, places.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &operands.workspace);
    pack.finalize();
    check_dnn(cudnn().cudnnSetStream(handle_, native(stream)), "cudnnSetStream");
    check_dnn(cudnn().cudnnBackendExecute(handle_, made_.plan.handle(), pack.handle()),
              "cudnnBackendExecute");
  }

 private:
  cudnnHandle_t handle_;
  DnnRequest request_;
  MadePlan made_;
};

std::shared_ptr<const Convolution> plan_convolution(cudnnHandle_t handle, const DnnRequest& request,
                                                    std::string& refusal) {
  refusal = libraries::illegal_request(request);
  if (!refusal.empty()) return nullptr;
  std::optional<MadePlan> made = make_plan({handle, nullptr}, request);
  if (made) return std::make_shared<PlannedConvolution>(handle, request, std::move(*made));
  refusal = "cuDNN has no deterministic plan as exact as that";
  return nullptr;
}

class Cudnn final : public libraries::Dnn {
 public:
  Cudnn() { check_dnn(cudnn().cudnnCreate(&handle_), "cudnnCreate"); }

  std::shared_ptr<const Convolution> plan(const ConvProblem& problem,
                                          std::string& refusal) override {
    return plan_once(convolutions_, plan_convolution, libraries::dnn_request(problem), refusal);
  }

  std::vector<std::string> engines(const ConvProblem& problem) override {
    const DnnRequest request = libraries::dnn_request(problem);
    if (!libraries::illegal_request(request).empty()) return {};
    std::vector<std::string> names;
    for (PlannedEngine& engine : engines_of({handle_, nullptr}, request)) {
      names.push_back(engine.name);
      if (by_name(request, engine.name) == nullptr)
        keep(request, std::move(engine.name), std::move(engine.plan));
    }
    return names;
  }

  std::shared_ptr<const Convolution> plan_by(const ConvProblem& problem,
                                             std::string_view engine) override {
    const DnnRequest request = libraries::dnn_request(problem);
    if (auto known = by_name(request, engine)) return known;
    std::string why = libraries::illegal_request(request);
    std::optional<MadePlan> made;
    if (why.empty()) made = make_plan({handle_, nullptr}, request, engine);
    if (!made) {
      libraries::refuse_algorithm("cuDNN", engine,
                                  why.empty() ? "it has no plan of that engine and settings" : why);
    }
    return keep(request, std::string(engine), std::move(*made));
  }

  std::shared_ptr<const libraries::Sdpa> plan(const libraries::SdpaProblem& problem,
                                              std::string& refusal) override {
    return plan_once(attentions_, plan_attention, problem, refusal);
  }
  std::shared_ptr<const libraries::Rnn> plan(const libraries::RnnProblem& problem,
                                             std::string& refusal) override {
    return plan_once(recurrent_layers_, plan_recurrent_layer, problem, refusal);
  }

 private:
  struct ByEngine {
    DnnRequest request;
    std::string engine;
    std::shared_ptr<const Convolution> planned;
  };
  std::vector<ByEngine> by_engine_;
  std::shared_ptr<const Convolution> by_name(const DnnRequest& request,
                                             std::string_view engine) const {
    for (const ByEngine& known : by_engine_) {
      if (known.engine == engine && known.request == request) return known.planned;
    }
    return nullptr;
  }
  std::shared_ptr<const Convolution> keep(const DnnRequest& request, std::string engine,
                                          MadePlan made) {
    by_engine_.push_back({request, std::move(engine),
                          std::make_shared<PlannedConvolution>(handle_, request, std::move(made))});
    return by_engine_.back().planned;
  }
  template <class Problem, class Planned>
  struct Known {
    Problem problem;
    std::shared_ptr<const Planned> planned;
    std::string refusal;
  };
  template <class Problem, class Planned, class Plan>
  std::shared_ptr<const Planned> plan_once(std::vector<Known<Problem, Planned>>& known, Plan* plan,
                                           const Problem& problem, std::string& refusal) const {
    for (const Known<Problem, Planned>& entry : known) {
      if (!(entry.problem == problem)) continue;
      refusal = entry.refusal;
      return entry.planned;
    }
    std::shared_ptr<const Planned> planned = plan(handle_, problem, refusal);
    known.push_back({problem, planned, refusal});
    return planned;
  }
  /// A network has the same convolution many times.
  std::vector<Known<DnnRequest, Convolution>> convolutions_;
  std::vector<Known<libraries::SdpaProblem, libraries::Sdpa>> attentions_;
  std::vector<Known<libraries::RnnProblem, libraries::Rnn>> recurrent_layers_;
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace

libraries::Dnn& dnn() {
  // Never destroyed: cuDNN opens the libraries of its engines after this is made, so at exit they
  // are gone before it, and its plans could not be destroyed any more.
  static Cudnn& library = *new Cudnn;
  return library;
}

std::string refusal_of_descriptors(const DnnRequest& request) {
  try {
    ConvGraph(nullptr, request);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInternal) throw;
    return error.what();
  }
  return {};
}

namespace {

Descriptor described_gpu(const std::string& device) {
  Descriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 static_cast<int64_t>(device.size()), device.data());
  properties.finalize();
  return properties;
}

PaperPlan on_paper(const std::optional<MadePlan>& made) {
  if (!made) return {"cuDNN has no deterministic plan as exact as that", {}, 0};
  return {{}, {}, static_cast<size_t>(made->workspace)};
}

}  // namespace

PaperPlan plan_on_paper(const DnnRequest& request, const std::string& device) {
  const Descriptor properties = described_gpu(device);
  return on_paper(make_plan({nullptr, &properties}, request));
}

std::vector<std::string> engines_on_paper(const DnnRequest& request, const std::string& device) {
  const Descriptor properties = described_gpu(device);
  std::vector<std::string> names;
  for (PlannedEngine& engine : engines_of({nullptr, &properties}, request))
    names.push_back(std::move(engine.name));
  return names;
}

PaperPlan plan_on_paper(const DnnRequest& request, const std::string& device,
                        std::string_view engine) {
  const Descriptor properties = described_gpu(device);
  return on_paper(make_plan({nullptr, &properties}, request, engine));
}

}  // namespace halfnote::cuda
