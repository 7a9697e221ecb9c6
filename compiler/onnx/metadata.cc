// Lists of names as text.
#include "compiler/onnx/metadata.h"

namespace halfnote {

std::string join_names(std::span<const std::string> names) {
  std::string text;
  for (const std::string& name : names) {
    for (char c : name) {
      if (c == '\\') text += "\\\\";
      if (c == '\n') text += "\\n";
      if (c != '\\' && c != '\n') text += c;
    }
    text += '\n';
  }
  return text;
}

std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names;
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      names.push_back(std::move(name));
      name.clear();
    } else if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      name += text[i] == 'n' ? '\n' : text[i];
    } else {
      name += text[i];
    }
  }
  return names;
}

}  // namespace halfnote
