#include "runtime/train/data/foreign_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

struct Foreign {
  std::string_view ending, kind;
  std::string_view weights;  // a Python expression: name -> tensor
};
constexpr std::string_view kTorch = "torch.load(FILE, weights_only=True)";
constexpr std::string_view kKeras =
    "{w.path: torch.tensor(w.numpy()) for w in keras.models.load_model(FILE).weights}";
constexpr std::string_view kPickle = "pickle.load(open(FILE, \"rb\"))";
constexpr Foreign kForeign[] = {
    {".pt", "PyTorch", kTorch},
    {".pth", "PyTorch", kTorch},
    {".ckpt", "PyTorch", kTorch},
    {".h5", "Keras", kKeras},
    {".hdf5", "Keras", kKeras},
    {".keras", "Keras", kKeras},
    {".pkl", "pickle", kPickle},
    {".pickle", "pickle", kPickle},
    {".parquet", "Parquet", "pandas.read_parquet(FILE)"},
};

std::string conversion(const Foreign& row, FileUse use) {
  if (use == FileUse::kData) {
    return "load it in Python and write numpy.savez(\"data.npz\", image=…, label=…)";
  }
  return fmt::format("convert it in Python: safetensors.torch.save_file({}, \"model.safetensors\")",
                     row.weights);
}

}  // namespace

void refuse_foreign_file(std::string_view path, FileUse use) {
  std::string name(path);
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  for (const Foreign& row : kForeign) {
    if (!name.ends_with(row.ending)) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("a {} file, which halfnote does not open", row.kind))
        .at({std::string(path), {}, {}})
        .hint(conversion(row, use));
  }
}

}  // namespace halfnote
