#include "runtime/train/data/spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/system/folder.h"
#include "runtime/train/data/foreign_file.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

constexpr const char* kForms =
    "give mnist:DIR, cifar10:DIR, cifar100:DIR, FILE.npz, or NAME=FILE.npy,NAME=FILE.npy";

struct FolderFormat {
  std::string_view prefix;
  DataSpec::Kind kind;
};
constexpr FolderFormat kFolderFormats[] = {{"mnist", DataSpec::Kind::kMnist},
                                           {"cifar10", DataSpec::Kind::kCifar10},
                                           {"cifar100", DataSpec::Kind::kCifar100}};

Error bad_spec(std::string_view text, const std::string& what) {
  return Error(ErrorCode::kUsage, fmt::format("--data \"{}\": {}", text, what));
}

/// `mnist:DIR`; nothing for a text without a known prefix. A prefix that is nearly one is an error.
bool parse_folder(std::string_view text, DataSpec& spec) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || text.substr(0, colon).find('/') != std::string_view::npos)
    return false;
  const std::string_view prefix = text.substr(0, colon);
  for (const FolderFormat& format : kFolderFormats) {
    if (format.prefix != prefix) continue;
    spec.kind = format.kind;
    spec.path = text.substr(colon + 1);
    if (spec.path.empty()) throw bad_spec(text, "no folder after the colon").hint(kForms);
    return true;
  }
  std::vector<std::string_view> known;
  for (const FolderFormat& format : kFolderFormats) known.push_back(format.prefix);
  const std::string_view near = closest(prefix, known);
  throw bad_spec(text, fmt::format("unknown format \"{}\"", prefix))
      .hint(near.empty() ? std::string(kForms) : fmt::format("did you mean {}:?", near));
}

std::vector<std::string_view> split_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void parse_arrays(std::string_view text, DataSpec& spec) {
  spec.kind = DataSpec::Kind::kNpy;
  for (const std::string_view part : split_commas(text)) {
    const size_t equals = part.find('=');
    const bool named = equals != std::string_view::npos;
    const std::string file(named ? part.substr(equals + 1) : part);
    const std::string name =
        named ? std::string(part.substr(0, equals)) : fs::path(file).stem().string();
    if (name.empty() || file.empty())
      throw bad_spec(text, "a name or a file is missing").hint(kForms);
    refuse_foreign_file(file, FileUse::kData);
    if (!file.ends_with(".npy")) {
      throw bad_spec(text, "unknown kind of data")
          .expected(named ? "a file that ends in .npy" : "a file that ends in .npy or .npz", file)
          .hint(kForms);
    }
    for (const auto& [other, unused] : spec.arrays) {
      if (other == name) throw bad_spec(text, fmt::format("two arrays are named \"{}\"", name));
    }
    spec.arrays.emplace_back(name, file);
  }
}

/// The first of `folder/name` for these names that exists.
std::string find_file(const fs::path& folder, std::span<const std::string> names) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Error(ErrorCode::kIo, "no such data folder").at({folder.string(), {}, {}});
  }
  for (const std::string& name : names) {
    if (fs::exists(folder / name, error)) return (folder / name).string();
  }
  throw Error(ErrorCode::kIo, "a data file is missing")
      .at({folder.string(), {}, {}})
      .expected(fmt::format("{}", fmt::join(names, " or ")), "no such file")
      .hint(folder_listing(folder));
}

/// The files that a split is in; of each, the names that it may have.
using FileNames = std::vector<std::vector<std::string>>;

/// Images, then labels. Unpacked by some tools with a dot in place of the last dash.
FileNames mnist_names(Split split) {
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  FileNames files;
  for (const char* end : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
    const std::string name = prefix + end;
    std::string dotted = name;
    dotted[dotted.rfind("-idx")] = '.';
    files.push_back({name, name + ".gz", dotted, dotted + ".gz"});
  }
  return files;
}

FileNames cifar_names(bool ten, Split split) {
  if (!ten) return {{split == Split::kTrain ? "train.bin" : "test.bin"}};
  if (split == Split::kTest) return {{"test_batch.bin"}};
  FileNames files;
  for (int i = 1; i <= 5; ++i) files.push_back({fmt::format("data_batch_{}.bin", i)});
  return files;
}

/// The folder of the spec, or the one in it that the archive unpacks to.
fs::path cifar_folder(const DataSpec& spec) {
  const bool ten = spec.kind == DataSpec::Kind::kCifar10;
  const fs::path inner = fs::path(spec.path) / (ten ? "cifar-10-batches-bin" : "cifar-100-binary");
  std::error_code error;
  return fs::is_directory(inner, error) ? inner : fs::path(spec.path);
}

void check_rank(const std::string& path, const Tensor& tensor, size_t rank) {
  if (tensor.dtype() == DType::kU8 && tensor.shape().size() == rank) return;
  throw Error(ErrorCode::kData, "not the MNIST format")
      .at({path, {}, {}})
      .expected(fmt::format("u8 elements and {} dims", rank),
                fmt::format("{} elements and shape {}", short_name(tensor.dtype()),
                            to_string(tensor.shape())));
}

std::vector<DataField> load_mnist(const DataSpec& spec, Split split, const DataLimits& limits) {
  const FileNames names = mnist_names(split);
  const std::string images = find_file(spec.path, names[0]);
  const std::string labels = find_file(spec.path, names[1]);
  std::vector<DataField> fields = {{"image", read_idx(images, limits)},
                                   {"label", read_idx(labels, limits)}};
  check_rank(images, fields[0].data, 3);
  check_rank(labels, fields[1].data, 1);
  const int64_t count = fields[0].data.shape()[0], labelled = fields[1].data.shape()[0];
  if (count != labelled) {
    throw Error(ErrorCode::kData, "images and labels are not as many")
        .at({labels, {}, {}})
        .expected(fmt::format("{} labels, one for each image of {}", count, images),
                  std::to_string(labelled));
  }
  return fields;
}

std::vector<DataField> load_cifar(const DataSpec& spec, Split split, const DataLimits& limits) {
  const bool ten = spec.kind == DataSpec::Kind::kCifar10;
  const fs::path folder = cifar_folder(spec);
  std::vector<std::string> paths;
  for (const auto& names : cifar_names(ten, split)) paths.push_back(find_file(folder, names));
  return read_cifar(paths, ten ? kCifar10Records : kCifar100Records, limits);
}

std::vector<DataField> load_arrays(const DataSpec& spec, const DataLimits& limits) {
  std::vector<DataField> fields;
  for (const auto& [name, file] : spec.arrays) fields.push_back({name, read_npy(file, limits)});
  return fields;
}

}  // namespace

DataSpec parse_data_spec(std::string_view text) {
  DataSpec spec;
  spec.text = text;
  if (text.empty()) throw bad_spec(text, "no data named").hint(kForms);
  std::error_code missing;
  const bool named = text.find('=') != std::string_view::npos && !fs::exists(text, missing);
  if (text.ends_with(".npz") && !named) {
    spec.kind = DataSpec::Kind::kNpz;
    spec.path = text;
    return spec;
  }
  if (text.find('=') == std::string_view::npos && parse_folder(text, spec)) return spec;
  parse_arrays(text, spec);
  return spec;
}

std::vector<std::string> data_files(const DataSpec& spec) {
  std::vector<std::string> files;
  if (spec.kind == DataSpec::Kind::kNpz) files.push_back(spec.path);
  for (const auto& [name, file] : spec.arrays) files.push_back(file);
  if (!spec.has_test_split()) return files;
  const bool mnist = spec.kind == DataSpec::Kind::kMnist;
  const fs::path folder = mnist ? fs::path(spec.path) : cifar_folder(spec);
  std::error_code error;
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const bool ten = spec.kind == DataSpec::Kind::kCifar10;
    for (const auto& names : mnist ? mnist_names(split) : cifar_names(ten, split)) {
      for (const std::string& name : names) {
        if (fs::exists(folder / name, error)) files.push_back((folder / name).string());
      }
    }
  }
  return files;
}

Dataset load_dataset(const DataSpec& spec, Split split, const DataLimits& limits) {
  if (split == Split::kTest && !spec.has_test_split()) {
    throw bad_spec(spec.text, "this format has no test split")
        .hint("name the evaluation data on its own");
  }
  switch (spec.kind) {
    case DataSpec::Kind::kMnist:
      return {spec.text, load_mnist(spec, split, limits)};
    case DataSpec::Kind::kCifar10:
    case DataSpec::Kind::kCifar100:
      return {spec.text, load_cifar(spec, split, limits)};
    case DataSpec::Kind::kNpz:
      return {spec.text, read_npz(spec.path, limits)};
    case DataSpec::Kind::kNpy:
      break;
  }
  return {spec.text, load_arrays(spec, limits)};
}

}  // namespace halfnote
