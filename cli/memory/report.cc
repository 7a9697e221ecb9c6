#include "cli/memory/report.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "base/error.h"
#include "base/system/temporary_files.h"

namespace halfnote::cli {
namespace {

std::atomic<bool> armed{false}, ending{false}, as_json{false};
std::terminate_handler usual_end = nullptr;

/// There may be no memory for streams or strings.
[[noreturn]] void end_without_memory() {
  if (ending.exchange(true)) {
    for (;;) ::pause();  // another thread is about to end the process
  }
  static constexpr char kText[] = "halfnote: error (memory): out of memory\n";
  static constexpr char kJson[] =
      "{\"code\":7,\"kind\":\"memory\",\"message\":\"out of memory\",\"file\":\"\",\"node\":\"\","
      "\"op\":\"\",\"hint\":\"\",\"doc\":\"docs/exit-codes.md\"}\n";
  remove_temporary_files();
  const char* words = as_json ? kJson : kText;
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, words, std::strlen(words));
  ::_exit(static_cast<int>(ErrorCode::kMemory));
}

bool lost_for_memory() {
  if (!std::current_exception()) return false;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

void end_of_thread() {
  if (armed && lost_for_memory()) end_without_memory();
  usual_end();
}

/// Nobody calls exit() before main has ended, but for the OpenMP runtime.
void end_of_process() {
  if (armed) end_without_memory();
}

}  // namespace

NoMemoryReport::NoMemoryReport(ErrorForm form) {
  as_json = form == ErrorForm::kJson;
  usual_end = std::set_terminate(end_of_thread);
  std::atexit(end_of_process);
  armed = true;
}

NoMemoryReport::~NoMemoryReport() {
  armed = false;
  std::set_terminate(usual_end);
}

}  // namespace halfnote::cli
