// halfnote-survive: compiles one model after the other, each in a child of this process, and says
// how it went. tests/malformed/generated.py feeds it; a process a model from the shell would spend
// its time on starting.
//
// Reads lines `PATH` from standard input, writes lines `STATUS MESSAGE` to standard output: STATUS
// is `ok`, an exit code of docs/exit-codes.md, or `signal N`. A child may take 2 s of processor
// time and 1 GiB of address space beyond what this process has.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <new>
#include <string>

#include "base/error.h"
#include "base/text/printable.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "passes/report.h"
#include "runtime/train/session.h"

namespace {

using namespace halfnote;

constexpr rlim_t kSeconds = 2;
constexpr rlim_t kBytes = rlim_t{1} << 30;
constexpr int kFailed = 1;  // no exit code of halfnote

/// The bytes of address space that this process has.
rlim_t address_space() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

void set_limits() {
  const rlim_t bytes = address_space() + kBytes;
  const rlimit time{kSeconds, kSeconds}, memory{bytes, bytes}, core{0, 0};
  if (::setrlimit(RLIMIT_CPU, &time) != 0 || ::setrlimit(RLIMIT_AS, &memory) != 0 ||
      ::setrlimit(RLIMIT_CORE, &core) != 0) {
    throw Error(ErrorCode::kInternal, "cannot set the limits of a child");
  }
}

/// All that compile and inspect do with a model, but for writing the file.
void compile_once(const std::string& path) {
  const Model read = import_model(path);
  CompileOptions options;
  options.inference_only = !read.is_training();
  print(read, PrintOptions{16});
  make_report(read);
  const CompileResult result = compile_file(path, options);
  make_report(result);
  check_model(result.model);
  export_model_bytes(result.model);
}

/// Runs in the child; its message goes into `pipe`.
int child(const std::string& path, int pipe) {
  int code = 0;
  std::string message;
  try {
    set_limits();
    compile_once(path);
  } catch (const Error& error) {
    code = error.exit_code();
    message = printable(error.what());
  } catch (const std::bad_alloc&) {
    code = static_cast<int>(ErrorCode::kMemory);
    message = "out of memory";
  } catch (const std::exception& error) {
    code = static_cast<int>(ErrorCode::kInternal);
    message = printable(error.what());
  }
  message.resize(std::min<size_t>(message.size(), 1000));
  if (::write(pipe, message.data(), message.size()) < 0) return kFailed;
  return code;
}

std::string read_all(int pipe) {
  std::string text;
  char buffer[1024];
  for (ssize_t got; (got = ::read(pipe, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

/// One model in a child of its own.
std::string survive(const std::string& path) {
  int ends[2];
  if (::pipe(ends) != 0) throw Error(ErrorCode::kInternal, "cannot make a pipe");
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(ErrorCode::kInternal, "cannot fork");
  if (pid == 0) {
    ::close(ends[0]);
    ::_exit(child(path, ends[1]));
  }
  ::close(ends[1]);
  const std::string message = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  return (code == 0 ? "ok" : std::to_string(code)) + " " + message;
}

}  // namespace

int main() {
  try {
    for (std::string path; std::getline(std::cin, path);) {
      std::cout << survive(path) << "\n" << std::flush;
    }
  } catch (const std::exception& error) {
    std::cerr << "halfnote-survive: " << error.what() << "\n";
    return kFailed;
  }
  return 0;
}
