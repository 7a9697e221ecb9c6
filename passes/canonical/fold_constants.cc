// fold_constants: computes at compile time what does not depend on inputs, weights or states.
//
//   s = Shape(x)   n = Gather(s, 0)   t = Concat(n, -1)   y = Reshape(x, t)
//     ──▶   y = Reshape(x, {32, -1})
//
// Exact: the reference kernels run the node. Shape and Size fold as soon as the dims they read are
// numbers, EyeLike as soon as all are, NonZero and its like (their values decide the size) up to 64
// MiB. Leaves alone: random nodes, nodes with subgraphs, results above 16 MiB unless smaller than
// the operands, what goes over the bytes of a whole pass (fold_constants.h; folding must not blow
// up the artifact), ops without a reference kernel.
#include "passes/canonical/fold_constants.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr size_t kMaxFoldedBytes = size_t{16} << 20;

/// The tensors that a node reads, each counted once.
size_t bytes_of(std::span<const Tensor> tensors) {
  std::set<const std::byte*> counted;
  size_t sum = 0;
  for (const Tensor& tensor : tensors) {
    if (counted.insert(tensor.bytes()).second) sum += tensor.byte_size();
  }
  return sum;
}

/// What a result sized by values can take: NonZero gives an index for each axis of each element.
bool may_be_listed(std::span<const Tensor> operands) {
  size_t indices = 0;
  for (const Tensor& tensor : operands) {
    const size_t rank = std::max<size_t>(1, tensor.shape().size());
    indices += static_cast<size_t>(tensor.size()) * rank;
  }
  return indices <= Folder::kMostFolded / sizeof(int64_t);
}

}  // namespace

std::optional<Tensor> dims_of_type(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!node.domain.empty() || (node.op != "Shape" && node.op != "Size")) return std::nullopt;
  const ValueType& type = graph.value(graph.input(id, 0)).type;
  if (!type.shape) return std::nullopt;
  const auto rank = static_cast<int64_t>(type.shape->size());
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = node.op == "Size" ? 0 : clamp(node.attributes.get_int("start", 0));
  const int64_t end = node.op == "Size" ? rank : clamp(node.attributes.get_int("end", rank));
  std::vector<int64_t> dims;
  for (int64_t i = start; i < end; ++i) {
    if (!(*type.shape)[static_cast<size_t>(i)].known()) return std::nullopt;
    dims.push_back((*type.shape)[static_cast<size_t>(i)].value);
  }
  if (node.op == "Size") return Tensor::scalar<int64_t>(element_count(dims));
  return Tensor::of<int64_t>({static_cast<int64_t>(dims.size())}, dims);
}

Folder::Folder(Graph& graph, PassContext& context) : graph_(graph), context_(context) {
  size_t constants = 0;
  for (ValueId id : graph.initializers()) {
    const Tensor* tensor = graph.constant(id);
    if (tensor != nullptr) constants += tensor->byte_size();
  }
  left_ += std::min(constants, kMostOfConstants);
}

bool Folder::visit(NodeId node) {
  context_.infer(graph_, node);  // operands may have become constants
  return fold_shape(node) || fold_eye(node) || fold(node);
}

bool Folder::fold_shape(NodeId id) {
  std::optional<Tensor> dims = dims_of_type(graph_, id);
  if (!dims) return false;
  replace(id, {std::move(*dims)});
  return true;
}

/// EyeLike needs no more.
bool Folder::fold_eye(NodeId id) {
  const Node& node = graph_.node(id);
  if (!node.domain.empty() || node.op != "EyeLike" || !context_.evaluate) return false;
  const ValueType& type = graph_.value(graph_.input(id, 0)).type;
  if (!type.has_concrete_shape() || gives_a_body(id) || !stays_small(id, 0)) return false;
  replace(id, context_.evaluate(graph_, id, {Tensor(type.dtype, concrete(*type.shape))}));
  return true;
}

bool Folder::fold(NodeId id) {
  const Node& node = graph_.node(id);
  const OperatorRow* row = find_operator(node);
  if (row == nullptr || row->purity != Purity::kPure || !context_.evaluate) return false;
  if (!graph_.subgraphs(id).empty() || graph_.outputs(id).empty()) return false;
  if (gives_a_body(id)) return false;
  std::vector<Tensor> inputs;
  for (ValueId input : graph_.inputs(id)) {
    const Tensor* tensor = graph_.constant(input);
    if (input.valid() && tensor == nullptr) return false;
    inputs.push_back(tensor == nullptr ? Tensor{} : *tensor);
  }
  // What the values size is known once they are: nothing can be planned before.
  if (row->sized_by_values ? !may_be_listed(inputs) : !stays_small(id, bytes_of(inputs))) {
    return false;
  }
  try {
    replace(id, context_.evaluate(graph_, id, inputs));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnsupported) return false;  // no reference kernel: it stays
    throw of_the_model(error, id);
  }
  return true;
}

bool Folder::stays_small(NodeId id, size_t operand_bytes) const {
  const size_t limit = std::max(kMaxFoldedBytes, operand_bytes);
  size_t left = left_;
  for (ValueId output : graph_.outputs(id)) {
    if (!output.valid()) continue;
    const ValueType& type = graph_.value(output).type;
    if (!type.has_concrete_shape()) return false;
    const auto count = static_cast<size_t>(element_count(concrete(*type.shape)));
    const size_t bytes = count * std::max<size_t>(size_of(type.dtype), 1);
    if (bytes <= kSmallFolded) continue;
    if (bytes > limit || bytes > left) return false;
    left -= bytes;
  }
  return true;
}

/// What a kernel calls bad data stands in the model here.
Error Folder::of_the_model(const Error& error, NodeId id) const {
  const Node& node = graph_.node(id);
  const bool is_data = error.code() == ErrorCode::kData;
  Error told(is_data ? ErrorCode::kModel : error.code(), error.problem());
  told.at(error.place());
  told.within({.node = graph_.label(id), .op = node.op});
  return std::move(told).expected(error.expectation(), error.value()).hint(error.hint_text());
}

/// Is a result an output of a body? The constant would stand around the body, which has to make
/// what it gives.
bool Folder::gives_a_body(NodeId id) const {
  if (graph_.node(id).region == graph_.main()) return false;
  for (ValueId output : graph_.outputs(id)) {
    if (!output.valid()) continue;
    for (const Use& use : graph_.uses(output)) {
      if (use.kind == UseKind::kRegionOutput) return true;
    }
  }
  return false;
}

void Folder::replace(NodeId id, std::vector<Tensor> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const ValueId output = graph_.output(id, i);
    if (!output.valid() || !graph_.has_uses(output)) continue;
    const size_t bytes = values[i].byte_size();
    if (bytes > kSmallFolded) left_ -= std::min(left_, bytes);
    const std::string name = graph_.value(output).name;
    graph_.rename(output, graph_.unique_name(name + ".folded"));
    graph_.replace_uses(output, graph_.add_initializer(name, std::move(values[i])));
  }
  graph_.remove(id);
}

bool fold_constants(Graph& graph, PassContext& context) {
  Folder folder(graph, context);
  bool changed = false;
  for (NodeId node : graph.nodes()) {
    const std::vector<ValueType> before = types_within(graph, node);
    // A node that stays may know more of its results by now.
    changed |= folder.visit(node) || types_within(graph, node) != before;
  }
  return changed;
}

}  // namespace halfnote
