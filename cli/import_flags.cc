#include "cli/import_flags.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <iostream>
#include <limits>

#include "base/text/printable.h"
#include "cli/arguments.h"

namespace halfnote::cli {
namespace {

constexpr const char* kGroup = "Limits on model files";
// Beyond these the readers' own stacks and counters end, whatever the user allows.
constexpr int kDeepest = 64;
constexpr uint64_t kMany = std::numeric_limits<uint32_t>::max();

template <class T>
void add_limit(CLI::App* verb, const char* flag, T& limit, T most, const char* what) {
  verb->add_option(flag, limit, fmt::format("{} (default: {})", what, limit))
      ->check(whole_number(1, static_cast<int64_t>(most)))
      ->group(kGroup);
}

}  // namespace

void add_import_flags(CLI::App* verb, ImportFlags& flags) {
  ImportLimits& l = flags.limits;
  add_limit(verb, "--max-file-bytes", l.file_bytes, l.file_bytes, "bytes of the model file itself");
  add_limit(verb, "--max-graph-nesting", l.graph_nesting, kDeepest, "levels of subgraphs");
  add_limit(verb, "--max-type-nesting", l.type_nesting, kDeepest, "levels of a type");
  add_limit(verb, "--max-nodes", l.nodes, kMany, "nodes, functions expanded");
  add_limit(verb, "--max-node-operands", l.node_operands, kMany, "inputs or outputs of a node");
  add_limit(verb, "--max-attributes", l.attributes, kMany, "attributes of a node");
  add_limit(verb, "--max-initializers", l.initializers, kMany, "initializers");
  add_limit(verb, "--max-name-bytes", l.name_bytes, kMany, "bytes of a name");
  add_limit(verb, "--max-fields", l.fields, kMany, "strings and messages of the file");
  add_limit(verb, "--max-external-files", l.external_files, kMany, "files of external data");
  add_limit(verb, "--max-rank", l.rank, kMaxRank, "dims of a tensor");
  add_limit(verb, "--max-dim", l.dim, kMaxElements, "size of a dim");
  add_limit(verb, "--max-elements", l.elements, kMaxElements, "elements of a tensor");
  add_limit(verb, "--max-sparse-elements", l.sparse_elements, kMaxElements,
            "elements of a sparse tensor once it is dense");
  verb->add_option("--max-memory", l.copied_bytes,
                   "bytes of tensors that are read into memory, not mapped (default: 80 % of the "
                   "machine's)")
      ->check(at_least_one())
      ->group(kGroup);
  verb->add_option("--allow-dir", flags.allowed,
                   "folder that links to external data may lead to, besides the model's own")
      ->take_all()
      ->check(CLI::ExistingDirectory)
      ->group(kGroup);
}

ImportOptions import_options(const ImportFlags& flags) {
  ImportOptions options;
  options.limits = flags.limits;
  options.allowed_folders = flags.folders();
  options.warn = [](const std::string& text) {
    std::cerr << "warning: " << printable(text) << "\n";
  };
  return options;
}

}  // namespace halfnote::cli
