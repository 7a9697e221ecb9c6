// What is wrong with a command line, as an Error with the likely intention.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "base/error.h"

namespace halfnote::cli {

/// The error for a command line that CLI11 refused; `arguments` without the program's name.
Error usage_error(const CLI::App& app, const CLI::ParseError& error,
                  const std::vector<std::string>& arguments);

}  // namespace halfnote::cli
