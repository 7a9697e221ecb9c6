// halfnote: compiles ONNX models to mixed-precision training graphs, trains them, and shows what
// was done.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iostream>
#include <new>

#include "base/error.h"
#include "base/os/vanished_file.h"
#include "base/printable.h"
#include "base/version.h"
#include "cli/usage.h"
#include "cli/verbs.h"
#include "runtime/train/terminal.h"

namespace {

using namespace halfnote;

constexpr const char* kMainFooter =
    "Exit codes: 0 ok, 2 usage, 3 invalid model, 4 unsupported, 5 bad data, 6 numerics, 7 out of "
    "memory, 8 I/O,\n"
    "9 checkpoint, 10 device, 70 bug, 75 stopped by a signal with the state saved "
    "(docs/exit-codes.md).";

/// Line by line, so that a name from a file cannot steer the terminal. Our own lists are indented;
/// any other line break came with a name.
void print_lines(std::string_view text) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find("\n  ", begin), text.size());
    std::cerr << printable(text.substr(begin, end - begin)) << "\n";
    begin = end + 1;
  }
}

int report(const Error& error, bool as_json) {
  std::cout.flush();
  if (as_json) {
    const nlohmann::ordered_json json = {
        {"code", error.exit_code()},  {"kind", kind_name(error.code())}, {"message", error.what()},
        {"file", error.place().file}, {"node", error.place().node},      {"op", error.place().op},
        {"hint", error.hint_text()},  {"doc", "docs/exit-codes.md"}};
    std::cerr << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    print_lines("halfnote: error (" + std::string(kind_name(error.code())) + "): " + error.what());
  }
  return error.exit_code();
}

int guarded(const cli::Action& action, bool as_json) {
  try {
    const int code = action();
    std::cout.flush();
    if (std::cout) return code;
    // Whoever reads a pipe may have seen enough; a full disk is another matter.
    if (errno == EPIPE) return static_cast<int>(ErrorCode::kIo);
    throw Error(ErrorCode::kIo, "cannot write to standard output");
  } catch (const Error& error) {
    return report(error, as_json);
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorCode::kMemory, "out of memory"), as_json);
  } catch (const std::exception& error) {
    return report(Error(ErrorCode::kInternal, error.what())
                      .hint("this is a bug of halfnote: please report it"),
                  as_json);
  }
}

/// Help and version end with 0; everything else that CLI11 refuses is a usage error.
int explain(const CLI::App& app, const CLI::ParseError& error,
            const std::vector<std::string>& arguments) {
  if (error.get_exit_code() == 0) return app.exit(error);
  bool as_json = false;
  for (const std::string& argument : arguments) as_json |= argument == "--json-errors";
  return report(cli::usage_error(app, error, arguments), as_json);
}

}  // namespace

int main(int argc, char** argv) {
  // A closed pipe and a file-size limit become errors of the write that meets them.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);

  CLI::App app{"halfnote " + std::string(kVersion) +
                   ": ONNX models to mixed-precision training, without a framework",
               "halfnote"};
  app.footer(kMainFooter);
  app.set_version_flag("--version", std::string("halfnote ") + kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(34);
  bool json_errors = false;
  app.add_flag("--json-errors", json_errors, "print an error as one line of JSON");

  cli::Action action;
  cli::add_compile(app, action);
  cli::add_run(app, action);
  cli::add_inspect(app, action);
  cli::add_ops(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain(app, error, {argv + 1, argv + argc});
  }
  report_vanished_files(json_errors ? ErrorForm::kJson : ErrorForm::kText);
  return guarded(action, json_errors);
}
