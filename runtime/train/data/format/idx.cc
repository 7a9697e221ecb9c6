// idx: two zero bytes, the element type, the number of dims, each dim as a big endian u32, then the
// elements, big endian.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "runtime/train/data/format/byte_reader.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {
namespace {

struct ElementType {
  uint8_t code;
  DType dtype;
};
constexpr ElementType kElementTypes[] = {{0x08, DType::kU8},  {0x09, DType::kI8},
                                         {0x0b, DType::kI16}, {0x0c, DType::kI32},
                                         {0x0d, DType::kF32}, {0x0e, DType::kF64}};

Error bad_header(const ByteReader& from, std::string what) {
  return Error(ErrorCode::kData, std::move(what)).at({from.path(), {}, {}});
}

DType element_type(const ByteReader& from, std::span<const std::byte, 4> magic) {
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
    throw bad_header(from, "not an idx file")
        .expected(
            "two zero bytes at the start",
            fmt::format("{:02x} {:02x}", static_cast<int>(magic[0]), static_cast<int>(magic[1])));
  }
  for (const ElementType& type : kElementTypes) {
    if (magic[2] == std::byte{type.code}) return type.dtype;
  }
  throw bad_header(from, "unknown element type of an idx file")
      .expected("08, 09, 0b, 0c, 0d or 0e", fmt::format("{:02x}", static_cast<int>(magic[2])));
}

Shape read_shape(ByteReader& from, int rank) {
  if (rank < 1 || rank > kMaxRank) {
    throw bad_header(from, "number of dims of an idx file out of range")
        .expected(fmt::format("1 to {}", kMaxRank), std::to_string(rank));
  }
  Shape shape;
  for (int i = 0; i < rank; ++i) {
    std::array<std::byte, 4> dim{};
    from.read_exact(dim, "the header");
    int64_t value = 0;
    for (const std::byte byte : dim) value = value << 8 | static_cast<int64_t>(byte);
    shape.push_back(value);
  }
  return shape;
}

/// Throws unless the elements fit into `at_most` bytes.
void check_size(const ByteReader& from, DType dtype, const Shape& shape, uint64_t at_most) {
  const std::optional<uint64_t> bytes = array_bytes(dtype, shape);
  if (bytes && *bytes <= at_most) return;
  throw bad_header(from, "the header announces more data than the file can hold")
      .expected(fmt::format("at most {} bytes", at_most), "shape " + to_string(shape))
      .hint("the file is truncated or its header damaged");
}

void swap_elements(Tensor& tensor) {
  const size_t width = size_of(tensor.dtype());
  if (width == 1) return;
  std::byte* bytes = tensor.mutable_bytes();
  for (size_t i = 0; i < tensor.byte_size(); i += width) std::reverse(bytes + i, bytes + i + width);
}

Tensor read_from(ByteReader& from, uint64_t at_most) {
  std::array<std::byte, 4> magic{};
  from.read_exact(magic, "the header");
  const DType dtype = element_type(from, magic);
  const Shape shape = read_shape(from, static_cast<int>(magic[3]));
  check_size(from, dtype, shape, at_most);
  Tensor tensor(dtype, shape);
  from.read_exact({tensor.mutable_bytes(), tensor.byte_size()},
                  "the data of shape " + to_string(shape));
  from.expect_end("the data of shape " + to_string(shape));
  swap_elements(tensor);
  return tensor;
}

}  // namespace

Tensor read_idx(const std::string& path, const DataLimits& limits) {
  const MappedFile file(path);
  const uint64_t size = file.bytes().size();
  const uint64_t budget = memory_budget(limits);
  if (looks_like_gzip(file.bytes())) {
    uint64_t expanded = 0;
    if (__builtin_mul_overflow(size, limits.ratio, &expanded)) expanded = budget;
    GzipReader reader(path, file.bytes());
    return read_from(reader, std::min(expanded, budget));
  }
  MemoryReader reader(path, file.bytes());
  return read_from(reader, std::min(size, budget));
}

}  // namespace halfnote
