// Tensor data in files beside the model, opened so that a hostile model cannot read anything else.
//
// A location must be relative, without `..`, and is opened below the model's folder without
// following links. The one exception is a link whose target lies in the folder of the model's own
// target (the layout of download caches: all files of a snapshot link into one blob folder) or in a
// folder that the user allows. Only regular files are read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/onnx/proto/tensor.h"

namespace halfnote::proto {

/// The key-value pairs of `external_data`, checked.
struct ExternalEntry {
  std::string location;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool has_length = false;
  bool has_checksum = false;
};

/// Throws Error(kModel) for unknown or repeated keys, numbers that are not plain decimal, and
/// unsafe locations.
ExternalEntry parse_external_entry(const std::vector<std::pair<std::string, std::string>>& entries);

class ExternalData {
 public:
  /// `model` is the path as given; `warn` is told of hard-linked files and unverified checksums.
  ExternalData(std::filesystem::path model, std::vector<std::filesystem::path> allowed,
               std::function<void(const std::string&)> warn);
  ~ExternalData();
  ExternalData(const ExternalData&) = delete;
  ExternalData& operator=(const ExternalData&) = delete;

  /// `size` bytes at the entry's place: mapped, or read into memory when the file belongs to
  /// somebody else, who could shorten it. Throws Error(kModel) for unsafe or ill-fitting entries,
  /// Error(kIo) for files that cannot be read.
  std::shared_ptr<const std::byte> open(const ExternalEntry& entry, uint64_t size,
                                        TensorSource& source);

  /// The files that were opened.
  std::vector<std::string> files() const;

 private:
  struct File;
  File& file(const ExternalEntry& entry, const ImportLimits& limits);
  int open_below(const std::string& location);
  int open_link(const std::string& location);

  std::filesystem::path model_, folder_;
  std::vector<std::filesystem::path> allowed_;
  std::function<void(const std::string&)> warn_;
  std::map<std::string, std::unique_ptr<File>> files_;
};

}  // namespace halfnote::proto
