// A whole checkpoint folder: the input is the manifest without its hash, a NUL byte, and the
// tensors' file. The manifest's own hash is completed here: nothing is found behind a wrong one.
#include <fmt/format.h>

#include "base/system/hash.h"
#include "runtime/train/checkpoint.h"
#include "runtime/train/checkpoint/manifest.h"
#include "tests/fuzz/support/fuzz.h"

using namespace halfnote;  // NOLINT: a program of one function

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::as_text(data, size);
  const std::string_view head = input.substr(0, input.find('\0'));
  const std::string_view state = input.substr(std::min(head.size() + 1, input.size()));
  const std::string text =
      fmt::format("{},\n \"xxh3_128\": \"{}\"\n}}\n", head, content_hash(head));
  Manifest manifest;
  const bool sound = fuzz::accepts({ErrorCode::kCheckpoint},
                                   [&] { manifest = parse_manifest(text, "manifest.json"); });
  if (!sound) return 0;
  static const bool made =
      std::filesystem::create_directories(fuzz::folder() / "run/checkpoints/step-00000001");
  if (!made) fuzz::fail("no folder for the checkpoint");
  const std::string checkpoint = "run/checkpoints/step-00000001/";
  fuzz::write_file(checkpoint + "manifest.json", text);
  fuzz::write_file(checkpoint + "state.safetensors", state);
  fuzz::accepts({ErrorCode::kCheckpoint}, [&] {
    load_checkpoint(fuzz::folder() / checkpoint);
    if (!find_latest(fuzz::folder() / "run")) fuzz::fail("loads, but is not found");
  });
  return 0;
}
