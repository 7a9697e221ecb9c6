// Writes a graph region by region, in the order of the graph, so that reading it back gives the
// same order.
#include "compiler/onnx/write/graph.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cassert>

#include "base/error.h"
#include "compiler/onnx/metadata.h"
#include "compiler/onnx/proto/attribute.h"
#include "compiler/onnx/proto/tensor.h"
#include "compiler/onnx/proto/type.h"

namespace halfnote::proto {
namespace {

constexpr size_t kDenseState = 4096;  // bytes: smaller states are written out, for readers

template <class Message>
void add_entry(Message& to, std::string_view key, std::string_view value) {
  auto* entry = to.add_metadata_props();
  entry->set_key(std::string(key));
  entry->set_value(std::string(value));
}

/// A node that becomes a message: in subgraphs and functions, and for the checker.
class NodeMessage {
 public:
  explicit NodeMessage(onnx::NodeProto& to) : to_(to) {}
  void input(const std::string& name) { to_.add_input(name); }
  void output(const std::string& name) { to_.add_output(name); }
  void name(const std::string& name) { to_.set_name(name); }
  void op_type(const std::string& op) { to_.set_op_type(op); }
  template <class Write>
  void attribute(Write&& write) {
    write(*to_.add_attribute());
  }
  void domain(const std::string& domain) { to_.set_domain(domain); }
  void overload(const std::string& overload) { to_.set_overload(overload); }
  void entry(std::string_view key, std::string_view value) { add_entry(to_, key, value); }

 private:
  onnx::NodeProto& to_;
};

class GraphWriter {
 public:
  GraphWriter(const Graph& graph, const Naming& naming, TensorSink& sink)
      : graph_(graph), naming_(naming), sink_(sink), initializers_(graph.region_count()) {
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      const Value& value = graph.value(ValueId{i});
      if (value.alive && value.kind == ValueKind::kInitializer) {
        initializers_[value.region.index].push_back(ValueId{i});
      }
    }
  }

  void write_region(RegionId region, onnx::GraphProto& to,
                    std::span<const ValueId> more_outputs = {}, GraphText* text = nullptr);
  void write_excerpt(std::span<const NodeId> nodes, const std::function<bool(ValueId)>& with_data,
                     onnx::GraphProto& to);
  void write_node(NodeId id, onnx::NodeProto& to) { describe_node(id, NodeMessage(to)); }
  void write_value(ValueId id, onnx::ValueInfoProto& to);
  void write_trainable(onnx::GraphProto& to);
  void write_constant(ValueId id, onnx::NodeProto& to);
  bool has_info(ValueId id) const;
  const std::string& name(ValueId id) const { return naming_.of(graph_, id); }

 private:
  bool is_fresh_state(ValueId id) const;
  /// `to`: a NodeMessage or a NodeText.
  template <class To>
  void describe_node(NodeId id, To to);
  template <class To>
  void describe_metadata(const Node& node, To& to);
  void write_nodes(GraphText& text, const std::unordered_set<ValueId>& outputs);
  void append_value(ValueId id, std::string& bytes) const;
  void write_output(ValueId id, onnx::GraphProto& to, GraphText* text);
  void write_initializers(RegionId region, onnx::GraphProto& to, GraphText* text);
  WriteTensor tensor_writer() {
    return
        [this](const Tensor& tensor, onnx::TensorProto& proto) { sink_.write(tensor, "", proto); };
  }
  WriteRegion region_writer() {
    return [this](RegionId region, onnx::GraphProto& proto) { write_region(region, proto); };
  }

  const Graph& graph_;
  const Naming& naming_;
  TensorSink& sink_;
  std::vector<std::vector<ValueId>> initializers_;  // by region
};

void GraphWriter::write_value(ValueId id, onnx::ValueInfoProto& to) {
  const Value& value = graph_.value(id);
  to.set_name(name(id));
  if (value.type.kind != TypeKind::kUnknown) write_type(value.type, *to.mutable_type());
  if (value.scale_power != 0) add_entry(to, kScalePowerKey, std::to_string(value.scale_power));
}

/// Is there anything to say about a value besides its name?
bool GraphWriter::has_info(ValueId id) const {
  const Value& value = graph_.value(id);
  return value.type.kind != TypeKind::kUnknown || value.scale_power != 0;
}

template <class To>
void GraphWriter::describe_metadata(const Node& node, To& to) {
  for (const auto& [key, value] : node.metadata) to.entry(key, value);
  if (node.role != Role::kForward) to.entry(kRoleKey, role_name(node.role));
  if (node.precision.dtype != DType::kUndefined) {
    to.entry(kPrecisionKey, short_name(node.precision.dtype));
  }
  if (!node.precision.reason.empty()) to.entry(kReasonKey, node.precision.reason);
  if (!node.origin.empty()) to.entry(kOriginKey, node.origin);
}

template <class To>
void GraphWriter::describe_node(NodeId id, To to) {
  static const std::string kAbsent;
  const Node& node = graph_.node(id);
  for (ValueId input : graph_.inputs(id)) to.input(input.valid() ? name(input) : kAbsent);
  for (ValueId output : graph_.outputs(id)) to.output(output.valid() ? name(output) : kAbsent);
  to.name(graph_.label(id));  // as import names it
  to.op_type(node.op);
  for (const auto& entry : node.attributes) {
    to.attribute([&](onnx::AttributeProto& proto) {
      write_attribute(entry.first, entry.second, tensor_writer(), region_writer(), proto);
    });
  }
  if (!node.domain.empty()) to.domain(node.domain);
  if (!node.overload.empty()) to.overload(node.overload);
  if (!sink_.is_check()) describe_metadata(node, to);
}

void GraphWriter::write_constant(ValueId id, onnx::NodeProto& to) {
  to.add_output(name(id));
  to.set_op_type("Constant");
  to.set_name(name(id));
  write_attribute("value", graph_.value(id).tensor, tensor_writer(), region_writer(),
                  *to.add_attribute());
}

/// Is this a state that begins with zeros (moments, accumulators), and not a small one?
bool GraphWriter::is_fresh_state(ValueId id) const {
  const Tensor& tensor = graph_.value(id).tensor;
  return tensor.byte_size() >= kDenseState && graph_.state_of(id) && all_zero(tensor);
}

void GraphWriter::write_initializers(RegionId region, onnx::GraphProto& to, GraphText* text) {
  onnx::TensorProto proto;
  std::string bytes;
  const bool main = region == graph_.main();
  for (ValueId id : initializers_[region.index]) {
    const Value& value = graph_.value(id);
    if (value.scale_power != 0) write_value(id, *to.add_value_info());
    if (naming_.shared.contains(id)) continue;
    if (main && !sink_.is_check() && is_fresh_state(id)) {
      write_sparse_zeros(value.tensor, name(id), *to.add_sparse_initializer());
      continue;
    }
    if (text != nullptr) {
      proto.Clear();
      [[maybe_unused]] const bool written = sink_.write_initializer(value.tensor, name(id), proto);
      assert(written);  // only the checker's sink leaves one out, and it wants a message
      bytes.clear();
      append_content(bytes, proto);
      text->add_initializer(bytes);
      continue;
    }
    auto* tensor = to.add_initializer();
    if (!main) {
      sink_.write(value.tensor, name(id), *tensor);
    } else if (!sink_.write_initializer(value.tensor, name(id), *tensor)) {
      to.mutable_initializer()->RemoveLast();
      write_value(id, *to.add_input());
    }
  }
}

void GraphWriter::write_region(RegionId region, onnx::GraphProto& to,
                               std::span<const ValueId> more_outputs, GraphText* text) {
  const std::string& own_name = region == graph_.main() ? graph_.name : graph_.region_name(region);
  to.set_name(own_name.empty() ? "graph" : own_name);
  for (ValueId input : graph_.inputs(region)) {
    if (!naming_.shared.contains(input)) write_value(input, *to.add_input());
  }
  write_initializers(region, to, text);
  std::unordered_set<ValueId> outputs;
  for (ValueId output : graph_.outputs(region)) {
    if (!outputs.insert(output).second && region == graph_.main()) {
      throw Error(ErrorCode::kModel, "graph output \"" + name(output) + "\" stands twice");
    }
    write_output(output, to, text);
  }
  for (ValueId output : more_outputs) {
    if (outputs.insert(output).second) write_output(output, to, text);
  }
  if (text != nullptr) return write_nodes(*text, outputs);
  for (NodeId id = graph_.first(region); id.valid(); id = graph_.next(id)) {
    write_node(id, *to.add_node());
    for (ValueId result : graph_.outputs(id)) {
      const bool wanted = result.valid() && !outputs.contains(result) && has_info(result);
      if (wanted) write_value(result, *to.add_value_info());
    }
  }
}

void GraphWriter::append_value(ValueId id, std::string& bytes) const {
  const Value& value = graph_.value(id);
  const bool scaled = value.scale_power != 0;
  append_value_info(bytes, name(id), value.type, scaled ? kScalePowerKey : "",
                    scaled ? std::to_string(value.scale_power) : "");
}

void GraphWriter::write_output(ValueId id, onnx::GraphProto& to, GraphText* text) {
  if (text == nullptr) return write_value(id, *to.add_output());
  std::string bytes;
  append_value(id, bytes);
  text->add_output(bytes);
}

void GraphWriter::write_nodes(GraphText& text, const std::unordered_set<ValueId>& outputs) {
  std::string bytes;
  for (NodeId id = graph_.first(graph_.main()); id.valid(); id = graph_.next(id)) {
    bytes.clear();
    describe_node(id, NodeText(bytes));
    text.add_node(bytes);
    for (ValueId result : graph_.outputs(id)) {
      if (!result.valid() || outputs.contains(result) || !has_info(result)) continue;
      bytes.clear();
      append_value(result, bytes);
      text.add_info(bytes);
    }
  }
}

void GraphWriter::write_excerpt(std::span<const NodeId> nodes,
                                const std::function<bool(ValueId)>& with_data,
                                onnx::GraphProto& to) {
  to.set_name(graph_.name.empty() ? "graph" : graph_.name);
  std::unordered_set<ValueId> known;
  for (NodeId id : nodes) {
    for (ValueId input : graph_.inputs(id)) {
      if (!input.valid() || !known.insert(input).second) continue;
      if (with_data(input)) {
        sink_.write(*graph_.constant(input), name(input), *to.add_initializer());
      } else {
        write_value(input, *to.add_input());
      }
    }
    write_node(id, *to.add_node());
    for (ValueId result : graph_.outputs(id)) {
      if (!result.valid()) continue;
      known.insert(result);
      write_value(result, *to.add_value_info());
    }
  }
}

void GraphWriter::write_trainable(onnx::GraphProto& to) {
  std::vector<std::string> names;
  for (ValueId id : initializers_[graph_.main().index]) {
    if (graph_.value(id).trainable) names.push_back(name(id));
  }
  if (!names.empty()) add_metadata(to, kTrainableKey, join_names(names));
}

}  // namespace

const std::string& Naming::of(const Graph& graph, ValueId value) const {
  const auto found = renamed.find(value);
  return found == renamed.end() ? graph.value(value).name : found->second;
}

void add_metadata(onnx::GraphProto& to, std::string_view key, const std::string& value) {
  add_entry(to, key, value);
  auto& entries = *to.mutable_metadata_props();
  for (int i = entries.size() - 1; i > 0 && entries.Get(i).key() < entries.Get(i - 1).key(); --i) {
    entries.SwapElements(i, i - 1);
  }
}

void write_graph(const Graph& graph, const Naming& naming, TensorSink& sink, onnx::GraphProto& to,
                 std::span<const ValueId> more_outputs, GraphText* text) {
  GraphWriter writer(graph, naming, sink);
  writer.write_region(graph.main(), to, more_outputs, text);
  if (!graph.doc.empty()) to.set_doc_string(graph.doc);
  writer.write_trainable(to);
}

void write_excerpt(const Graph& graph, std::span<const NodeId> nodes,
                   const std::function<bool(ValueId)>& with_data, TensorSink& sink,
                   onnx::GraphProto& to) {
  GraphWriter(graph, {}, sink).write_excerpt(nodes, with_data, to);
}

void write_function(const Function& function, TensorSink& sink, onnx::FunctionProto& to) {
  const Graph& body = function.body;
  const Naming naming;
  GraphWriter writer(body, naming, sink);
  to.set_name(function.name);
  to.set_domain(function.domain);
  if (!function.overload.empty()) to.set_overload(function.overload);
  if (!body.doc.empty()) to.set_doc_string(body.doc);
  for (ValueId input : body.inputs()) {
    to.add_input(writer.name(input));
    if (writer.has_info(input)) writer.write_value(input, *to.add_value_info());
  }
  for (ValueId output : body.outputs()) to.add_output(writer.name(output));
  for (const std::string& name : function.attributes) to.add_attribute(name);
  for (const auto& [key, attribute] : function.default_attributes) {
    write_attribute(
        key, attribute,
        [&](const Tensor& tensor, onnx::TensorProto& proto) { sink.write(tensor, "", proto); }, {},
        *to.add_attribute_proto());
  }
  for (ValueId id : body.initializers()) writer.write_constant(id, *to.add_node());
  for (NodeId id : body.nodes()) {
    writer.write_node(id, *to.add_node());
    for (ValueId result : body.outputs(id)) {
      if (result.valid() && writer.has_info(result)) {
        writer.write_value(result, *to.add_value_info());
      }
    }
  }
  for (const auto& [domain, version] : function.opsets) {
    auto* import = to.add_opset_import();
    import->set_domain(domain);
    import->set_version(version);
  }
}

}  // namespace halfnote::proto
