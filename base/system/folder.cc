#include "base/system/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>

namespace halfnote {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string folder_listing(const fs::path& folder) {
  constexpr size_t kShown = 8;
  std::vector<std::string> names = names_in(folder);
  if (names.empty()) return "the folder is empty";
  const size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  return fmt::format("the folder holds {}{}", fmt::join(names, ", "),
                     more ? fmt::format(" and {} more", more) : "");
}

}  // namespace halfnote
