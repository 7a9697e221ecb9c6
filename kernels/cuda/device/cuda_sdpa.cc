// Attention by cuDNN, whose graph the cuDNN frontend spells out: it is header-only, and calls the
// library by the names that are redefined here to the functions that were found in it.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstring>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "kernels/cuda/device/cuda_cudnn.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/libraries/sdpa.h"

namespace halfnote::cuda {
namespace {

/// The GPU that is planned for where there is none (plan_on_paper).
struct PaperDevice {
  int compute_capability = 0;  // 90
};
thread_local const PaperDevice* paper = nullptr;

cudaError_t current_device(int* device) {
  if (paper == nullptr) return cudaGetDevice(device);
  *device = 0;
  return cudaSuccess;
}

cudaError_t properties_of_device(cudaDeviceProp* properties, int device) {
  if (paper == nullptr) return cudaGetDeviceProperties(properties, device);
  *properties = {};
  properties->major = paper->compute_capability / 10;
  properties->minor = paper->compute_capability % 10;
  return cudaSuccess;
}

}  // namespace
}  // namespace halfnote::cuda

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#define cudnnBackendCreateDescriptor halfnote::cuda::cudnn().cudnnBackendCreateDescriptor
#define cudnnBackendDestroyDescriptor halfnote::cuda::cudnn().cudnnBackendDestroyDescriptor
#define cudnnBackendExecute halfnote::cuda::cudnn().cudnnBackendExecute
#define cudnnBackendFinalize halfnote::cuda::cudnn().cudnnBackendFinalize
#define cudnnBackendGetAttribute halfnote::cuda::cudnn().cudnnBackendGetAttribute
#define cudnnBackendSetAttribute halfnote::cuda::cudnn().cudnnBackendSetAttribute
#define cudnnGetErrorString halfnote::cuda::cudnn().cudnnGetErrorString
#define cudnnGetLastErrorString halfnote::cuda::cudnn().cudnnGetLastErrorString
#define cudnnGetStream halfnote::cuda::cudnn().cudnnGetStream
#define cudnnGetVersion halfnote::cuda::cudnn().cudnnGetVersion
#define cudaGetDevice halfnote::cuda::current_device
#undef cudaGetDeviceProperties
#define cudaGetDeviceProperties halfnote::cuda::properties_of_device
#include <cudnn_frontend.h>

namespace halfnote::cuda {

namespace {

namespace frontend = cudnn_frontend;
using frontend::graph::Graph;
using frontend::graph::Tensor_attributes;
using libraries::Sdpa;
using libraries::SdpaOperands;
using libraries::SdpaProblem;
using libraries::SdpaTensor;
using Tensor = std::shared_ptr<Tensor_attributes>;

/// Before it the frontend fills a padding mask from memory of its own, which a captured graph would
/// read when it is gone.
constexpr size_t kLeastVersion = 91600;

enum Id : int64_t {
  kQ = 1,
  kK,
  kV,
  kY,
  kStatistics,
  kSlopeY,
  kSlopeQ,
  kSlopeK,
  kSlopeV,
  kBias,
  kSlopeBias,
  kKept
};

/// (batch, head, row, size) of consecutive elements.
SdpaTensor packed(const std::array<int64_t, 4>& dims) {
  return {dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}};
}

template <class Holder>
void describe(Holder& tensor, Id id, const SdpaTensor& t, frontend::DataType_t type) {
  tensor.set_uid(id)
      .set_dim({t.dims.begin(), t.dims.end()})
      .set_stride({t.strides.begin(), t.strides.end()})
      .set_data_type(type);
}

class GraphMaker {
 public:
  explicit GraphMaker(const SdpaProblem& problem)
      : p_(problem),
        type_(p_.dtype == DType::kF16 ? frontend::DataType_t::HALF
                                      : frontend::DataType_t::BFLOAT16) {
    graph_->set_io_data_type(type_)
        .set_intermediate_data_type(frontend::DataType_t::FLOAT)
        .set_compute_data_type(frontend::DataType_t::FLOAT);
  }

  std::shared_ptr<Graph> make() {
    if (p_.gradient) {
      make_gradient();
    } else {
      make_forward();
    }
    return graph_;
  }

 private:
  Tensor operand(Id id, const SdpaTensor& t) { return operand(id, t, type_); }
  Tensor operand(Id id, const SdpaTensor& t, frontend::DataType_t type) {
    Tensor_attributes attributes;
    describe(attributes, id, t, type);
    return graph_->tensor(attributes);
  }
  SdpaTensor statistics() const { return packed({p_.y.dims[0], p_.y.dims[1], p_.y.dims[2], 1}); }

  std::array<int64_t, 4> scores() const {
    return {p_.q.dims[0], p_.q.dims[1], p_.q.dims[2], p_.k.dims[2]};
  }

  /// What both have: scale, masks and terms.
  template <class Options>
  void set_scores(Options& options) {
    options.set_attn_scale(p_.scale);
    if (p_.causal) options.set_causal_mask(true);
    if (p_.has_bias())
      options.set_bias(operand(kBias, packed(p_.bias), frontend::DataType_t::FLOAT));
  }
  Tensor kept() { return operand(kKept, packed(scores())); }
  Tensor number(float value) { return graph_->tensor(value); }

  void make_forward() {
    frontend::graph::SDPA_attributes options;
    options.set_name("attention").set_generate_stats(p_.statistics);
    set_scores(options);
    if (p_.drops()) options.set_dropout(kept(), number(p_.kept));
    const auto made =
        graph_->sdpa(operand(kQ, p_.q), operand(kK, p_.k), operand(kV, p_.v), options);
    describe(made[0]->set_output(true), kY, p_.y, type_);
    if (p_.statistics)
      describe(made[1]->set_output(true), kStatistics, statistics(), frontend::DataType_t::FLOAT);
  }

  void make_gradient() {
    frontend::graph::SDPA_backward_attributes options;
    options.set_name("attention_gradient").set_deterministic_algorithm(true);
    set_scores(options);
    if (p_.drops()) options.set_dropout(kept(), number(p_.kept), number(1 / p_.kept));
    if (p_.bias_gradient) {
      options.set_dbias(operand(kSlopeBias, packed(scores())));
    }
    const auto made = graph_->sdpa_backward(
        operand(kQ, p_.q), operand(kK, p_.k), operand(kV, p_.v), operand(kY, p_.y),
        operand(kSlopeY, p_.y), operand(kStatistics, statistics(), frontend::DataType_t::FLOAT),
        options);
    describe(made[0]->set_output(true), kSlopeQ, p_.q, type_);
    describe(made[1]->set_output(true), kSlopeK, p_.k, type_);
    describe(made[2]->set_output(true), kSlopeV, p_.v, type_);
  }

  const SdpaProblem& p_;
  frontend::DataType_t type_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
};

/// The first line of what the frontend says.
std::string words_of(frontend::error_t error) {
  std::string text = error.get_message();
  const size_t line = text.find('\n');
  return "cuDNN: " + (line == std::string::npos ? text : text.substr(0, line));
}

/// Plans a graph as far as its kernels are compiled; says why where that fails.
std::string build(Graph& graph, cudnnHandle_t handle) {
  frontend::error_t error = graph.validate();
  if (error.is_good()) error = graph.build_operation_graph(handle);
  if (error.is_good()) error = graph.create_execution_plans({frontend::HeurMode_t::A});
  graph.deselect_workspace_greater_than(libraries::kSdpaMostWorkspace);
  if (error.is_good()) error = graph.check_support(handle);
  if (error.is_good()) error = graph.build_plans(handle);
  return error.is_good() ? std::string() : words_of(error);
}

size_t workspace_of(const Graph& graph) {
  int64_t bytes = 0;
  const frontend::error_t error = graph.get_workspace_size(bytes);
  if (error.is_bad()) throw Error(ErrorCode::kInternal, words_of(error));
  return static_cast<size_t>(bytes);
}

class PlannedSdpa final : public Sdpa {
 public:
  PlannedSdpa(cudnnHandle_t handle, SdpaProblem problem, std::shared_ptr<Graph> graph)
      : handle_(handle),
        problem_(problem),
        graph_(std::move(graph)),
        workspace_(workspace_of(*graph_)) {}

  size_t workspace_bytes() const override { return workspace_; }
  void run(Stream& stream, const SdpaOperands& o) const override {
    if (std::string why = libraries::illegal_operands(problem_, o, workspace_); !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal attention: " + why);
    const auto writable = [](const void* address) { return const_cast<void*>(address); };
    std::unordered_map<int64_t, void*> places = {
        {kQ, writable(o.q)}, {kK, writable(o.k)}, {kV, writable(o.v)}, {kY, o.y}};
    if (problem_.gradient || problem_.statistics) places[kStatistics] = o.statistics;
    if (problem_.has_bias()) places[kBias] = writable(o.bias);
    if (problem_.bias_gradient) places[kSlopeBias] = o.dbias;
    if (problem_.drops()) places[kKept] = writable(o.kept);
    if (problem_.gradient) {
      places[kSlopeY] = writable(o.dy);
      places[kSlopeQ] = o.dq;
      places[kSlopeK] = o.dk;
      places[kSlopeV] = o.dv;
    }
    check_dnn(cudnn().cudnnSetStream(handle_, native(stream)), "cudnnSetStream");
    const frontend::error_t error = graph_->execute(handle_, places, o.workspace);
    if (error.is_bad()) throw Error(ErrorCode::kInternal, words_of(error));
  }

 private:
  cudnnHandle_t handle_;
  SdpaProblem problem_;
  std::shared_ptr<Graph> graph_;
  size_t workspace_;
};

std::string too_old() {
  if (frontend::detail::get_backend_version() >= kLeastVersion) return {};
  return "attention wants cuDNN 9.16 or later";
}

}  // namespace

std::shared_ptr<const Sdpa> plan_attention(cudnnHandle_t handle, const SdpaProblem& problem,
                                           std::string& refusal) {
  refusal = libraries::illegal_attention(problem);
  if (refusal.empty()) refusal = too_old();
  if (!refusal.empty()) return nullptr;
  const std::shared_ptr<Graph> graph = GraphMaker(problem).make();
  refusal = build(*graph, handle);
  return refusal.empty() ? std::make_shared<PlannedSdpa>(handle, problem, graph) : nullptr;
}

PaperPlan plan_on_paper(const SdpaProblem& problem, const std::string& device) {
  PaperPlan made;
  made.refusal = libraries::illegal_attention(problem);
  if (made.refusal.empty()) made.refusal = too_old();
  if (!made.refusal.empty()) return made;
  constexpr std::string_view kKey = "\"deviceVer\":";
  const size_t at = device.find(kKey);
  if (at == std::string::npos) throw Error(ErrorCode::kUsage, "the device says no deviceVer");
  const PaperDevice on_paper = {std::stoi(device.substr(at + kKey.size())) / 10};
  const auto properties = std::make_shared<frontend::DeviceProperties>();
  const frontend::error_t error = properties->deserialize({device.begin(), device.end()});
  if (error.is_bad()) throw Error(ErrorCode::kUsage, words_of(error));
  const std::shared_ptr<Graph> graph = GraphMaker(problem).make();
  graph->set_device_properties(properties);
  graph->set_sm_version(on_paper.compute_capability);
  {
    paper = &on_paper;
    const std::shared_ptr<void> back(nullptr, [](void*) { paper = nullptr; });
    made.refusal = build(*graph, nullptr);
  }
  if (!made.refusal.empty()) return made;
  made.workspace_bytes = workspace_of(*graph);
  if (graph->get_plan_name(made.engine).is_bad()) made.engine = "unknown";
  return made;
}

}  // namespace halfnote::cuda
