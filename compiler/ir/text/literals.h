// Names, strings, numbers, types and tensors of ONNX text, both ways. Internal to compiler/ir/text.
#pragma once

#include <string>
#include <string_view>

#include "base/tensor.h"
#include "base/type.h"
#include "compiler/ir/text/lexer.h"

namespace halfnote::text {

// --- names and strings (names.cc) ----------------------------------------------------------------
bool starts_word(char c);
bool continues_word(char c);
bool is_identifier(std::string_view name);
/// Is a word the beginning of a type (`float`, `seq`)?
bool is_type_word(std::string_view word);
/// In quotes; `\`, `"`, control characters, and bytes that are no UTF-8 are escaped.
std::string quoted(std::string_view raw);
/// The name as it is where the language allows it, else in quotes. Words that begin a type are
/// quoted too.
std::string name_text(std::string_view name);
/// A name or a string; `what` stands in the message when there is none.
std::string parse_name(Lexer& lexer, std::string_view what);
std::string parse_string(Lexer& lexer);

// --- numbers (numbers.cc) ------------------------------------------------------------------------
/// Shortest decimals that read back as the same bits. With `point`, always with a point or an
/// exponent.
void append_number(std::string& out, float value);
void append_number(std::string& out, double value);
void append_number(std::string& out, Half value);
void append_number(std::string& out, BFloat16 value);
bool is_float_word(std::string_view word);
/// A number within [low, high].
int64_t parse_integer(Lexer& lexer, int64_t low, int64_t high);
uint64_t parse_unsigned(Lexer& lexer, uint64_t high);
float parse_f32(Lexer& lexer);
double parse_f64(Lexer& lexer);
/// f16 and bf16; an integer is the bit pattern.
Half parse_f16(Lexer& lexer);
BFloat16 parse_bf16(Lexer& lexer);

// --- types (types.cc) ----------------------------------------------------------------------------
void append_type(std::string& out, const ValueType& type);
ValueType parse_type(Lexer& lexer);
/// Does a type begin here, and not a name that looks like one?
bool next_is_type(Lexer& lexer);

// --- tensors (tensors.cc) ------------------------------------------------------------------------
/// `float[2]`: the type of a tensor as in front of a literal.
void append_tensor_type(std::string& out, const Tensor& tensor);
/// `{1, 2.5}`, or `{...}` for more than `elide_above` elements.
void append_elements(std::string& out, const Tensor& tensor, std::optional<int64_t> elide_above);
/// The elements of a tensor of this type, which must have numeric dims.
Tensor parse_elements(Lexer& lexer, const ValueType& type);

}  // namespace halfnote::text
