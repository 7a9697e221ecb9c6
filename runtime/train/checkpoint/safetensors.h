// safetensors: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes
// without holes.
//
// What is written is what the reference implementation would accept: tensors ordered by falling
// element size, then by name, so that each is aligned; the header padded with spaces to a multiple
// of 8 and never above 100 MB. Types that the format lacks are written as bytes (U8, the last dim
// times the element's bytes) with their name in `__metadata__` under `dtype:NAME`, and read back as
// what they were.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "runtime/train/checkpoint/disk.h"

namespace halfnote {

inline constexpr uint64_t kSafetensorsHeaderLimit = 100'000'000;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

/// How a file will look: its header with the length in front, and the tensors' indices in file
/// order.
struct SafetensorsLayout {
  std::string header;
  std::vector<size_t> order;
};

/// Throws Error(kCheckpoint) for a name that is used twice, reserved or not UTF-8, and for a header
/// over the limit; Error(kUnsupported) for string tensors.
SafetensorsLayout lay_out_safetensors(std::span<const NamedTensor> tensors,
                                      const SafetensorsMetadata& metadata = {});

/// The parts of the file one behind the other; they point into the layout and the tensors.
std::vector<std::span<const std::byte>> safetensors_parts(const SafetensorsLayout& layout,
                                                          std::span<const NamedTensor> tensors);

/// Writes and flushes a new file, which must not exist.
void write_safetensors(Disk& disk, const Disk::Path& path, std::span<const NamedTensor> tensors,
                       const SafetensorsMetadata& metadata = {});

/// A file that is mapped and completely checked: names, types, shapes and offsets, no overlap, no
/// hole, nothing behind. Whatever is wrong is Error(kCheckpoint) naming file and tensor.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::kUndefined;
    Shape shape;
    uint64_t offset = 0;  // from the start of the file
    uint64_t bytes = 0;
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  /// In file order.
  std::span<const Entry> entries() const { return entries_; }
  const Entry* find(std::string_view name) const;
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// Length and JSON, as they are in the file.
  std::span<const std::byte> header() const { return {storage_.get(), header_bytes_}; }
  std::span<const std::byte> bytes(const Entry& entry) const {
    return {storage_.get() + entry.offset, entry.bytes};
  }
  uint64_t file_bytes() const { return file_bytes_; }
  /// The tensor, sharing the mapping where it is aligned for its type, else copied. A bool other
  /// than 0 and 1 is Error(kCheckpoint).
  Tensor tensor(const Entry& entry) const;

 private:
  std::string path_;
  std::shared_ptr<const std::byte> storage_;
  uint64_t file_bytes_ = 0;
  uint64_t header_bytes_ = 0;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // by name
  SafetensorsMetadata metadata_;
};

}  // namespace halfnote
