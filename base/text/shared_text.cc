#include "base/text/shared_text.h"

#include <array>
#include <functional>

namespace halfnote {
namespace {

/// What a thread made last: a compilation makes the same few names a million times.
struct Recent {
  static constexpr size_t kSlots = 1024, kLongest = 128;
  std::array<SharedText, kSlots> texts;
};

}  // namespace

SharedText::SharedText(std::string_view text) {
  if (text.empty()) return;
  if (text.size() > Recent::kLongest) {
    held_ = new Held{.text = std::string(text)};
    return;
  }
  thread_local Recent recent;
  SharedText& slot = recent.texts[std::hash<std::string_view>()(text) % Recent::kSlots];
  if (slot != text) {
    SharedText made;
    made.held_ = new Held{.text = std::string(text)};
    slot = std::move(made);
  }
  *this = slot;
}

const std::string& SharedText::nothing() {
  static const std::string none;
  return none;
}

}  // namespace halfnote
