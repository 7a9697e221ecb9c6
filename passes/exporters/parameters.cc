// Where nothing is declared, the names of initializers are all there is:
//
//   PyTorch's older exporter   logit_scale, head.scale          constants: onnx::Mul_7, /Constant_2
//   tf2onnx                    model/scale/ReadVariableOp:0     constants: model/mul/y:0
//   others                     head.scale, beside head.weight   constants: anything
#include "passes/exporters/parameters.h"

#include <re2/re2.h>

#include <algorithm>

#include "compiler/ir/query.h"
#include "compiler/onnx/metadata.h"
#include "compiler/ops/operator.h"
#include "passes/exporters/module_names.h"

namespace halfnote {

namespace {

std::set<std::string> listed(const Model& model, std::string_view key) {
  const auto found = model.metadata.find(std::string(key));
  if (found == model.metadata.end()) return {};
  const std::vector<std::string> names = split_names(found->second);
  return {names.begin(), names.end()};
}

/// `scale`, `head.scale`, `layers.0.scale`.
bool is_module_path(const std::string& name) {
  static const RE2 kPath("[A-Za-z_]\\w*(\\.\\w+)*");
  return RE2::FullMatch(name, kPath) && !is_counted_name(name);
}

bool is_dotted_path(const std::string& name) {
  return name.find('.') != std::string::npos && is_module_path(name);
}

bool is_variable_of_tensorflow(const std::string& name) {
  static const RE2 kRead(".*/ReadVariableOp(_\\d+)?(:0)?");
  return RE2::FullMatch(name, kRead);
}

/// What a mask puts where it hides: such a scalar is a buffer, whatever it is called.
bool is_fill(const Graph& graph, ValueId id) {
  const auto uses = graph.uses(id);
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.by_node() && graph.node(use.node()).op == "Where";
  });
}

constexpr float kHides = -1e4f;  // and below: what a mask adds where it hides

/// Is it a table that meets other values only element by element? A matrix that starts as the
/// identity does not, and the bias of an LSTM, which starts with 0 and 1, is a row.
bool is_table_of_sums(const Graph& graph, ValueId id) {
  const Shape& shape = graph.value(id).tensor.shape();
  if (std::count_if(shape.begin(), shape.end(), [](int64_t n) { return n > 1; }) < 2) return false;
  const auto uses = graph.uses(id);
  return std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
    if (!use.by_node()) return false;
    const OperatorRow* row = find_operator(graph.node(use.node()));
    return row != nullptr && row->precision == PrecisionClass::kInfer;
  });
}

/// Is it a table for all heads alike that is added to the scores of attentions, and to nothing
/// else? A bias that is learned has its own numbers for each head.
bool is_term_of_scores(const Graph& graph, ValueId id) {
  const Shape& shape = graph.value(id).tensor.shape();
  if (shape.size() != 4 || shape[1] != 1) return false;
  const auto uses = graph.uses(id);
  return !uses.empty() && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
    if (!use.by_node() || graph.node(use.node()).op != "Add") return false;
    const ValueId scores = graph.output(use.node(), 0);
    const NodeId reader = only_reader(graph, scores);
    const std::optional<Shape> known = known_shape(graph, scores);
    return reader.valid() && graph.node(reader).op == "Softmax" && known && known->size() == 4 &&
           (*known)[1] > 1;
  });
}

/// What PyTorch's newer exporter calls a mask that it computed.
bool names_mask(const std::string& name) {
  static const RE2 kMask("(where|masked_fill)(_\\d+)?");
  return RE2::FullMatch(name, kMask);
}

}  // namespace

std::string counted(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  const char* more = names.size() > kMostNames ? ", …" : "";
  return text + more + " (" + std::to_string(names.size()) + " in all)";
}

bool is_newer_export(const Graph& graph) {
  for (NodeId id : graph.nodes()) {
    for (const auto& [key, value] : graph.node(id).metadata) {
      if (key == kScopesKey) return true;
    }
  }
  return false;
}

Declarations::Declarations(const Model& model)
    : graph_(model.graph),
      parameters_(listed(model, kParametersKey)),
      buffers_(listed(model, kBuffersKey)),
      constants_(listed(model, kConstantsKey)),
      lost_(listed(model, kLostKey)) {
  if (const auto found = model.metadata.find(std::string(kFoldedKey));
      found != model.metadata.end()) {
    const std::vector<std::string> names = split_names(found->second);
    for (size_t i = 0; i + 1 < names.size(); i += 2) sources_.emplace(names[i], names[i + 1]);
  }
  const bool newer = newer_exporter_ = is_newer_export(graph_);
  const bool torch = model.producer_name == "pytorch";
  stores_weights_ = newer || torch || model.producer_name == "tf2onnx";
  by_modules_ = torch && !newer;
  for (ValueId id : graph_.initializers()) {
    const Value& value = graph_.value(id);
    if (!is_float(value.type.dtype) || value.tensor.shape().empty()) continue;
    by_paths_ |= !newer && is_dotted_path(value.name);
  }
}

Declared Declarations::of(const std::string& name) const {
  if (parameters_.contains(name)) return Declared::kParameter;
  if (constants_.contains(name)) return Declared::kConstant;
  return buffers_.contains(name) ? Declared::kBuffer : Declared::kNothing;
}

std::string Declarations::sources_of(const std::string& name) const {
  const auto found = sources_.find(name);
  return found == sources_.end() ? std::string() : found->second;
}

bool Declarations::is_mask(ValueId table) const {
  const Value& value = graph_.value(table);
  if (value.type.dtype != DType::kF32 || value.tensor.shape().empty()) return false;
  const bool named = newer_exporter_ && names_mask(value.name);
  if (!named && !is_counted_name(value.name)) return false;
  bool hides = false, zero = false, one = false;
  for (const float x : value.tensor.data<float>()) {
    hides |= x <= kHides;
    zero |= x == 0;
    one |= x == 1;
    if (!(x <= kHides || x == 0 || x == 1)) return false;  // NaN is none of them
  }
  return hides || (zero && one && is_table_of_sums(graph_, table)) ||
         (zero && !one && is_term_of_scores(graph_, table));
}

bool Declarations::names_weight(ValueId scalar) const {
  const std::string& name = graph_.value(scalar).name;
  const bool named = (by_modules_ && is_module_path(name)) || (by_paths_ && is_dotted_path(name)) ||
                     is_variable_of_tensorflow(name);
  return !any() && named && !is_fill(graph_, scalar);
}

}  // namespace halfnote
