// A plan file: which kernel runs a call on this machine, as `halfnote run --tune` measured it.
//
//   format     "halfnote-plan"
//   version    1
//   halfnote   the version that wrote it
//   device     processor and instruction set; library: oneDNN's version; threads
//   kernels    for each call: op, operands, attributes; kernel, the name of its row; ms, the times
//              of all rows that took it
//
// Only calls that more than one kernel takes stand in it; the table decides the others. The rows of
// a call are those of the kernel table; the reference is none where another takes the call.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace halfnote {

/// Where times are true: what a plan file is for.
struct TunedMachine {
  std::string device, library;
  int threads = 1;

  friend bool operator==(const TunedMachine&, const TunedMachine&) = default;
};

/// This processor, with so many threads.
TunedMachine this_machine(int threads);

/// What a choice depends on: op, types and shapes of all operands, attributes, small constants.
struct CallKey {
  std::string op, operands, attributes;

  friend auto operator<=>(const CallKey&, const CallKey&) = default;
};

CallKey key_of(const KernelCall& call);

struct MeasuredKernel {
  std::string kernel;
  double ms = 0;
};

class KernelChoices {
 public:
  explicit KernelChoices(TunedMachine machine) : machine_(std::move(machine)) {}

  /// Reads a plan file's text; `path` is for messages. Throws Error(kData) for one that is damaged,
  /// Error(kUsage) for one of another version or machine than `machine`.
  static KernelChoices parse(std::string_view text, const std::string& path,
                             const TunedMachine& machine);
  std::string to_json() const;
  /// A hash of the choices, without times: equal choices are equal arithmetic.
  std::string digest() const;

  /// The kernel's name; empty if the call is not there. Notes that the call occurred.
  std::string_view find(const CallKey& key);
  bool contains(const CallKey& key) const { return kernels_.contains(key); }
  /// `measured`: the fastest first. One without entries says that there is nothing to choose.
  void set(const CallKey& key, std::vector<MeasuredKernel> measured) {
    kernels_[key] = std::move(measured);
  }
  /// Calls with a choice; those of them that find() was asked for.
  size_t size() const;
  size_t used() const { return used_.size(); }

 private:
  TunedMachine machine_;
  std::map<CallKey, std::vector<MeasuredKernel>> kernels_;
  std::set<CallKey> used_;
};

}  // namespace halfnote
