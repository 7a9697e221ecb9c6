// The file formats of training data. Files are untrusted: every size is checked before memory is
// spent on it, and whatever is wrong with the content is Error(kData) naming file, field and values
// (unreadable files: Error(kIo)).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "runtime/train/data/dataset.h"

namespace halfnote {

struct DataLimits {
  uint64_t member_bytes = uint64_t{64} << 30;  // of one array of an .npz, decompressed
  uint64_t ratio = 1000;                       // decompressed to compressed bytes, of .npz and .gz
  uint64_t members = 4096;                     // arrays of an .npz
  uint64_t copied_bytes = 0;  // read into memory in one call; 0: 80 % of the machine's memory
};

/// `copied_bytes` with its default filled in: 80 % of the machine's memory, or of the control
/// group's if that is less.
uint64_t memory_budget(const DataLimits& limits);

/// Bytes of an array; nothing for a negative dim or a size that no tensor can have (dims of 0 count
/// as 1 here, so that strides cannot overflow either).
std::optional<uint64_t> array_bytes(DType dtype, std::span<const int64_t> shape);

/// MNIST's idx format, plain or gzip-compressed (told apart by the first bytes). Elements are
/// converted from big endian.
Tensor read_idx(const std::string& path, const DataLimits& limits = {});

/// NumPy's .npy, versions 1 to 3: little endian numbers and bool. C order is mapped, Fortran order
/// converted.
Tensor read_npy(const std::string& path, const DataLimits& limits = {});

/// NumPy's .npz, stored or deflated: the arrays in the order of the archive, names without `.npy`.
std::vector<DataField> read_npz(const std::string& path, const DataLimits& limits = {});

/// What a CIFAR binary record is: label bytes, then 3 planes of 32 x 32, red, green, blue.
struct CifarKind {
  int label_bytes = 1;       // 2 for CIFAR-100: coarse, then fine
  int classes[2] = {10, 0};  // of each label byte
  const char* labels[2] = {"label", nullptr};
};
inline constexpr CifarKind kCifar10Records;
inline constexpr CifarKind kCifar100Records = {2, {20, 100}, {"coarse_label", "label"}};

/// The binary batches, one after the other: `image` u8 (N,3,32,32) and the labels u8 (N), checked
/// against their range.
std::vector<DataField> read_cifar(const std::vector<std::string>& paths, const CifarKind& kind,
                                  const DataLimits& limits = {});

}  // namespace halfnote
