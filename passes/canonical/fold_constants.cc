// fold_constants: computes at compile time what does not depend on inputs, weights or states.
//
//   s = Shape(x)   n = Gather(s, 0)   t = Concat(n, -1)   y = Reshape(x, t)
//     ──▶   y = Reshape(x, {32, -1})
//
// Exact: the reference kernels run the node; who reads a constant through an Identity reads that.
// Shape and Size fold as soon as the dims they read are numbers, and what is only moved out of a
// Shape (Gather, Slice, Concat, Cast, …) as soon as the dims in the result are: other dims may stay
// open. EyeLike as soon as all are, NonZero and its like (their values decide the size) up to 64
// MiB. Leaves alone: parameters that the settings freeze, random nodes, nodes with subgraphs,
// results above 16 MiB unless smaller than the operands, what goes over the bytes of a whole pass
// (fold_constants.h; folding must not blow up the artifact, which casts to fewer bits do not), ops
// without a reference kernel.
#include "passes/canonical/fold_constants.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "compiler/ir/query.h"
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

/// The dims that a Shape or Size reads; nothing for other nodes, and where the rank is unknown.
std::optional<SymbolicShape> dims_read(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool is_size = is_op(node, "Size");
  if (!is_size && !is_op(node, "Shape")) return std::nullopt;
  const ValueType& type = graph.value(graph.input(id, 0)).type;
  if (!type.shape) return std::nullopt;
  const auto rank = static_cast<int64_t>(type.shape->size());
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  const int64_t start = is_size ? 0 : clamp(node.attributes.get_int("start", 0));
  const int64_t end = is_size ? rank : clamp(node.attributes.get_int("end", rank));
  SymbolicShape dims;
  for (int64_t i = start; i < end; ++i) dims.push_back((*type.shape)[static_cast<size_t>(i)]);
  return dims;
}

Tensor list_of(const std::vector<int64_t>& dims) {
  return Tensor::of<int64_t>({static_cast<int64_t>(dims.size())}, dims);
}

/// Does the op only move or select elements of input `slot`, so that what stands for one of them
/// comes out unchanged or not at all? Linear in it, and clear: it computes nothing.
bool only_moves(const OperatorRow& row, size_t slot) {
  if (row.precision != PrecisionClass::kClear || row.purity != Purity::kPure) return false;
  const auto has = [&](uint32_t mask) { return slot < 32 && (mask >> slot & 1u) != 0; };
  if (has(row.size_inputs | row.plan_inputs | row.place_inputs)) return false;
  return row.scale == ScaleRule::kSame ||
         (row.scale == ScaleRule::kFirst && has(row.linear_inputs));
}

/// Types that hold the numbers that stand for open dims, all different.
bool holds_dims(DType dtype) {
  return dtype == DType::kI64 || dtype == DType::kI32 || dtype == DType::kF32;
}
constexpr int64_t kOneNumber = 1'000'003, kOtherNumber = 3'000'017, kMostSymbols = 1'000'000;

}  // namespace

std::optional<Tensor> dims_of_type(const Graph& graph, NodeId id) {
  const std::optional<SymbolicShape> dims = dims_read(graph, id);
  if (!dims || !is_concrete(*dims)) return std::nullopt;
  const Shape numbers = concrete(*dims);
  if (is_op(graph.node(id), "Size")) return Tensor::scalar<int64_t>(element_count(numbers));
  return list_of(numbers);
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
  if (fold_shape(node)) return true;
  if (list_open_dims(node)) return false;
  return fold_eye(node) || fold(node) || fold_movement(node);
}

bool Folder::fold_shape(NodeId id) {
  std::optional<Tensor> dims = dims_of_type(graph_, id);
  if (!dims) return false;
  replace(id, {std::move(*dims)});
  return true;
}

/// Notes what a Shape gives in which dims are open.
bool Folder::list_open_dims(NodeId id) {
  if (!is_op(graph_.node(id), "Shape")) return false;
  const std::optional<SymbolicShape> dims = dims_read(graph_, id);
  if (!dims) return false;
  std::vector<int64_t> one, other;
  for (const Dim& dim : *dims) {
    const auto fresh = static_cast<int64_t>(symbols_.size());
    if (fresh == kMostSymbols) return false;
    const std::string name = dim.symbol.empty() ? "?" + std::to_string(fresh) : dim.symbol.str();
    const int64_t symbol = dim.known() ? 0 : symbols_.emplace(name, fresh).first->second;
    one.push_back(dim.known() ? dim.value : kOneNumber + symbol);
    other.push_back(dim.known() ? dim.value : kOtherNumber + symbol);
  }
  partly_[graph_.output(id)] = {list_of(one), list_of(other)};
  return true;
}

/// A node that moves what is partly known: computed twice, with either set of numbers.
bool Folder::fold_movement(NodeId id) {
  const OperatorRow* row = find_operator(graph_.node(id));
  if (row == nullptr || partly_.empty() || !context_.evaluate || gives_a_body(id)) return false;
  std::vector<Tensor> one, other;
  bool any = false;
  for (size_t i = 0; i < graph_.inputs(id).size(); ++i) {
    const ValueId input = graph_.input(id, i);
    const auto known = input.valid() ? partly_.find(input) : partly_.end();
    const Tensor* constant = input.valid() ? graph_.constant(input) : nullptr;
    const bool moved = known != partly_.end() && only_moves(*row, i);
    if (input.valid() && constant == nullptr && !moved) return false;
    one.push_back(moved ? known->second.one : constant != nullptr ? *constant : Tensor{});
    other.push_back(moved ? known->second.other : one.back());
    any |= moved;
  }
  for (ValueId output : graph_.outputs(id)) {
    if (!output.valid()) continue;
    const ValueType& type = graph_.value(output).type;
    if (!holds_dims(type.dtype) || !type.has_concrete_shape()) return false;
    const auto count = static_cast<size_t>(element_count(concrete(*type.shape)));
    if (count > kSmallFolded / sizeof(int64_t)) return false;
  }
  if (!any || !graph_.subgraphs(id).empty()) return false;
  try {
    return keep_known(id, context_.evaluate(graph_, id, one), context_.evaluate(graph_, id, other));
  } catch (const Error&) {
    return false;  // it is refused where it stands, with the numbers that come
  }
}

/// Results that are known become constants, the others are noted; says whether any was known.
bool Folder::keep_known(NodeId id, std::vector<Tensor> one, std::vector<Tensor> other) {
  bool all = true, any = false;
  for (size_t i = 0; i < one.size(); ++i) {
    const ValueId output = graph_.output(id, i);
    if (!output.valid()) continue;
    const bool known = identical(one[i], other[i]);
    all &= known;
    if (known && graph_.has_uses(output)) {
      replace(output, std::move(one[i]), true);
      any = true;
    } else if (!known) {
      partly_[output] = {std::move(one[i]), std::move(other[i])};
    }
  }
  if (all) graph_.remove(id);
  return any || all;
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
  if (gives_a_body(id) || gives_a_state(id)) return false;
  if (pass_through(id)) return true;
  std::vector<Tensor> inputs;
  for (ValueId input : graph_.inputs(id)) {
    const Tensor* tensor = graph_.constant(input);
    if (input.valid() && (tensor == nullptr || graph_.value(input).frozen)) return false;
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

/// Another name of a constant is no other constant: a running statistic that both calls of a module
/// read is one.
bool Folder::pass_through(NodeId id) {
  if (!is_op(graph_.node(id), "Identity")) return false;
  const ValueId from = graph_.input(id, 0), to = graph_.output(id);
  const bool is_result =
      std::ranges::any_of(graph_.uses(to), [](const Use& use) { return !use.by_node(); });
  if (graph_.constant(from) == nullptr || is_result) return false;
  graph_.replace_uses(to, from);
  graph_.remove(id);
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
    const bool shrinks = bytes < operand_bytes && is_op(graph_.node(id), "Cast");
    if (bytes <= kSmallFolded || shrinks) continue;
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

/// The zeros that a sum begins anew with would stand in the file.
bool Folder::gives_a_state(NodeId id) const {
  return std::ranges::any_of(graph_.outputs(id), [&](ValueId output) {
    return output.valid() && std::ranges::any_of(graph_.uses(output), [](const Use& use) {
             return use.kind == UseKind::kStateNext;
           });
  });
}

/// Of what only passes made comes no parameter.
bool Folder::reads_only_made(NodeId id) const {
  const auto inputs = graph_.inputs(id);
  return !inputs.empty() && std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) {
    return !input.valid() || graph_.value(input).made;
  });
}

void Folder::replace(NodeId id, std::vector<Tensor> values) {
  const bool made = reads_only_made(id);
  for (size_t i = 0; i < values.size(); ++i) {
    const ValueId output = graph_.output(id, i);
    if (output.valid() && graph_.has_uses(output)) replace(output, std::move(values[i]), made);
  }
  graph_.remove(id);
}

void Folder::replace(ValueId output, Tensor value, bool made) {
  const size_t bytes = value.byte_size();
  if (bytes > kSmallFolded) left_ -= std::min(left_, bytes);
  const std::string name = graph_.value(output).name;
  graph_.rename(output, graph_.unique_name(name + ".folded"));
  const ValueId folded = graph_.add_initializer(name, std::move(value));
  graph_.value(folded).made = made;
  graph_.replace_uses(output, folded);
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
