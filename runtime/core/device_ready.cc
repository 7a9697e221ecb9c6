#include "runtime/core/device_ready.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/system/environment.h"
#include "compiler/ir/model.h"
#include "compiler/ir/verify.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/fast/wide_product.h"
#include "kernels/cuda/libraries/rnn.h"
#include "kernels/cuda/libraries/sdpa.h"
#include "passes/canonical/expand_function.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/device/absorb_casts.h"
#include "passes/device/absorb_scatters.h"
#include "passes/device/attention/absorb_heads.h"
#include "passes/device/attention/fuse_attention.h"
#include "passes/device/attention/group_heads.h"
#include "passes/device/compute_late.h"
#include "passes/device/fuse_cross_entropy.h"
#include "passes/device/keep_padded_classes.h"
#include "passes/device/keep_reserve.h"
#include "passes/device/norms/fuse_line_norms.h"
#include "passes/device/norms/fuse_norms.h"
#include "passes/device/pointwise/absorb_sums.h"
#include "passes/device/pointwise/cast_before_views.h"
#include "passes/device/pointwise/expand_clips.h"
#include "passes/device/pointwise/expand_powers.h"
#include "passes/device/pointwise/fuse_pointwise.h"
#include "passes/device/pointwise/recompute_pointwise.h"
#include "passes/device/pools/keep_taps.h"
#include "passes/device/pools/pool_before_norm.h"
#include "passes/device/pools/pool_before_relu.h"
#include "passes/device/products/absorb_biases.h"
#include "passes/device/products/absorb_transposes.h"
#include "passes/device/products/add_strided.h"
#include "passes/device/products/fuse_epilogues.h"
#include "passes/device/products/gather_taps.h"
#include "passes/device/products/multiply_patches.h"
#include "passes/device/rematerialize.h"
#include "passes/device/round_conv_gradients.h"
#include "passes/device/update/check_early.h"
#include "passes/device/update/fold_factors.h"
#include "passes/manager.h"
#include "passes/padding/remove_padding.h"
#include "passes/passes.h"
#include "runtime/core/evaluate.h"

namespace halfnote {
namespace {

constexpr int kMaxExpansions = 8;  // bodies in bodies

void refuse_open_dims(const Graph& graph) {
  std::set<std::string> open;
  for (ValueId input : graph.inputs()) {
    const ValueType& type = graph.value(input).type;
    if (!type.shape) {
      throw Error(ErrorCode::kUnsupported,
                  "input \"" + graph.value(input).name + "\" has no known rank");
    }
    for (const Dim& dim : *type.shape) {
      if (!dim.known())
        open.insert(dim.symbol.empty() ? graph.value(input).name + " (unnamed)" : dim.symbol.str());
    }
  }
  if (open.empty()) return;
  std::string names;
  for (const std::string& name : open) names += (names.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kUnsupported, "dims are still symbolic: " + names)
      .hint("bind them with --dim NAME=N or --batch N");
}

bool bind_all_dims(Graph& graph, PassContext& context) {
  const bool changed = bind_dims(graph, context);
  refuse_open_dims(graph);
  return changed;
}

/// The types of the results change with the sizes, so they are inferred at once.
bool take_out_padding(Graph& graph, PassContext& context) {
  if (remove_padding(graph) == 0) return false;
  infer_shapes(graph, context);
  return true;
}

bool take_out_useless_padding(Graph& graph, PassContext& context) {
  const auto marked = [&](NodeId id) { return is_padding(graph.node(id)); };
  if (std::ranges::none_of(graph.nodes(), marked)) return false;
  // Sizes that the graph computes are folded for the decision alone: they change with the padding.
  Graph padded = graph, plain = graph;
  remove_padding(plain);
  for (Graph* sized : {&padded, &plain}) {
    infer_shapes(*sized, context);
    if (fold_constants(*sized, context)) infer_shapes(*sized, context);
  }
  if (remove_useless_padding(graph, padded, plain) == 0) return false;
  infer_shapes(graph, context);
  return true;
}

/// Who runs the pass alone may leave the question to the CPU's table.
bool has_kernels(const PassContext& context, const Node& node) {
  if (context.has_kernels) return context.has_kernels(node.domain, node.op);
  return !cpu_kernels().rows_of(node.domain, node.op).empty();
}

/// Nodes whose op has no kernel on the device but a function body become that body, until nothing
/// is left to expand.
bool expand_without_kernel(Graph& graph, PassContext& context) {
  bool changed = false;
  for (int depth = 0; depth < kMaxExpansions; ++depth) {
    bool expanded = false;
    for (NodeId node : graph.nodes()) {
      const Node& data = graph.node(node);
      if (has_kernels(context, data)) continue;
      if (data.domain == kHalfnoteDomain || !graph.subgraphs(node).empty()) continue;
      expanded |= expand_function(graph, node, kOpsetVersion);
    }
    if (!expanded) break;
    infer_graph(graph);
    changed = true;
  }
  return changed;
}

/// From how many scores a head on one node is better: measured on the gradient with its forward
/// (bench/attention.cc). Below, oneDNN's products and softmax are faster; from there on the fused
/// node is, or it takes less than a tenth longer and half of the memory or less. The rows of bf16
/// are for CPUs with fast dot products: there a whole step of a small BERT or ViT takes as long
/// either way at 144, one of GPT-2 or LLaMA is faster.
struct AttentionCost {
  DType dtype;
  bool causal;
  int64_t scores;
};

constexpr AttentionCost kAttentionCosts[] = {
    {DType::kBF16, true, 144 * 144}, {DType::kBF16, false, 144 * 144},
    {DType::kF16, true, 128 * 128},  {DType::kF16, false, 128 * 128},
    {DType::kF32, true, 128 * 128},  {DType::kF32, false, 128 * 128},
};

/// HALFNOTE_ATTENTION=always or never in the environment overrules what was measured.
std::optional<bool> wish_for_attention() {
  const std::string_view choice = word_of_environment("HALFNOTE_ATTENTION", {"always", "never"});
  if (choice == "always") return true;
  return choice == "never" ? std::optional(false) : std::nullopt;
}

bool attention_pays(const AttentionSize& size) {
  if (const auto wish = wish_for_attention()) return *wish;
  // Where bf16 is multiplied in f32, it is as fast as f16 on either way.
  const bool in_f32 = size.dtype == DType::kBF16 && !cpu::cpu_has_native_bf16();
  const DType dtype = in_f32 ? DType::kF16 : size.dtype;
  for (const AttentionCost& cost : kAttentionCosts) {
    if (cost.dtype == dtype && cost.causal == size.causal)
      return size.queries * size.keys >= cost.scores;
  }
  return false;  // f64 has only reference kernels
}

/// What cuDNN takes on sm_80 and sm_90. What it then refuses (a mask that hides little, cuDNN
/// before 9.16) our own kernel computes, which multiplies in f32.
bool library_takes(const AttentionSize& size) {
  using namespace libraries;
  constexpr int64_t kMostHeadOfGradient = 128;
  const int64_t scores = size.queries * size.keys;
  const int64_t most_head = size.has_gradient ? kMostHeadOfGradient : kSdpaMostHead;
  const bool in_memory = size.has_gradient || size.dropout;  // 16 bits for each score
  return size.key_size % kSdpaHeadStep == 0 && size.value_size % kSdpaHeadStep == 0 &&
         std::max(size.key_size, size.value_size) <= most_head && scores > 1 &&
         (!in_memory || size.batches <= kSdpaMostWorkspace / 2 / scores);
}

/// Measured within BERT and GPT-2 only (bench/results/2026-11-26-h200.md), not beside the products
/// and the softmax. 16-bit attention is cuDNN's, which multiplies by tensor cores: there is less
/// to launch, and the matrix of scores lies in memory for one layer at a time at most. By the
/// number of FMAs and bytes, our own kernel, which multiplies in f32, takes about the time of the
/// products of f32 and the softmax between them, and half of the memory; it would lose to 16-bit
/// products.
bool attention_pays_on_gpu(const AttentionSize& size) {
  constexpr int64_t kLeastScores = 256 * 256;
  constexpr size_t kMostTerms = 4;
  // What kernels/cuda/contraction/attention refuses.
  const int64_t most_head = size.dtype == DType::kF64 ? 128 : 256;
  if (std::max(size.key_size, size.value_size) > most_head || size.terms > kMostTerms) return false;
  if (const auto wish = wish_for_attention()) return *wish;
  if (is_16bit_float(size.dtype)) return library_takes(size);
  return size.dtype == DType::kF32 && size.queries * size.keys >= kLeastScores;
}

// A word that is none is an error whatever the model is.
bool fuse_attention_on_cpu(Graph& graph, PassContext& context) {
  wish_for_attention();
  return fuse_attention(graph, context, attention_pays);
}

bool fuse_attention_on_gpu(Graph& graph, PassContext& context) {
  wish_for_attention();
  return fuse_attention(graph, context, attention_pays_on_gpu);
}

std::string_view wish_for_recurrent() { return word_of_environment("HALFNOTE_RECURRENT", {"own"}); }

/// Room for what cuDNN keeps, in f32: in 16 bits it keeps gates and cells in 16 bits, which is less
/// than the operators promise. HALFNOTE_RECURRENT=own in the environment keeps gates, which our own
/// kernels compute.
int64_t reserve_on_gpu(const RecurrentSize& size) {
  if (wish_for_recurrent() == "own") return 0;
  if (size.dtype != DType::kF32 || !libraries::unfit_for_rnn(size.recurrence).empty()) return 0;
  libraries::RnnProblem problem = libraries::rnn_of(size.recurrence);
  problem.steps = size.steps;
  problem.batch = size.batch;
  problem.inputs = size.inputs;
  problem.hidden = size.hidden;
  return libraries::illegal_rnn(problem).empty() ? libraries::rnn_kept_bytes(problem) : 0;
}

bool keep_reserve_on_gpu(Graph& graph, PassContext& context) {
  wish_for_recurrent();  // a word that is none is an error whatever the model is
  return keep_reserve(graph, context, reserve_on_gpu);
}

static_assert(kSmallProduct == cpu::fast::kWideWork);

constexpr Stage kAny = Stage::kImported;
constexpr Scope kAll = Scope::kEveryGraph;

// name, graph pass, model pass, scope, needs, gives, enters subgraphs, reason, invalid is
constexpr PassRow kRows[] = {
    {"bind-all-dims", bind_all_dims, nullptr, kAll, kAny, kAny, true,
     "the data say what the artifact left open", ErrorCode::kModel},
    {"take-out-padding", take_out_padding, nullptr, kAll, kAny, kAny, false,
     "CPUs: without tensor cores nothing is gained by it", ErrorCode::kModel},
    {"take-out-useless-padding", take_out_useless_padding, nullptr, kAll, kAny, kAny, false,
     "GPUs: tensor cores want rows that begin at 16 bytes, and no number of them",
     ErrorCode::kModel},
    {"infer-sizes", infer_shapes, nullptr, kAll, kAny, kAny, true, "sizes follow from the inputs",
     ErrorCode::kModel},
    {"check-types", check_nodes, nullptr, kAll, kAny, kAny, true,
     "kernels rely on operands that fit, whatever the file says of its nodes"},
    {"fold-sizes", fold_constants, nullptr, kAll, kAny, kAny, false,
     "arithmetic on sizes has become constant"},
    {"take-branches", take_branches, nullptr, kAll, kAny, kAny, true,
     "where sizes decide a condition, the other branch need not fit them"},
    {"expand-without-kernel", expand_without_kernel, nullptr, kAll, kAny, kAny, true,
     "an operator without a kernel runs as its body"},
    {"fold-expanded", fold_constants, nullptr, kAll, kAny, kAny, false,
     "what is constant in these bodies goes"},
    {"multiply-patches", multiply_patches, nullptr, kAll, kAny, kAny, false,
     "GPUs: a convolution that cuts an image into patches is a product"},
    {"gather-taps", gather_taps, nullptr, kAll, kAny, kAny, false,
     "GPUs: tensor cores multiply channels, of which images have few"},
    {"simplify-sizes", canonicalize, nullptr, kAll, kAny, kAny, true,
     "views and broadcasts that turned out to change nothing"},
    {"absorb-transposes", absorb_transposes, nullptr, kAll, kAny, kAny, false,
     "a matrix product reads its operands either way round at the same speed"},
    {"merge-expanded", eliminate_common, nullptr, kAll, kAny, kAny, false,
     "what bodies and padding have made twice"},
    {"sweep-sizes", eliminate_dead, nullptr, kAll, kAny, kAny, true, "what the above replaced"},
    {"round-conv-gradients", round_conv_gradients, nullptr, kAll, kAny, kAny, false,
     "GPUs: tensor cores have no gradient of a convolution's 16-bit weight in f32"},
    {"add-strided", add_strided, nullptr, kAll, kAny, kAny, false,
     "GPUs: the gradient of a projection with a stride is 0 but at every few pixels"},
    {"keep-copies", nullptr, keep_copies, kAll, kAny, kAny, false,
     "weights are rounded to 16 bits where they are updated, not in every step"},
    {"fold-factors", fold_factors, nullptr, kAll, kAny, kAny, false,
     "gradients are unscaled and clipped by those who read them"},
    {"fuse-attention", fuse_attention_on_cpu, nullptr, kAll, kAny, kAny, false,
     "attention without the matrix of its probabilities"},
    {"group-heads", group_heads, nullptr, kAll, kAny, kAny, false,
     "GPUs: attention reads heads of K and V that a group of queries shares where they are"},
    {"absorb-heads", absorb_heads, nullptr, kAll, kAny, kAny, false,
     "attention reads and writes heads where linear layers have them"},
    {"fuse-cross-entropy", fuse_cross_entropy, nullptr, kAll, kAny, kAny, false,
     "loss and gradient read the scores once and write no probabilities"},
    {"keep-padded-classes", keep_padded_classes, nullptr, kAll, kAny, kAny, false,
     "GPUs: scores of padded classes and their gradient are not copied to other widths"},
    {"keep-reserve", keep_reserve_on_gpu, nullptr, kAll, kAny, kAny, false,
     "GPUs: a library keeps for the gradient of a recurrent op what it wants"},
    {"fuse-norms", fuse_norms, nullptr, kAll, kAny, kAny, false,
     "GPUs: a normalization writes what a sum and a Relu make of it, and its gradient reads so"},
    {"fuse-line-norms", fuse_line_norms, nullptr, kAll, kAny, kAny, false,
     "GPUs: a normalization adds the residual before it, its gradient those on either side"},
    {"pool-before-relu", nullptr, pool_before_relu, kAll, kAny, kAny, false,
     "a Relu behind a MaxPool has fewer elements"},
    {"keep-taps", keep_taps, nullptr, kAll, kAny, kAny, false,
     "GPUs: a MaxPool notes for its gradient where the maxima are, and is one with its Relu"},
    {"pool-before-norm", pool_before_norm, nullptr, kAll, kAny, kAny, false,
     "GPUs: a normalization behind a MaxPool has fewer elements"},
    {"expand-clips", expand_clips, nullptr, kAll, kAny, kAny, true,
     "a clip belongs to the chain of elementwise ops around it"},
    {"expand-powers", expand_powers, nullptr, kAll, kAny, kAny, true,
     "squares and cubes are products, which chains compute without a look at the exponent"},
    {"absorb-casts", absorb_casts, nullptr, kAll, kAny, kAny, false,
     "gradients of biases are summed from 16 bits without a pass over memory for a cast"},
    {"absorb-scatters", absorb_scatters, nullptr, kAll, kAny, kAny, false,
     "rows are added to a gradient, not to zeros and these to the gradient"},
    {"cast-before-views", cast_before_views, nullptr, kAll, kAny, kAny, false,
     "a cast belongs to the elementwise nodes that make its operand"},
    {"recompute-pointwise", recompute_pointwise, nullptr, kAll, kAny, kAny, false,
     "arithmetic in the first-level cache costs less than memory"},
    {"fuse-pointwise", fuse_pointwise, nullptr, kAll, kAny, kAny, false,
     "chains of elementwise ops read and write memory once"},
    {"absorb-biases", absorb_biases, nullptr, kAll, kAny, kAny, false,
     "a product adds its bias before it goes to memory"},
    {"absorb-biases-on-gpu", absorb_biases_on_gpu, nullptr, kAll, kAny, kAny, false,
     "the same, rounded to 16 bits behind the bias as in a Gemm"},
    {"absorb-sums", absorb_sums, nullptr, kAll, kAny, kAny, false,
     "the gradient of a bias is summed while what it sums is in the cache"},
    {"fuse-epilogues", fuse_epilogues, nullptr, kAll, kAny, kAny, false,
     "GPUs: products do what is around them, where that was measured to be faster"},
    {"program-large", program_large, nullptr, kAll, kAny, kAny, false,
     "GPUs: a large elementwise node that is left alone moves 16 bytes at once too"},
    {"compute-late", compute_late, nullptr, kAll, kAny, kAny, false,
     "what is not read yet takes no memory"},
    {"check-early", check_early, nullptr, kAll, kAny, kAny, false,
     "a gradient is judged while it is in the cache"},
    {"rematerialize", nullptr, rematerialize, kAll, kAny, kAny, false,
     "within a limit on memory, activations are computed again where the backward pass reads them"},
    {"update-early", update_early, nullptr, kAll, kAny, Stage::kDeviceReady, false,
     "a gradient goes as soon as its weight is updated"},
};

/// What suits a CPU and not a GPU: this has tensor cores, and fuses in other ways.
constexpr std::string_view kOnlyOnCpu[] = {"take-out-padding", "absorb-biases", "check-early"};
/// What a CPU has no need of.
constexpr std::string_view kOnlyOnGpu[] = {"take-out-useless-padding",
                                           "round-conv-gradients",
                                           "keep-padded-classes",
                                           "absorb-biases-on-gpu",
                                           "keep-reserve",
                                           "fuse-norms",
                                           "fuse-line-norms",
                                           "fuse-epilogues",
                                           "group-heads",
                                           "multiply-patches",
                                           "gather-taps",
                                           "program-large",
                                           "keep-taps",
                                           "pool-before-norm",
                                           "add-strided"};

std::vector<PassRow> rows_without(std::span<const std::string_view> names) {
  std::vector<PassRow> rows;
  for (const PassRow& row : kRows) {
    if (std::ranges::find(names, row.name) == names.end()) rows.push_back(row);
  }
  return rows;
}

}  // namespace

std::span<const PassRow> device_pipeline() { return kRows; }

std::span<const PassRow> device_pipeline(DeviceClass device) {
  static const std::vector<PassRow> cpu = rows_without(kOnlyOnGpu);
  static const std::vector<PassRow> gpu = [] {
    std::vector<PassRow> rows = rows_without(kOnlyOnCpu);
    for (PassRow& row : rows) {
      if (row.on_graph == fuse_attention_on_cpu) row.on_graph = fuse_attention_on_gpu;
    }
    return rows;
  }();
  return device == DeviceClass::kCpu ? cpu : gpu;
}

Graph make_device_ready(const Graph& graph, const std::map<std::string, int64_t>& dims,
                        const DeviceReadyOptions& options, std::vector<Remark>* remarks) {
  Model ready;
  ready.graph = graph;
  limit_activations(ready, options.activation_bytes, options.beside);
  name_copies(ready, options.copies);
  CompileOptions settings;
  settings.dims = dims;
  settings.dump_after = options.dump_after;
  settings.dump_folder = options.dump_folder;
  std::vector<Remark> own;
  const KernelTable& kernels = options.kernels ? *options.kernels : cpu_kernels();
  PassContext context{settings,
                      infer_node,
                      [](const Graph& g, NodeId n, const std::vector<Tensor>& inputs) {
                        return evaluate_node(g, n, inputs);
                      },
                      remarks ? *remarks : own,
                      {},
                      options.pays,
                      [&kernels](std::string_view domain, std::string_view op) {
                        return !kernels.rows_of(domain, op).empty();
                      }};
  run_pipeline(ready, context,
               device_pipeline(options.for_cpu ? DeviceClass::kCpu : DeviceClass::kGpu));
  verify(ready.graph);  // also if no pass changed it
  return std::move(ready.graph);
}

std::map<std::string, int64_t> dims_from_shapes(const Graph& graph, std::span<const Shape> shapes) {
  const auto inputs = graph.inputs();
  if (inputs.size() != shapes.size()) {
    throw Error(ErrorCode::kData, "wrong number of inputs")
        .expected(std::to_string(inputs.size()), std::to_string(shapes.size()));
  }
  std::map<std::string, int64_t> dims;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Value& value = graph.value(inputs[i]);
    const SymbolicShape formal = value.type.shape.value_or(symbolic(shapes[i]));
    bool fits = formal.size() == shapes[i].size();
    for (size_t d = 0; fits && d < formal.size(); ++d) {
      if (formal[d].known()) {
        fits = formal[d].is(shapes[i][d]);
      } else if (!formal[d].symbol.empty()) {
        fits = dims.emplace(formal[d].symbol, shapes[i][d]).first->second == shapes[i][d];
      }
    }
    if (fits) continue;
    throw Error(ErrorCode::kData, "input \"" + value.name + "\" does not fit the model")
        .expected(to_string(value.type), to_string(std::span<const int64_t>(shapes[i])));
  }
  return dims;
}

}  // namespace halfnote
