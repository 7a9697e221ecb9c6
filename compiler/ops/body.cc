#include "compiler/ops/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

/// FNV-1a over everything that is written to it.
class Digest {
 public:
  void bytes(const void* data, size_t size) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) hash_ = (hash_ ^ p[i]) * 0x100000001b3ull;
  }
  void number(uint64_t value) {
    unsigned char little[8];
    for (int i = 0; i < 8; ++i) little[i] = static_cast<unsigned char>(value >> (8 * i));
    bytes(little, sizeof little);
  }
  void text(std::string_view value) {
    number(value.size());
    bytes(value.data(), value.size());
  }
  void tensor(const Tensor& value) {
    number(static_cast<uint64_t>(value.dtype()));
    number(value.shape().size());
    for (int64_t dim : value.shape()) number(static_cast<uint64_t>(dim));
    bytes(value.bytes(), value.byte_size());
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

void add_attribute(Digest& digest, const std::string& name, const Attribute& attribute) {
  digest.text(name);
  digest.number(attribute.index());
  const auto list = [&](const auto& values, auto&& add) {
    digest.number(values.size());
    for (const auto& value : values) add(value);
  };
  const auto add_int = [&](int64_t value) { digest.number(static_cast<uint64_t>(value)); };
  const auto add_float = [&](float value) { digest.number(std::bit_cast<uint32_t>(value)); };
  const auto add_text = [&](const std::string& value) { digest.text(value); };
  const auto add_tensor = [&](const Tensor& value) { digest.tensor(value); };
  std::visit(Overloaded{add_int, add_float, add_text, add_tensor,
                        [&](const std::vector<int64_t>& values) { list(values, add_int); },
                        [&](const std::vector<float>& values) { list(values, add_float); },
                        [&](const std::vector<std::string>& values) { list(values, add_text); },
                        [&](const std::vector<Tensor>& values) { list(values, add_tensor); },
                        [&](const auto&) {
                          throw Error(
                              ErrorCode::kUnsupported,
                              "a function body of ai.halfnote holds attribute \"" + name + "\"")
                              .expected("numbers, strings and tensors", "another kind");
                        }},
             attribute);
}

/// Numbers the values of a body as they appear: inputs, then results; constants stand for
/// themselves.
class BodyDigest {
 public:
  explicit BodyDigest(const Graph& body) : body_(body) {
    for (ValueId input : body.inputs()) number_of_.emplace(input, number_of_.size());
    for (NodeId node : body.nodes()) add_node(node);
    for (ValueId output : body.outputs()) add_use(output);
  }
  uint64_t value() const { return digest_.value(); }

 private:
  void add_use(ValueId value) {
    if (!value.valid()) return digest_.text("-");
    if (const Tensor* constant = body_.constant(value)) {
      digest_.text("c");
      return digest_.tensor(*constant);
    }
    digest_.text("v");
    digest_.number(number_of_.at(value));
  }

  void add_node(NodeId id) {
    const Node& node = body_.node(id);
    if (body_.constant(body_.output(id)) != nullptr) return;
    digest_.text(node.domain);
    digest_.text(node.op);
    for (const auto& [name, attribute] : node.attributes) add_attribute(digest_, name, attribute);
    for (ValueId input : body_.inputs(id)) add_use(input);
    for (ValueId output : body_.outputs(id)) {
      digest_.text(output.valid() ? "r" : "-");
      if (output.valid()) number_of_.emplace(output, number_of_.size());
    }
  }

  const Graph& body_;
  Digest digest_;
  std::map<ValueId, size_t> number_of_;
};

/// `bf16_f32_4f09d2c1a7b3e655`: the element types of the operands, runs of one type written once,
/// then a digest of these, of the results' types and of the body.
std::string overload_name(const Graph& graph, NodeId node, const Graph& body) {
  Digest digest;
  std::string types;
  std::string_view last;
  for (ValueId input : graph.inputs(node)) {
    const std::string_view name =
        input.valid() ? short_name(graph.value(input).type.dtype) : std::string_view("none");
    digest.text(name);
    if (name != last) types += std::string(name) + "_";
    last = name;
  }
  for (ValueId output : graph.outputs(node)) {
    digest.text(output.valid() ? short_name(graph.value(output).type.dtype) : "none");
  }
  digest.number(body_digest(body));
  return types + fmt::format("{:016x}", digest.value());
}

Error no_body(const Node& call) {
  return Error(ErrorCode::kUnsupported, "the operator has no function body")
      .at({{}, call.name, op_name(call)});
}

}  // namespace

uint64_t body_digest(const Graph& body) { return BodyDigest(body).value(); }

Function build_body(const Graph& graph, NodeId node, const InferNode& infer) {
  const Node& call = graph.node(node);
  const OperatorRow* row = find_operator(call);
  if (row == nullptr || row->body == nullptr) throw no_body(call);

  Function function;
  function.domain = call.domain;
  function.name = call.op;
  for (const auto& [name, value] : call.attributes) function.attributes.push_back(name);
  function.opsets[""] = kOpsetVersion;
  Graph& body = function.body;
  body.name = call.op;

  Builder b(body, body.end(), infer);
  BodyContext context{b, call.attributes, {}, {}};
  for (ValueId input : graph.inputs(node)) {
    const std::string name = "x" + std::to_string(context.inputs.size());
    const ValueType type = input.valid() ? graph.value(input).type : ValueType{};
    const Expr formal = b.value(body.add_input(body.main(), name, type));
    context.inputs.push_back(input.valid() ? formal : b.none());
  }
  for (ValueId output : graph.outputs(node)) {
    context.output_types.push_back(output.valid() ? graph.value(output).type : ValueType{});
  }
  std::vector<Expr> results;
  try {
    results = row->body(context);
  } catch (Error& error) {
    throw error.within({{}, call.name, call.domain + "." + call.op});
  }
  // ONNX's inference wants no more results of a function than the call names.
  results.resize(std::min(results.size(), context.output_types.size()));
  std::set<ValueId> published;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool is_result = body.value(results[i].id).kind == ValueKind::kResult;
    if (!is_result || !published.insert(results[i].id).second) {
      results[i] = b.op("Identity", {results[i]});
    }
    body.rename(results[i].id, body.unique_name("y" + std::to_string(i)));
    body.add_output(body.main(), results[i].id);
  }
  erase_dead(body, [](const Graph&, NodeId) { return true; });
  function.overload = overload_name(graph, node, body);
  return function;
}

}  // namespace halfnote
