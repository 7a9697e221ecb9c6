// The kernel table: rows grouped by operator, and the choice among them.
#include "kernels/kernel.h"

#include <algorithm>
#include <tuple>

namespace halfnote {

namespace {

bool before(const KernelRow& a, const KernelRow& b) {
  return std::tie(a.domain, a.op) < std::tie(b.domain, b.op);
}

}  // namespace

KernelTable::KernelTable(std::vector<KernelRow> rows) : rows_(std::move(rows)) {
  std::stable_sort(rows_.begin(), rows_.end(), before);
}

std::vector<const KernelRow*> KernelTable::rows_of(std::string_view domain,
                                                   std::string_view op) const {
  const KernelRow key{domain, op, {}, nullptr};
  const auto [first, last] = std::equal_range(rows_.begin(), rows_.end(), key, before);
  std::vector<const KernelRow*> rows;
  for (auto row = first; row != last; ++row) rows.push_back(&*row);
  return rows;
}

KernelChoice KernelTable::choose(const KernelCall& call, std::string_view only) const {
  KernelChoice choice;
  for (const KernelRow* row : rows_of(call.domain, call.op)) {
    if (!row->name.starts_with(only)) continue;
    Prepared prepared = row->prepare(call);
    if (prepared) {
      choice.row = row;
      choice.kernel = std::move(prepared.kernel);
      return choice;
    }
    choice.refusals.push_back({row->name, std::move(prepared.refusal)});
  }
  for (const KernelRow* row : rows_of(call.domain, call.op)) {
    if (row->name.starts_with(only)) continue;
    choice.refusals.push_back(
        {row->name, "not asked: only \"" + std::string(only) + "\" kernels are allowed"});
  }
  return choice;
}

}  // namespace halfnote
