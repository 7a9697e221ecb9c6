#include "runtime/train/checkpoint/manifest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/system/hash.h"
#include "base/version.h"
#include "passes/nesting.h"
#include "runtime/train/checkpoint/manifest_reader.h"

namespace halfnote {
namespace {

using Json = nlohmann::ordered_json;

/// The last line with what joins it to the rest.
std::string closing(std::string_view hash) {
  return fmt::format(",\n \"xxh3_128\": \"{}\"\n}}\n", hash);
}
constexpr size_t kClosingBytes = 2 + 14 + 32 + 4;

/// JSON with a bounded depth and no key twice.
Json parse_json(std::string_view text, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    return Error(ErrorCode::kCheckpoint, "bad JSON (" + what + ")").at({path, {}, {}});
  };
  if (json_nests_deeper(text)) throw refuse(fmt::format("nested deeper than {}", kMaxJsonDepth));
  if (const std::string key = repeated_json_key(text); !key.empty()) {
    throw refuse("the key \"" + key.substr(0, 100) + "\" twice");
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw refuse(json_problem(error.what()));
  }
}

void check_hash(std::string_view text, const std::string& path) {
  const size_t covered = text.size() < kClosingBytes ? 0 : text.size() - kClosingBytes;
  const std::string expected = closing(content_hash(text.substr(0, covered)));
  if (text.substr(covered) == expected) return;
  const std::string_view got = text.substr(covered).substr(0, kClosingBytes);
  throw Error(ErrorCode::kCheckpoint, "the manifest is damaged or truncated")
      .at({path, {}, {}})
      .expected("hash " + expected.substr(16, 32), got.size() == kClosingBytes
                                                       ? fmt::format("{}", got.substr(16, 32))
                                                       : fmt::format("{} bytes", text.size()))
      .hint("use an older checkpoint");
}

}  // namespace

bool names_manifest_format(std::string_view text) {
  return text.find(fmt::format("\"{}\"", kManifestFormat)) != std::string_view::npos;
}

std::string write_manifest(const Manifest& manifest) {
  const Json extra = parse_json(manifest.extra, "extra of the checkpoint");
  if (!extra.is_object())
    throw Error(ErrorCode::kCheckpoint, "extra of the checkpoint is no JSON object");
  Json json = {{"format", kManifestFormat}, {"version", kManifestVersion}, {"halfnote", kVersion}};
  json["step"] = manifest.step;
  json["sequence"] = manifest.sequence;
  json["state"] = {{"file", "state.safetensors"},
                   {"bytes", manifest.state_bytes},
                   {"header_xxh3_128", manifest.header_hash}};
  json["extra"] = extra;
  Json& tensors = json["tensors"] = Json::array();
  for (const Manifest::Entry& entry : manifest.tensors) {
    tensors.push_back({{"name", entry.name},
                       {"dtype", short_name(entry.dtype)},
                       {"shape", entry.shape},
                       {"xxh3_128", entry.hash}});
  }
  std::string text;
  try {
    text = json.dump(1);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kCheckpoint, "a tensor name is not UTF-8");
  }
  text.resize(text.size() - 2);  // "\n}"
  text += closing(content_hash(text));
  if (text.size() <= kManifestLimit) return text;
  throw Error(ErrorCode::kCheckpoint, "the manifest would be too long")
      .expected(fmt::format("at most {} bytes", kManifestLimit), std::to_string(text.size()));
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  check_hash(text, path);
  return read_manifest_json(text, ManifestPart::kWhole, path);
}

Manifest parse_manifest_head(std::string_view text, const std::string& path) {
  check_hash(text, path);
  return read_manifest_json(text, ManifestPart::kHead, path);
}

}  // namespace halfnote
