// The flags of all verbs that read a model: limits on what a file may ask for, and the folders that
// links to external data may lead to.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "compiler/onnx/import.h"

namespace CLI {
class App;
}

namespace halfnote::cli {

struct ImportFlags {
  ImportLimits limits;
  std::vector<std::string> allowed;

  std::vector<std::filesystem::path> folders() const { return {allowed.begin(), allowed.end()}; }
};

/// `--max-…` for each member of ImportLimits, and `--allow-dir`.
void add_import_flags(CLI::App* verb, ImportFlags& flags);

/// The options that the flags stand for; what is odd in a file is told on stderr.
ImportOptions import_options(const ImportFlags& flags);

}  // namespace halfnote::cli
