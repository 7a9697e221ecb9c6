#include "runtime/train/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/system/hash.h"
#include "base/system/mapped_files.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/checkpoint/run_folder.h"
#include "runtime/train/data/foreign_file.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = "state.safetensors";
constexpr const char* kManifest = "manifest.json";
constexpr std::string_view kStep = "step-";
constexpr std::string_view kUnfinished = ".tmp-";  // being written
constexpr std::string_view kReplaced =
    ".old-";  // aside while a new one of the same step takes its place
constexpr std::string_view kDoomed = ".trash-";  // being removed

std::string folder_name(int64_t step) { return fmt::format("{}{:08}", kStep, step); }

/// A folder that may be a checkpoint.
struct Candidate {
  fs::path folder;
  int64_t sequence = -1;  // -1: the manifest cannot be trusted
  std::string problem;
};

/// What reading a part of a checkpoint gives; a part that is missing or unreadable makes it a
/// damaged checkpoint.
template <class Read>
auto read_part(Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    throw Error(ErrorCode::kCheckpoint, error.problem())
        .at(error.place())
        .expected(error.expectation(), error.value())
        .hint("use an older checkpoint");
  }
}

SafetensorsFile open_state(const fs::path& folder) {
  return read_part([&] { return SafetensorsFile(folder / kState); });
}

/// `parse`: of the whole, or of its head.
Manifest read_manifest(const fs::path& folder, decltype(parse_manifest)& parse) {
  const std::string path = (folder / kManifest).string();
  const std::string text = read_part([&] { return read_text(path, kManifestLimit); });
  Manifest manifest = parse(text, path);
  std::string name = folder.filename().string();
  if (name.starts_with(kReplaced)) name.erase(0, kReplaced.size());
  if (name.starts_with(kStep) && name != folder_name(manifest.step)) {
    throw Error(ErrorCode::kCheckpoint, "the folder's name does not fit its content")
        .at({folder.string(), {}, {}})
        .expected(folder_name(manifest.step), name);
  }
  return manifest;
}

/// All candidates of a run folder, those saved last first, those without a usable manifest at the
/// end.
std::vector<Candidate> candidates(const fs::path& run_folder) {
  std::vector<Candidate> found;
  std::error_code error;
  for (fs::directory_iterator at(run_folder / kRunCheckpoints, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool named =
        name.starts_with(kStep) || name.starts_with(std::string(kReplaced) + std::string(kStep));
    if (named) found.push_back({at->path(), -1, {}});
  }
  for (Candidate& candidate : found) {
    try {
      candidate.sequence = read_manifest(candidate.folder, parse_manifest_head).sequence;
    } catch (const Error& failure) {
      candidate.problem = failure.what();
    }
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.sequence != b.sequence ? a.sequence > b.sequence : a.folder > b.folder;
  });
  return found;
}

Error damaged(const SafetensorsFile& file, const std::string& what) {
  return Error(ErrorCode::kCheckpoint, what).at({file.path(), {}, {}});
}

/// Throws unless every byte of the state file is what the manifest says.
void verify(const Manifest& manifest, const SafetensorsFile& file) {
  const std::string header = content_hash(file.header());
  if (file.file_bytes() != manifest.state_bytes || header != manifest.header_hash) {
    throw damaged(file, "the header is not the one that was saved")
        .expected(fmt::format("{} bytes, hash {}", manifest.state_bytes, manifest.header_hash),
                  fmt::format("{} bytes, hash {}", file.file_bytes(), header))
        .hint("use an older checkpoint");
  }
  if (manifest.tensors.size() != file.entries().size()) {
    throw damaged(file, "the state does not belong to its manifest")
        .expected(fmt::format("{} tensors", manifest.tensors.size()),
                  fmt::format("{}", file.entries().size()));
  }
  for (const Manifest::Entry& entry : manifest.tensors) {
    const SafetensorsFile::Entry* found = file.find(entry.name);
    if (found == nullptr || found->dtype != entry.dtype || found->shape != entry.shape) {
      throw damaged(file, fmt::format("tensor \"{}\" does not belong to the manifest", entry.name))
          .expected(fmt::format("{}{}", short_name(entry.dtype), to_string(entry.shape)),
                    found == nullptr
                        ? std::string("no such tensor")
                        : fmt::format("{}{}", short_name(found->dtype), to_string(found->shape)));
    }
    const std::string hash = content_hash(file.bytes(*found));
    release_mapped(file.bytes(*found));  // or state and file would be in memory at one time
    if (hash == entry.hash) continue;
    throw damaged(file, fmt::format("tensor \"{}\" is damaged", entry.name))
        .expected("hash " + entry.hash, hash)
        .hint("use an older checkpoint");
  }
}

/// The content of a checkpoint that was verified.
Checkpoint content_of(const Manifest& manifest, const SafetensorsFile& file) {
  Checkpoint checkpoint;
  checkpoint.step = manifest.step;
  checkpoint.extra = manifest.extra;
  for (const Manifest::Entry& entry : manifest.tensors) {
    checkpoint.tensors.push_back({entry.name, file.tensor(*file.find(entry.name))});
  }
  return checkpoint;
}

/// Entries of the checkpoints' folder whose name begins so, in the order of their names.
std::vector<fs::path> entries_named(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with(prefix)) found.push_back(at->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// What a save that was stopped had begun to write or to remove: no load ever takes it.
void remove_unfinished(Disk& disk, const fs::path& folder) {
  for (const std::string_view prefix : {kUnfinished, kDoomed}) {
    for (const fs::path& path : entries_named(folder, prefix)) remove_tree(disk, path);
  }
}

/// Tidies up after saves that were stopped: what was set aside gets its name back if nothing took
/// its place; it and whatever is unfinished are removed otherwise.
void remove_leftovers(Disk& disk, const fs::path& folder) {
  std::error_code error;
  for (const fs::path& path : entries_named(folder, kReplaced)) {
    const fs::path target = folder / path.filename().string().substr(kReplaced.size());
    if (fs::exists(target, error)) {
      remove_tree(disk, path);
    } else {
      disk.rename(path, target);
    }
  }
  remove_unfinished(disk, folder);
}

Manifest make_manifest(const Checkpoint& checkpoint, const SafetensorsLayout& layout,
                       int64_t sequence) {
  Manifest manifest;
  manifest.step = checkpoint.step;
  manifest.sequence = sequence;
  manifest.extra = checkpoint.extra;
  manifest.header_hash = content_hash(layout.header);
  manifest.state_bytes = layout.header.size();
  for (const NamedTensor& tensor : checkpoint.tensors) {
    manifest.state_bytes += tensor.tensor.byte_size();
    manifest.tensors.push_back({tensor.name, tensor.tensor.dtype(), tensor.tensor.shape(),
                                content_hash({tensor.tensor.bytes(), tensor.tensor.byte_size()})});
  }
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const Manifest::Entry& a, const Manifest::Entry& b) { return a.name < b.name; });
  return manifest;
}

/// Gives the finished folder its name; the older one of this name, if any, is gone or set aside
/// afterwards.
void put_in_place(Disk& disk, const fs::path& finished, const fs::path& target) {
  std::error_code error;
  if (!fs::exists(target, error)) {
    disk.rename(finished, target);
    disk.sync_folder(target.parent_path());
    return;
  }
  if (disk.exchange(finished, target)) {
    disk.sync_folder(target.parent_path());
    remove_tree(disk, finished);
    return;
  }
  const fs::path aside =
      target.parent_path() / (std::string(kReplaced) + target.filename().string());
  disk.rename(target, aside);
  disk.rename(finished, target);
  disk.sync_folder(target.parent_path());
  remove_tree(disk, aside);
}

std::vector<std::string> prune(Disk& disk, const fs::path& run_folder, int keep_last) {
  std::vector<std::string> warnings;
  const std::vector<Candidate> all = candidates(run_folder);
  for (size_t i = static_cast<size_t>(std::max(keep_last, 0)); keep_last > 0 && i < all.size();
       ++i) {
    const fs::path& old = all[i].folder;
    const fs::path doomed = old.parent_path() / (std::string(kDoomed) + old.filename().string());
    try {
      disk.rename(old, doomed);
      remove_tree(disk, doomed);
    } catch (const Error& error) {
      warnings.push_back(fmt::format("cannot remove an old checkpoint: {}", error.what()));
    }
  }
  return warnings;
}

/// What LATEST says, if that is not the checkpoint that was chosen.
std::optional<std::string> pointer_warning(const fs::path& run_folder, const fs::path& chosen) {
  std::error_code error;
  const fs::path path = run_folder / kRunLatest;
  if (!fs::exists(path, error)) return std::nullopt;
  std::string text;
  try {
    text = read_text(path, 4096);
  } catch (const Error& failure) {
    return failure.what();
  }
  const std::string expected = fmt::format("{}/{}", kRunCheckpoints, chosen.filename().string());
  if (text == expected + "\n") return std::nullopt;
  return fmt::format("{}: names \"{}\", but the newest intact checkpoint is {}", path.string(),
                     text.substr(0, std::min<size_t>(text.find('\n'), 100)), expected);
}

}  // namespace

const Tensor* Checkpoint::find(std::string_view name) const {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor.tensor;
  }
  return nullptr;
}

SavedCheckpoint save_checkpoint(const fs::path& run_folder, const Checkpoint& checkpoint,
                                const SaveOptions& options) {
  Disk& disk = options.disk != nullptr ? *options.disk : real_disk();
  const fs::path folder = run_folder / kRunCheckpoints;
  const std::string name = folder_name(checkpoint.step);
  const SafetensorsLayout layout =
      lay_out_safetensors(checkpoint.tensors, {{"format", "halfnote"}});
  const std::vector<Candidate> existing = candidates(run_folder);
  const int64_t sequence = existing.empty() ? 1 : std::max<int64_t>(existing[0].sequence, 0) + 1;
  const std::string manifest = write_manifest(make_manifest(checkpoint, layout, sequence));

  disk.make_folder(folder);
  disk.sync_folder(run_folder);
  remove_leftovers(disk, folder);
  const fs::path unfinished = folder / (std::string(kUnfinished) + name);
  try {
    disk.make_folder(unfinished);
    write_durably(disk, unfinished / kState, safetensors_parts(layout, checkpoint.tensors));
    const std::span<const std::byte> text = std::as_bytes(std::span(manifest));
    write_durably(disk, unfinished / kManifest, {&text, 1});
    disk.sync_folder(unfinished);
    put_in_place(disk, unfinished, folder / name);
  } catch (const Error&) {
    try {
      if (std::error_code error; fs::exists(unfinished, error)) remove_tree(disk, unfinished);
    } catch (
        const Error&) {  // the first failure is the one to report; the next save removes the rest
    }
    throw;
  }
  replace_file(disk, run_folder / kRunLatest, fmt::format("{}/{}\n", kRunCheckpoints, name));
  return {folder / name, prune(disk, run_folder, options.keep_last)};
}

std::vector<std::string> tidy_checkpoints(const fs::path& run_folder, Disk* disk) {
  try {
    remove_unfinished(disk != nullptr ? *disk : real_disk(), run_folder / kRunCheckpoints);
  } catch (const Error& error) {
    return {fmt::format("cannot remove what a stopped save left: {}", error.what())};
  }
  return {};
}

std::optional<FoundCheckpoint> find_latest(const fs::path& run_folder, Checkpoint* content) {
  const std::vector<Candidate> all = candidates(run_folder);
  std::vector<std::string> warnings;
  for (const Candidate& candidate : all) {
    if (!candidate.problem.empty()) warnings.push_back(candidate.problem);
  }
  for (const Candidate& candidate : all) {
    if (!candidate.problem.empty()) break;
    try {
      const Manifest manifest = read_manifest(candidate.folder, parse_manifest);
      const SafetensorsFile file = open_state(candidate.folder);
      verify(manifest, file);
      if (content != nullptr) *content = content_of(manifest, file);
      if (auto warning = pointer_warning(run_folder, candidate.folder))
        warnings.push_back(std::move(*warning));
      return FoundCheckpoint{candidate.folder, manifest.step, std::move(warnings)};
    } catch (const Error& error) {
      warnings.push_back(error.what());
    }
  }
  if (all.empty() && !std::filesystem::exists(run_folder / kRunLatest)) return std::nullopt;
  if (all.empty()) {
    throw Error(ErrorCode::kCheckpoint, "the checkpoints are gone")
        .at({run_folder.string(), {}, {}})
        .expected(fmt::format("the folder that {} names, in {}/", kRunLatest, kRunCheckpoints),
                  "none")
        .hint("bring them back, or start a new run in another folder");
  }
  throw Error(
      ErrorCode::kCheckpoint,
      fmt::format("all {} checkpoints are damaged, the newest with: {}", all.size(), warnings[0]))
      .at({run_folder.string(), {}, {}})
      .hint("start a new run");
}

FoundCheckpoint locate_checkpoint(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / kManifest, error))
    return {path, read_manifest(path, parse_manifest_head).step, {}};
  refuse_foreign_file(path.string(), FileUse::kWeights);
  if (std::optional<FoundCheckpoint> found = find_latest(path)) return std::move(*found);
  throw Error(ErrorCode::kCheckpoint, "no checkpoint here")
      .at({path.string(), {}, {}})
      .expected("a run folder, or RUN/checkpoints/step-…",
                fs::exists(path, error) ? "neither" : "nothing of this name");
}

Checkpoint load_checkpoint(const fs::path& folder) {
  const Manifest manifest = read_manifest(folder, parse_manifest);
  const SafetensorsFile file = open_state(folder);
  verify(manifest, file);
  return content_of(manifest, file);
}

}  // namespace halfnote
