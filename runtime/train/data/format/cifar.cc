// CIFAR binary batches: records of fixed size, label bytes first, then a 3 x 32 x 32 image.
#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kImageBytes = 3 * kSide * kSide;

int64_t count_records(const std::string& path, const MappedFile& file, int64_t record) {
  const auto bytes = static_cast<int64_t>(file.bytes().size());
  if (bytes > 0 && bytes % record == 0) return bytes / record;
  throw Error(ErrorCode::kData, "not a whole number of CIFAR records")
      .at({path, {}, {}})
      .expected(fmt::format("a multiple of {} bytes", record), std::to_string(bytes))
      .hint("the file is truncated, or not of the binary version of the data set");
}

void check_label(const std::string& path, const CifarKind& kind, int byte, int64_t sample,
                 int value) {
  if (value < kind.classes[byte]) return;
  throw Error(ErrorCode::kData,
              fmt::format("{} out of range in sample {}", kind.labels[byte], sample))
      .at({path, {}, {}})
      .expected(fmt::format("0 to {}", kind.classes[byte] - 1), std::to_string(value));
}

}  // namespace

std::vector<DataField> read_cifar(const std::vector<std::string>& paths, const CifarKind& kind,
                                  const DataLimits& limits) {
  const int64_t record = kind.label_bytes + kImageBytes;
  std::vector<MappedFile> files;
  int64_t samples = 0;
  for (const std::string& path : paths) {
    files.emplace_back(path);
    samples += count_records(path, files.back(), record);
  }
  if (static_cast<uint64_t>(samples * record) > memory_budget(limits)) {
    throw Error(ErrorCode::kMemory, "the data does not fit into memory")
        .at({paths[0], {}, {}})
        .expected(fmt::format("at most {} bytes", memory_budget(limits)),
                  std::to_string(samples * record));
  }
  std::vector<DataField> fields = {{"image", Tensor(DType::kU8, {samples, 3, kSide, kSide})}};
  for (int i = kind.label_bytes; i-- > 0;) {  // the fine label first
    fields.push_back({kind.labels[i], Tensor(DType::kU8, {samples})});
  }
  std::byte* images = fields[0].data.mutable_bytes();
  int64_t sample = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    const std::byte* from = files[f].bytes().data();
    const int64_t records = static_cast<int64_t>(files[f].bytes().size()) / record;
    for (int64_t i = 0; i < records; ++i, ++sample, from += record) {
      for (int byte = 0; byte < kind.label_bytes; ++byte) {
        check_label(paths[f], kind, byte, i, static_cast<int>(from[byte]));
        fields[static_cast<size_t>(kind.label_bytes - byte)].data.mutable_bytes()[sample] =
            from[byte];
      }
      std::memcpy(images + sample * kImageBytes, from + kind.label_bytes, kImageBytes);
    }
  }
  return fields;
}

}  // namespace halfnote
