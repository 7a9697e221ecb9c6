#include "cli/guard.h"

#include <poll.h>
#include <unistd.h>

#include <iostream>
#include <new>
#include <nlohmann/json.hpp>

#include "base/text/printable.h"
#include "passes/unsupported.h"

namespace halfnote::cli {
namespace {

/// Line by line, so that a name from a file cannot steer the terminal. Our own lists are indented;
/// any other line break came with a name.
void print_lines(std::string_view text) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find("\n  ", begin), text.size());
    std::cerr << printable(text.substr(begin, end - begin)) << "\n";
    begin = end + 1;
  }
}

/// The list of an error about many nodes, with the names that its message leaves out.
nlohmann::ordered_json refused_nodes(const UnsupportedError& error) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const RefusedNodes& row : error.refused()) {
    list.push_back({{"op", row.op},
                    {"opset", row.opset},
                    {"why", row.why},
                    {"instead", row.instead},
                    {"nodes", row.nodes}});
  }
  return list;
}

}  // namespace

int report(const Error& error, bool as_json) {
  std::cout.flush();
  if (as_json) {
    nlohmann::ordered_json json = {{"code", error.exit_code()},  {"kind", kind_name(error.code())},
                                   {"message", error.what()},    {"file", error.place().file},
                                   {"node", error.place().node}, {"op", error.place().op},
                                   {"hint", error.hint_text()},  {"doc", "docs/exit-codes.md"}};
    if (const auto* list = dynamic_cast<const UnsupportedError*>(&error)) {
      json["refused"] = refused_nodes(*list);
    }
    std::cerr << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    print_lines("halfnote: error (" + std::string(kind_name(error.code())) + "): " + error.what());
  }
  return error.exit_code();
}

bool reader_left() {
  pollfd file = {STDOUT_FILENO, 0, 0};
  return ::poll(&file, 1, 0) == 1 && (file.revents & POLLERR) != 0;
}

int guarded(const std::function<int()>& action, bool as_json) {
  try {
    const int code = action();
    std::cout.flush();
    if (std::cout || reader_left()) return code;
    throw Error(ErrorCode::kIo, "cannot write to standard output");
  } catch (const Error& error) {
    return report(error, as_json);
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorCode::kMemory, "out of memory"), as_json);
  } catch (const std::exception& error) {
    return report(Error(ErrorCode::kInternal, error.what())
                      .hint("this is a bug of halfnote: please report it"),
                  as_json);
  }
}

}  // namespace halfnote::cli
