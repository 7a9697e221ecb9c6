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

}  // namespace
}  // namespace halfnote
