// The operands' side of the contracts: one function an operator, in a table. Open dims fit
// anything.
#include "compiler/ops/contract/operands.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "compiler/ops/contract/contract.h"

namespace halfnote {
namespace contract {

ValueId Operands::operand(size_t index) const {
  return index < graph.inputs(id).size() ? graph.input(id, index) : ValueId{};
}

const SymbolicShape* Operands::shape(size_t index) const {
  if (!operand(index).valid()) return nullptr;
  const auto& type = graph.value(operand(index)).type;
  return type.is_tensor() && type.shape ? &*type.shape : nullptr;
}

const Tensor* Operands::constant(size_t index) const {
  return operand(index).valid() ? graph.constant(operand(index)) : nullptr;
}

void refuse(const Operands& o, size_t index, const std::string& what, std::string expected,
            std::string got) {
  throw Error(ErrorCode::kModel, what + " \"" + o.name(index) + "\" does not fit")
      .expected(std::move(expected), std::move(got));
}

void check_shape(const Operands& o, size_t index, const char* what, const SymbolicShape& wanted) {
  const SymbolicShape* shape = o.shape(index);
  if (shape == nullptr) return;
  const auto same = [](const Dim& a, const Dim& b) { return fits(a, b); };
  if (std::equal(shape->begin(), shape->end(), wanted.begin(), wanted.end(), same)) return;
  refuse(o, index, what, "shape " + to_string(wanted), to_string(*shape));
}

bool may_be_one_element(const SymbolicShape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& dim) { return fits(dim, 1); });
}

void check_one_element(const Operands& o, size_t index, const char* what) {
  const SymbolicShape* shape = o.shape(index);
  if (shape == nullptr || may_be_one_element(*shape)) return;
  refuse(o, index, what, "one number", to_string(*shape));
}

Error out_of_range(const Operands& o, size_t index, const char* what) {
  return Error(ErrorCode::kModel,
               std::string(what) + " in \"" + o.name(index) + "\" is out of range");
}

void check_range(const Operands& o, size_t index, const char* what, int64_t least, int64_t most,
                 const std::string& of) {
  const Tensor* numbers = o.constant(index);
  if (numbers == nullptr) return;
  for (int64_t i = 0; i < numbers->size(); ++i) {
    const int64_t number = numbers->at_as_int(i);
    if (number >= least && number <= most) continue;
    throw out_of_range(o, index, what)
        .expected(std::to_string(least) + " to " + std::to_string(most) + of,
                  std::to_string(number));
  }
}

namespace {

/// Does `shape` broadcast to `target` without changing it?
bool broadcasts_to(const SymbolicShape& shape, const SymbolicShape& target, size_t rank) {
  if (shape.size() > rank) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    const Dim& dim = shape[shape.size() - 1 - i];
    const Dim& want = target[target.size() - 1 - i];
    if (dim.known() && want.known() && dim.value != 1 && dim.value != want.value) return false;
  }
  return true;
}

void check_broadcast(const Operands& o, size_t index, const char* what,
                     const SymbolicShape& target) {
  const SymbolicShape* shape = o.shape(index);
  if (shape == nullptr || broadcasts_to(*shape, target, target.size())) return;
  refuse(o, index, what, "a shape that broadcasts to " + to_string(target), to_string(*shape));
}

void check_conv(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *w = o.shape(1);
  if (x == nullptr || w == nullptr || x->size() < 3 || w->size() != x->size()) return;
  const int64_t group = o.node.attributes.get_int("group", 1);
  const bool transposed = o.node.op == "ConvTranspose";
  const Dim channels = (*x)[1], rows = (*w)[0], columns = (*w)[1];
  if (channels.known() && channels.value % group != 0) {
    throw Error(ErrorCode::kModel, "attribute \"group\" does not divide the channels")
        .expected("a divisor of " + std::to_string(channels.value), std::to_string(group));
  }
  if (!transposed && rows.known() && rows.value % group != 0) {
    throw Error(ErrorCode::kModel, "attribute \"group\" does not divide the output channels")
        .expected("a divisor of " + std::to_string(rows.value), std::to_string(group));
  }
  const int64_t wanted = transposed ? channels.value : channels.value / group;
  const Dim& given = transposed ? rows : columns;
  if (channels.known() && !fits(given, wanted)) {
    refuse(o, 1, "weight",
           std::to_string(wanted) + " channels" +
               (group == 1 || transposed ? ""
                                         : " (" + std::to_string(channels.value) + " in " +
                                               std::to_string(group) + " groups)"),
           to_string(*w));
  }
  const auto kernel = o.node.attributes.get_ints("kernel_shape");
  for (size_t i = 0; i < kernel.size() && kernel.size() + 2 == w->size(); ++i) {
    if (fits((*w)[i + 2], kernel[i])) continue;
    throw Error(ErrorCode::kModel, "attribute \"kernel_shape\" contradicts the weight")
        .expected("the last dims of " + to_string(*w), to_string(std::span(kernel)));
  }
  const Dim outputs = !transposed       ? rows
                      : columns.known() ? Dim(checked_mul(columns.value, group))
                                        : Dim();
  check_shape(o, 2, "bias", {outputs});
}

void check_gemm(const Operands& o) {
  const SymbolicShape *a = o.shape(0), *b = o.shape(1);
  if (a == nullptr || b == nullptr || a->size() != 2 || b->size() != 2) return;
  const bool left = o.node.attributes.get_int("transA", 0) != 0;
  const bool right = o.node.attributes.get_int("transB", 0) != 0;
  check_broadcast(o, 2, "C", {(*a)[left ? 1 : 0], (*b)[right ? 0 : 1]});
}

void check_prelu(const Operands& o) {
  if (const SymbolicShape* x = o.shape(0)) check_broadcast(o, 1, "slope", *x);
}

void check_layer_norm(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr) return;
  check_broadcast(o, 1, "scale", *x);
  check_broadcast(o, 2, "bias", *x);
}

/// Scale and bias a channel.
void check_channel_norm(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr || x->size() < 2) return;
  const int64_t groups = o.node.attributes.get_int("num_groups", 1);
  const Dim& channels = (*x)[1];
  if (channels.known() && channels.value % groups != 0) {
    throw Error(ErrorCode::kModel, "attribute \"num_groups\" does not divide the channels")
        .expected("a divisor of " + std::to_string(channels.value), std::to_string(groups));
  }
  check_shape(o, 1, "scale", {channels});
  check_shape(o, 2, "bias", {channels});
}

void check_reshape(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *vector = o.shape(1);
  if (vector != nullptr && vector->size() != 1) {
    refuse(o, 1, "shape", "rank 1", to_string(*vector));
  }
  const Tensor* target = o.constant(1);
  if (x == nullptr || target == nullptr || !is_concrete(*x)) return;
  const bool keeps_zero = o.node.attributes.get_int("allowzero", 0) == 0;
  int64_t product = 1;
  std::string text;
  for (int64_t i = 0; i < target->size(); ++i) {
    int64_t dim = target->at_as_int(i);
    if (dim == -1) return;  // inference looks at these
    if (dim == 0 && keeps_zero && i < static_cast<int64_t>(x->size())) {
      dim = (*x)[static_cast<size_t>(i)].value;
    }
    product = checked_mul(product, dim);
    text += (i == 0 ? "" : ",") + std::to_string(dim);
  }
  const int64_t count = element_count(concrete(*x));
  if (product == count) return;
  refuse(o, 1, "shape", std::to_string(count) + " elements, as " + to_string(*x) + " has",
         std::to_string(product) + " in [" + text + "]");
}

void check_depth_to_space(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr || x->size() != 4) return;
  const int64_t block = o.node.attributes.get_int("blocksize", 1);
  const bool from_depth = o.node.op == "DepthToSpace";
  const int64_t divisor = from_depth ? checked_mul(block, block) : block;
  for (size_t axis = from_depth ? 1 : 2; axis < (from_depth ? 2u : 4u); ++axis) {
    const Dim& dim = (*x)[axis];
    if (!dim.known() || dim.value % divisor == 0) continue;
    throw Error(ErrorCode::kModel, "attribute \"blocksize\" does not divide dim " +
                                       std::to_string(axis) + " of \"" + o.name(0) + "\"")
        .expected("a multiple of " + std::to_string(divisor), to_string(*x));
  }
}

/// A window that lies in padding alone has no largest element, and no mean.
void check_pool(const Operands& o) {
  const auto kernel = o.node.attributes.get_ints("kernel_shape");
  const auto pads = o.node.attributes.get_ints("pads");
  if (pads.size() != 2 * kernel.size()) return;
  const auto dilations = o.node.attributes.get_ints("dilations");
  for (size_t i = 0; i < pads.size(); ++i) {
    const size_t axis = i % kernel.size();
    const int64_t step = dilations.size() == kernel.size() ? dilations[axis] : 1;
    if (pads[i] <= checked_mul(kernel[axis] - 1, step)) continue;
    throw Error(ErrorCode::kModel, "attribute \"pads\" is not smaller than the window")
        .expected("less than " + to_string(std::span(kernel)), to_string(std::span(pads)));
  }
}

void check_split(const Operands& o) {
  const int64_t parts = o.node.attributes.get_int("num_outputs", -1);
  const auto results = static_cast<int64_t>(o.graph.outputs(o.id).size());
  if (parts < 0 || parts == results) return;
  throw Error(ErrorCode::kModel, "attribute \"num_outputs\" contradicts the node's outputs")
      .expected(std::to_string(results), std::to_string(parts));
}

/// The heads of Q and K have one size, K and V one length.
void check_attention(const Operands& o) {
  const SymbolicShape *q = o.shape(0), *k = o.shape(1), *v = o.shape(2);
  if (q == nullptr || k == nullptr || v == nullptr || q->size() != 4) return;
  if (k->size() != 4 || v->size() != 4) return;
  if ((*q)[3].known() && !fits((*k)[3], (*q)[3].value)) {
    refuse(o, 1, "K", "heads of size " + std::to_string((*q)[3].value), to_string(*k));
  }
  if ((*k)[2].known() && !fits((*v)[2], (*k)[2].value)) {
    refuse(o, 2, "V", "length " + std::to_string((*k)[2].value), to_string(*v));
  }
}

/// A divisor of the model that is 0: integers have no infinity to answer with.
void check_divisor(const Operands& o) {
  const Tensor* divisor = o.constant(1);
  if (divisor == nullptr || !is_integer(divisor->dtype())) return;
  for (int64_t i = 0; i < divisor->size(); ++i) {
    if (divisor->at_as_int(i) != 0) continue;
    throw Error(ErrorCode::kModel, "integer division by zero")
        .expected("divisors other than 0 in \"" + o.name(1) + "\"",
                  "0 at element " + std::to_string(i));
  }
}

void check_if(const Operands& o) { check_one_element(o, 0, "condition"); }

/// The body says with its first result whether another trip follows.
void check_loop(const Operands& o) {
  check_one_element(o, 0, "trip count");
  check_one_element(o, 1, "condition");
  for (RegionId body : o.graph.subgraphs(o.id)) {
    const auto results = o.graph.outputs(body);
    if (results.empty()) continue;
    const ValueType& go = o.graph.value(results.front()).type;
    if (!go.is_tensor() || go.dtype == DType::kUndefined || go.dtype == DType::kBool) continue;
    throw Error(ErrorCode::kModel, "the condition that the body of a Loop gives, \"" +
                                       o.graph.value(results.front()).name + "\", is no bool")
        .expected("bool", to_string(go));
  }
}

void check_clip(const Operands& o) {
  check_one_element(o, 1, "min");
  check_one_element(o, 2, "max");
}

void check_trilu(const Operands& o) { check_one_element(o, 1, "the diagonal"); }

/// No permutation of the axes of X: one is left out, or stands twice.
void check_transpose(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr || !o.node.attributes.has("perm")) return;
  const std::vector<int64_t> perm = o.node.attributes.get_ints("perm");
  std::vector<int64_t> sorted = perm, axes(x->size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(axes.begin(), axes.end(), 0);
  if (sorted == axes) return;
  throw Error(ErrorCode::kModel, "attribute \"perm\" is no permutation of the axes")
      .expected("each of " + to_string(std::span<const int64_t>(axes)) + " once, as \"" +
                    o.name(0) + "\" has shape " + to_string(*x),
                to_string(std::span<const int64_t>(perm)));
}

/// A share of what is dropped.
void check_dropout(const Operands& o) {
  const Tensor* ratio = o.constant(1);
  if (ratio == nullptr || ratio->size() != 1) return;
  const double share = ratio->at_as_double(0);
  if (share >= 0 && share <= 1) return;
  throw out_of_range(o, 1, "the ratio").expected("0 to 1", std::to_string(share));
}

/// How many axes operand 0 has at least, where inference does not say it.
struct Rank {
  std::string_view op;
  size_t least;
};

constexpr Rank kRanks[] = {
    {"CumSum", 1},       {"InstanceNormalization", 2},   {"GroupNormalization", 2},
    {"LRN", 2},          {"GlobalAveragePool", 2},       {"GlobalMaxPool", 2},
    {"GlobalLpPool", 2}, {"SoftmaxCrossEntropyLoss", 2},
};

void check_rank(const Operands& o, const Rank& rank) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr || x->size() >= rank.least) return;
  refuse(o, 0, "operand", "rank " + std::to_string(rank.least) + " or more", to_string(*x));
}

/// An operand that is a list of numbers; a list of one may be a scalar.
struct List {
  std::string_view op;
  size_t operand;
  const char* what;
};

constexpr List kLists[] = {
    {"ReduceL1", 1, "axes"},  {"ReduceL2", 1, "axes"},        {"ReduceLogSum", 1, "axes"},
    {"ReduceMax", 1, "axes"}, {"ReduceLogSumExp", 1, "axes"}, {"ReduceMean", 1, "axes"},
    {"ReduceMin", 1, "axes"}, {"ReduceProd", 1, "axes"},      {"ReduceSum", 1, "axes"},
    {"Slice", 1, "starts"},   {"Slice", 2, "ends"},           {"Slice", 3, "axes"},
    {"Slice", 4, "steps"},    {"Split", 1, "sizes"},          {"Squeeze", 1, "axes"},
    {"Unsqueeze", 1, "axes"}, {"ReduceSumSquare", 1, "axes"},
};

void check_list(const Operands& o, const List& list) {
  const SymbolicShape* shape = o.shape(list.operand);
  if (shape == nullptr || shape->size() <= 1) return;
  refuse(o, list.operand, list.what, "rank 1", to_string(*shape));
}

struct Row {
  std::string_view op;
  void (*check)(const Operands&);
};

constexpr Row kRows[] = {
    {"Conv", check_conv},
    {"ConvTranspose", check_conv},
    {"Gemm", check_gemm},
    {"PRelu", check_prelu},
    {"LayerNormalization", check_layer_norm},
    {"RMSNormalization", check_layer_norm},
    {"GroupNormalization", check_channel_norm},
    {"InstanceNormalization", check_channel_norm},
    {"Reshape", check_reshape},
    {"Gather", check_gather},
    {"GatherElements", check_gather_elements},
    {"GatherND", check_gather_nd},
    {"ScatterElements", check_scatter_elements},
    {"ScatterND", check_scatter_nd},
    {"MaxUnpool", check_max_unpool},
    {"CumSum", check_cum_sum},
    {"ReverseSequence", check_reverse_sequence},
    {"RoiAlign", check_roi_align},
    {"SoftmaxCrossEntropyLoss", check_labels},
    {"NegativeLogLikelihoodLoss", check_labels},
    {"RNN", check_recurrent},
    {"GRU", check_recurrent},
    {"LSTM", check_recurrent},
    {"DepthToSpace", check_depth_to_space},
    {"SpaceToDepth", check_depth_to_space},
    {"MaxPool", check_pool},
    {"AveragePool", check_pool},
    {"LpPool", check_pool},
    {"Split", check_split},
    {"Loop", check_loop},
    {"If", check_if},
    {"Transpose", check_transpose},
    {"Clip", check_clip},
    {"Trilu", check_trilu},
    {"Dropout", check_dropout},
    {"Pad", check_pad},
    {"DFT", check_dft},
    {"Resize", check_resize},
    {"QuantizeLinear", check_quantized},
    {"DequantizeLinear", check_quantized},
    {"Attention", check_attention},
    {"Div", check_divisor},
    {"Mod", check_divisor},
};

}  // namespace

void check_operands(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const Operands operands{graph, id, node};
  for (const Rank& rank : kRanks) {
    if (node.op == rank.op) check_rank(operands, rank);
  }
  for (const List& list : kLists) {
    if (node.op == list.op) check_list(operands, list);
  }
  for (const Row& row : kRows) {
    if (node.op == row.op) row.check(operands);
  }
}

}  // namespace contract

void check_known_mistakes(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool has_labels =
      node.op == "SoftmaxCrossEntropyLoss" || node.op == "NegativeLogLikelihoodLoss";
  if (!node.domain.empty() || !has_labels || graph.inputs(id).size() < 2) return;
  // PyTorch's cross entropy takes probabilities too; its exporters write them where ONNX has
  // labels.
  const ValueId labels = graph.input(id, 1);
  if (!labels.valid() || !is_float(graph.value(labels).type.dtype)) return;
  throw Error(ErrorCode::kModel,
              "the labels are class probabilities, which ONNX's op does not take")
      .expected("class numbers of type int64", to_string(graph.value(labels).type))
      .hint("write the loss as -(p * log_softmax(x, 1)).sum(1).mean() and export again");
}

void check_contract(const Graph& graph, NodeId node) {
  if (!graph.node(node).domain.empty()) return;
  contract::check_attributes(graph, node);
  contract::check_operands(graph, node);
}

}  // namespace halfnote
