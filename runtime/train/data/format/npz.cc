// .npz is a zip archive of .npy members. It is read through libzip from memory-mapped bytes, member
// by member, never unpacked to disk. What the archive says of a member is checked before memory is
// spent on it; its check sum after.
#include <fmt/format.h>
#include <zip.h>

#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/data/format/npy.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {
namespace {

constexpr size_t kMaxName = 64 * 1024;

Error bad_archive(const std::string& path, std::string what) {
  return Error(ErrorCode::kData, std::move(what)).at({path, {}, {}});
}

struct CloseArchive {
  void operator()(zip_t* archive) const { zip_discard(archive); }
};
struct CloseMember {
  void operator()(zip_file_t* member) const { zip_fclose(member); }
};
using Archive = std::unique_ptr<zip_t, CloseArchive>;
using Member = std::unique_ptr<zip_file_t, CloseMember>;

Archive open_archive(const std::string& path, std::span<const std::byte> bytes) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  zip_t* archive = source == nullptr ? nullptr : zip_open_from_source(source, ZIP_RDONLY, &error);
  if (archive == nullptr) {
    if (source != nullptr) zip_source_free(source);
    const std::string reason = zip_error_strerror(&error);
    zip_error_fini(&error);
    throw bad_archive(path, "not a readable .npz archive").hint(reason);
  }
  zip_error_fini(&error);
  return Archive(archive);
}

/// Reads one member; the size that the archive states is the most that comes out.
class MemberReader : public ByteReader {
 public:
  MemberReader(std::string path, zip_t* archive, zip_uint64_t index)
      : ByteReader(std::move(path)), member_(zip_fopen_index(archive, index, 0)) {
    if (member_ == nullptr)
      throw bad_archive(this->path(), "cannot open the member").hint(zip_strerror(archive));
  }

  size_t read(std::span<std::byte> to) override {
    size_t done = 0;
    while (done < to.size()) {
      const zip_int64_t got = zip_fread(member_.get(), to.data() + done, to.size() - done);
      if (got < 0)
        throw bad_archive(path(), "the member is damaged").hint(zip_file_strerror(member_.get()));
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }

 private:
  Member member_;
};

/// Name, sizes and method of a member, all within limits.
zip_stat_t checked_stat(const std::string& path, zip_t* archive, zip_uint64_t index,
                        uint64_t file_bytes, const DataLimits& limits) {
  constexpr zip_uint64_t kWanted =
      ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_ENCRYPTION_METHOD;
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat_index(archive, index, 0, &stat) != 0 || (stat.valid & kWanted) != kWanted) {
    throw bad_archive(path, fmt::format("member {} of the archive is damaged", index));
  }
  const std::string_view name = stat.name;
  if (name.size() <= 4 || name.size() > kMaxName || !name.ends_with(".npy")) {
    throw bad_archive(path, fmt::format("member {} of the archive is no array", index))
        .expected("a name that ends in .npy", fmt::format("\"{}\"", name.substr(0, 100)));
  }
  const std::string place = fmt::format("{}:{}", path, name);
  if (stat.encryption_method != ZIP_EM_NONE) throw bad_archive(place, "the member is encrypted");
  if (stat.size > limits.member_bytes) {
    throw bad_archive(place, "the member is too large")
        .expected(fmt::format("at most {} bytes", limits.member_bytes), std::to_string(stat.size));
  }
  if (stat.comp_size > file_bytes || stat.size / limits.ratio > stat.comp_size) {
    throw bad_archive(place, "the member is compressed beyond belief")
        .expected(fmt::format("at most {} times smaller, within the file", limits.ratio),
                  fmt::format("{} bytes from {}", stat.size, stat.comp_size))
        .hint("write it with numpy.savez instead of savez_compressed");
  }
  return stat;
}

DataField read_member(const std::string& path, zip_t* archive, const zip_stat_t& stat) {
  const std::string_view name = stat.name;
  MemberReader reader(fmt::format("{}:{}", path, name), archive, stat.index);
  const NpyHeader header = read_npy_header(reader);
  if (header.data_offset + header.bytes != stat.size) {
    throw bad_archive(reader.path(), "the member has the wrong size")
        .expected(fmt::format("{} bytes for shape {}", header.data_offset + header.bytes,
                              to_string(header.shape)),
                  std::to_string(stat.size));
  }
  return {std::string(name.substr(0, name.size() - 4)), read_npy_elements(reader, header)};
}

}  // namespace

std::vector<DataField> read_npz(const std::string& path, const DataLimits& limits) {
  const MappedFile file(path);
  const Archive archive = open_archive(path, file.bytes());
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  if (count < 0 || static_cast<uint64_t>(count) > limits.members) {
    throw bad_archive(path, "too many arrays in the archive")
        .expected(fmt::format("at most {}", limits.members), std::to_string(count));
  }
  const uint64_t budget = memory_budget(limits);
  uint64_t total = 0;
  std::vector<DataField> fields;
  for (zip_int64_t i = 0; i < count; ++i) {
    const zip_stat_t stat = checked_stat(path, archive.get(), static_cast<zip_uint64_t>(i),
                                         file.bytes().size(), limits);
    total += stat.size;  // at most 4096 times 64 GiB
    if (total > budget) {
      throw Error(ErrorCode::kMemory, "the arrays do not fit into memory")
          .at({path, {}, {}})
          .expected(fmt::format("at most {} bytes", budget), fmt::format("at least {}", total))
          .hint("save each array as an .npy file, which is mapped instead of copied");
    }
    fields.push_back(read_member(path, archive.get(), stat));
  }
  return fields;
}

}  // namespace halfnote
