#include "runtime/train/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/text/printable.h"

namespace halfnote {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

int width_of(int file) {
  constexpr int kNarrowest = 20, kWidest = 500, kUsual = 80;
  const std::string_view wanted = environment("COLUMNS");
  int columns = 0;
  std::from_chars(wanted.data(), wanted.data() + wanted.size(), columns);
  winsize size{};
  if (columns <= 0 && ::ioctl(file, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  return columns <= 0 ? kUsual : std::clamp(columns, kNarrowest, kWidest);
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(environment(name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return std::toupper(c); });
    return value.ends_with("UTF-8") || value.ends_with("UTF8");
  }
  return false;
}

struct Frame {
  const char *top_left, *top_right, *bottom_left, *bottom_right, *horizontal, *vertical;
};
constexpr Frame kAscii = {"+", "+", "+", "+", "-", "|"};
constexpr Frame kBox = {"╭", "╮", "╰", "╯", "─", "│"};

std::string repeat(std::string_view text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

/// The first characters that fit; the last is `~` when some do not.
std::string fit(const std::string& text, size_t width) {
  if (display_width(text) <= width) return text;
  std::string result;
  size_t used = 0;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (starts && ++used >= width) break;
    result += c;
  }
  return result + "~";
}

std::string pad(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, display_width(text)), ' ');
}

void print_box(std::ostream& out, const Terminal& terminal, const std::string& title,
               std::span<const TableRow> rows) {
  const Frame& frame = terminal.utf8 ? kBox : kAscii;
  size_t key_width = 0, value_width = 0;
  for (const auto& [key, value] : rows) {
    key_width = std::max(key_width, display_width(printable(key)));
    value_width = std::max(value_width, display_width(printable(value)));
  }
  const auto room = static_cast<size_t>(std::max(terminal.columns, 20)) - 6;  // borders and spaces
  key_width = std::min(key_width, room / 2);
  value_width = std::min(std::max(value_width, title.size() + 2), room - key_width);
  const size_t inner = key_width + value_width + 4;
  const std::string head = fit(" " + title + " ", inner - 1);
  out << frame.top_left << frame.horizontal << head
      << repeat(frame.horizontal, inner - 1 - display_width(head)) << frame.top_right << '\n';
  for (const auto& [key, value] : rows) {
    out << frame.vertical << ' ' << pad(fit(printable(key), key_width), key_width) << "  "
        << pad(fit(printable(value), value_width), value_width) << ' ' << frame.vertical << '\n';
  }
  out << frame.bottom_left << repeat(frame.horizontal, inner) << frame.bottom_right << '\n';
}

std::string plain_value(const std::string& value) {
  const std::string shown = printable(value);
  if (!shown.empty() && shown.find_first_of(" \"") == std::string::npos) return shown;
  std::string quoted = "\"";
  for (const char c : shown) quoted += c == '"' ? std::string("\\\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

Terminal Terminal::detect(int file) {
  Terminal terminal;
  terminal.interactive = ::isatty(file) == 1 && environment("TERM") != "dumb";
  terminal.color = wants_color(file);
  terminal.utf8 = locale_is_utf8();
  terminal.columns = width_of(file);
  return terminal;
}

bool wants_color(int descriptor) {
  return environment("NO_COLOR").empty() && environment("TERM") != "dumb" &&
         ::isatty(descriptor) == 1;
}

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

void print_table(std::ostream& out, const Terminal& terminal, std::string_view title,
                 std::span<const TableRow> rows) {
  if (terminal.interactive) {
    print_box(out, terminal, printable(title), rows);
  } else {
    for (const auto& [key, value] : rows) {
      std::string name = printable(key);
      std::replace(name.begin(), name.end(), ' ', '_');
      out << name << '=' << plain_value(value) << '\n';
    }
  }
  out.flush();
}

}  // namespace halfnote
