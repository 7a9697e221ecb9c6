// Numbers. Printing is std::to_chars, which is shortest and knows no locale; for the 16-bit floats
// the shortest decimal is searched, at most five digits long.
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

template <class T>
struct FloatBits;
template <>
struct FloatBits<float> {
  using Bits = uint32_t;
  static constexpr Bits kNaN = 0x7fc00000u, kSign = 0x80000000u;
  static constexpr std::string_view kName = "float";
  static Bits of(float value) { return std::bit_cast<Bits>(value); }
  static float from(Bits bits) { return std::bit_cast<float>(bits); }
};
template <>
struct FloatBits<double> {
  using Bits = uint64_t;
  static constexpr Bits kNaN = 0x7ff8000000000000u, kSign = 0x8000000000000000u;
  static constexpr std::string_view kName = "double";
  static Bits of(double value) { return std::bit_cast<Bits>(value); }
  static double from(Bits bits) { return std::bit_cast<double>(bits); }
};
template <>
struct FloatBits<Half> {
  using Bits = uint16_t;
  static constexpr Bits kNaN = 0x7e00u, kSign = 0x8000u;
  static constexpr std::string_view kName = "float16";
  static Bits of(Half value) { return value.bits; }
  static Half from(Bits bits) { return {bits}; }
};
template <>
struct FloatBits<BFloat16> {
  using Bits = uint16_t;
  static constexpr Bits kNaN = 0x7fc0u, kSign = 0x8000u;
  static constexpr std::string_view kName = "bfloat16";
  static Bits of(BFloat16 value) { return value.bits; }
  static BFloat16 from(Bits bits) { return {bits}; }
};

double wide(float value) { return value; }
double wide(double value) { return value; }
double wide(Half value) { return to_f32(value); }
double wide(BFloat16 value) { return to_f32(value); }

template <class T>
T narrow(double value) {
  if constexpr (std::is_same_v<T, Half>) return to_f16(value);
  if constexpr (std::is_same_v<T, BFloat16>) return to_bf16(value);
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(value);
}

template <class T, class... Format>
void append_chars(std::string& out, T value, Format... format) {
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format...).ptr;
  out.append(buffer.data(), end);
}

/// inf, -nan, nan(0x7fc00001); false for a finite number.
template <class T>
bool append_special(std::string& out, T value) {
  using F = FloatBits<T>;
  const double number = wide(value);
  if (std::isfinite(number)) return false;
  const auto bits = F::of(value);
  const bool negative = (bits & F::kSign) != 0;
  if (std::isinf(number)) {
    out += negative ? "-inf" : "inf";
  } else if (bits == F::kNaN || bits == (F::kNaN | F::kSign)) {
    out += negative ? "-nan" : "nan";
  } else {
    out += "nan(0x";
    append_chars(out, uint64_t{bits}, 16);
    out += ")";
  }
  return true;
}

/// The decimal with the fewest digits that rounds to the same 16 bits, always with a point or an
/// exponent, because an integer is a bit pattern.
template <class T>
void append_16bit(std::string& out, T value) {
  if (append_special(out, value)) return;
  const double exact = wide(value);
  double shortest = exact;
  for (int digits = 0; digits < 5; ++digits) {
    std::string text;
    append_chars(text, exact, std::chars_format::scientific, digits);
    double candidate = 0;
    std::from_chars(text.data(), text.data() + text.size(), candidate);
    if (narrow<T>(candidate).bits != value.bits) continue;
    shortest = candidate;
    break;
  }
  const size_t from = out.size();
  append_chars(out, shortest);
  if (out.find_first_of(".e", from) == out.npos) out += ".0";
}

bool same_word(std::string_view word, std::string_view lower) {
  if (word.size() != lower.size()) return false;
  for (size_t i = 0; i < word.size(); ++i) {
    if ((word[i] | 0x20) != lower[i]) return false;
  }
  return true;
}

/// The hexadecimal bit pattern behind `nan`, in parentheses.
template <class T>
T parse_nan_bits(Lexer& lexer) {
  using F = FloatBits<T>;
  const size_t offset = lexer.take().offset;  // (
  const std::string_view zero = lexer.take().text;
  const std::string_view digits = lexer.take().text;  // x7fc00001: a word behind the number 0
  lexer.expect(")");
  typename F::Bits bits = 0;
  bool good = zero == "0" && digits.starts_with('x');
  if (good) {
    const auto [end, status] =
        std::from_chars(digits.data() + 1, digits.data() + digits.size(), bits, 16);
    good = status == std::errc() && end == digits.data() + digits.size();
  }
  if (!good || !std::isnan(wide(F::from(bits)))) {
    throw lexer.error("this is no bit pattern of a NaN of type " + std::string(F::kName), offset)
        .expected("hexadecimal digits, as in nan(0x7fc00001)",
                  std::string(zero) + std::string(digits));
  }
  return F::from(bits);
}

/// inf, infinity, nan with any case, perhaps with a sign.
template <class T>
T parse_special(Lexer& lexer) {
  using F = FloatBits<T>;
  std::string_view word = lexer.peek().text;
  const bool negative = word.starts_with('-');
  if (negative) word.remove_prefix(1);
  if (!is_float_word(word)) lexer.fail_expected("a number");
  const bool nan = same_word(word, "nan");
  lexer.take();
  if (nan && lexer.peek().is_mark("(")) return parse_nan_bits<T>(lexer);
  const auto sign = negative ? F::kSign : 0;
  const auto bits = nan ? F::kNaN : F::of(narrow<T>(std::numeric_limits<double>::infinity()));
  return F::from(static_cast<typename F::Bits>(bits | sign));
}

template <class T>
T convert_decimal(std::string_view text, bool& in_range) {
  // f32 and f64 straight from the decimal; the 16-bit types through f64, which printing relies on.
  using Read = std::conditional_t<std::is_arithmetic_v<T>, T, double>;
  Read value = 0;
  const auto status = std::from_chars(text.data(), text.data() + text.size(), value).ec;
  if (status == std::errc()) {
    const T result = narrow<T>(value);
    in_range = std::isfinite(wide(result));
    return result;
  }
  // Too small is zero with its sign, too large is an error. Beyond the range of long double nobody
  // writes but by mistake.
  long double extended = 0;
  const auto again = std::from_chars(text.data(), text.data() + text.size(), extended).ec;
  in_range = again == std::errc() && std::abs(extended) < 1;
  return narrow<T>(text.starts_with('-') ? -0.0 : 0.0);
}

template <class T>
T parse_float(Lexer& lexer) {
  const Token& token = lexer.peek();
  const std::string_view word = token.text.substr(token.text.starts_with('-') ? 1 : 0);
  if (token.is(TokenKind::kWord) || (token.is(TokenKind::kDecimal) && starts_word(word[0]))) {
    return parse_special<T>(lexer);
  }
  if (!token.is(TokenKind::kInteger) && !token.is(TokenKind::kDecimal)) {
    lexer.fail_expected("a number");
  }
  if (word.back() == 'e' || word.back() == 'E' || word.back() == '+' || word.back() == '-') {
    lexer.fail_expected("digits in the exponent");
  }
  bool in_range = true;
  const T value = convert_decimal<T>(token.text, in_range);
  if (!in_range) {
    throw lexer.error("a number is out of range", token.offset)
        .expected("a " + std::string(FloatBits<T>::kName), std::string(token.text.substr(0, 40)));
  }
  lexer.take();
  return value;
}

template <class T>
T parse_16bit(Lexer& lexer) {
  if (!lexer.peek().is(TokenKind::kInteger)) return parse_float<T>(lexer);
  return FloatBits<T>::from(static_cast<uint16_t>(parse_integer(lexer, 0, 0xffff)));
}

template <class T>
T parse_whole(Lexer& lexer, T low, T high) {
  const Token& token = lexer.peek();
  if (!token.is(TokenKind::kInteger)) lexer.fail_expected("an integer");
  T value = 0;
  const auto [end, status] =
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  const bool read = status == std::errc() && end == token.text.data() + token.text.size();
  if (!read || value < low || value > high) {
    throw lexer.error("an integer is out of range", token.offset)
        .expected("a number from " + std::to_string(low) + " to " + std::to_string(high),
                  std::string(token.text.substr(0, 40)));
  }
  lexer.take();
  return value;
}

}  // namespace

void append_number(std::string& out, float value) {
  if (!append_special(out, value)) append_chars(out, value);
}
void append_number(std::string& out, double value) {
  if (!append_special(out, value)) append_chars(out, value);
}
void append_number(std::string& out, Half value) { append_16bit(out, value); }
void append_number(std::string& out, BFloat16 value) { append_16bit(out, value); }

bool is_float_word(std::string_view word) {
  return same_word(word, "inf") || same_word(word, "infinity") || same_word(word, "nan");
}

int64_t parse_integer(Lexer& lexer, int64_t low, int64_t high) {
  return parse_whole<int64_t>(lexer, low, high);
}
uint64_t parse_unsigned(Lexer& lexer, uint64_t high) {
  return parse_whole<uint64_t>(lexer, 0, high);
}
float parse_f32(Lexer& lexer) { return parse_float<float>(lexer); }
double parse_f64(Lexer& lexer) { return parse_float<double>(lexer); }
Half parse_f16(Lexer& lexer) { return parse_16bit<Half>(lexer); }
BFloat16 parse_bf16(Lexer& lexer) { return parse_16bit<BFloat16>(lexer); }

}  // namespace halfnote::text
