// External data: the input is the entries of one tensor, then an empty line, then the file that
// they may name.
//
//   location=weights.bin
//   offset=0
//   length=8
//
//   (the bytes of weights.bin; sub/weights.bin has the same)
//
// Around the model's folder lie what no model may reach: a file beside the folder, links to it, a
// link to a folder, a pipe. The bytes of the file outside never come back.
#include <sys/stat.h>

#include <vector>

#include "compiler/onnx/import.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/onnx/wire.h"

using namespace halfnote;  // NOLINT: a program of one function

namespace {

constexpr std::string_view kSecret = "outside!";  // as many bytes as the tensor has

std::string lay_out() {
  namespace fs = std::filesystem;
  fuzz::write_file("secret.bin", kSecret);
  const fs::path folder = fuzz::folder() / "model";
  fs::create_directories(folder / "sub");
  fs::create_symlink("../secret.bin", folder / "link.bin");
  fs::create_symlink(fuzz::folder() / "secret.bin", folder / "far.bin");
  fs::create_symlink("..", folder / "up");
  fs::create_symlink("loop", folder / "loop");
  fs::create_symlink("weights.bin", folder / "near.bin");
  if (::mkfifo((folder / "pipe").c_str(), 0600) != 0) fuzz::fail("cannot make a pipe");
  return (folder / "model.onnx").string();
}

wire::Entries entries_of(std::string_view text) {
  wire::Entries entries;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t equals = std::min(line.find('='), line.size());
    entries.emplace_back(line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
  }
  return entries;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string model_file = lay_out();
  const std::string_view input = fuzz::as_text(data, size);
  const size_t end = std::min(input.find("\n\n"), input.size());
  const std::string_view content = input.substr(std::min(end + 2, input.size()));
  if (content.find(kSecret) != std::string_view::npos) return 0;
  const auto tensor =
      wire::external_tensor("w", DType::kF32, {2}, entries_of(input.substr(0, end)));
  fuzz::write_file("model/model.onnx", wire::model(wire::add_graph(tensor)));
  fuzz::write_file("model/weights.bin", content);
  fuzz::write_file("model/sub/weights.bin", content);
  fuzz::accepts({ErrorCode::kModel, ErrorCode::kUnsupported, ErrorCode::kIo}, [&] {
    const Model model = import_model(model_file);
    for (const ValueId id : model.graph.initializers()) {
      const Tensor& read = model.graph.value(id).tensor;
      const std::string_view bytes(reinterpret_cast<const char*>(read.bytes()), read.byte_size());
      if (bytes == kSecret) fuzz::fail("read a file outside of the model's folder");
    }
  });
  return 0;
}
