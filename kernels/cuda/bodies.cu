// A captured step runs both branches of an If: a result is copied under the condition, which the
// kernel reads. The slices of a Scan are blocks.
#include "kernels/cuda/bodies.h"

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

template <class Word>
struct CopyBlocks {
  std::byte* to;
  const std::byte* from;
  int64_t to_apart, from_apart;  // bytes
  Divisor width;                 // words of a block

  __device__ void operator()(int64_t i) const {
    const int64_t block = width.quotient(i), at = i - block * width.value();
    reinterpret_cast<Word*>(to + block * to_apart)[at] =
        reinterpret_cast<const Word*>(from + block * from_apart)[at];
  }
};

template <class Word>
void copy_words(Stream& stream, const BlockCopy& copy) {
  const auto width = static_cast<int64_t>(copy.bytes / sizeof(Word));
  for_each(stream, width * static_cast<int64_t>(copy.blocks),
           CopyBlocks<Word>{copy.to, copy.from, static_cast<int64_t>(copy.to_apart),
                            static_cast<int64_t>(copy.from_apart), Divisor(width)});
}

uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

struct Condition {
  const bool* place;
  bool wanted;
  __device__ bool holds() const { return *place == wanted; }
};

Condition condition_of(const DeviceCondition& condition) {
  return {reinterpret_cast<const bool*>(condition.place), condition.wanted};
}

/// `whole` words, then bytes.
struct CopyIf {
  Condition condition;
  std::byte* to;
  const std::byte* from;
  int64_t whole;
  __device__ void operator()(int64_t i) const {
    if (!condition.holds()) return;
    if (i < whole) {
      reinterpret_cast<SixteenBytes*>(to)[i] = reinterpret_cast<const SixteenBytes*>(from)[i];
      return;
    }
    const int64_t at = whole * static_cast<int64_t>(sizeof(SixteenBytes)) + i - whole;
    to[at] = from[at];
  }
};

struct NoteFaultIf {
  Condition condition;
  const DeviceFault* noted;
  DeviceFault* to;
  __device__ void operator()(int64_t) const {
    if (noted->kind == DeviceFault::kNone || !condition.holds()) return;
    note_fault(to, *noted);
  }
};

}  // namespace

void copy_blocks(Stream& stream, const BlockCopy& copy) {
  if (copy.bytes == 0 || copy.blocks == 0) return;
  const uintptr_t all =
      address_of(copy.to) | address_of(copy.from) | copy.bytes | copy.to_apart | copy.from_apart;
  if (all % sizeof(SixteenBytes) == 0) return copy_words<SixteenBytes>(stream, copy);
  if (all % sizeof(uint32_t) == 0) return copy_words<uint32_t>(stream, copy);
  if (all % sizeof(uint16_t) == 0) return copy_words<uint16_t>(stream, copy);
  copy_words<uint8_t>(stream, copy);
}

void copy_if(Stream& stream, const DeviceCondition& condition, void* to, const void* from,
             size_t bytes) {
  const bool by_words = (address_of(to) | address_of(from)) % sizeof(SixteenBytes) == 0;
  const size_t whole = by_words ? bytes / sizeof(SixteenBytes) : 0;
  const size_t count = whole + bytes - whole * sizeof(SixteenBytes);
  for_each(stream, static_cast<int64_t>(count),
           CopyIf{condition_of(condition), static_cast<std::byte*>(to),
                  static_cast<const std::byte*>(from), static_cast<int64_t>(whole)});
}

void note_fault_if(Stream& stream, const DeviceCondition& condition, const DeviceFault* noted) {
  for_each(stream, 1, NoteFaultIf{condition_of(condition), noted, stream.fault().at});
}

}  // namespace halfnote::HN_CUDA
