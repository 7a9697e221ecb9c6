// The table of mappings is read by a signal handler: fixed slots, no lock, no allocation. A slot's
// `begin` is set last and cleared first.
#include "base/system/vanished_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr size_t kMappings = 1024;  // as many files of external data as a model may have
constexpr size_t kLongestPath = 256;

struct MappingSlot {
  std::atomic<bool> taken{false};
  std::atomic<const std::byte*> begin{nullptr};
  size_t bytes = 0;
  char path[kLongestPath] = {};
};

MappingSlot mapping_slots[kMappings];
std::atomic<bool> vanished_as_json{false};
static_assert(std::atomic<const std::byte*>::is_always_lock_free);

const MappingSlot* mapping_of(const void* address) {
  const auto* at = static_cast<const std::byte*>(address);
  for (const MappingSlot& slot : mapping_slots) {
    const std::byte* begin = slot.begin.load(std::memory_order_acquire);
    // The last page of a mapping reaches behind the file's end.
    if (begin != nullptr && at >= begin && at < begin + slot.bytes) return &slot;
  }
  return nullptr;
}

void put(const char* text) {
  [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, text, std::strlen(text));
}

[[noreturn]] void end_with_message(const MappingSlot& slot) {
  constexpr const char* kWhat = ": the file became shorter while it was read";
  if (vanished_as_json) {
    put("{\"code\":8,\"kind\":\"io\",\"message\":\"");
    put(slot.path);
    put(kWhat);
    put("\",\"file\":\"");
    put(slot.path);
    put("\",\"node\":\"\",\"op\":\"\",\"hint\":\"\",\"doc\":\"docs/exit-codes.md\"}\n");
  } else {
    put("halfnote: error (io): ");
    put(slot.path);
    put(kWhat);
    put("\n");
  }
  ::_exit(static_cast<int>(ErrorCode::kIo));
}

void handle_bus_error(int signal, siginfo_t* info, void*) {
  if (const MappingSlot* slot = mapping_of(info->si_addr)) end_with_message(*slot);
  std::signal(signal, SIG_DFL);  // the same access again, and the system's own end
}

}  // namespace

void watch_mapping(const std::byte* begin, size_t bytes, const std::filesystem::path& path) {
  for (MappingSlot& slot : mapping_slots) {
    if (slot.taken.exchange(true)) continue;
    const std::string& text = path.native();
    const size_t length = std::min(text.size(), kLongestPath - 1);
    // Shown by a handler that can escape nothing, also inside a JSON string.
    std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length), slot.path,
                   [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\' ? '?' : c; });
    slot.path[length] = '\0';
    slot.bytes = bytes;
    slot.begin.store(begin, std::memory_order_release);
    return;
  }
}

void unwatch_mapping(const std::byte* begin) {
  for (MappingSlot& slot : mapping_slots) {
    if (slot.begin.load(std::memory_order_acquire) != begin) continue;
    slot.begin.store(nullptr, std::memory_order_release);
    slot.taken.store(false, std::memory_order_release);
    return;
  }
}

void report_vanished_files(ErrorForm form) {
  vanished_as_json = form == ErrorForm::kJson;
  struct sigaction action {};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace halfnote
