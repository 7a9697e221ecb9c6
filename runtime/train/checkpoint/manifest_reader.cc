#include "runtime/train/checkpoint/manifest_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "passes/nesting.h"

namespace halfnote {
namespace {

/// A string or a whole number; neither for all that a manifest has in `extra` only.
struct ManifestScalar {
  const std::string* text = nullptr;
  std::optional<int64_t> number;
};

/// Takes the parser's events. What is wrong with the content is kept until the version is known: a
/// newer one may have another.
class ManifestReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  ManifestReader(ManifestPart part, const std::string& path) : part_(part), path_(path) {}

  Manifest finish() {
    if (!format_ || !version_) throw lacks(format_ ? "version" : "format");
    check_format();
    if (problem_) throw std::move(*problem_);
    const bool whole = part_ == ManifestPart::kWhole;
    const auto need = [&](bool there, const char* what) {
      if (!there) throw lacks(what);
    };
    need(has_step_, "step");
    need(has_sequence_, "sequence");
    need(has_bytes_, "state.bytes");
    need(has_header_, "state.header_xxh3_128");
    need(!whole || has_extra_, "extra");
    need(!whole || has_tensors_, "tensors");
    return std::move(manifest_);
  }

  bool null() override { return take({}, "null"); }
  bool boolean(bool value) override { return take({}, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return take({nullptr, value}, std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    ManifestScalar scalar;
    if (std::in_range<int64_t>(value)) scalar.number = static_cast<int64_t>(value);
    return take(scalar, std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override { return take({}, text); }
  bool binary(binary_t&) override { return take({}, "null"); }
  bool string(string_t& value) override {
    return take({&value, std::nullopt}, in_extra() ? nlohmann::json(value).dump() : std::string());
  }

  bool start_object(size_t) override { return open('{'); }
  bool start_array(size_t) override { return open('['); }
  bool end_object() override {
    if (is_entry()) {
      if (fields_ != kAllFields) report(lacks("a field of tensors"));
      manifest_.tensors.push_back(std::move(entry_));
    }
    return close('}');
  }
  bool end_array() override { return close(']'); }

  bool key(string_t& name) override {
    Level& level = open_.back();
    if (!level.seen.insert(name).second) {
      std::string where;
      for (size_t i = 0; i + 1 < open_.size(); ++i) {
        if (!open_[i].key.empty()) where += open_[i].key + ".";
      }
      throw bad_json("the key \"" + (where + name).substr(0, 100) + "\" twice");
    }
    if (open_.size() > 1 && in_extra()) {
      manifest_.extra += (level.count++ > 0 ? "," : "") + nlohmann::json(name).dump() + ":";
    }
    level.key = name;
    // In the manifests that we write the tensors stand last.
    return part_ == ManifestPart::kWhole || open_.size() > 1 || name != "tensors";
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw bad_json(json_problem(error.what()));
  }

 private:
  struct Level {
    bool is_array = false;
    size_t count = 0;  // elements so far, in `extra`
    std::string key;
    std::unordered_set<std::string> seen;
  };
  enum Field : unsigned { kName = 1, kDType = 2, kShape = 4, kHash = 8, kAllFields = 15 };

  Error bad_json(const std::string& what) const {
    return Error(ErrorCode::kCheckpoint, "bad JSON (" + what + ")").at({path_, {}, {}});
  }
  Error lacks(const char* what) const {
    return Error(ErrorCode::kCheckpoint, "the manifest lacks something")
        .at({path_, {}, {}})
        .hint(fmt::format("{} is missing, or of another kind", what));
  }
  void report(Error problem) {
    if (!problem_) problem_ = std::move(problem);
  }

  void check_format() const {
    if (*format_ == kManifestFormat && *version_ == kManifestVersion) return;
    throw Error(ErrorCode::kCheckpoint, "not a checkpoint that this version reads")
        .at({path_, {}, {}})
        .expected(fmt::format("{} version {}", kManifestFormat, kManifestVersion),
                  fmt::format("{} version {}", *format_, *version_))
        .hint(*version_ > kManifestVersion ? "a newer halfnote wrote it: use that one"
                                           : "start a new run");
  }

  /// Is the parser below the member of this name of the whole, or at its value?
  bool below(std::string_view name) const { return !open_.empty() && open_[0].key == name; }
  bool in_extra() const { return below("extra"); }
  bool is_entry() const { return open_.size() == 3 && !open_[2].is_array && below("tensors"); }
  bool is_shape() const {
    return open_.size() == 4 && open_[3].is_array && below("tensors") && open_[2].key == "shape";
  }

  /// Writes a piece of `extra` down as it comes.
  void copy(std::string_view piece) {
    Level& level = open_.back();
    if (level.is_array && level.count++ > 0) manifest_.extra += ',';
    manifest_.extra += piece;
  }

  bool open(char bracket) {
    if (open_.size() == kMaxJsonDepth) {
      throw bad_json(fmt::format("nested deeper than {}", kMaxJsonDepth));
    }
    const bool is_array = bracket == '[';
    if (in_extra()) begin_extra();
    if (in_extra()) copy({&bracket, 1});
    const bool wants_array = open_.size() == 1 || open_.size() == 3;
    if (below("tensors") && (is_array != wants_array || open_.size() > 3)) report(lacks("tensors"));
    if (open_.size() == 1 && below("tensors")) has_tensors_ = true;
    if (open_.size() == 2 && below("tensors")) {
      entry_ = {};
      fields_ = 0;
    }
    if (open_.size() == 3 && below("tensors") && open_[2].key == "shape") fields_ |= kShape;
    open_.push_back({is_array, 0, {}, {}});
    return true;
  }

  bool close(char bracket) {
    open_.pop_back();
    if (open_.empty() || !in_extra()) return true;
    manifest_.extra += bracket;
    return true;
  }

  void begin_extra() {
    if (!std::exchange(has_extra_, true)) manifest_.extra.clear();
  }

  bool take(const ManifestScalar& value, const std::string& json) {
    if (in_extra()) {
      begin_extra();
      copy(json);
    } else if (open_.size() == 1) {
      take_top(value);
    } else if (open_.size() == 2 && below("state")) {
      take_state(value);
    } else if (is_entry()) {
      take_field(value);
    } else if (is_shape() && value.number) {
      entry_.shape.push_back(*value.number);
    } else if (below("tensors")) {
      report(lacks("tensors"));
    }
    return true;
  }

  void take_top(const ManifestScalar& value) {
    const std::string& key = open_[0].key;
    if (key == "format" && value.text != nullptr) format_ = *value.text;
    if (!value.number) return;
    if (key == "version") version_ = value.number;
    if (key == "step") {
      manifest_.step = *value.number;
      has_step_ = true;
    } else if (key == "sequence") {
      manifest_.sequence = *value.number;
      has_sequence_ = true;
    }
  }

  void take_state(const ManifestScalar& value) {
    const std::string& key = open_[1].key;
    if (key == "bytes" && value.number && *value.number >= 0) {
      manifest_.state_bytes = static_cast<uint64_t>(*value.number);
      has_bytes_ = true;
    } else if (key == "header_xxh3_128" && value.text != nullptr) {
      manifest_.header_hash = *value.text;
      has_header_ = true;
    }
  }

  void take_field(const ManifestScalar& value) {
    const std::string& key = open_[2].key;
    if (value.text == nullptr) return;
    if (key == "name") {
      entry_.name = *value.text;
      fields_ |= kName;
    } else if (key == "xxh3_128") {
      entry_.hash = *value.text;
      fields_ |= kHash;
    } else if (key == "dtype") {
      const std::optional<DType> known = dtype_from_name(*value.text);
      fields_ |= kDType;
      if (known) entry_.dtype = *known;
      if (known) return;
      report(
          Error(ErrorCode::kCheckpoint, fmt::format("unknown type of tensor \"{}\"", entry_.name))
              .at({path_, {}, {}})
              .expected("a type of halfnote", fmt::format("\"{}\"", *value.text)));
    }
  }

  const ManifestPart part_;
  const std::string& path_;
  Manifest manifest_;
  Manifest::Entry entry_;
  unsigned fields_ = 0;  // of the entry, as far as they were read
  std::vector<Level> open_;
  std::optional<std::string> format_;
  std::optional<int64_t> version_;
  bool has_step_ = false, has_sequence_ = false, has_bytes_ = false, has_header_ = false;
  bool has_extra_ = false, has_tensors_ = false;
  std::optional<Error> problem_;
};

}  // namespace

Manifest read_manifest_json(std::string_view text, ManifestPart part, const std::string& path) {
  ManifestReader reader(part, path);
  nlohmann::json::sax_parse(text, &reader);
  return reader.finish();
}

}  // namespace halfnote
