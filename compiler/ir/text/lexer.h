// Words of ONNX text. Internal to compiler/ir/text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "compiler/ir/limits.h"

namespace halfnote::text {

enum class TokenKind : uint8_t { kEnd, kWord, kString, kInteger, kDecimal, kMark };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;     // as written, strings with their quotes
  size_t offset = 0;         // in the whole text
  std::string_view comment;  // the comment behind it on the same line, without `#`

  bool is(TokenKind k) const { return kind == k; }
  bool is_mark(std::string_view mark) const { return kind == TokenKind::kMark && text == mark; }
  bool is_word(std::string_view word) const { return kind == TokenKind::kWord && text == word; }
};

/// Reads a text token by token with one token of look-ahead.
class Lexer {
 public:
  Lexer(std::string_view text, std::string_view file, const ImportLimits& limits = {});
  /// The words of a comment that stands in the same text.
  Lexer inside(std::string_view comment) const;

  const Token& peek() const { return current_; }
  /// The token behind the current one.
  const Token& peek_second();
  /// The token that was taken last.
  const Token& last() const { return last_; }
  Token take();
  /// Takes the current token if it is this mark.
  bool matches(std::string_view mark);
  bool matches_word(std::string_view word);
  void expect(std::string_view mark);
  const ImportLimits& limits() const { return limits_; }
  /// Counts one more node, or initializer, of the whole text; throws over the limit.
  void count_node(size_t offset);
  void count_initializer(size_t offset);
  bool at_end() const { return current_.is(TokenKind::kEnd); }
  /// Characters from the current token to the end: a bound for what can still come.
  size_t rest() const { return end_ - current_.offset; }

  /// Throws Error(kModel) at the current token: expected `what`, got the token.
  [[noreturn]] void fail_expected(std::string_view what) const;
  [[noreturn]] void fail(std::string problem, size_t offset,
                         ErrorCode code = ErrorCode::kModel) const;
  [[noreturn]] void fail(std::string problem) const { fail(std::move(problem), current_.offset); }
  /// `the WHAT is over the limit: expected at most LIMIT` at an offset.
  [[noreturn]] void fail_over(std::string_view what, uint64_t limit, size_t offset) const;
  /// An error at an offset, to be completed by the caller.
  Error error(std::string problem, size_t offset, ErrorCode code = ErrorCode::kModel) const;

 private:
  Token scan();
  void skip_space();
  void scan_string(Token& token);
  void scan_number(Token& token);
  void scan_mark(Token& token);

  std::string_view text_;
  std::string file_;
  ImportLimits limits_;
  uint64_t nodes_ = 0, initializers_ = 0;
  size_t at_ = 0, end_ = 0;
  Token last_, current_, second_;
  bool has_second_ = false;
};

}  // namespace halfnote::text
