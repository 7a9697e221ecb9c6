// A binary model is read in three steps: the wire scan checks the limits and takes the tensor bytes
// out, protobuf parses what is left, and the readers turn that into the IR with tensors that share
// the file.
#include "compiler/onnx/import.h"

#include <google/protobuf/arena.h>
#include <google/protobuf/io/coded_stream.h>
#include <onnx/onnx_pb.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/proto/wire.h"
#include "compiler/onnx/read/external_data.h"
#include "compiler/onnx/read/model.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

// Every level of subgraphs is three of protobuf's (graph, node, attribute).
constexpr int kMessagesPerGraph = 3;
constexpr int kMessagesAround = 40;

/// On an arena: a hundred thousand small messages are freed at once.
const onnx::ModelProto& parse(const std::string& text, const ImportLimits& limits,
                              google::protobuf::Arena& arena) {
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(text.data()),
                                                static_cast<int>(text.size()));
  stream.SetTotalBytesLimit(std::numeric_limits<int>::max());
  stream.SetRecursionLimit(kMessagesPerGraph * limits.graph_nesting + 2 * limits.type_nesting +
                           kMessagesAround);
  if (!proto.ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage()) {
    throw Error(ErrorCode::kModel, "not a valid ONNX file")
        .hint("the file may be truncated or not be ONNX at all");
  }
  return proto;
}

/// What people give by mistake, by its first bytes: none of them begins an ONNX model.
struct OtherFile {
  std::string_view begins, what, way_out;
};

constexpr OtherFile kOtherFiles[] = {
    {"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"},
    {"PK\3\4", "a zip archive, as PyTorch's own files are", "export the model: torch.onnx.export"},
    {"\x80\2", "a Python pickle", "load it in Python, and export the model"},
    {"\x1f\x8b", "a gzip archive", "unpack it: gunzip"},
    {"\x89HDF", "an HDF5 file, as Keras writes them", "export the model with tf2onnx"},
    {"<ir_version", "ONNX text", "name the file .onnxtxt"},
    {"<", "a web page or XML", "the download gave a page in place of the file"},
    {"{", "JSON", "give the model itself"},
};

void refuse_other_files(std::string_view bytes) {
  for (const OtherFile& file : kOtherFiles) {
    if (!bytes.starts_with(file.begins)) continue;
    throw Error(ErrorCode::kModel, "not a valid ONNX file: it is " + std::string(file.what))
        .hint(std::string(file.way_out));
  }
}

Model read(std::shared_ptr<const std::byte> bytes, size_t size, proto::ExternalData* external,
           const ImportOptions& options) {
  refuse_other_files({reinterpret_cast<const char*>(bytes.get()), size});
  const std::string text = proto::strip_raw_data({bytes.get(), size}, options.limits);
  google::protobuf::Arena arena;
  const onnx::ModelProto& proto = parse(text, options.limits, arena);
  proto::TensorSource source;
  source.file = std::move(bytes);
  source.external = external;
  source.limits = options.limits;
  return proto::read_model(proto, source);
}

bool is_text(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".onnxtxt" || extension == ".txt";
}

Model read_text(const fs::path& path, const MappedFile& file, const ImportLimits& limits) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  return parse_model(text, path.string(), limits);
}

}  // namespace

Model import_model(const fs::path& path, const ImportOptions& options) {
  Model model;
  try {
    const MappedFile file(path);
    if (is_text(path)) {
      model = read_text(path, file, options.limits);
    } else {
      proto::ExternalData external(path, options.allowed_folders, options.warn);
      model = read(file.share(), file.bytes().size(), &external, options);
      model.data_files = external.files();
    }
  } catch (Error& error) {
    throw error.within({.file = path.string()});
  }
  model.source = path.string();
  return model;
}

Model import_model_bytes(std::span<const std::byte> bytes, const std::string& source_name,
                         const ImportOptions& options) {
  Model model;
  try {
    Tensor copy(DType::kU8, {static_cast<int64_t>(bytes.size())});
    if (!bytes.empty()) std::memcpy(copy.mutable_bytes(), bytes.data(), bytes.size());
    model = read(copy.storage(), bytes.size(), nullptr, options);
  } catch (Error& error) {
    throw error.within({.file = source_name});
  }
  model.source = source_name;
  return model;
}

}  // namespace halfnote
