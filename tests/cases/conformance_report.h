// The result of a conformance run: counts by kind of test, and docs/conformance.md.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "conformance.h"

namespace halfnote::cases {

class ConformanceReport {
 public:
  void add(const ConformanceCase& test, const Outcome& outcome);
  int64_t count(Verdict verdict) const;
  /// A line for each kind of test.
  std::string summary() const;
  /// The document: counts, then what is not covered, by reason.
  std::string document() const;

 private:
  struct Counts {
    int64_t pass = 0, node_by_node = 0, refused = 0, wrong = 0;
  };
  std::map<std::string, Counts> counts_;                      // by kind
  std::map<std::string, std::vector<std::string>> refusals_;  // by reason: names of tests
};

}  // namespace halfnote::cases
