// What can be shown where the output goes, and the table that a run starts with.
#pragma once

#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace halfnote {

struct Terminal {
  bool interactive = false;  // a terminal that can redraw a line
  bool color = false;
  bool utf8 = false;
  int columns = 80;

  /// Of a file descriptor: a terminal other than TERM=dumb; colour unless NO_COLOR is set; COLUMNS
  /// over the terminal's own width; UTF-8 by LC_ALL, LC_CTYPE, LANG.
  static Terminal detect(int file);
};

/// Whether colour fits this descriptor: a terminal that is not `dumb`, and NO_COLOR is unset or
/// empty.
bool wants_color(int descriptor);

/// Characters of a UTF-8 text, each taken as one column wide.
size_t display_width(std::string_view text);

using TableRow = std::pair<std::string, std::string>;

/// Key and value: a box on a terminal, `key=value` lines otherwise (spaces of a key as `_`, values
/// with spaces quoted).
void print_table(std::ostream& out, const Terminal& terminal, std::string_view title,
                 std::span<const TableRow> rows);

}  // namespace halfnote
