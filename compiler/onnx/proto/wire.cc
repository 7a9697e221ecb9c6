// Two walks over the same table of message kinds. The first checks and computes the new size of
// every message, in pre-order; the second emits, taking those sizes in the same order.
//
// Spliced bytes of large tensors stand on a cache line of the file, so that a reader can use them
// where they are mapped: fields of a number that ONNX does not have, which every reader of protobuf
// skips, stand before and behind them. Together they have one length, wherever the bytes come to
// stand, so that sizes are known before places.
#include "compiler/onnx/proto/wire.h"

#include <cassert>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/text/printable.h"
#include "compiler/onnx/proto/wire_format.h"

namespace halfnote::proto {
namespace {

size_t varint_size(uint64_t value) {
  size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) ++bytes;
  return bytes;
}

constexpr uint64_t kPadField = 4000;  // of TensorProto
constexpr uint64_t kAligned = 4096;   // bytes of a tensor from which on it is aligned
constexpr uint64_t kSpliceUnit = 64;
constexpr uint64_t kPadHeader = 4;  // three bytes of tag and one of length
constexpr uint64_t kPadding = 2 * kPadHeader + kSpliceUnit - 1;

void append_pad(std::string& text, uint64_t length) {
  append_varint(text, kPadField << 3 | 2);
  append_varint(text, length);
  text.append(length, '\0');
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

/// Counts what the limits bound.
class Budget {
 public:
  explicit Budget(const ImportLimits& limits) : limits_(limits) {}

  void enter(Kind kind, int graphs, int types) {
    if (graphs > limits_.graph_nesting) {
      over("nesting of graphs", static_cast<uint64_t>(limits_.graph_nesting));
    }
    if (types > limits_.type_nesting) {
      over("nesting of types", static_cast<uint64_t>(limits_.type_nesting));
    }
    if (kind == Kind::kNode && ++nodes_ > limits_.nodes) over("number of nodes", limits_.nodes);
  }
  void field(Kind kind, const Field& field, std::string_view content) {
    if (++fields_ > limits_.fields) over("number of strings and messages", limits_.fields);
    const bool tensor = kind == Kind::kGraph && (field.number == 5 || field.number == 15);
    if (tensor && ++initializers_ > limits_.initializers) {
      over("number of initializers", limits_.initializers);
    }
    if (!is_name(kind, field.number)) return;
    if (content.size() > limits_.name_bytes) {
      over("length of a name", limits_.name_bytes, content.substr(0, 40));
    }
    if (!is_utf8(content)) {
      throw Error(ErrorCode::kModel,
                  "a name is not valid UTF-8 (at byte " + std::to_string(field.payload) + ")");
    }
  }
  void node_field(std::string_view what, uint64_t count, uint64_t limit, std::string_view name) {
    if (count > limit) over(what, limit, name);
  }
  const ImportLimits& limits() const { return limits_; }

 private:
  [[noreturn]] static void over(std::string_view what, uint64_t limit, std::string_view name = {}) {
    Error error(ErrorCode::kModel, "the " + std::string(what) + " is over the limit");
    error.at({.node = std::string(name)});
    throw std::move(error).expected("at most " + std::to_string(limit), "more");
  }

  ImportLimits limits_;
  uint64_t nodes_ = 0, fields_ = 0, initializers_ = 0;
};

/// The first walk: new sizes of all messages in pre-order.
class Measure {
 public:
  /// `size_of_raw` gives the new size of a raw_data field, with its tag and length and what goes
  /// with it, from its content.
  Measure(std::span<const std::byte> bytes, Budget* budget,
          std::function<uint64_t(std::string_view)> size_of_raw)
      : bytes_(bytes), reader_(bytes), budget_(budget), size_of_raw_(std::move(size_of_raw)) {}

  uint64_t run() { return message(Kind::kModel, 0, bytes_.size(), 0, 0); }
  std::vector<uint64_t> sizes;

 private:
  std::string_view text(const Field& field) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + field.payload,
            field.end - field.payload};
  }

  uint64_t message(Kind kind, size_t at, size_t end, int graphs, int types) {
    graphs += kind == Kind::kGraph;
    types += kind == Kind::kType;
    if (budget_ != nullptr) budget_->enter(kind, graphs, types);
    const size_t slot = sizes.size();
    sizes.push_back(0);
    uint64_t total = 0, inputs = 0, outputs = 0, attributes = 0;
    std::string_view name;
    while (at < end) {
      const Field field = reader_.next(at, end);
      at = field.end;
      if (field.wire != kLength) {
        total += field.end - field.begin;
        continue;
      }
      if (budget_ != nullptr) budget_->field(kind, field, text(field));
      if (kind == Kind::kNode) {
        inputs += field.number == 1;
        outputs += field.number == 2;
        attributes += field.number == 5;
        if (field.number == 3) name = text(field);
      }
      total += field_size(kind, field, graphs, types);
    }
    if (kind == Kind::kNode && budget_ != nullptr) {
      const ImportLimits& limits = budget_->limits();
      budget_->node_field("number of inputs", inputs, limits.node_operands, name);
      budget_->node_field("number of outputs", outputs, limits.node_operands, name);
      budget_->node_field("number of attributes", attributes, limits.attributes, name);
    }
    sizes[slot] = total;
    return total;
  }

  uint64_t field_size(Kind kind, const Field& field, int graphs, int types) {
    const Kind child = child_of(kind, field.number);
    if (is_raw(kind, field.number)) return size_of_raw_(text(field));
    if (child == Kind::kLeaf) return field.end - field.begin;
    const uint64_t size = message(child, field.payload, field.end, graphs, types);
    return varint_size(field.number << 3) + varint_size(size) + size;
  }

  std::span<const std::byte> bytes_;
  Reader reader_;
  Budget* budget_;
  std::function<uint64_t(std::string_view)> size_of_raw_;
};

/// The second walk: copies fields and writes new lengths; `raw` is called where a raw_data field
/// goes.
class Emit {
 public:
  Emit(std::span<const std::byte> bytes, const std::vector<uint64_t>& sizes, std::string& text)
      : bytes_(bytes), reader_(bytes), sizes_(sizes), text_(text) {}

  template <class Raw>
  void run(Raw&& raw) {
    message(Kind::kModel, 0, bytes_.size(), raw);
  }

 private:
  template <class Raw>
  void message(Kind kind, size_t at, size_t end, Raw& raw) {
    ++slot_;
    while (at < end) {
      const Field field = reader_.next(at, end);
      at = field.end;
      const Kind child = field.wire == kLength ? child_of(kind, field.number) : Kind::kLeaf;
      const bool is_raw_field = field.wire == kLength && is_raw(kind, field.number);
      const char* data = reinterpret_cast<const char*>(bytes_.data());
      if (child == Kind::kLeaf && !is_raw_field) {
        text_.append(data + field.begin, field.end - field.begin);
        continue;
      }
      if (is_raw_field) {
        raw(text_, field.payload,
            std::string_view(data + field.payload, field.end - field.payload));
        continue;
      }
      append_varint(text_, field.number << 3 | kLength);
      append_varint(text_, sizes_[slot_]);
      message(child, field.payload, field.end, raw);
    }
  }

  std::span<const std::byte> bytes_;
  Reader reader_;
  const std::vector<uint64_t>& sizes_;
  std::string& text_;
  size_t slot_ = 0;
};

/// Tag and length of a raw_data field.
uint64_t raw_header_size(uint64_t size) { return 1 + varint_size(size); }
void append_raw_header(std::string& text, uint64_t size) {
  append_varint(text, kRawData << 3 | kLength);
  append_varint(text, size);
}

uint64_t size_of_spliced(std::string_view content) {
  const bool token = content.size() == kSpliceToken;
  const uint64_t size = token ? decode_token(content).size : content.size();
  return raw_header_size(size) + size + (token && size >= kAligned ? kPadding : 0);
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

std::string encode(RawToken token) {
  std::string field(16, '\0');
  std::memcpy(field.data(), &token.place, 8);
  std::memcpy(field.data() + 8, &token.size, 8);
  return field;
}

RawToken decode_token(std::string_view field) {
  assert(field.size() >= 16);
  RawToken token;
  std::memcpy(&token.place, field.data(), 8);
  std::memcpy(&token.size, field.data() + 8, 8);
  return token;
}

std::string encode_splice(RawToken token) {
  std::string field = encode(token);
  field.resize(kSpliceToken);
  return field;
}

std::string strip_raw_data(std::span<const std::byte> model, const ImportLimits& limits) {
  if (model.size() > limits.file_bytes) {
    throw Error(ErrorCode::kModel, "the model file is over the limit")
        .expected("at most " + std::to_string(limits.file_bytes) + " bytes",
                  std::to_string(model.size()))
        .hint("larger models keep their tensors in external data files");
  }
  Budget budget(limits);
  Measure measure(model, &budget, [](std::string_view) { return raw_header_size(16) + 16; });
  const uint64_t size = measure.run();
  if (size > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
    throw Error(ErrorCode::kModel, "the model has too many small tensors")
        .expected("a message that protobuf can parse", std::to_string(size) + " bytes");
  }
  std::string text;
  text.reserve(size);
  Emit(model, measure.sizes, text).run([](std::string& to, size_t place, std::string_view content) {
    append_raw_header(to, 16);
    to += encode({place, content.size()});
  });
  return text;
}

uint64_t spliced_size(std::string_view model) {
  return Measure(as_bytes(model), nullptr, size_of_spliced).run();
}

Spliced splice_raw_data(std::string_view model,
                        const std::function<std::span<const std::byte>(RawToken)>& lookup) {
  Measure measure(as_bytes(model), nullptr, size_of_spliced);
  Spliced result;
  result.size = measure.run();
  // Pieces of the text are noted as sizes first: the text grows and moves.
  std::vector<std::pair<size_t, std::span<const std::byte>>> cuts;
  auto written = std::make_shared<std::string>();
  written->reserve(model.size() + 64);  // tokens go, a few lengths get longer
  uint64_t elsewhere = 0;               // bytes of the file so far that are not in the text
  Emit(as_bytes(model), measure.sizes, *written)
      .run([&](std::string& to, size_t, std::string_view content) {
        if (content.size() != kSpliceToken) {
          append_raw_header(to, content.size());
          to += content;
          return;
        }
        const RawToken token = decode_token(content);
        const auto bytes = lookup(token);
        assert(bytes.size() == token.size);
        const uint64_t before = to.size() + elsewhere + kPadHeader + raw_header_size(token.size);
        const uint64_t gap = (kSpliceUnit - before % kSpliceUnit) % kSpliceUnit;
        const bool aligned = token.size >= kAligned;
        if (aligned) append_pad(to, gap);
        append_raw_header(to, token.size);
        cuts.emplace_back(to.size(), bytes);
        elsewhere += token.size;
        if (aligned) append_pad(to, kSpliceUnit - 1 - gap);
      });
  const auto text = as_bytes(*written);
  result.owner = std::move(written);
  size_t from = 0;
  for (const auto& [at, bytes] : cuts) {
    result.pieces.push_back(text.subspan(from, at - from));
    result.pieces.push_back(bytes);
    from = at;
  }
  result.pieces.push_back(text.subspan(from));
  return result;
}

}  // namespace halfnote::proto
