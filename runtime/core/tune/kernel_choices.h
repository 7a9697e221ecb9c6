// A plan file: which kernel runs a call on this machine, as `halfnote run --tune` measured it.
//
//   format      "halfnote-plan"
//   version     1
//   halfnote    the version that wrote it
//   device      processor and instruction set; of a GPU its name, architecture, processors and
//               driver
//   library     oneDNN's version; of a GPU those of cuBLASLt and cuDNN
//   threads     of the CPU; of a GPU 1
//   kernels     for each call: op, operands, attributes; kernel, the name of its row and, behind a
//               space, that of a library's algorithm; ms, the times of all that took it
//   fusions     for each call, or several, that was measured beside those that it would replace:
//               op, operands and attributes of all of them, with the values that link them; pays,
//               whether it was faster; ms, "fused" and "apart"
//   unmeasured  calls that were to be measured and could not: op, operands, attributes; why
//
// Only calls that more than one kernel or algorithm takes stand in it; the table decides the
// others. The rows of a call are those of the kernel table; the reference, or another fallback, is
// none where another takes the call. The name of an algorithm is the library's configuration of it:
// the library makes it again from that (kernels/cuda/libraries/lt_algorithm.h, Dnn::engines()), and
// a name that it does not take any more is an error. Lists without entries are left out but for
// `kernels`.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device.h"

namespace halfnote {

/// Where times are true: what a plan file is for.
struct TunedMachine {
  std::string device, library;
  int threads = 1;

  friend bool operator==(const TunedMachine&, const TunedMachine&) = default;
};

/// This processor, with so many threads.
TunedMachine this_machine(int threads);
/// A device's hardware and libraries.
TunedMachine machine_of(const Device& device);

/// What a choice depends on: op, types and shapes of all operands, attributes, small constants.
struct CallKey {
  std::string op, operands, attributes;

  friend auto operator<=>(const CallKey&, const CallKey&) = default;
};

CallKey key_of(const KernelCall& call);

struct MeasuredKernel {
  std::string kernel;  // `blas.matmul`, `blas.matmul lt:66:tile20…`
  double ms = 0;

  /// The two words of a name; the second is empty where the row has no algorithms.
  static std::string name(std::string_view row, std::string_view algorithm);
  static std::string_view row(std::string_view name) { return name.substr(0, name.find(' ')); }
  static std::string_view algorithm(std::string_view name);
};

/// Fused calls beside those that they would replace.
struct MeasuredFusion {
  bool pays = false;
  double fused_ms = 0, apart_ms = 0;
};

class KernelChoices {
 public:
  explicit KernelChoices(TunedMachine machine) : machine_(std::move(machine)) {}

  /// Reads a plan file's text; `path` is for messages, `table` has the kernels. Throws Error(kData)
  /// for one that is damaged, Error(kUsage) for one of another version or machine than `machine`.
  static KernelChoices parse(std::string_view text, const std::string& path,
                             const TunedMachine& machine, const KernelTable& table = cpu_kernels());
  /// The file that parse() read; empty: none.
  const std::string& path() const { return path_; }
  std::string to_json() const;
  /// A hash of the choices, without times: equal choices are equal arithmetic.
  std::string digest() const;

  /// The name of the kernel and its algorithm; empty if the call is not there. Notes that the call
  /// occurred.
  std::string_view find(const CallKey& key);
  bool contains(const CallKey& key) const { return kernels_.contains(key); }
  /// `measured`: the fastest first. One without entries says that there is nothing to choose.
  void set(const CallKey& key, std::vector<MeasuredKernel> measured) {
    kernels_[key] = std::move(measured);
    if (told_ && !kernels_[key].empty()) told_(*this);
  }
  /// The call cannot be measured, for this reason: the table decides.
  void set_unmeasured(const CallKey& key, std::string why) {
    kernels_[key] = {};
    unmeasured_[key] = std::move(why);
  }
  /// Calls of which set_unmeasured() told.
  const std::map<CallKey, std::string>& unmeasured() const { return unmeasured_; }
  /// What was measured of fused calls; null: nothing.
  const MeasuredFusion* find_fusion(const CallKey& key) const;
  void set_fusion(const CallKey& key, const MeasuredFusion& fusion) {
    fusions_[key] = fusion;
    if (told_) told_(*this);
  }
  /// `told` is called after each measurement: for who keeps them though the process may be ended.
  void on_measured(std::function<void(const KernelChoices&)> told) { told_ = std::move(told); }
  /// Calls with a choice; those of them that find() was asked for.
  size_t size() const;
  size_t used() const { return used_.size(); }

 private:
  TunedMachine machine_;
  std::string path_;
  std::map<CallKey, std::vector<MeasuredKernel>> kernels_;
  std::map<CallKey, MeasuredFusion> fusions_;
  std::map<CallKey, std::string> unmeasured_;
  std::set<CallKey> used_;
  std::function<void(const KernelChoices&)> told_;
};

}  // namespace halfnote
