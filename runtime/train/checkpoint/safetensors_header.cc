#include "runtime/train/checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace halfnote {
namespace {

struct TypeName {
  DType dtype;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {{DType::kBool, "BOOL"},
                                   {DType::kU8, "U8"},
                                   {DType::kI8, "I8"},
                                   {DType::kF8E5M2, "F8_E5M2"},
                                   {DType::kF8E4M3FN, "F8_E4M3"},
                                   {DType::kF8E8M0, "F8_E8M0"},
                                   {DType::kI16, "I16"},
                                   {DType::kU16, "U16"},
                                   {DType::kF16, "F16"},
                                   {DType::kBF16, "BF16"},
                                   {DType::kI32, "I32"},
                                   {DType::kU32, "U32"},
                                   {DType::kF32, "F32"},
                                   {DType::kF64, "F64"},
                                   {DType::kI64, "I64"},
                                   {DType::kU64, "U64"},
                                   {DType::kC64, "C64"}};

constexpr size_t kMaxDims =
    static_cast<size_t>(kMaxRank) + 1;  // one more for types written as bytes

/// Takes the parser's events; every event that the grammar does not want throws.
class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Handler(const std::string& path) : path_(path) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a bool"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (where_ == Where::kShape) {
      if (value > static_cast<uint64_t>(kMaxElements)) return refuse("a dim above 2^40");
      if (entry_.shape.size() == kMaxDims)
        return refuse(fmt::format("more than {} dims", kMaxRank));
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (where_ != Where::kOffsets || offsets_ == 2) return refuse("a number");
    (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadata) {
      if (!header_.metadata.emplace(key_, value).second) return refuse("a metadata key twice");
      return true;
    }
    if (where_ != Where::kEntry || key_ != "dtype") return refuse("a string");
    for (const TypeName& type : kTypeNames) {
      if (type.name == value) entry_.dtype = type.dtype;
    }
    if (entry_.dtype == DType::kUndefined)
      return refuse(fmt::format("the unknown type \"{}\"", value.substr(0, 40)));
    return true;
  }

  bool start_object(size_t) override {
    if (where_ == Where::kStart) {
      where_ = Where::kTop;
    } else if (where_ == Where::kTop && key_ == "__metadata__") {
      if (std::exchange(has_metadata_, true)) return refuse("a second __metadata__");
      where_ = Where::kMetadata;
    } else if (where_ == Where::kTop) {
      if (!names_.insert(key_).second)
        return refuse(fmt::format("the name \"{}\" twice", key_.substr(0, 100)));
      entry_ = {key_, DType::kUndefined, {}, 0, 0};
      seen_ = 0;
      where_ = Where::kEntry;
    } else {
      return refuse("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (where_ != Where::kEntry) return true;
    const int bit = value == "dtype" ? 1 : value == "shape" ? 2 : value == "data_offsets" ? 4 : 0;
    if (bit == 0 || (seen_ & bit) != 0)
      return refuse(fmt::format("the key \"{}\"", value.substr(0, 40)));
    seen_ |= bit;
    return true;
  }

  bool end_object() override {
    if (where_ == Where::kEntry) {
      if (seen_ != 7) return refuse("an entry without dtype, shape or data_offsets");
      header_.entries.push_back(std::move(entry_));
    }
    where_ = where_ == Where::kTop ? Where::kEnd : Where::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (where_ != Where::kEntry || key_ == "dtype") return refuse("an array");
    where_ = key_ == "shape" ? Where::kShape : Where::kOffsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (where_ == Where::kOffsets && offsets_ != 2)
      return refuse("a number of offsets other than 2");
    where_ = Where::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return refuse(fmt::format("no JSON at byte {}", position));
  }

 private:
  enum class Where { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  [[noreturn]] bool refuse(const std::string& got) const {
    Error error(ErrorCode::kCheckpoint, "bad safetensors header");
    error.at({path_, {}, {}});
    const bool inside =
        where_ == Where::kEntry || where_ == Where::kShape || where_ == Where::kOffsets;
    throw std::move(error).expected(
        inside ? fmt::format("dtype, shape and data_offsets of \"{}\"", entry_.name)
               : std::string("an object of tensors"),
        got);
  }

  const std::string& path_;
  SafetensorsHeader header_;
  SafetensorsHeader::Entry entry_;
  std::set<std::string> names_;
  std::string key_;
  Where where_ = Where::kStart;
  int seen_ = 0;
  int offsets_ = 0;
  bool has_metadata_ = false;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& path) {
  Handler handler(path);
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  return handler.take();
}

std::string_view safetensors_dtype(DType dtype) {
  for (const TypeName& type : kTypeNames) {
    if (type.dtype == dtype) return type.name;
  }
  return {};
}

}  // namespace halfnote
