#include "compiler/ir/store/name_index.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace halfnote {

uint32_t NameIndex::hash_of(std::string_view name) {
  return static_cast<uint32_t>(std::hash<std::string_view>{}(name));
}

void NameIndex::place(Slot slot) {
  size_t at = home(slot.hash);
  while (slots_[at].value.valid()) at = next(at);
  slots_[at] = slot;
}

void NameIndex::insert(std::string_view name, ValueId value) {
  if ((size_ + 1) * 4 > slots_.size() * 3) {
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(std::max<size_t>(16, old.size() * 2), Slot{});
    for (const Slot& slot : old) {
      if (slot.value.valid()) place(slot);
    }
  }
  place({hash_of(name), value});
  ++size_;
}

// Linear probing without tombstones (Knuth, vol. 3, 6.4, algorithm R): what stands behind the hole
// moves into it, unless it would then stand before its home.
void NameIndex::erase(std::string_view name, ValueId value) {
  if (slots_.empty()) return;
  size_t hole = home(hash_of(name));
  while (slots_[hole].value != value) {
    if (!slots_[hole].value.valid()) return;
    hole = next(hole);
  }
  const size_t mask = slots_.size() - 1;
  for (size_t at = next(hole); slots_[at].value.valid(); at = next(at)) {
    const size_t way = (at - home(slots_[at].hash)) & mask;
    if (way < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole] = Slot{};
  --size_;
}

}  // namespace halfnote
