// A model is written as a small message in which tokens stand for the bytes of large tensors; the
// real bytes are spliced in on the way to disk.
#include "compiler/onnx/export.h"

#include "base/error.h"
#include "compiler/onnx/check.h"
#include "compiler/onnx/write/model.h"
#include "compiler/onnx/write/sink.h"

namespace halfnote {
namespace {

void check_size(uint64_t size, uint64_t limit) {
  if (size <= limit) return;
  throw Error(ErrorCode::kModel, "the model is too large for one file")
      .expected("at most " + std::to_string(limit) + " bytes", std::to_string(size))
      .hint("write it with external data");
}

/// What is to be written is our own work: where the checker refuses it, the bug is ours.
void check_own(const Model& model, const std::filesystem::path& path) {
  try {
    check_model(model);
  } catch (const Error& refusal) {
    if (refusal.code() != ErrorCode::kModel) throw;
    throw Error(ErrorCode::kInternal,
                "what halfnote made of the model is not valid: " + refusal.problem())
        .at({path.string(), refusal.place().node, refusal.place().op})
        .expected(refusal.expectation(), refusal.value())
        .hint("this is a bug of halfnote: please report it, with the model");
  }
}

uint64_t final_size(proto::Text& text, const proto::SpliceSink& sink) {
  return sink.has_tokens() ? proto::spliced_size(text.join()) : text.size();
}

proto::Spliced splice(proto::Text text, const proto::SpliceSink& sink) {
  if (sink.has_tokens()) {
    return proto::splice_raw_data(text.join(),
                                  [&](proto::RawToken token) { return sink.lookup(token); });
  }
  proto::Spliced whole;
  whole.size = text.size();
  const auto owner = std::make_shared<const proto::Text>(std::move(text));
  for (const std::string& piece : owner->pieces()) {
    whole.pieces.push_back(std::as_bytes(std::span(piece)));
  }
  whole.owner = owner;
  return whole;
}

}  // namespace

std::vector<std::byte> export_model_bytes(const Model& model) {
  proto::SpliceSink sink;
  const proto::Spliced spliced = splice(proto::write_model(model, sink), sink);
  check_size(spliced.size, ExportOptions{}.max_file_bytes);
  std::vector<std::byte> bytes;
  bytes.reserve(spliced.size);
  for (const auto& piece : spliced.pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  return bytes;
}

void export_model(const Model& model, const std::filesystem::path& path, FileSet& files,
                  const ExportOptions& options) {
  if (options.check) check_own(model, path);
  const std::filesystem::path data_path = path.string() + ".data";
  proto::SpliceSink inside, outside(data_path.filename().string(), options.external_threshold);
  bool external = options.external == ExternalTensors::kAlways;
  proto::Text text = proto::write_model(model, external ? outside : inside);
  const bool may_choose = options.external == ExternalTensors::kWhenNeeded;
  if (may_choose && final_size(text, inside) > options.max_file_bytes) {
    external = true;
    text = proto::write_model(model, outside);
  }
  const proto::Spliced spliced = splice(std::move(text), external ? outside : inside);
  check_size(spliced.size, options.max_file_bytes);
  if (external && !outside.external().empty()) files.add(data_path, outside.external());
  files.add(path, spliced.pieces);
}

void export_model(const Model& model, const std::filesystem::path& path,
                  const ExportOptions& options) {
  FileSet files;
  export_model(model, path, files, options);
  files.commit();
}

}  // namespace halfnote
