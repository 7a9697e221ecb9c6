// From the names of values to the values, without a copy of the names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/handle.h"

namespace halfnote {

/// A table of hashes with the values that they stand for; the names themselves stand in the values
/// only, and who looks one up says how to read them.
class NameIndex {
 public:
  size_t size() const { return size_; }

  /// `name_of(ValueId)` gives the name of a value that is in the index.
  template <class NameOf>
  ValueId find(std::string_view name, NameOf&& name_of) const {
    if (slots_.empty()) return {};
    const uint32_t hash = hash_of(name);
    for (size_t at = home(hash);; at = next(at)) {
      const Slot& slot = slots_[at];
      if (!slot.value.valid()) return {};
      if (slot.hash == hash && name_of(slot.value) == name) return slot.value;
    }
  }
  /// The name must not be in the index.
  void insert(std::string_view name, ValueId value);
  /// Takes the value out that was inserted under this name.
  void erase(std::string_view name, ValueId value);

 private:
  struct Slot {
    uint32_t hash = 0;
    ValueId value;  // invalid: the slot is free
  };

  static uint32_t hash_of(std::string_view name);
  size_t home(uint32_t hash) const { return hash & (slots_.size() - 1); }
  size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }
  void place(Slot slot);

  std::vector<Slot> slots_;  // a power of two, a quarter of them free at least
  size_t size_ = 0;
};

}  // namespace halfnote
