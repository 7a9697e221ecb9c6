// halfnote: compiles ONNX models to mixed-precision training graphs, trains them, and shows what
// was done.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <csignal>

#include "base/system/temporary_files.h"
#include "base/system/vanished_file.h"
#include "base/version.h"
#include "cli/guard.h"
#include "cli/memory/report.h"
#include "cli/usage.h"
#include "cli/verbs.h"

namespace {

using namespace halfnote;

constexpr const char* kMainFooter =
    "Exit codes: 0 ok, 2 usage, 3 invalid model, 4 unsupported, 5 bad data, 6 numerics, 7 out of "
    "memory, 8 I/O,\n"
    "9 checkpoint, 10 device, 70 bug, 75 stopped by a signal with the state saved "
    "(docs/exit-codes.md).";

/// Help and version end with 0; everything else that CLI11 refuses is a usage error.
int explain(const CLI::App& app, const CLI::ParseError& error,
            const std::vector<std::string>& arguments) {
  bool as_json = false;
  for (const std::string& argument : arguments) as_json |= argument == "--json-errors";
  if (error.get_exit_code() == 0) {
    return cli::guarded([&] { return app.exit(error); }, as_json);
  }
  return cli::report(cli::usage_error(app, error, arguments), as_json);
}

/// A file that is opened takes the lowest free number: where the caller closed one of the first
/// three, what is printed would go into it. In their place stands one that refuses every write.
void hold_standard_files() {
  int file = ::open("/dev/null", O_RDONLY);
  while (file >= 0 && file <= STDERR_FILENO) file = ::open("/dev/null", O_RDONLY);
  if (file > STDERR_FILENO) ::close(file);
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_files();
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
  const ErrorForm form = json_errors ? ErrorForm::kJson : ErrorForm::kText;
  report_vanished_files(form);
  const cli::NoMemoryReport no_memory(form);
  remove_temporary_files_on_signals();
  return cli::guarded(
      [&] {
        cli::check_values(app);
        return action();
      },
      json_errors);
}
