// What cuDNN has on an H200 and an A100, which are not there, for convolutions fused with the
// BatchNormalization and Relu around them. docs/developer.md says what follows. A finding that no
// longer holds means that a fusion has become worth building: it is no regression of ours.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device/cuda_cudnn.h"
#include "tests/cases/paper_gpus.h"

namespace halfnote::cuda {
namespace {

enum class Fusion : uint8_t {
  kStatistics,          // y = conv(x, w); Σ y and Σ y² of each channel
  kPrologue,            // y = conv(relu(x·scale + bias), w)
  kPrologueStatistics,  // both
  kWeightPrologue,      // dw of the second
  kNormGradient,        // d = dgrad(dy, w) where the normalized x is above 0; BatchNorm's sums of d
};

/// A convolution of channels last, square, padded by half its kernel.
struct Extents {
  int64_t batch, channels, size, filters, kernel, stride;
};

class Handle {
 public:
  explicit Handle(cudnnBackendDescriptorType_t type) {
    check_dnn(cudnn().cudnnBackendCreateDescriptor(type, &made_), "cudnnBackendCreateDescriptor");
  }
  Handle(Handle&& other) noexcept : made_(std::exchange(other.made_, nullptr)) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (made_ != nullptr) cudnn().cudnnBackendDestroyDescriptor(made_);
  }

  Handle& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
              const void* values) {
    check_dnn(cudnn().cudnnBackendSetAttribute(made_, name, type, count, values),
              "cudnnBackendSetAttribute");
    return *this;
  }
  template <class T>
  Handle& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    return set(name, type, 1, &value);
  }
  Handle& set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& numbers) {
    return set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(numbers.size()), numbers.data());
  }
  Handle& set(cudnnBackendAttributeName_t name, const Handle& other) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.made_);
  }
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
              void* values) const {
    int64_t count = 0;
    check_dnn(cudnn().cudnnBackendGetAttribute(made_, name, type, most, &count, values),
              "cudnnBackendGetAttribute");
    return count;
  }
  bool finish() { return cudnn().cudnnBackendFinalize(made_) == CUDNN_STATUS_SUCCESS; }
  cudnnBackendDescriptor_t get() const { return made_; }

 private:
  cudnnBackendDescriptor_t made_ = nullptr;
};

/// The operations of a fusion, in cuDNN's descriptors.
class GraphMaker {
 public:
  GraphMaker(const Extents& e, cudnnDataType_t type, cudnnDataType_t line)
      : e_(e), type_(type), line_(line) {}

  /// None where cuDNN does not take them for one graph.
  std::optional<Handle> make(Fusion fusion) {
    if (fusion == Fusion::kNormGradient) {
      add_norm_gradient();
    } else if (fusion == Fusion::kWeightPrologue) {
      const Handle x = activation();
      convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, x, filters(), of_y());
    } else {
      const Handle y = of_y();
      const Handle x = fusion == Fusion::kStatistics ? of_x(false, type_) : activation();
      convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, x, filters(), y);
      if (fusion != Fusion::kPrologue) add_statistics(y);
    }
    std::vector<cudnnBackendDescriptor_t> all;
    for (Handle& operation : operations_) {
      if (!operation.finish()) return std::nullopt;
      all.push_back(operation.get());
    }
    Handle graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              static_cast<int64_t>(all.size()), all.data());
    if (!graph.finish()) return std::nullopt;
    return graph;
  }

 private:
  Handle tensor(const std::array<int64_t, 4>& d, cudnnDataType_t type, bool is_virtual) {
    Handle made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, {d.begin(), d.end()})
        .set(CUDNN_ATTR_TENSOR_STRIDES, {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]})
        .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {++id_})
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16})
        .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
    EXPECT_TRUE(made.finish());
    return made;
  }
  Handle of_x(bool is_virtual, cudnnDataType_t type) {
    return tensor({e_.batch, e_.channels, e_.size, e_.size}, type, is_virtual);
  }
  Handle of_y() {
    const int64_t out = (e_.size - 1) / e_.stride + 1;
    return tensor({e_.batch, e_.filters, out, out}, type_, false);
  }
  Handle filters() { return tensor({e_.filters, e_.channels, e_.kernel, e_.kernel}, type_, false); }
  Handle channels(int64_t count, cudnnDataType_t type) {
    return tensor({1, count, 1, 1}, type, false);
  }

  /// Each operation has its attributes in one order: alpha, beta, convolution, w, x, y.
  void convolve(cudnnBackendDescriptorType_t type, cudnnBackendAttributeName_t alpha,
                const Handle& x, const Handle& w, const Handle& y) {
    Handle c(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const int64_t pad = e_.kernel / 2;
    c.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2})
        .set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION)
        .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {pad, pad})
        .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {pad, pad})
        .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1})
        .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {e_.stride, e_.stride});
    EXPECT_TRUE(c.finish());
    const auto name = [&](int place) {
      return static_cast<cudnnBackendAttributeName_t>(alpha + place);
    };
    static_assert(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y ==
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA + 5);
    static_assert(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY ==
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA + 5);
    static_assert(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY ==
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA + 5);
    operations_.emplace_back(type)
        .set(alpha, CUDNN_TYPE_FLOAT, 1.0f)
        .set(name(1), CUDNN_TYPE_FLOAT, 0.0f)
        .set(name(2), c)
        .set(name(3), w)
        .set(name(4), x)
        .set(name(5), y);
  }

  Handle& pointwise(cudnnPointwiseMode_t mode) {
    Handle what(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    what.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    EXPECT_TRUE(what.finish());
    Handle& made = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    return made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
  }
  Handle combined(cudnnPointwiseMode_t mode, const Handle& x, const Handle& b) {
    Handle y = of_x(true, CUDNN_DATA_FLOAT);
    pointwise(mode)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    return y;
  }
  /// relu(x·scale + bias).
  Handle activation() {
    const Handle scaled = combined(CUDNN_POINTWISE_MUL, of_x(false, type_), of_channels(line_));
    const Handle moved = combined(CUDNN_POINTWISE_ADD, scaled, of_channels(line_));
    Handle x = of_x(true, type_);
    pointwise(CUDNN_POINTWISE_RELU_FWD)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, moved)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, x);
    return x;
  }

  void add_statistics(const Handle& y) {
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y)
        .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums(e_.filters))
        .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, sums(e_.filters));
  }

  void add_norm_gradient() {
    const Handle dx = of_x(true, CUDNN_DATA_FLOAT), d = of_x(false, type_), x = of_x(false, type_);
    const Handle mean = sums(e_.channels), inv_std = sums(e_.channels), scale = sums(e_.channels);
    convolve(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, dx, filters(), of_y());
    const Handle centred = combined(CUDNN_POINTWISE_SUB, x, mean);
    const Handle normal = combined(CUDNN_POINTWISE_MUL, centred, inv_std);
    const Handle scaled = combined(CUDNN_POINTWISE_MUL, normal, scale);
    const Handle moved = combined(CUDNN_POINTWISE_ADD, scaled, sums(e_.channels));
    pointwise(CUDNN_POINTWISE_RELU_BWD)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dx)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, moved)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, d);
    operations_.emplace_back(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, inv_std)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, scale)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, d)
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, sums(e_.channels))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, sums(e_.channels))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, sums(e_.channels))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, sums(e_.channels))
        .set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, sums(e_.channels));
  }

  Handle of_channels(cudnnDataType_t type) { return channels(e_.channels, type); }
  Handle sums(int64_t count) { return channels(count, CUDNN_DATA_FLOAT); }

  Extents e_;
  cudnnDataType_t type_, line_;  // of x, w and y; of scale and bias
  std::vector<Handle> operations_;
  int64_t id_ = 0;
};

/// The first plan of what the heuristics propose.
struct Found {
  bool compiled = false;          // for the graph, as it is planned; else a kernel of the library
  bool nondeterministic = false;  // by cuDNN's own word
  int64_t workspace = 0;
};

Found facts_of(const Handle& proposal, const Handle& plan) {
  Found found;
  Handle engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t handle = engine.get();
  proposal.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  std::array<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT> behaviour{};
  const int64_t behaviours = engine.get(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                        CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, behaviour.data());
  for (int64_t i = 0; i < behaviours; ++i)
    found.compiled |= behaviour[static_cast<size_t>(i)] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> note{};
  const int64_t notes = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, note.data());
  for (int64_t i = 0; i < notes; ++i)
    found.nondeterministic |= note[static_cast<size_t>(i)] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &found.workspace);
  return found;
}

std::optional<Found> first_plan(const Handle& graph, const Handle& device,
                                cudnnBackendHeurMode_t mode) {
  Handle heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode)
      .set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (!heuristics.finish()) return std::nullopt;
  std::vector<Handle> proposals;
  std::array<cudnnBackendDescriptor_t, 32> handles{};
  for (cudnnBackendDescriptor_t& handle : handles)
    handle = proposals.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get();
  const int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<int64_t>(handles.size()), handles.data());
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    Handle plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device)
        .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, proposals[i]);
    if (plan.finish()) return facts_of(proposals[i], plan);
  }
  return std::nullopt;
}

struct Asked {
  Fusion fusion;
  cudnnDataType_t type, line;
};

std::optional<Found> planned(const test::PaperGpu& gpu, const Asked& asked, const Extents& e) {
  Handle device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<int64_t>(gpu.json.size()), gpu.json.data());
  if (!device.finish()) return std::nullopt;
  const std::optional<Handle> graph = GraphMaker(e, asked.type, asked.line).make(asked.fusion);
  if (!graph) return std::nullopt;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    if (auto found = first_plan(*graph, device, mode)) return found;
  }
  return std::nullopt;
}

const Extents kConvolutions[] = {
    {256, 64, 56, 256, 1, 1}, {256, 128, 56, 128, 3, 2}, {256, 256, 14, 256, 3, 1}};
using Fusions = test::Paper;

/// Calls `body` with the plan, if there is one, of each convolution on each GPU.
template <class Body>
void for_plans(const Asked& asked, const Body& body) {
  for (const test::PaperGpu& gpu : test::gpus()) {
    for (const Extents& e : kConvolutions) {
      SCOPED_TRACE(std::string(gpu.name) + ", kernel " + std::to_string(e.kernel) + ", filters " +
                   std::to_string(e.filters));
      body(planned(gpu, asked, e), e);
    }
  }
}

void expect_none(const Asked& asked) {
  for_plans(asked, [](const auto& found, const Extents&) { EXPECT_FALSE(found); });
}
/// A kernel that is compiled for the graph and has no room for partial sums.
void expect_compiled(const Asked& asked) {
  for_plans(asked, [](const auto& found, const Extents&) {
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->compiled);
    EXPECT_FALSE(found->nondeterministic);
    EXPECT_EQ(found->workspace, 0);
  });
}

/// Blocks of rows whose sums meet in no workspace meet by atomics, in any order, whatever the notes
/// of the engine say.
TEST_F(Fusions, StatisticsHavePartialSumsInF16Only) {
  for_plans({Fusion::kStatistics, CUDNN_DATA_HALF, CUDNN_DATA_FLOAT},
            [](const auto& found, const Extents& e) {
              ASSERT_TRUE(found);
              EXPECT_FALSE(found->compiled);
              EXPECT_GE(found->workspace, 2 * 4 * e.filters);
            });
  expect_compiled({Fusion::kStatistics, CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT});
}

/// The engines made for it take scale and bias in 16 bits, which normalization must not be in.
TEST_F(Fusions, ProloguesWantScaleAndBiasInF16) {
  for (const Fusion fusion : {Fusion::kPrologue, Fusion::kPrologueStatistics}) {
    for (const cudnnDataType_t type : {CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16})
      expect_compiled({fusion, type, CUDNN_DATA_FLOAT});
  }
  for_plans({Fusion::kPrologueStatistics, CUDNN_DATA_HALF, CUDNN_DATA_HALF},
            [](const auto& found, const Extents&) {
              ASSERT_TRUE(found);
              EXPECT_FALSE(found->compiled);
            });
}

/// Without it the activation is written for the gradient of the weight in any case.
TEST_F(Fusions, GradientsOfWeightsHaveNoPrologueInF32) {
  for (const cudnnDataType_t type : {CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16})
    expect_none({Fusion::kWeightPrologue, type, CUDNN_DATA_FLOAT});
  expect_none({Fusion::kWeightPrologue, CUDNN_DATA_BFLOAT16, CUDNN_DATA_BFLOAT16});
}

TEST_F(Fusions, GradientsOfNormsAreThereInF16Only) {
  expect_none({Fusion::kNormGradient, CUDNN_DATA_BFLOAT16, CUDNN_DATA_FLOAT});
  for_plans({Fusion::kNormGradient, CUDNN_DATA_HALF, CUDNN_DATA_FLOAT},
            [](const auto& found, const Extents& e) {
              ASSERT_TRUE(found);
              EXPECT_FALSE(found->compiled);
              EXPECT_GE(found->workspace, 2 * 4 * e.channels);
            });
}

}  // namespace
}  // namespace halfnote::cuda
