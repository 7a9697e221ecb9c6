// The tables of the wire walk: which fields of which message of onnx.proto are messages themselves,
// and a reader of fields that never leaves the bytes it was given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace halfnote::proto {

enum class Kind : uint8_t {
  kLeaf,  // not looked into
  kModel,
  kTraining,
  kFunction,
  kGraph,
  kNode,
  kAttribute,
  kTensor,
  kSparse,
  kValueInfo,
  kType,
  kTensorType,
  kShape,
  kContainer,
  kMap,
};

struct FieldRule {
  Kind parent;
  uint32_t number;
  Kind child;
};

// Field numbers of onnx.proto, which never change.
inline constexpr FieldRule kRules[] = {
    {Kind::kModel, 7, Kind::kGraph},
    {Kind::kModel, 20, Kind::kTraining},
    {Kind::kModel, 25, Kind::kFunction},
    {Kind::kTraining, 1, Kind::kGraph},
    {Kind::kTraining, 2, Kind::kGraph},
    {Kind::kFunction, 7, Kind::kNode},
    {Kind::kFunction, 11, Kind::kAttribute},
    {Kind::kFunction, 12, Kind::kValueInfo},
    {Kind::kGraph, 1, Kind::kNode},
    {Kind::kGraph, 5, Kind::kTensor},
    {Kind::kGraph, 11, Kind::kValueInfo},
    {Kind::kGraph, 12, Kind::kValueInfo},
    {Kind::kGraph, 13, Kind::kValueInfo},
    {Kind::kGraph, 15, Kind::kSparse},
    {Kind::kNode, 5, Kind::kAttribute},
    {Kind::kAttribute, 5, Kind::kTensor},
    {Kind::kAttribute, 6, Kind::kGraph},
    {Kind::kAttribute, 10, Kind::kTensor},
    {Kind::kAttribute, 11, Kind::kGraph},
    {Kind::kAttribute, 14, Kind::kType},
    {Kind::kAttribute, 15, Kind::kType},
    {Kind::kAttribute, 22, Kind::kSparse},
    {Kind::kAttribute, 23, Kind::kSparse},
    {Kind::kSparse, 1, Kind::kTensor},
    {Kind::kSparse, 2, Kind::kTensor},
    {Kind::kValueInfo, 2, Kind::kType},
    {Kind::kType, 1, Kind::kTensorType},
    {Kind::kType, 8, Kind::kTensorType},
    {Kind::kType, 4, Kind::kContainer},
    {Kind::kType, 9, Kind::kContainer},
    {Kind::kType, 5, Kind::kMap},
    {Kind::kTensorType, 2, Kind::kShape},
    {Kind::kContainer, 1, Kind::kType},
    {Kind::kMap, 2, Kind::kType},
};

// Names, which the compiler and its messages carry around.
inline constexpr FieldRule kNames[] = {
    {Kind::kGraph, 2, Kind::kLeaf},      {Kind::kNode, 1, Kind::kLeaf},
    {Kind::kNode, 2, Kind::kLeaf},       {Kind::kNode, 3, Kind::kLeaf},
    {Kind::kNode, 4, Kind::kLeaf},       {Kind::kNode, 7, Kind::kLeaf},
    {Kind::kNode, 8, Kind::kLeaf},       {Kind::kAttribute, 1, Kind::kLeaf},
    {Kind::kAttribute, 21, Kind::kLeaf}, {Kind::kTensor, 8, Kind::kLeaf},
    {Kind::kValueInfo, 1, Kind::kLeaf},  {Kind::kFunction, 1, Kind::kLeaf},
    {Kind::kFunction, 4, Kind::kLeaf},   {Kind::kFunction, 5, Kind::kLeaf},
    {Kind::kFunction, 6, Kind::kLeaf},   {Kind::kFunction, 10, Kind::kLeaf},
    {Kind::kFunction, 13, Kind::kLeaf},
};

inline constexpr uint32_t kRawData = 9;  // TensorProto.raw_data
inline constexpr size_t kMaxField = 32;  // above every number in the tables

inline constexpr size_t kKinds = static_cast<size_t>(Kind::kMap) + 1;
using KindTable = std::array<std::array<Kind, kMaxField>, kKinds>;
using NameTable = std::array<std::array<bool, kMaxField>, kKinds>;

constexpr KindTable make_children() {
  KindTable table{};
  for (const FieldRule& rule : kRules) table[size_t(rule.parent)][rule.number] = rule.child;
  return table;
}
constexpr NameTable make_names() {
  NameTable table{};
  for (const FieldRule& rule : kNames) table[size_t(rule.parent)][rule.number] = true;
  return table;
}
inline constexpr KindTable kChildren = make_children();
inline constexpr NameTable kIsName = make_names();

inline Kind child_of(Kind parent, uint64_t number) {
  return number < kMaxField ? kChildren[size_t(parent)][number] : Kind::kLeaf;
}
inline bool is_name(Kind parent, uint64_t number) {
  return number < kMaxField && kIsName[size_t(parent)][number];
}
inline bool is_raw(Kind parent, uint64_t number) {
  return parent == Kind::kTensor && number == kRawData;
}

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

/// One field: its number, and the bytes that belong to it.
struct Field {
  uint64_t number = 0;
  uint32_t wire = 0;
  size_t begin = 0;    // of the tag
  size_t payload = 0;  // of a length-delimited field's content
  size_t end = 0;
};

/// Reads fields of `bytes` one by one; positions are offsets in the whole message.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Field next(size_t at, size_t end) const {
    Field field;
    field.begin = at;
    const uint64_t tag = varint(at, end);
    field.number = tag >> 3;
    field.wire = static_cast<uint32_t>(tag & 7);
    if (field.number == 0 || field.number >= (uint64_t{1} << 29)) malformed("bad field number", at);
    field.payload = at;
    switch (field.wire) {
      case kVarint:
        varint(at, end);
        break;
      case kFixed64:
        at = skip(at, 8, end);
        break;
      case kFixed32:
        at = skip(at, 4, end);
        break;
      case kLength: {
        const uint64_t length = varint(at, end);
        field.payload = at;
        at = skip(at, length, end);
        break;
      }
      default:
        malformed("wire type that ONNX does not use", at);
    }
    field.end = at;
    return field;
  }

  [[noreturn]] void malformed(std::string_view what, size_t at) const {
    throw Error(ErrorCode::kModel,
                "not a valid ONNX file: " + std::string(what) + " at byte " + std::to_string(at))
        .hint("the file may be truncated or not be ONNX at all");
  }

 private:
  uint64_t varint(size_t& at, size_t end) const {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at >= end) malformed("a number ends too early", at);
      const auto byte = std::to_integer<uint64_t>(bytes_[at++]);
      value |= (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    malformed("a number is too long", at);
  }

  size_t skip(size_t at, uint64_t count, size_t end) const {
    if (count > end - at) malformed("a field is longer than what holds it", at);
    return at + static_cast<size_t>(count);
  }

  std::span<const std::byte> bytes_;
};

inline void append_varint(std::string& text, uint64_t value) {
  for (; value >= 0x80; value >>= 7) text.push_back(static_cast<char>(value | 0x80));
  text.push_back(static_cast<char>(value));
}

/// The bytes of a length-delimited field, tag and length with it.
inline size_t field_size(int number, size_t content) {
  const auto varint = [](uint64_t value) {
    size_t bytes = 1;
    for (; value >= 0x80; value >>= 7) ++bytes;
    return bytes;
  };
  return varint(static_cast<uint64_t>(number) << 3) + varint(content) + content;
}

/// Appends a field that is a number.
inline void append_number(std::string& to, int number, uint64_t value) {
  append_varint(to, static_cast<uint64_t>(number) << 3);
  append_varint(to, value);
}

/// Appends the tag and the length of a field whose content, `size` bytes, follows.
inline void append_length(std::string& to, int number, uint64_t size) {
  append_varint(to, static_cast<uint64_t>(number) << 3 | 2);
  append_varint(to, size);
}

/// Appends a length-delimited field.
inline void append_field(std::string& to, int number, std::string_view bytes) {
  append_length(to, number, bytes.size());
  to += bytes;
}

}  // namespace halfnote::proto
