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

/// Holds the values of a command line that CLI11 has taken against what it takes too gladly: throws
/// Error(kUsage) for an empty one (a variable of the shell that is not set), for `-`, for whole
/// numbers that do not fit, and for fractions that FP32 takes for 0 or infinity.
void check_values(const CLI::App& app);

}  // namespace halfnote::cli
