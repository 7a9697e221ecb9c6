// Text that does not change and that many hold: names of operators, reasons, names of dims. It
// takes a pointer, and copies share what it points to.
#pragma once

#if !defined(__CUDACC__)  // nvcc cannot read it, and kernels format nothing
#include <fmt/core.h>
#endif

#include <atomic>
#include <compare>
#include <concepts>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace halfnote {

class SharedText;

template <class T>
concept PlainText = std::convertible_to<const T&, std::string_view> && !std::same_as<T, SharedText>;

class SharedText {
 public:
  SharedText() = default;
  /// Shares what this thread made of the same text a short while ago.
  SharedText(std::string_view text);  // NOLINT(google-explicit-constructor): it is that text
  SharedText(const std::string& text) : SharedText(std::string_view(text)) {}  // NOLINT: the same
  SharedText(const char* text) : SharedText(std::string_view(text)) {}         // NOLINT: the same
  SharedText(const SharedText& other) noexcept : held_(other.held_) { hold(); }
  SharedText(SharedText&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  SharedText& operator=(SharedText other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~SharedText() { release(); }

  const std::string& str() const { return held_ == nullptr ? nothing() : held_->text; }
  operator const std::string&() const { return str(); }  // NOLINT(google-explicit-constructor)
  operator std::string_view() const { return str(); }    // NOLINT(google-explicit-constructor)
  bool empty() const { return held_ == nullptr; }
  size_t size() const { return str().size(); }
  bool starts_with(std::string_view begin) const { return str().starts_with(begin); }
  bool ends_with(std::string_view end) const { return str().ends_with(end); }
  size_t find(std::string_view part, size_t from = 0) const { return str().find(part, from); }
  std::string substr(size_t begin, size_t count = std::string::npos) const {
    return str().substr(begin, count);
  }

  friend bool operator==(const SharedText& a, const SharedText& b) {
    return a.held_ == b.held_ || a.str() == b.str();
  }
  template <PlainText T>
  friend bool operator==(const SharedText& a, const T& b) {
    return a.str() == std::string_view(b);
  }
  friend std::strong_ordering operator<=>(const SharedText& a, const SharedText& b) {
    return a.str() <=> b.str();
  }
  template <PlainText T>
  friend std::strong_ordering operator<=>(const SharedText& a, const T& b) {
    return std::string_view(a.str()) <=> std::string_view(b);
  }
  friend std::string operator+(const SharedText& a, const SharedText& b) {
    return a.str() + b.str();
  }
  template <PlainText T>
  friend std::string operator+(const SharedText& a, const T& b) {
    return std::string(a.str()).append(std::string_view(b));
  }
  template <PlainText T>
  friend std::string operator+(const T& a, const SharedText& b) {
    return std::string(std::string_view(a)).append(b.str());
  }
  friend std::ostream& operator<<(std::ostream& out, const SharedText& text) {
    return out << text.str();
  }

 private:
  struct Held {
    std::atomic<uint32_t> holders = 1;
    std::string text;  // not empty
  };

  static const std::string& nothing();
  void hold() const {
    if (held_ != nullptr) held_->holders.fetch_add(1, std::memory_order_relaxed);
  }
  void release() {
    if (held_ != nullptr && held_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1)
      delete held_;
  }

  Held* held_ = nullptr;  // null: the empty text
};

}  // namespace halfnote

#if !defined(__CUDACC__)
template <>
struct fmt::formatter<halfnote::SharedText> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const halfnote::SharedText& text, Context& context) const {
    return fmt::formatter<std::string_view>::format(text.str(), context);
  }
};
#endif

template <>
struct std::hash<halfnote::SharedText> {
  size_t operator()(const halfnote::SharedText& text) const noexcept {
    return std::hash<std::string_view>()(text);
  }
};
