// What a folder holds, for messages.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace halfnote {

/// The names of all that stands in a folder, sorted; none for what is no folder or cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// `the folder holds a, b, c and 4 more`, or `the folder is empty`.
std::string folder_listing(const std::filesystem::path& folder);

}  // namespace halfnote
