// Reads a graph region by region: initializers and inputs first, then the nodes in topological
// order, each with its subgraphs before itself, then the outputs. Names are looked up from the
// innermost scope outwards.
#include "compiler/onnx/read/graph.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "compiler/ir/constant_form.h"
#include "compiler/onnx/metadata.h"
#include "compiler/onnx/proto/attribute.h"
#include "compiler/onnx/proto/failure.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/read/order.h"

namespace halfnote::proto {
namespace {

using TypeMap = std::unordered_map<std::string_view, const onnx::ValueInfoProto*>;

// Suggestions are for names that people write: comparing must not become the work of a hostile
// file.
constexpr size_t kMaxCompared = 200, kMaxCandidates = 10'000;

Error model_error(const std::string& what) { return Error(ErrorCode::kModel, what); }

class GraphReader {
 public:
  GraphReader(TensorSource& source, Graph& graph) : source_(source), graph_(graph) {}

  void read_main(const onnx::GraphProto& proto, const SharedInitializers& shared);
  void read_body(const onnx::FunctionProto& proto);

 private:
  struct Scope {
    RegionId region;
    std::unordered_map<std::string_view, ValueId> values;
    TypeMap types;
  };

  void note_main_names(const onnx::GraphProto& proto, const SharedInitializers& shared);
  RegionId read_region(const onnx::GraphProto& proto, RegionId parent);
  void open_scope(RegionId region) { scopes_.push_back({region, {}, {}}); }
  template <class ValueInfos>
  void note_types(const ValueInfos& infos);
  void read_inputs(const onnx::GraphProto& proto,
                   const std::unordered_set<std::string_view>& tensors);
  std::unordered_set<std::string_view> read_initializers(const onnx::GraphProto& proto);
  void add_initializer(const std::string& name, Tensor tensor);
  void read_nodes(NodeSpan nodes);
  void read_node(const onnx::NodeProto& proto);
  void read_outputs(const onnx::GraphProto& proto);
  Attributes read_attributes(const onnx::NodeProto& proto);
  void read_metadata(const onnx::NodeProto& proto, Node& node);
  void apply_type(ValueId value, const onnx::ValueInfoProto& info);
  void read_graph_metadata(const onnx::GraphProto& proto);
  ValueId noted_initializer(const std::string& name, std::string_view key) const;

  void define(std::string_view name, ValueId value);
  std::string place_of(ValueId id) const;
  void refuse_twice(NodeSpan nodes) const;
  std::vector<int> order_of(NodeSpan nodes) const;
  ValueId lookup(const std::string& name, const char* what) const;
  std::string free_name(const std::string& name);

  TensorSource& source_;
  Graph& graph_;
  std::vector<Scope> scopes_;
  std::unordered_set<std::string_view> main_names_;  // kept free for the main region
  bool in_function_ = false;
};

Error twice(std::string_view name, const std::string& first, const std::string& second) {
  return model_error("the name \"" + std::string(name) + "\" is defined twice")
      .expected("a name of its own for every value", first + " and " + second);
}

std::string result_of(const std::string& node) { return "a result of node \"" + node + "\""; }

std::string GraphReader::place_of(ValueId id) const {
  const Value& value = graph_.value(id);
  if (value.kind == ValueKind::kInitializer) return "an initializer";
  return value.producer.valid() ? result_of(graph_.label(value.producer)) : "a graph input";
}

void GraphReader::define(std::string_view name, ValueId value) {
  const auto [place, is_new] = scopes_.back().values.emplace(name, value);
  if (!is_new) throw twice(name, place_of(place->second), place_of(value));
}

/// What looks like a cycle may be a name that two values have.
void GraphReader::refuse_twice(NodeSpan nodes) const {
  std::unordered_map<std::string_view, std::string> places;
  for (const onnx::NodeProto* node : nodes) {
    for (const std::string& name : node->output()) {
      if (name.empty()) continue;
      const auto before = scopes_.back().values.find(name);
      const std::string here = result_of(display_name(*node));
      if (before != scopes_.back().values.end()) throw twice(name, place_of(before->second), here);
      const auto [other, is_new] = places.emplace(name, here);
      if (!is_new) throw twice(name, other->second, here);
    }
  }
}

ValueId GraphReader::lookup(const std::string& name, const char* what) const {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].values.find(name);
    if (found != scopes_[i].values.end()) return found->second;
  }
  std::vector<std::string_view> names;
  for (const auto& [key, value] : scopes_.back().values) {
    const size_t shorter = std::min(key.size(), name.size());
    const bool alike = name.size() <= kMaxCompared && key.size() + name.size() <= 2 * shorter + 3;
    if (alike && names.size() < kMaxCandidates) names.push_back(key);
  }
  std::sort(names.begin(), names.end());
  const std::string_view near = closest(name, names);
  throw model_error(std::string(what) + " \"" + name + "\" is not defined")
      .hint(near.empty() ? "no input, initializer or node before it has this name"
                         : "did you mean \"" + std::string(near) + "\"?");
}

/// The name itself in the main region; elsewhere one that neither exists nor is wanted by the main
/// region.
std::string GraphReader::free_name(const std::string& name) {
  if (scopes_.back().region == graph_.main() || name.empty()) return name;
  std::string candidate = graph_.unique_name(name);
  for (int i = 1; main_names_.contains(candidate) || graph_.find(candidate).valid(); ++i) {
    candidate = name + "_" + std::to_string(i);
  }
  return candidate;
}

void GraphReader::apply_type(ValueId id, const onnx::ValueInfoProto& info) {
  Value& value = graph_.value(id);
  try {
    ValueType type = read_type(info.type(), source_.limits);
    const bool keeps_own = value.kind == ValueKind::kInitializer || type.kind == TypeKind::kUnknown;
    if (!keeps_own) value.type = std::move(type);
  } catch (Error& error) {
    throw in_context(error, "value \"" + info.name() + "\"");
  }
  for (const auto& entry : info.metadata_props()) {
    if (entry.key() != kScalePowerKey) continue;
    const std::string& text = entry.value();
    const auto [end, code] =
        std::from_chars(text.data(), text.data() + text.size(), value.scale_power);
    if (code == std::errc{} && end == text.data() + text.size()) continue;
    throw model_error("bad scale power of value \"" + info.name() + "\": \"" + text + "\"");
  }
}

template <class ValueInfos>
void GraphReader::note_types(const ValueInfos& infos) {
  for (const auto& info : infos) scopes_.back().types.emplace(info.name(), &info);
}

void GraphReader::add_initializer(const std::string& name, Tensor tensor) {
  if (name.empty()) throw model_error("an initializer has no name");
  const ValueId id =
      graph_.add_initializer(scopes_.back().region, free_name(name), std::move(tensor));
  define(name, id);
  const auto declared = scopes_.back().types.find(name);
  if (declared != scopes_.back().types.end()) apply_type(id, *declared->second);
}

std::unordered_set<std::string_view> GraphReader::read_initializers(const onnx::GraphProto& proto) {
  std::unordered_set<std::string_view> names;
  const auto read = [&](const std::string& name, auto&& read_data) {
    Tensor tensor;
    try {
      tensor = read_data();
    } catch (Error& error) {
      throw in_context(error, "initializer \"" + name + "\"");
    }
    add_initializer(name, std::move(tensor));
    names.insert(name);
  };
  for (const auto& tensor : proto.initializer()) {
    read(tensor.name(), [&] { return read_tensor(tensor, source_); });
  }
  for (const auto& sparse : proto.sparse_initializer()) {
    read(sparse.values().name(), [&] { return read_sparse(sparse, source_); });
  }
  return names;
}

/// A declared type and an initializer of the same name must agree; an open dim fits every size.
void check_declaration(const onnx::ValueInfoProto& info, const Value& value,
                       const ImportLimits& limits) {
  const ValueType declared = read_type(info.type(), limits);
  if (declared.kind == TypeKind::kUnknown) return;
  bool fits = declared.is_tensor() && declared.dtype == value.type.dtype;
  if (fits && declared.shape) {
    fits = declared.shape->size() == value.type.shape->size();
    for (size_t i = 0; fits && i < declared.shape->size(); ++i) {
      const Dim& dim = (*declared.shape)[i];
      fits = !dim.known() || dim.value == (*value.type.shape)[i].value;
    }
  }
  if (fits) return;
  throw model_error("input \"" + info.name() + "\" and its initializer differ")
      .expected(to_string(declared), to_string(value.type));
}

void GraphReader::read_inputs(const onnx::GraphProto& proto,
                              const std::unordered_set<std::string_view>& tensors) {
  const RegionId region = scopes_.back().region;
  std::unordered_set<std::string_view> seen;
  for (const auto& input : proto.input()) {
    if (input.name().empty()) throw model_error("a graph input has no name");
    if (!seen.insert(input.name()).second) {
      throw model_error("graph input \"" + input.name() + "\" stands twice");
    }
    if (tensors.contains(
            input.name())) {  // a default value, as up to IR version 3 all initializers were
      if (region != graph_.main()) {
        throw model_error("input \"" + input.name() + "\" of a subgraph may not have a default");
      }
      check_declaration(input, graph_.value(lookup(input.name(), "input")), source_.limits);
      continue;
    }
    const ValueId id = graph_.add_input(region, free_name(input.name()), {});
    define(input.name(), id);
    apply_type(id, input);
  }
}

Attributes GraphReader::read_attributes(const onnx::NodeProto& proto) {
  const RegionId here = scopes_.back().region;
  Attributes attributes;
  for (const auto& attribute : proto.attribute()) {
    if (attribute.name().empty()) throw model_error("an attribute has no name");
    if (attributes.has(attribute.name())) {
      throw model_error("attribute \"" + attribute.name() + "\" stands twice");
    }
    if (!attribute.ref_attr_name().empty() && !in_function_) {
      throw model_error("attribute \"" + attribute.name() +
                        "\" refers to an attribute of a function")
          .expected("a value outside of functions", "@" + attribute.ref_attr_name());
    }
    attributes.set(attribute.name(),
                   read_attribute(attribute, source_, [&](const onnx::GraphProto& graph) {
                     return read_region(graph, here);
                   }));
  }
  return attributes;
}

void GraphReader::read_metadata(const onnx::NodeProto& proto, Node& node) {
  for (const auto& entry : proto.metadata_props()) {
    const std::string& value = entry.value();
    bool known = true;
    if (entry.key() == kRoleKey) {
      const auto role = role_from_name(value);
      if (role) node.role = *role;
      known = role.has_value();
    } else if (entry.key() == kPrecisionKey) {
      const auto dtype = dtype_from_name(value);
      if (dtype) node.precision.dtype = *dtype;
      known = dtype.has_value();
    } else if (entry.key() == kReasonKey) {
      node.precision.reason = value;
    } else if (entry.key() == kOriginKey) {
      node.origin = value;
    } else {
      node.metadata.emplace_back(entry.key(), value);
    }
    if (!known) {
      throw model_error("bad value of metadata \"" + entry.key() + "\"")
          .expected("a word that halfnote writes", "\"" + value + "\"");
    }
  }
}

void GraphReader::read_node(const onnx::NodeProto& proto) {
  if (proto.op_type().empty()) throw model_error("a node has no operator");
  NodeSpec spec;
  spec.op = proto.op_type();
  spec.domain = normalized_domain(proto.domain());
  spec.name = display_name(proto);
  for (const auto& input : proto.input()) {
    spec.inputs.push_back(input.empty() ? ValueId{} : lookup(input, "input"));
  }
  while (!spec.inputs.empty() && !spec.inputs.back().valid()) spec.inputs.pop_back();
  spec.attributes = read_attributes(proto);
  if (spec.op == "Constant" && spec.domain.empty()) normalize_constant(spec.attributes);
  const NodeId id = graph_.create(std::move(spec), {}, graph_.end(scopes_.back().region));
  graph_.node(id).overload = proto.overload();
  read_metadata(proto, graph_.node(id));
  for (int i = 0; i < proto.output_size(); ++i) {
    const std::string& name = proto.output(i);
    if (name.empty()) continue;
    const ValueId value = graph_.add_node_output(id, static_cast<size_t>(i), free_name(name));
    define(name, value);
    const auto declared = scopes_.back().types.find(name);
    if (declared != scopes_.back().types.end()) apply_type(value, *declared->second);
  }
}

std::vector<int> GraphReader::order_of(NodeSpan nodes) const {
  try {
    return topological_order(nodes);
  } catch (const Error&) {
    refuse_twice(nodes);
    throw;
  }
}

void GraphReader::read_nodes(NodeSpan nodes) {
  for (int index : order_of(nodes)) {
    const onnx::NodeProto& node = *nodes[static_cast<size_t>(index)];
    try {
      read_node(node);
    } catch (Error& error) {
      throw error.within({.node = display_name(node), .op = node.op_type()});
    }
  }
}

void GraphReader::read_outputs(const onnx::GraphProto& proto) {
  const RegionId region = scopes_.back().region;
  std::unordered_set<std::string_view> seen;
  for (const auto& output : proto.output()) {
    if (!seen.insert(output.name()).second && region == graph_.main()) {
      throw model_error("graph output \"" + output.name() + "\" stands twice");
    }
    graph_.add_output(region, lookup(output.name(), "graph output"));
  }
}

RegionId GraphReader::read_region(const onnx::GraphProto& proto, RegionId parent) {
  const RegionId region = graph_.add_region(parent);
  graph_.region_name(region) = proto.name();
  open_scope(region);
  note_types(proto.output());
  note_types(proto.value_info());
  read_inputs(proto, read_initializers(proto));
  read_nodes({proto.node().data(), static_cast<size_t>(proto.node_size())});
  read_outputs(proto);
  scopes_.pop_back();
  return region;
}

ValueId GraphReader::noted_initializer(const std::string& name, std::string_view key) const {
  const ValueId id = lookup(name, "initializer in the metadata");
  if (graph_.value(id).kind == ValueKind::kInitializer) return id;
  throw model_error("metadata \"" + std::string(key) + "\" names \"" + name + "\"")
      .expected("an initializer", "another value");
}

void GraphReader::read_graph_metadata(const onnx::GraphProto& proto) {
  for (const auto& entry : proto.metadata_props()) {
    const std::vector<std::string> words = split_names(entry.value());
    if (entry.key() == kTrainableKey) {
      for (const std::string& name : words) {
        graph_.value(noted_initializer(name, entry.key())).trainable = true;
      }
    }
    if (entry.key() != kStatesKey) continue;
    if (words.size() % 3 != 0) throw model_error("bad list of states in the metadata");
    for (size_t i = 0; i < words.size(); i += 3) {
      const auto kind = state_kind_from_name(words[i]);
      if (!kind) throw model_error("bad state kind \"" + words[i] + "\" in the metadata");
      const ValueId current = noted_initializer(words[i + 1], entry.key());
      if (graph_.state_of(current))
        throw model_error("state \"" + words[i + 1] + "\" stands twice");
      graph_.add_state(current, lookup(words[i + 2], "state"), *kind);
    }
  }
}

bool has_subgraphs(const onnx::GraphProto& proto) {
  return std::any_of(proto.node().begin(), proto.node().end(), [](const onnx::NodeProto& node) {
    return std::any_of(node.attribute().begin(), node.attribute().end(),
                       [](const auto& a) { return a.has_g() || a.graphs_size() > 0; });
  });
}

void GraphReader::note_main_names(const onnx::GraphProto& proto, const SharedInitializers& shared) {
  for (const auto& [name, tensor] : shared) main_names_.insert(name);
  for (const auto& input : proto.input()) main_names_.insert(input.name());
  for (const auto& tensor : proto.initializer()) main_names_.insert(tensor.name());
  for (const auto& tensor : proto.sparse_initializer()) main_names_.insert(tensor.values().name());
  for (const auto& node : proto.node())
    main_names_.insert(node.output().begin(), node.output().end());
}

void GraphReader::read_main(const onnx::GraphProto& proto, const SharedInitializers& shared) {
  graph_.name = proto.name();
  graph_.doc = proto.doc_string();
  if (has_subgraphs(proto)) note_main_names(proto, shared);

  open_scope(graph_.main());
  scopes_.back().values.reserve(static_cast<size_t>(proto.node_size() + proto.initializer_size()));
  scopes_.back().types.reserve(static_cast<size_t>(proto.value_info_size()));
  note_types(proto.output());
  note_types(proto.value_info());
  for (const auto& [name, tensor] : shared) add_initializer(name, tensor);
  read_inputs(proto, read_initializers(proto));
  read_nodes({proto.node().data(), static_cast<size_t>(proto.node_size())});
  read_outputs(proto);
  read_graph_metadata(proto);
}

void GraphReader::read_body(const onnx::FunctionProto& proto) {
  in_function_ = true;
  graph_.name = proto.name();
  graph_.doc = proto.doc_string();
  for (const auto& input : proto.input()) main_names_.insert(input);
  for (const auto& node : proto.node())
    main_names_.insert(node.output().begin(), node.output().end());
  open_scope(graph_.main());
  note_types(proto.value_info());
  for (const auto& input : proto.input()) {
    if (input.empty()) throw model_error("a function input has no name");
    const ValueId id = graph_.add_input(graph_.main(), input, {});
    define(input, id);
    const auto declared = scopes_.back().types.find(input);
    if (declared != scopes_.back().types.end()) apply_type(id, *declared->second);
  }
  read_nodes({proto.node().data(), static_cast<size_t>(proto.node_size())});
  for (const auto& output : proto.output()) {
    graph_.add_output(graph_.main(), lookup(output, "function output"));
  }
}

}  // namespace

std::string normalized_domain(const std::string& domain) {
  return domain == "ai.onnx" ? std::string() : domain;
}

void read_graph(const onnx::GraphProto& proto, TensorSource& source, Graph& graph,
                const SharedInitializers& shared) {
  GraphReader(source, graph).read_main(proto, shared);
}

Function read_function(const onnx::FunctionProto& proto, TensorSource& source) {
  Function function;
  function.domain = normalized_domain(proto.domain());
  function.name = proto.name();
  function.overload = proto.overload();
  function.attributes.assign(proto.attribute().begin(), proto.attribute().end());
  try {
    for (const auto& attribute : proto.attribute_proto()) {
      function.default_attributes.emplace_back(attribute.name(),
                                               read_attribute(attribute, source, {}));
    }
    for (const auto& opset : proto.opset_import()) {
      function.opsets[normalized_domain(opset.domain())] = opset.version();
    }
    GraphReader(source, function.body).read_body(proto);
  } catch (Error& error) {
    throw in_context(error, "function \"" + function.domain + "." + function.name + "\"");
  }
  return function;
}

}  // namespace halfnote::proto
