// AttributeProto to Attribute and back: one case a type.
#include "compiler/onnx/proto/attribute.h"

#include <onnx/onnx_pb.h>

#include <array>

#include "base/error.h"
#include "compiler/onnx/proto/type.h"

namespace halfnote::proto {
namespace {

using Proto = onnx::AttributeProto;

constexpr std::array<std::string_view, 15> kTypeNames = {
    "undefined",      "float",      "int",        "string",  "tensor", "graph",
    "floats",         "ints",       "strings",    "tensors", "graphs", "sparse_tensor",
    "sparse_tensors", "type_proto", "type_protos"};

/// The type whose field is filled, 0 for none, -1 for several.
int filled_type(const Proto& proto) {
  const std::pair<bool, int> fields[] = {{proto.has_f(), Proto::FLOAT},
                                         {proto.has_i(), Proto::INT},
                                         {proto.has_s(), Proto::STRING},
                                         {proto.has_t(), Proto::TENSOR},
                                         {proto.has_g(), Proto::GRAPH},
                                         {proto.floats_size() > 0, Proto::FLOATS},
                                         {proto.ints_size() > 0, Proto::INTS},
                                         {proto.strings_size() > 0, Proto::STRINGS},
                                         {proto.tensors_size() > 0, Proto::TENSORS},
                                         {proto.graphs_size() > 0, Proto::GRAPHS},
                                         {proto.has_sparse_tensor(), Proto::SPARSE_TENSOR},
                                         {proto.sparse_tensors_size() > 0, Proto::SPARSE_TENSORS},
                                         {proto.has_tp(), Proto::TYPE_PROTO},
                                         {proto.type_protos_size() > 0, Proto::TYPE_PROTOS}};
  int found = 0;
  for (const auto& [filled, type] : fields) {
    if (filled) found = found == 0 ? type : -1;
  }
  return found;
}

bool needs_value(int type) {
  return type == Proto::TENSOR || type == Proto::GRAPH || type == Proto::TYPE_PROTO ||
         type == Proto::SPARSE_TENSOR;
}

void check_type(const Proto& proto) {
  const int filled = filled_type(proto);
  if (proto.type() == Proto::UNDEFINED) {
    throw Error(ErrorCode::kModel, "attribute \"" + proto.name() + "\" has no type");
  }
  const bool wrong = filled != 0 && filled != proto.type();
  if (!wrong && !(filled == 0 && needs_value(proto.type()))) return;
  const std::string got = filled < 0    ? "values of several types"
                          : filled == 0 ? "no value"
                                        : std::string(attribute_type_name(filled));
  throw Error(ErrorCode::kModel, "attribute \"" + proto.name() + "\" has a value of another type")
      .expected(std::string(attribute_type_name(proto.type())), got);
}

RegionId read_region(const Proto& proto, const onnx::GraphProto& graph, const ReadRegion& region) {
  if (region) return region(graph);
  throw Error(ErrorCode::kModel, "attribute \"" + proto.name() + "\" may not be a graph here");
}

struct Writer {
  const WriteTensor& tensor;
  const WriteRegion& region;
  Proto& to;

  void operator()(int64_t value) const { to.set_i(value); }
  void operator()(float value) const { to.set_f(value); }
  void operator()(const std::string& value) const { to.set_s(value); }
  void operator()(const Tensor& value) const { tensor(value, *to.mutable_t()); }
  void operator()(RegionId value) const { region(value, *to.mutable_g()); }
  void operator()(const ValueType& value) const { write_type(value, *to.mutable_tp()); }
  void operator()(const std::vector<int64_t>& values) const {
    to.mutable_ints()->Add(values.begin(), values.end());
  }
  void operator()(const std::vector<float>& values) const {
    to.mutable_floats()->Add(values.begin(), values.end());
  }
  void operator()(const std::vector<std::string>& values) const {
    for (const std::string& value : values) to.add_strings(value);
  }
  void operator()(const std::vector<Tensor>& values) const {
    for (const Tensor& value : values) tensor(value, *to.add_tensors());
  }
  void operator()(const std::vector<RegionId>& values) const {
    for (RegionId value : values) region(value, *to.add_graphs());
  }
  void operator()(const AttributeReference& value) const { to.set_ref_attr_name(value.name); }
};

}  // namespace

std::string_view attribute_type_name(int onnx_type) {
  const bool known = onnx_type >= 0 && onnx_type < static_cast<int>(kTypeNames.size());
  return kTypeNames[known ? static_cast<size_t>(onnx_type) : 0];
}

int attribute_type(const Attribute& attribute) {
  constexpr std::array<int, 11> kTypes = {
      Proto::INT,  Proto::FLOAT,  Proto::STRING,  Proto::TENSOR,  Proto::GRAPH, Proto::TYPE_PROTO,
      Proto::INTS, Proto::FLOATS, Proto::STRINGS, Proto::TENSORS, Proto::GRAPHS};
  if (const auto* reference = std::get_if<AttributeReference>(&attribute)) {
    return reference->onnx_type;
  }
  return kTypes[attribute.index()];
}

Attribute read_attribute(const Proto& proto, TensorSource& source, const ReadRegion& region) {
  if (!proto.ref_attr_name().empty()) {
    return AttributeReference{proto.ref_attr_name(), proto.type()};
  }
  check_type(proto);
  switch (proto.type()) {
    case Proto::FLOAT:
      return proto.f();
    case Proto::INT:
      return proto.i();
    case Proto::STRING:
      return proto.s();
    case Proto::TENSOR:
      return read_tensor(proto.t(), source);
    case Proto::SPARSE_TENSOR:
      return read_sparse(proto.sparse_tensor(), source);
    case Proto::GRAPH:
      return read_region(proto, proto.g(), region);
    case Proto::TYPE_PROTO:
      return read_type(proto.tp(), source.limits);
    case Proto::FLOATS:
      return std::vector<float>(proto.floats().begin(), proto.floats().end());
    case Proto::INTS:
      return std::vector<int64_t>(proto.ints().begin(), proto.ints().end());
    case Proto::STRINGS:
      return std::vector<std::string>(proto.strings().begin(), proto.strings().end());
    case Proto::TENSORS: {
      std::vector<Tensor> tensors;
      for (const auto& tensor : proto.tensors()) tensors.push_back(read_tensor(tensor, source));
      return tensors;
    }
    case Proto::GRAPHS: {
      std::vector<RegionId> regions;
      for (const auto& graph : proto.graphs()) regions.push_back(read_region(proto, graph, region));
      return regions;
    }
    default:
      break;
  }
  throw Error(ErrorCode::kUnsupported,
              "attribute \"" + proto.name() + "\" has a type that " + "no operator uses")
      .expected("a number, string, tensor, graph or type, or a list of those",
                std::string(attribute_type_name(proto.type())));
}

void write_attribute(const std::string& name, const Attribute& attribute, const WriteTensor& tensor,
                     const WriteRegion& region, Proto& to) {
  to.set_name(name);
  to.set_type(static_cast<Proto::AttributeType>(attribute_type(attribute)));
  std::visit(Writer{tensor, region, to}, attribute);
}

}  // namespace halfnote::proto
