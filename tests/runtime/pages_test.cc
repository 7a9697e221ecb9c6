#include "runtime/core/pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace halfnote {
namespace {

TEST(Pages, AreZeroAlignedAndWritable) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{5} << 20}) {
    const Pages pages = allocate_pages(bytes);
    ASSERT_TRUE(pages);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.get()) % 64, 0u);
    for (size_t i = 0; i < bytes; i += 511) {
      EXPECT_EQ(pages[i], std::byte{0});
      pages[i] = std::byte{1};
    }
    if (bytes > 0) pages[bytes - 1] = std::byte{1};
  }
}

TEST(Pages, AreNullWhenThereIsNoMemory) {
  EXPECT_FALSE(allocate_pages(std::numeric_limits<size_t>::max()));
  EXPECT_FALSE(allocate_pages(std::numeric_limits<size_t>::max() / 2));
}

constexpr size_t kHuge = size_t{2} << 20;
// Of a test program at rest; above what the system's counters, kept per processor and added up in
// batches of pages, may be behind.
constexpr size_t kNoise = size_t{1} << 20;

TEST(Pages, OnlyWhatIsWrittenIsResident) {
  const size_t before = resident_memory().anonymous;
  const Pages pages = allocate_pages(4 * kHuge + 5000);
  EXPECT_LT(resident_memory().anonymous, before + kNoise);
  // Behind the last whole huge page the pages are small.
  pages[4 * kHuge + 4999] = std::byte{1};
  EXPECT_LT(resident_memory().anonymous, before + kNoise);
  for (size_t i = 0; i < 4 * kHuge; i += 4096) pages[i] = std::byte{1};
  const ResidentMemory now = resident_memory();
  EXPECT_GE(now.anonymous, before + 4 * kHuge);
  EXPECT_LT(now.anonymous, before + 4 * kHuge + kNoise);
}

TEST(Pages, ThePeakStaysWhenMemoryGoes) {
  size_t held = 0;
  {
    const Pages pages = allocate_pages(4 * kHuge);
    for (size_t i = 0; i < 4 * kHuge; i += 4096) pages[i] = std::byte{1};
    held = resident_memory().all;
  }
  const ResidentMemory after = resident_memory();
  EXPECT_LT(after.all + 3 * kHuge, held);
  EXPECT_GE(after.peak + kNoise, held);
}

TEST(Pages, ThePeakBeginsAnew) {
  {
    const Pages pages = allocate_pages(8 * kHuge);
    for (size_t i = 0; i < 8 * kHuge; i += 4096) pages[i] = std::byte{1};
  }
  if (!reset_resident_peak()) GTEST_SKIP() << "the system does not forget a peak";
  const ResidentMemory now = resident_memory();
  EXPECT_LT(now.peak, now.all + kHuge);
}

}  // namespace
}  // namespace halfnote
