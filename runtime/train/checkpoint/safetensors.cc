#include "runtime/train/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/checkpoint/safetensors_header.h"

namespace halfnote {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian");

constexpr size_t kLengthBytes = 8;
constexpr std::string_view kDtypeKey = "dtype:";

void check_names(std::span<const NamedTensor> tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      throw Error(ErrorCode::kCheckpoint,
                  fmt::format("the tensor name \"{}\" is used twice or reserved", tensor.name));
    }
    if (size_of(tensor.tensor.dtype()) != 0) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("tensor \"{}\" cannot be saved", tensor.name))
        .expected("numbers or bool", std::string(short_name(tensor.tensor.dtype())));
  }
}

/// The header entry of one tensor, and its place in the metadata if the format lacks the type.
nlohmann::json header_entry(const NamedTensor& tensor, uint64_t begin, nlohmann::json& metadata) {
  std::string_view type = safetensors_dtype(tensor.tensor.dtype());
  Shape shape = tensor.tensor.shape();
  if (type.empty()) {
    type = safetensors_dtype(DType::kU8);
    metadata[std::string(kDtypeKey) + tensor.name] = short_name(tensor.tensor.dtype());
    const size_t width = size_of(tensor.tensor.dtype());
    if (width > 1) shape.push_back(static_cast<int64_t>(width));
  }
  return {{"dtype", type},
          {"shape", shape},
          {"data_offsets", {begin, begin + tensor.tensor.byte_size()}}};
}

std::string dump(const nlohmann::json& header) {
  try {
    return header.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::kCheckpoint, "a tensor name or metadata is not UTF-8");
  }
}

Error damaged(const std::string& path, const std::string& what) {
  return Error(ErrorCode::kCheckpoint, what).at({path, {}, {}});
}

/// The length of the JSON header, within the file and the limit.
uint64_t header_length(const std::string& path, std::span<const std::byte> file) {
  uint64_t length = 0;
  if (file.size() < kLengthBytes) {
    throw damaged(path, "not a safetensors file")
        .expected("8 bytes of header length", fmt::format("{}", file.size()));
  }
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kSafetensorsHeaderLimit) {
    throw damaged(path, "the safetensors header is too long")
        .expected(fmt::format("at most {} bytes", kSafetensorsHeaderLimit), std::to_string(length))
        .hint("the file is damaged, or no safetensors file");
  }
  if (length > file.size() - kLengthBytes) {
    throw damaged(path, "the file is truncated inside its header")
        .expected(fmt::format("{} bytes", kLengthBytes + length), std::to_string(file.size()));
  }
  return length;
}

/// The true type of a tensor that was written as bytes; undoes header_entry.
void restore_type(const std::string& path, SafetensorsHeader::Entry& entry,
                  const SafetensorsMetadata& metadata) {
  const auto found = metadata.find(std::string(kDtypeKey) + entry.name);
  if (found == metadata.end()) return;
  const std::optional<DType> dtype = dtype_from_name(found->second);
  const auto width = static_cast<int64_t>(dtype ? size_of(*dtype) : 0);
  const bool fits = entry.dtype == DType::kU8 && width > 0 &&
                    (width == 1 || (!entry.shape.empty() && entry.shape.back() == width));
  if (!fits) {
    throw damaged(path, fmt::format("tensor \"{}\" does not have the type that the metadata says",
                                    entry.name))
        .expected("bytes of a known type", fmt::format("\"{}\"", found->second.substr(0, 40)));
  }
  entry.dtype = *dtype;
  if (width > 1) entry.shape.pop_back();
}

void check_entry(const std::string& path, const SafetensorsHeader::Entry& entry, uint64_t begin,
                 uint64_t available) {
  const std::string what = fmt::format("tensor \"{}\"", entry.name);
  if (entry.shape.size() > static_cast<size_t>(kMaxRank)) {
    throw damaged(path, what + " has too many dims")
        .expected(fmt::format("{}", kMaxRank), to_string(entry.shape));
  }
  int64_t elements = 1;
  bool fits = true;
  for (const int64_t dim : entry.shape) {
    fits = fits && !__builtin_mul_overflow(elements, dim, &elements) && elements <= kMaxElements;
  }
  if (!fits)
    throw damaged(path, what + " is too large")
        .expected("at most 2^40 elements", to_string(entry.shape));
  const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(entry.dtype);
  if (entry.begin != begin || entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw damaged(path, what + " lies in the wrong place")
        .expected(fmt::format("bytes {} to {} for {}{}", begin, begin + bytes,
                              short_name(entry.dtype), to_string(entry.shape)),
                  fmt::format("{} to {}", entry.begin, entry.end));
  }
  if (entry.end <= available) return;
  throw damaged(path, "the file is truncated in " + what)
      .expected(fmt::format("{} bytes of tensors", entry.end), std::to_string(available))
      .hint("the file was not written to its end; use an older one");
}

}  // namespace

SafetensorsLayout lay_out_safetensors(std::span<const NamedTensor> tensors,
                                      const SafetensorsMetadata& metadata) {
  check_names(tensors);
  SafetensorsLayout layout;
  for (size_t i = 0; i < tensors.size(); ++i) layout.order.push_back(i);
  std::sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    const size_t width_a = size_of(tensors[a].tensor.dtype()),
                 width_b = size_of(tensors[b].tensor.dtype());
    return width_a != width_b ? width_a > width_b : tensors[a].name < tensors[b].name;
  });
  nlohmann::json header = nlohmann::json::object();
  nlohmann::json strings = metadata;
  uint64_t begin = 0;
  for (const size_t i : layout.order) {
    header[tensors[i].name] = header_entry(tensors[i], begin, strings);
    begin += tensors[i].tensor.byte_size();
  }
  if (!strings.empty()) header["__metadata__"] = std::move(strings);
  std::string json = dump(header);
  json.append((kLengthBytes - json.size() % kLengthBytes) % kLengthBytes, ' ');
  if (json.size() > kSafetensorsHeaderLimit) {
    throw Error(ErrorCode::kCheckpoint, "the safetensors header would be too long")
        .expected(fmt::format("at most {} bytes", kSafetensorsHeaderLimit),
                  std::to_string(json.size()))
        .hint("shorten the tensors' names");
  }
  const uint64_t length = json.size();
  layout.header.assign(reinterpret_cast<const char*>(&length), kLengthBytes);
  layout.header += json;
  return layout;
}

std::vector<std::span<const std::byte>> safetensors_parts(const SafetensorsLayout& layout,
                                                          std::span<const NamedTensor> tensors) {
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(layout.header))};
  for (const size_t i : layout.order)
    parts.emplace_back(tensors[i].tensor.bytes(), tensors[i].tensor.byte_size());
  return parts;
}

void write_safetensors(Disk& disk, const Disk::Path& path, std::span<const NamedTensor> tensors,
                       const SafetensorsMetadata& metadata) {
  const SafetensorsLayout layout = lay_out_safetensors(tensors, metadata);
  write_durably(disk, path, safetensors_parts(layout, tensors));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path.string()) {
  const MappedFile file(path);
  storage_ = file.share();
  file_bytes_ = file.bytes().size();
  const uint64_t length = header_length(path_, file.bytes());
  header_bytes_ = kLengthBytes + length;
  const auto* json = reinterpret_cast<const char*>(storage_.get() + kLengthBytes);
  if (length == 0 || json[0] != '{')
    throw damaged(path_, "bad safetensors header").expected("{", "another character");
  SafetensorsHeader header = parse_safetensors_header({json, length}, path_);
  metadata_ = std::move(header.metadata);
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t begin = 0;
  for (SafetensorsHeader::Entry& entry : header.entries) {
    restore_type(path_, entry, metadata_);
    check_entry(path_, entry, begin, file_bytes_ - header_bytes_);
    begin = entry.end;
    index_[entry.name] = entries_.size();
    entries_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape),
                        header_bytes_ + entry.begin, entry.end - entry.begin});
  }
  if (begin == file_bytes_ - header_bytes_) return;
  throw damaged(path_, "bytes behind the last tensor")
      .expected(fmt::format("{} bytes of tensors", begin),
                std::to_string(file_bytes_ - header_bytes_));
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

Tensor SafetensorsFile::tensor(const Entry& entry) const {
  const std::span<const std::byte> content = bytes(entry);
  if (entry.dtype == DType::kBool) {
    const auto wrong =
        std::find_if(content.begin(), content.end(), [](std::byte b) { return b > std::byte{1}; });
    if (wrong != content.end()) {
      throw damaged(path_, fmt::format("tensor \"{}\" is no bool", entry.name))
          .expected("0 or 1", std::to_string(static_cast<int>(*wrong)));
    }
  }
  if (entry.offset % std::max<size_t>(1, size_of(entry.dtype)) == 0) {
    return Tensor(entry.dtype, entry.shape, {storage_, content.data()}, entry.bytes);
  }
  Tensor copy(entry.dtype, entry.shape);
  if (entry.bytes > 0) std::memcpy(copy.mutable_bytes(), content.data(), entry.bytes);
  return copy;
}

}  // namespace halfnote
