// The verbs of the program, one file each. Each adds its subcommand to the app; `run` is called
// when it was chosen.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace halfnote::cli {

/// What the chosen verb does, and its exit code. Errors are thrown as halfnote::Error.
using Action = std::function<int()>;

void add_compile(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_ops(CLI::App& app, Action& action);

}  // namespace halfnote::cli
