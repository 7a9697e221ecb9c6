// What a process that is ended while it writes leaves behind: temporary files. A signal that ends
// it removes them first; what a process left that was killed outright, a later one removes.
#pragma once

#include <string>
#include <string_view>

namespace halfnote {

/// Makes and opens a new temporary file for writing in the folder of this descriptor, locked while
/// the descriptor or a duplicate of it is open; sets `name`. -1 with errno on failure.
int create_temporary_file(int folder, std::string& name);

/// Is it a name as create_temporary_file() gives?
bool is_temporary_name(std::string_view name);

/// Lists a file for remove_temporary_files() while it lives. The folder must stay open.
class TemporaryName {
 public:
  TemporaryName(int folder, const std::string& name);
  ~TemporaryName();
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;

 private:
  int slot_;
};

/// Removes all that are listed. Safe in a signal handler.
void remove_temporary_files();

/// Lets SIGINT, SIGTERM and SIGHUP remove the listed files before they end the process, as they
/// would without this. Signals that are ignored stay so.
void remove_temporary_files_on_signals();

/// Removes from the folder what processes that are gone have left: a name as above, of a process
/// that does not live, and whose lock nobody holds (another machine or container may write there).
void tidy_temporary_files(int folder);

}  // namespace halfnote
