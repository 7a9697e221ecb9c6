// The tables of CPU and device beside each other: what runs on the one runs on the other, but for
// what stands here.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

#include "kernels/cuda/table.h"
#include "kernels/kernel.h"

namespace halfnote::cuda_emulated {
namespace {

using OpName = std::pair<std::string, std::string>;

std::set<OpName> ops_of(const KernelTable& table) {
  std::set<OpName> ops;
  for (const KernelRow& row : table.rows()) ops.emplace(row.domain, row.op);
  return ops;
}

/// Without a row on a device, and why.
const std::set<OpName> kOnlyOnCpu = {};

TEST(CudaRows, WhatTheCpuRunsTheDeviceRuns) {
  const std::set<OpName> device = ops_of(kernel_table());
  for (const OpName& op : ops_of(cpu_kernels())) {
    EXPECT_EQ(device.count(op) == 0, kOnlyOnCpu.count(op) != 0)
        << op.first << (op.first.empty() ? "" : ".") << op.second;
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
