// All dynamic rows in one list.
#include "kernels/cpu/dynamic/parts.h"

namespace halfnote {

std::vector<DynamicRow> dynamic_rows() {
  std::vector<DynamicRow> all;
  for (auto part : {cpu::select_dynamic_rows, cpu::boxes_dynamic_rows, cpu::text_dynamic_rows,
                    cpu::count_dynamic_rows}) {
    const std::vector<DynamicRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

const DynamicRow* find_dynamic(const DynamicCall& call) {
  static const std::vector<DynamicRow> rows = dynamic_rows();
  for (const DynamicRow& row : rows) {
    if (row.op != call.op || row.domain != call.domain) continue;
    if (row.takes == nullptr || row.takes(call)) return &row;
  }
  return nullptr;
}

}  // namespace halfnote
