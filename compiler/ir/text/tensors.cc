// Literals of tensors. The elements are read before memory is taken, so that a short text cannot
// ask for a large tensor.
#include <cstring>
#include <limits>

#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

/// Elements of the sub-byte integers take a whole byte each; the 8- and 4-bit floats are written as
/// bit patterns, as ONNX does.
struct IntegerRange {
  int64_t low, high;
};

IntegerRange range_of(DType dtype) {
  switch (dtype) {
    case DType::kI2:
      return {-2, 1};
    case DType::kU2:
      return {0, 3};
    case DType::kI4:
      return {-8, 7};
    case DType::kU4:
    case DType::kF4E2M1:
      return {0, 15};
    case DType::kI8:
      return {-128, 127};
    case DType::kBool:
      return {0, 1};
    case DType::kI16:
      return {-32768, 32767};
    case DType::kU16:
      return {0, 65535};
    case DType::kI32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DType::kU32:
      return {0, std::numeric_limits<uint32_t>::max()};
    case DType::kI64:
      return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    default:
      return {0, 255};  // u8 and the 8-bit floats
  }
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool is_signed(DType dtype) {
  return dtype == DType::kI2 || dtype == DType::kI4 || dtype == DType::kI8 ||
         dtype == DType::kI16 || dtype == DType::kI32 || dtype == DType::kI64;
}

/// An integer of `size` bytes at `from`.
void append_integer(std::string& out, const std::byte* from, size_t size, bool with_sign) {
  switch (size) {
    case 1:
      out += std::to_string(with_sign ? load<int8_t>(from) : load<uint8_t>(from));
      break;
    case 2:
      out += std::to_string(with_sign ? load<int16_t>(from) : load<uint16_t>(from));
      break;
    case 4:
      out += with_sign ? std::to_string(load<int32_t>(from)) : std::to_string(load<uint32_t>(from));
      break;
    default:
      out += with_sign ? std::to_string(load<int64_t>(from)) : std::to_string(load<uint64_t>(from));
  }
}

/// Element `from` of a tensor that holds no strings; a complex number is two.
void append_element(std::string& out, DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kF32:
      return append_number(out, load<float>(from));
    case DType::kF64:
      return append_number(out, load<double>(from));
    case DType::kF16:
      return append_number(out, load<Half>(from));
    case DType::kBF16:
      return append_number(out, load<BFloat16>(from));
    case DType::kBool:
      out += load<uint8_t>(from) == 0 ? "0" : "1";
      return;
    case DType::kC64:
      append_number(out, load<float>(from));
      out += ", ";
      return append_number(out, load<float>(from + sizeof(float)));
    case DType::kC128:
      append_number(out, load<double>(from));
      out += ", ";
      return append_number(out, load<double>(from + sizeof(double)));
    default:
      append_integer(out, from, size_of(dtype), is_signed(dtype));
  }
}

/// The bytes of numbers as they are read.
class Bytes {
 public:
  explicit Bytes(size_t expected) { bytes_.reserve(expected); }
  template <class T>
  void add(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  size_t size() const { return bytes_.size(); }
  const std::byte* data() const { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

void parse_element(Lexer& lexer, DType dtype, Bytes& bytes) {
  switch (dtype) {
    case DType::kF32:
    case DType::kC64:
      return bytes.add(parse_f32(lexer));
    case DType::kF64:
    case DType::kC128:
      return bytes.add(parse_f64(lexer));
    case DType::kF16:
      return bytes.add(parse_f16(lexer));
    case DType::kBF16:
      return bytes.add(parse_bf16(lexer));
    case DType::kU64:
      return bytes.add(parse_unsigned(lexer, std::numeric_limits<uint64_t>::max()));
    default:
      break;
  }
  const IntegerRange range = range_of(dtype);
  const int64_t value = parse_integer(lexer, range.low, range.high);
  switch (size_of(dtype)) {  // two's complement, so the lower bytes are right for both signs
    case 1:
      return bytes.add(static_cast<uint8_t>(value));
    case 2:
      return bytes.add(static_cast<uint16_t>(value));
    case 4:
      return bytes.add(static_cast<uint32_t>(value));
    default:
      return bytes.add(static_cast<uint64_t>(value));
  }
}

/// `{...}` is ours, ONNX's printer writes `...` for what it cannot print.
void refuse_view(const Lexer& lexer) {
  if (!lexer.peek().is_mark("...")) return;
  throw lexer.error("this text is a view, its large constants were left out", lexer.peek().offset)
      .hint("print it without eliding to read it back");
}

/// Calls `element()` for each element between braces, which must be `count`. `offset` is where the
/// literal begins.
template <class Element>
void parse_list(Lexer& lexer, int64_t count, size_t offset, Element&& element) {
  refuse_view(lexer);
  lexer.expect("{");
  refuse_view(lexer);
  int64_t found = 0;
  if (!lexer.peek().is_mark("}")) {
    do {
      if (found++ == count) {
        throw lexer.error("a tensor has too many elements", lexer.peek().offset)
            .expected(std::to_string(count), "more");
      }
      element();
    } while (lexer.matches(","));
  }
  lexer.expect("}");
  if (found == count) return;
  throw lexer.error("a tensor has too few elements", offset)
      .expected(std::to_string(count), std::to_string(found));
}

Shape numeric_shape(const Lexer& lexer, const ValueType& type, size_t offset) {
  if (!type.is_tensor() || type.dtype == DType::kUndefined) {
    lexer.fail("only a tensor of a known element type has a value", offset);
  }
  if (!type.has_concrete_shape()) {
    throw lexer.error("a tensor with a value needs numeric dims", offset)
        .expected("dims that are numbers (no [] for a scalar)",
                  type.shape ? to_string(*type.shape) : "an unknown rank");
  }
  return concrete(*type.shape);
}

}  // namespace

void append_tensor_type(std::string& out, const Tensor& tensor) {
  append_type(out, ValueType::tensor(tensor.dtype(), symbolic(tensor.shape())));
}

void append_elements(std::string& out, const Tensor& tensor, std::optional<int64_t> elide_above) {
  if (elide_above && tensor.size() > *elide_above) {
    out += "{...}";
    return;
  }
  out += "{";
  const size_t stride = size_of(tensor.dtype());
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (i > 0) out += ", ";
    if (tensor.dtype() == DType::kString) {
      out += quoted(tensor.string_data()[static_cast<size_t>(i)]);
    } else {
      append_element(out, tensor.dtype(), tensor.bytes() + static_cast<size_t>(i) * stride);
    }
  }
  out += "}";
}

Tensor parse_elements(Lexer& lexer, const ValueType& type) {
  const size_t offset = lexer.peek().offset;
  Shape shape = numeric_shape(lexer, type, offset);
  if (lexer.peek().is_mark("[")) {
    throw lexer.error("external data is not supported in text", offset, ErrorCode::kUnsupported)
        .hint("save the model as .onnx");
  }
  const bool complex = type.dtype == DType::kC64 || type.dtype == DType::kC128;
  int64_t count = 0;
  try {
    count = checked_mul(element_count(shape), complex ? 2 : 1);
  } catch (Error& error) {
    throw error.within(lexer.error("", offset).place());
  }
  const int64_t limit = lexer.limits().elements;
  if (element_count(shape) > limit) {
    lexer.fail_over("size of a tensor", static_cast<uint64_t>(limit), offset);
  }
  // An element takes at least two characters.
  const size_t expected = std::min(static_cast<size_t>(count), lexer.rest() / 2 + 1);
  if (type.dtype == DType::kString) {
    std::vector<std::string> strings;
    strings.reserve(expected);
    parse_list(lexer, count, offset, [&] { strings.push_back(parse_string(lexer)); });
    return Tensor::strings(std::move(shape), std::move(strings));
  }
  Bytes bytes(expected * size_of(type.dtype));
  parse_list(lexer, count, offset, [&] { parse_element(lexer, type.dtype, bytes); });
  Tensor tensor(type.dtype, std::move(shape));
  if (bytes.size() > 0) std::memcpy(tensor.mutable_bytes(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace halfnote::text
