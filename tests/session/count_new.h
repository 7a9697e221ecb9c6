// Counts every operator new of the test program.
#pragma once

#include <cstddef>

namespace halfnote::test {

/// Counts what is allocated while it lives, by all threads and libraries; one at a time.
class Probe {
 public:
  Probe();
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  size_t count() const { return now(); }
  size_t bytes() const;
  /// Calls counted by the present probe, or by the last one.
  static size_t now();
};

}  // namespace halfnote::test
