#include "runtime/train/data/format/byte_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace halfnote {
namespace {

// zlib counts in unsigned int; whole arrays are fed to it in pieces.
constexpr size_t kPiece = size_t{1} << 30;
constexpr int kGzipWindow = 16 + MAX_WBITS;

}  // namespace

void ByteReader::read_exact(std::span<std::byte> to, const std::string& what) {
  const size_t got = read(to);
  if (got == to.size()) return;
  throw Error(ErrorCode::kData, what + " is truncated")
      .at({path_, {}, {}})
      .expected(fmt::format("{} bytes", to.size()), std::to_string(got));
}

void ByteReader::expect_end(const std::string& after) {
  std::byte extra{};
  if (read({&extra, 1}) == 0) return;
  throw Error(ErrorCode::kData, "more bytes follow " + after).at({path_, {}, {}});
}

size_t MemoryReader::read(std::span<std::byte> to) {
  const size_t count = std::min(to.size(), rest_.size());
  if (count > 0) std::memcpy(to.data(), rest_.data(), count);
  rest_ = rest_.subspan(count);
  return count;
}

GzipReader::GzipReader(std::string path, std::span<const std::byte> bytes)
    : ByteReader(std::move(path)), rest_(bytes) {
  if (inflateInit2(&stream_, kGzipWindow) != Z_OK) {
    throw Error(ErrorCode::kMemory, "no memory to decompress").at({this->path(), {}, {}});
  }
}

GzipReader::~GzipReader() { inflateEnd(&stream_); }

size_t GzipReader::read(std::span<std::byte> to) {
  size_t done = 0;
  while (done < to.size()) {
    if (member_done_) {
      if (rest_.empty()) return done;
      inflateReset(&stream_);
      member_done_ = false;
    }
    const size_t in = std::min(rest_.size(), kPiece);
    const size_t out = std::min(to.size() - done, kPiece);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
    stream_.avail_in = static_cast<uInt>(in);
    stream_.next_out = reinterpret_cast<Bytef*>(to.data() + done);
    stream_.avail_out = static_cast<uInt>(out);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    rest_ = rest_.subspan(in - stream_.avail_in);
    done += out - stream_.avail_out;
    if (status == Z_STREAM_END) {
      member_done_ = true;
    } else if (status == Z_BUF_ERROR && rest_.empty()) {
      throw Error(ErrorCode::kData, "the gzip stream is truncated").at({path(), {}, {}});
    } else if (status != Z_OK) {
      throw Error(ErrorCode::kData, "the gzip stream is damaged")
          .at({path(), {}, {}})
          .hint(stream_.msg != nullptr ? stream_.msg : "zlib gave no reason");
    }
  }
  return done;
}

bool looks_like_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

}  // namespace halfnote
