// The one exception type of halfnote. Bad input throws it; bugs assert.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace halfnote {

/// What went wrong, which is also the exit code of the program (docs/exit-codes.md).
enum class ErrorCode {
  kUsage = 2,        // command line, policy or configuration
  kModel = 3,        // an invalid model, or one over a limit
  kUnsupported = 4,  // an operator or feature that halfnote lacks
  kData = 5,         // bad training data
  kNumerics = 6,     // NaN, divergence, loss scale at its minimum
  kMemory = 7,       // out of memory on host or device
  kIo = 8,           // disk full, unreadable file
  kCheckpoint = 9,   // a checkpoint that is corrupt or belongs to another model
  kDevice = 10,      // device or library missing
  kPeer = 11,        // another process of the job is lost
  kAccuracy = 12,    // an accuracy gate failed
  kInternal = 70,    // a bug of halfnote
  kPreempted = 75,   // stopped by a signal, state saved
};

/// `usage`, `model`, … as printed in front of a message and in JSON.
std::string_view kind_name(ErrorCode code);

/// Where an error is: a file, a node in it, its operator. Empty parts are left out.
struct Place {
  std::string file;
  std::string node;
  std::string op;
};

/// An error that a user can act on. The message reads
/// `FILE: node "NAME" (OP): WHAT: expected EXPECTED, got GOT; HINT`, lower case, without a final
/// period.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string what) : code_(code), what_(std::move(what)) { render(); }

  Error& at(Place place) &;
  Error&& at(Place place) &&;
  /// Fills the parts of the place that are still empty; used by callers who know more than the
  /// thrower.
  Error& within(const Place& place);
  Error&& expected(std::string expected, std::string got) &&;
  Error&& hint(std::string hint) &&;
  /// The pass that was running, named at the end of the message.
  Error&& in_pass(std::string_view pass) &&;

  ErrorCode code() const { return code_; }
  int exit_code() const { return static_cast<int>(code_); }
  const Place& place() const { return place_; }
  const std::string& problem() const { return what_; }
  const std::string& expectation() const { return expected_; }
  const std::string& value() const { return got_; }
  const std::string& hint_text() const { return hint_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  void render();

  ErrorCode code_;
  Place place_;
  std::string what_, expected_, got_, hint_, pass_, message_;
};

/// How many letters of a word may be wrong for a suggestion: none of one, one of two to five, two
/// of up to eight, then three. More is another word (`b` is no `W`, `Foo` no `Cos`, `Gelu` no
/// `Gemm`).
constexpr int most_typos(size_t letters) {
  return letters < 2 ? 0 : letters < 6 ? 1 : letters < 9 ? 2 : 3;
}

/// The closest of `candidates` to `word` by edit distance, at most `most_typos` away; else empty.
template <class Range>
std::string_view closest(std::string_view word, const Range& candidates);
int edit_distance(std::string_view a, std::string_view b);

template <class Range>
std::string_view closest(std::string_view word, const Range& candidates) {
  std::string_view best;
  int best_distance = most_typos(word.size()) + 1;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace halfnote
