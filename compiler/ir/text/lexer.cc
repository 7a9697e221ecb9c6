#include "compiler/ir/text/lexer.h"

#include <algorithm>

#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// A token as an error message shows it.
std::string describe(const Token& token) {
  if (token.is(TokenKind::kEnd)) return "the end of the text";
  constexpr size_t kShown = 40;
  if (token.text.size() <= kShown) return quoted(token.text);
  return quoted(token.text.substr(0, kShown)) + "…";
}

}  // namespace

Lexer::Lexer(std::string_view text, std::string_view file, const ImportLimits& limits)
    : text_(text), file_(file), limits_(limits), end_(text.size()) {
  current_ = scan();
}

Lexer Lexer::inside(std::string_view comment) const {
  Lexer lexer("", file_, limits_);
  lexer.text_ = text_;
  lexer.at_ = static_cast<size_t>(comment.data() - text_.data());
  lexer.end_ = lexer.at_ + comment.size();
  lexer.current_ = lexer.scan();
  return lexer;
}

const Token& Lexer::peek_second() {
  if (!has_second_) {
    second_ = scan();
    has_second_ = true;
  }
  return second_;
}

Token Lexer::take() {
  last_ = current_;
  current_ = has_second_ ? second_ : scan();
  has_second_ = false;
  return last_;
}

bool Lexer::matches(std::string_view mark) {
  if (!current_.is_mark(mark)) return false;
  take();
  return true;
}

bool Lexer::matches_word(std::string_view word) {
  if (!current_.is_word(word)) return false;
  take();
  return true;
}

void Lexer::expect(std::string_view mark) {
  if (!matches(mark)) fail_expected("\"" + std::string(mark) + "\"");
}

void Lexer::fail_expected(std::string_view what) const {
  throw error("syntax error", current_.offset).expected(std::string(what), describe(current_));
}

void Lexer::fail(std::string problem, size_t offset, ErrorCode code) const {
  throw error(std::move(problem), offset, code);
}

void Lexer::fail_over(std::string_view what, uint64_t limit, size_t offset) const {
  throw error("the " + std::string(what) + " is over the limit", offset)
      .expected("at most " + std::to_string(limit), "more");
}

void Lexer::count_node(size_t offset) {
  if (++nodes_ > limits_.nodes) fail_over("number of nodes", limits_.nodes, offset);
}

void Lexer::count_initializer(size_t offset) {
  if (++initializers_ > limits_.initializers) {
    fail_over("number of initializers", limits_.initializers, offset);
  }
}

Error Lexer::error(std::string problem, size_t offset, ErrorCode code) const {
  const std::string_view before = text_.substr(0, std::min(offset, text_.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start = before.rfind('\n');
  const size_t column = before.size() - (line_start == before.npos ? 0 : line_start + 1) + 1;
  const std::string file = file_.empty() ? "text" : file_;
  return Error(code, std::move(problem))
      .at({file + ":" + std::to_string(line) + ":" + std::to_string(column), "", ""});
}

void Lexer::skip_space() {
  while (at_ < end_) {
    if (is_space(text_[at_])) {
      ++at_;
      continue;
    }
    if (text_[at_] != '#') return;
    at_ = std::min(text_.find('\n', at_), end_);
  }
}

Token Lexer::scan() {
  skip_space();
  Token token;
  token.offset = at_;
  if (at_ >= end_) return token;
  const char c = text_[at_];
  const char next = at_ + 1 < end_ ? text_[at_ + 1] : '\0';
  if (starts_word(c)) {
    token.kind = TokenKind::kWord;
    while (at_ < end_ && continues_word(text_[at_])) ++at_;
  } else if (c == '"') {
    scan_string(token);
  } else if (is_digit(c) || (c == '-' && (is_digit(next) || starts_word(next)))) {
    scan_number(token);
  } else {
    scan_mark(token);
  }
  token.text = text_.substr(token.offset, at_ - token.offset);
  size_t behind = at_;
  while (behind < end_ && is_space(text_[behind]) && text_[behind] != '\n') ++behind;
  if (behind < end_ && text_[behind] == '#') {
    token.comment = text_.substr(behind + 1, std::min(text_.find('\n', behind), end_) - behind - 1);
  }
  return token;
}

void Lexer::scan_string(Token& token) {
  token.kind = TokenKind::kString;
  ++at_;
  while (at_ < end_ && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
  if (at_ >= end_) fail("a string has no end", token.offset);
  ++at_;
}

/// 12, -3, 1.5, 2e-7, -inf, -nan
void Lexer::scan_number(Token& token) {
  token.kind = TokenKind::kInteger;
  if (text_[at_] == '-') ++at_;
  if (starts_word(text_[at_])) {
    token.kind = TokenKind::kDecimal;
    while (at_ < end_ && continues_word(text_[at_])) ++at_;
    return;
  }
  const auto digits = [&] {
    while (at_ < end_ && is_digit(text_[at_])) ++at_;
  };
  digits();
  if (at_ < end_ && text_[at_] == '.') {
    token.kind = TokenKind::kDecimal;
    ++at_;
    digits();
  }
  if (at_ < end_ && (text_[at_] == 'e' || text_[at_] == 'E')) {
    token.kind = TokenKind::kDecimal;
    ++at_;
    if (at_ < end_ && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
}

void Lexer::scan_mark(Token& token) {
  token.kind = TokenKind::kMark;
  const std::string_view rest = text_.substr(at_, end_ - at_);
  for (std::string_view mark : {"...", "=>", "->"}) {
    if (!rest.starts_with(mark)) continue;
    at_ += mark.size();
    return;
  }
  constexpr std::string_view kMarks = "()[]{}<>=,:.@?-+";
  if (kMarks.find(text_[at_]) == kMarks.npos) {
    fail("unexpected character " + quoted(text_.substr(at_, 1)), at_);
  }
  ++at_;
}

}  // namespace halfnote::text
