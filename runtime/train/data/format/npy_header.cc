// Before:  \x93NUMPY, version, header length, {'descr': '<f4', 'fortran_order': False, 'shape': (3,
// 4), }, spaces, newline The literal is read by a small parser of just this grammar; nothing is
// evaluated.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "runtime/train/data/format/npy.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {
namespace {

constexpr uint32_t kMaxHeader = 1 << 20;  // the header of a plain array has about 100 bytes
constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;

struct Descr {
  std::string_view text;
  DType dtype;
};
constexpr Descr kDescrs[] = {{"<f4", DType::kF32}, {"<f2", DType::kF16}, {"<f8", DType::kF64},
                             {"|u1", DType::kU8},  {"|i1", DType::kI8},  {"<u2", DType::kU16},
                             {"<i2", DType::kI16}, {"<u4", DType::kU32}, {"<i4", DType::kI32},
                             {"<u8", DType::kU64}, {"<i8", DType::kI64}, {"|b1", DType::kBool}};

class HeaderParser {
 public:
  HeaderParser(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    bool seen[3] = {};
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      const int index = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : -1;
      if (index < 0 || std::exchange(seen[index], true)) fail(fmt::format("the key '{}'", key));
      expect(':');
      if (index == 0) header.dtype = descr();
      if (index == 1) header.fortran_order = boolean();
      if (index == 2) header.shape = shape();
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_spaces();
    if (at_ != text_.size()) fail("text after the closing brace");
    if (!seen[0] || !seen[1] || !seen[2]) fail("a missing key");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& got) const {
    throw Error(ErrorCode::kData, "bad header of an .npy array")
        .at({path_, {}, {}})
        .expected("descr, fortran_order and shape", fmt::format("{} at character {}", got, at_));
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("no '{}'", c));
  }

  std::string_view quoted() {
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("no quoted string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("an open string");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }

  DType descr() {
    skip_spaces();
    if (at_ < text_.size() && text_[at_] == '[')
      unusable("a structured type", "save one array a column");
    const std::string_view text = quoted();
    for (const Descr& row : kDescrs) {
      if (row.text == text) return row.dtype;
    }
    const std::string got = fmt::format("'{}'", text);
    if (text.starts_with('>'))
      unusable(got, "save it little endian: a.astype(a.dtype.newbyteorder('<'))");
    if (text.ends_with('O'))
      unusable(got, "an object array holds pickled code, which is never run; save numbers");
    unusable(got, "convert it with a.astype(numpy.float32) or to an integer type");
  }

  [[noreturn]] void unusable(const std::string& got, const std::string& hint) const {
    throw Error(ErrorCode::kData, "element type of an .npy array that training cannot use")
        .at({path_, {}, {}})
        .expected("little endian f2, f4, f8, i1 to i8, u1 to u8 or b1", got)
        .hint(hint);
  }

  bool boolean() {
    skip_spaces();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail("neither True nor False");
  }

  Shape shape() {
    Shape dims;
    expect('(');
    while (!accept(')')) {
      dims.push_back(number());
      if (dims.size() > static_cast<size_t>(kMaxRank))
        fail(fmt::format("more than {} dims", kMaxRank));
      if (accept(',')) continue;
      if (dims.size() == 1) fail("a number in brackets instead of a tuple");
      expect(')');
      break;
    }
    return dims;
  }

  int64_t number() {
    skip_spaces();
    int64_t value = -1;
    const char* begin = text_.data() + at_;
    const auto [end, status] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (status != std::errc() || value < 0) fail("no dim");
    at_ += static_cast<size_t>(end - begin);
    return value;
  }

  std::string path_;
  std::string_view text_;
  size_t at_ = 0;
};

uint32_t header_length(ByteReader& from, std::byte version) {
  std::array<std::byte, 4> raw{};
  const size_t width = version == std::byte{1} ? 2 : 4;
  from.read_exact({raw.data(), width}, "the .npy header");
  uint32_t length = 0;
  for (size_t i = width; i-- > 0;) length = length << 8 | static_cast<uint32_t>(raw[i]);
  if (length <= kMaxHeader) return length;
  throw Error(ErrorCode::kData, "the header of an .npy array is too long")
      .at({from.path(), {}, {}})
      .expected(fmt::format("at most {} bytes", kMaxHeader), std::to_string(length));
}

}  // namespace

NpyHeader read_npy_header(ByteReader& from) {
  std::array<std::byte, kMagicBytes + 2> start{};
  from.read_exact(start, "the .npy header");
  if (std::memcmp(start.data(), kMagic, kMagicBytes) != 0) {
    throw Error(ErrorCode::kData, "not an .npy array")
        .at({from.path(), {}, {}})
        .expected("the bytes \\x93NUMPY at the start", "other bytes");
  }
  const std::byte version = start[kMagicBytes];
  if (version < std::byte{1} || version > std::byte{3} || start[kMagicBytes + 1] != std::byte{0}) {
    throw Error(ErrorCode::kData, "unknown version of the .npy format")
        .at({from.path(), {}, {}})
        .expected("1.0, 2.0 or 3.0", fmt::format("{}.{}", static_cast<int>(version),
                                                 static_cast<int>(start[kMagicBytes + 1])));
  }
  const uint32_t length = header_length(from, version);
  std::string text(length, '\0');
  from.read_exact(std::as_writable_bytes(std::span(text)), "the .npy header");
  NpyHeader header = HeaderParser(from.path(), text).parse();
  header.data_offset = start.size() + (version == std::byte{1} ? 2 : 4) + length;
  const std::optional<uint64_t> bytes = array_bytes(header.dtype, header.shape);
  if (!bytes) {
    throw Error(ErrorCode::kData, "an .npy array is too large")
        .at({from.path(), {}, {}})
        .expected("at most 2^40 elements", "shape " + to_string(header.shape));
  }
  header.bytes = *bytes;
  return header;
}

}  // namespace halfnote
