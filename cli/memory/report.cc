#include "cli/memory/report.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
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

/// Is there less address space left than one allocation may ask for?
bool is_short_of_memory() {
  constexpr size_t kRoom = size_t{64} << 20;
  void* room = ::mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return true;
  ::munmap(room, kRoom);
  return false;
}

/// Generated code that got no memory stands at address 0; any other address is a bug of ours.
[[maybe_unused]] void end_of_access(int signal, siginfo_t* info, void* /*context*/) {
  if (armed && info->si_addr == nullptr && is_short_of_memory()) end_without_memory();
  std::signal(signal, SIG_DFL);
  ::raise(signal);  // taken when this handler returns: the system's own end
}

/// On a stack of its own: there may have been no memory for the stack to grow.
void watch_accesses() {
#ifndef __SANITIZE_ADDRESS__
  alignas(16) static std::byte stack[size_t{32} << 10];
  const stack_t own = {stack, 0, sizeof stack};
  ::sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_sigaction = end_of_access;
  action.sa_flags = SA_ONSTACK | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGSEGV, &action, nullptr);
#endif
}

}  // namespace

NoMemoryReport::NoMemoryReport(ErrorForm form) {
  as_json = form == ErrorForm::kJson;
  usual_end = std::set_terminate(end_of_thread);
  std::atexit(end_of_process);
  watch_accesses();
  armed = true;
}

NoMemoryReport::~NoMemoryReport() {
  armed = false;
  std::set_terminate(usual_end);
}

}  // namespace halfnote::cli
