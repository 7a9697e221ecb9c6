// The kernel table: order of preference, refusals, and that every op has its reference.
#include <gtest/gtest.h>

#include <set>

#include "kernels/kernel.h"

namespace halfnote {
namespace {

class Nothing final : public Kernel {
 public:
  void run(const KernelBuffers&) const override {}
};

Prepared accept(const KernelCall&) { return Prepared::yes(std::make_unique<Nothing>()); }
Prepared refuse(const KernelCall&) { return Prepared::no("too small"); }

KernelTable small_table() {
  return KernelTable({{"", "B", "fast", refuse},
                      {"", "A", "fast", accept},
                      {"x", "A", "reference", accept},
                      {"", "B", "reference", accept},
                      {"", "A", "reference", accept},
                      {"", "C", "fast", refuse}});
}

KernelCall call_of(std::string_view op, std::string_view domain = "") {
  KernelCall call;
  call.domain = domain;
  call.op = op;
  return call;
}

TEST(KernelTable, TakesTheFirstRowThatAccepts) {
  const KernelTable table = small_table();
  EXPECT_EQ(table.choose(call_of("A")).row->name, "fast");
  EXPECT_EQ(table.choose(call_of("A", "x")).row->domain, "x");
  const KernelChoice choice = table.choose(call_of("B"));
  EXPECT_EQ(choice.row->name, "reference");
  ASSERT_EQ(choice.refusals.size(), 1u);
  EXPECT_EQ(choice.refusals[0].kernel, "fast");
  EXPECT_EQ(choice.refusals[0].reason, "too small");
}

TEST(KernelTable, SaysWhyThereIsNone) {
  const KernelTable table = small_table();
  const KernelChoice refused = table.choose(call_of("C"));
  EXPECT_EQ(refused.row, nullptr);
  EXPECT_EQ(refused.refusals.size(), 1u);
  EXPECT_TRUE(table.choose(call_of("D")).refusals.empty());
}

TEST(KernelTable, RestrictsToRowsByName) {
  const KernelTable table = small_table();
  EXPECT_EQ(table.choose(call_of("A"), "ref").row->name, "reference");
  EXPECT_EQ(table.choose(call_of("A"), "gpu").kernel, nullptr);
  EXPECT_EQ(table.rows_of("", "A").size(), 2u);
}

TEST(CpuKernels, EndEveryOpWithItsReference) {
  std::set<std::pair<std::string_view, std::string_view>> ops;
  for (const KernelRow& row : cpu_kernels().rows()) ops.insert({row.domain, row.op});
  EXPECT_GT(ops.size(), 150u);
  for (const auto& [domain, op] : ops) {
    const auto rows = cpu_kernels().rows_of(domain, op);
    EXPECT_TRUE(rows.back()->name.starts_with("reference")) << domain << "." << op;
  }
}

}  // namespace
}  // namespace halfnote
