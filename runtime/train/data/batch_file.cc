#include "runtime/train/data/batch_file.h"

#include <map>

#include "base/error.h"
#include "runtime/train/data/format/readers.h"

namespace halfnote {

std::vector<Tensor> read_batch(const Session& session, const std::string& file) {
  std::map<std::string, Tensor> arrays;
  for (const DataField& field : read_npz(file)) arrays[field.name] = field.data;
  std::vector<Tensor> inputs;
  for (const auto& [name, type] : session.inputs()) {
    const auto found = arrays.find(name);
    if (found == arrays.end()) {
      throw Error(ErrorCode::kData, "no array \"" + name + "\"").at({file, {}, {}});
    }
    inputs.push_back(found->second.cast_to(type.dtype));
  }
  return inputs;
}

}  // namespace halfnote
