// The message is rendered again at each change, so that what() needs no memory and cannot throw.
#include "base/error.h"

#include <algorithm>
#include <vector>

#include "base/text/printable.h"

namespace halfnote {

std::string_view kind_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kModel:
      return "model";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kNumerics:
      return "numerics";
    case ErrorCode::kMemory:
      return "memory";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kCheckpoint:
      return "checkpoint";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kPeer:
      return "peer";
    case ErrorCode::kAccuracy:
      return "accuracy";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kPreempted:
      return "preempted";
  }
  return "internal";
}

Error& Error::at(Place place) & {
  place_ = std::move(place);
  render();
  return *this;
}

Error&& Error::at(Place place) && { return std::move(at(std::move(place))); }

Error& Error::within(const Place& place) {
  if (place_.file.empty()) place_.file = place.file;
  if (place_.node.empty()) place_.node = place.node;
  if (place_.op.empty()) place_.op = place.op;
  render();
  return *this;
}

Error&& Error::expected(std::string expected, std::string got) && {
  expected_ = std::move(expected);
  got_ = std::move(got);
  render();
  return std::move(*this);
}

Error&& Error::hint(std::string hint) && {
  hint_ = std::move(hint);
  render();
  return std::move(*this);
}

Error&& Error::in_pass(std::string_view pass) && {
  pass_ = pass;
  render();
  return std::move(*this);
}

void Error::render() {
  message_.clear();
  if (!place_.file.empty()) message_ += printable(place_.file) + ": ";
  if (!place_.node.empty()) message_ += "node \"" + printable(place_.node) + "\"";
  if (!place_.op.empty())
    message_ += (place_.node.empty() ? "" : " ") + ("(" + printable(place_.op) + ")");
  if (!place_.node.empty() || !place_.op.empty()) message_ += ": ";
  message_ += what_;
  if (!expected_.empty()) message_ += ": expected " + expected_;
  if (!got_.empty()) message_ += (expected_.empty() ? ": got " : ", got ") + got_;
  if (!hint_.empty()) message_ += "; " + hint_;
  if (!pass_.empty()) message_ += " (in pass " + pass_ + ")";
  if (message_.size() > kLongestWord) message_ = with_short_words(message_);
}

int edit_distance(std::string_view a, std::string_view b) {
  // Damerau-Levenshtein with adjacent transpositions, three rows.
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace halfnote
