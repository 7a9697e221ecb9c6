// A stream of bytes that is read from front to back: plain memory, or gzip-compressed memory.
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace halfnote {

class ByteReader {
 public:
  explicit ByteReader(std::string path) : path_(std::move(path)) {}
  virtual ~ByteReader() = default;
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  /// Up to `to.size()` bytes; fewer only at the end. Throws Error(kData) for a damaged stream.
  virtual size_t read(std::span<std::byte> to) = 0;

  /// Exactly `to.size()` bytes; throws Error(kData) saying that `what` is truncated.
  void read_exact(std::span<std::byte> to, const std::string& what);
  /// Throws Error(kData) if anything follows; also completes the check sum of a compressed stream.
  void expect_end(const std::string& after);

  /// For messages.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Reads memory that the caller keeps.
class MemoryReader : public ByteReader {
 public:
  MemoryReader(std::string path, std::span<const std::byte> bytes)
      : ByteReader(std::move(path)), rest_(bytes) {}
  size_t read(std::span<std::byte> to) override;

 private:
  std::span<const std::byte> rest_;
};

/// Inflates gzip-compressed memory that the caller keeps; several members in a row are one stream,
/// as gunzip has it.
class GzipReader : public ByteReader {
 public:
  GzipReader(std::string path, std::span<const std::byte> bytes);
  ~GzipReader() override;
  size_t read(std::span<std::byte> to) override;

 private:
  std::span<const std::byte> rest_;
  z_stream stream_{};
  bool member_done_ = false;
};

/// The bytes start like a gzip stream.
bool looks_like_gzip(std::span<const std::byte> bytes);

}  // namespace halfnote
