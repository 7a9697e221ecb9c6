// What a user names with `--data`:
//   mnist:DIR        train-images-idx3-ubyte(.gz) and its three companions; fields image u8[28,28],
//   label u8[] cifar10:DIR      data_batch_1.bin … test_batch.bin; fields image u8[3,32,32], label
//   u8[] cifar100:DIR     train.bin, test.bin; fields image, label (fine), coarse_label FILE.npz
//   every array of the archive NAME=FILE.npy,…  one file a field; a lone FILE.npy is a field named
//   after the file
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/train/data/dataset.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {

enum class Split { kTrain, kTest };

struct DataSpec {
  enum class Kind { kMnist, kCifar10, kCifar100, kNpz, kNpy };

  Kind kind = Kind::kMnist;
  std::string text;                                         // as the user wrote it
  std::string path;                                         // the folder, or the .npz
  std::vector<std::pair<std::string, std::string>> arrays;  // field and .npy file, for kNpy

  /// The formats that come in two parts; the others are one set, to be named for training and
  /// evaluation each.
  bool has_test_split() const { return kind < Kind::kNpz; }
};

/// Reads the notation above. Throws Error(kUsage) with the forms, or the likely intention, as hint.
DataSpec parse_data_spec(std::string_view text);

/// The files that a spec names, and of a folder those of both splits that are there.
std::vector<std::string> data_files(const DataSpec& spec);

/// Reads the files. Throws Error(kIo) for a missing one, with what the folder holds as hint;
/// Error(kData) for bad content; Error(kUsage) for the test split of a format without one.
Dataset load_dataset(const DataSpec& spec, Split split, const DataLimits& limits = {});

}  // namespace halfnote
