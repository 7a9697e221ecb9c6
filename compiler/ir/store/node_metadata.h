// The notes that a node carries, keys and values in their order: those of the exporter, a kilobyte
// on each node of some models, and our own.
#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace halfnote {

/// A list of keys and values. Copies share it until one of them is changed: the nodes of a step
/// have the notes of those of the model.
class NodeMetadata {
 public:
  using Entry = std::pair<std::string, std::string>;
  using Entries = std::vector<Entry>;

  NodeMetadata() = default;
  NodeMetadata(std::initializer_list<Entry> entries)
      : entries_(std::make_shared<Entries>(entries)) {}

  Entries::const_iterator begin() const { return entries().begin(); }
  Entries::const_iterator end() const { return entries().end(); }
  size_t size() const { return entries().size(); }
  bool empty() const { return entries().empty(); }

  void emplace_back(std::string key, std::string value) {
    own().emplace_back(std::move(key), std::move(value));
  }
  /// Takes out the entries for which `wanted` holds.
  template <class Wanted>
  void erase_if(Wanted&& wanted) {
    for (const Entry& entry : entries()) {
      if (!wanted(entry)) continue;
      std::erase_if(own(), wanted);
      return;
    }
  }

  friend bool operator==(const NodeMetadata& a, const NodeMetadata& b) {
    return a.entries_ == b.entries_ || a.entries() == b.entries();
  }

 private:
  const Entries& entries() const {
    static const Entries none;
    return entries_ == nullptr ? none : *entries_;
  }
  Entries& own() {
    if (entries_ == nullptr) {
      entries_ = std::make_shared<Entries>();
    } else if (entries_.use_count() > 1) {
      entries_ = std::make_shared<Entries>(*entries_);
    } else {
      std::atomic_thread_fence(std::memory_order_acquire);  // another thread let go of it last
    }
    return *entries_;
  }

  std::shared_ptr<Entries> entries_;
};

}  // namespace halfnote
