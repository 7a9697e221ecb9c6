// What the rows of a family promise, for the tests that hold the list of what is tested against it.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compiler/ops/families.h"
#include "compiler/ops/operator.h"

namespace halfnote::test {

/// `Conv`, `ai.halfnote.Dropout`.
inline std::string full_name(const OperatorRow& row) {
  return (row.domain.empty() ? "" : std::string(row.domain) + ".") + std::string(row.name);
}

inline std::set<std::string> with_gradient(const std::vector<OperatorRow>& rows) {
  std::set<std::string> names;
  for (const OperatorRow& row : rows) {
    if (row.gradient != nullptr) names.insert(full_name(row));
  }
  return names;
}

inline std::set<std::string> with_body(const std::vector<OperatorRow>& rows) {
  std::set<std::string> names;
  for (const OperatorRow& row : rows) {
    if (row.body != nullptr) names.insert(std::string(row.name));
  }
  return names;
}

}  // namespace halfnote::test
