// Joins the rows of the movement family; and its strided copies, planned by kernels/cpu/movement
// (Transpose, Slice, Concat, Split, Expand, Tile, …), and views.
#include "kernels/cpu/movement/copy.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/movement/parts.h"
#include "kernels/cuda/movement/turn.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::CopyJob;

template <class T>
struct CopyElement {
  const T* from;
  T* to;
  Strided<2> walk;
  __device__ void operator()(int64_t i) const {
    int64_t offset[2];
    walk.offsets(i, offset);
    to[offset[1]] = from[offset[0]];
  }
};

/// The walk as a stack of transposed matrices, of which the result is contiguous; of no matrices if
/// it is none.
TurnedMatrices turned_matrices(const Strided<2>& walk) {
  if (walk.rank < 2 || walk.rank > 3 || walk.count == 0) return {};
  const int last = walk.rank - 1;
  // Of the source.
  const int64_t columns = walk.dims[last - 1].value(), rows = walk.dims[last].value();
  const bool swapped = walk.strides[0][last - 1] == 1 && walk.strides[0][last] == columns &&
                       walk.strides[1][last] == 1 && walk.strides[1][last - 1] == rows;
  const bool stacked = walk.rank == 2 || (walk.strides[0][0] == rows * columns &&
                                          walk.strides[1][0] == rows * columns);
  if (!swapped || !stacked) return {};
  return {walk.rank == 2 ? 1 : walk.dims[0].value(), rows, columns};
}

/// The same walk over pairs of elements; false if lines, or the addresses, are no such.
template <class T>
bool in_pairs(Strided<2>& walk, const T* from, T* to) {
  const int last = walk.rank - 1;
  if (last < 0 || walk.dims[last].value() % 2 != 0) return false;
  for (int k = 0; k < 2; ++k) {
    if (walk.strides[k][last] != 1) return false;
    for (int d = 0; d < last; ++d) {
      if (walk.strides[k][d] % 2 != 0) return false;
    }
  }
  for (const void* address : {static_cast<const void*>(from), static_cast<const void*>(to)}) {
    if (reinterpret_cast<uintptr_t>(address) % (2 * sizeof(T)) != 0) return false;
  }
  walk.count /= 2;
  walk.dims[last] = Divisor(walk.dims[last].value() / 2);
  for (int k = 0; k < 2; ++k) {
    for (int d = 0; d < last; ++d) walk.strides[k][d] /= 2;
  }
  return true;
}

template <class T>
using Pair = std::conditional_t<
    sizeof(T) == 1, uint16_t,
    std::conditional_t<sizeof(T) == 2, uint32_t,
                       std::conditional_t<sizeof(T) == 4, uint64_t, SixteenBytes>>>;

/// Up to 16 bytes at once, as many as lines and addresses allow.
template <class T>
void copy_lines(Stream& stream, Strided<2> walk, const T* from, T* to) {
  if constexpr (sizeof(T) < 16) {
    if (in_pairs(walk, from, to)) {
      copy_lines(stream, walk, reinterpret_cast<const Pair<T>*>(from),
                 reinterpret_cast<Pair<T>*>(to));
      return;
    }
  }
  for_each(stream, walk.count, CopyElement<T>{from, to, walk});
}

template <class T>
void run_copy(Stream& stream, const Strided<2>& walk, const T* from, T* to) {
  const TurnedMatrices turned = turned_matrices(walk);
  if (turned.matrices > 0 && turns_in_tiles(turned)) {
    turn_matrices(stream, sizeof(T), turned, from, to);
    return;
  }
  copy_lines(stream, walk, from, to);
}

struct DeviceJob {
  Strided<2> walk;
  size_t input, output;
  int64_t from, to;
};

/// The jobs as a kernel's arguments; false if one has too many dims.
bool as_device_jobs(const std::vector<CopyJob>& jobs, std::vector<DeviceJob>& all) {
  for (const CopyJob& job : jobs) {
    all.push_back({{}, job.input, job.output, job.from, job.to});
    if (!as_strided(job.runs, all.back().walk)) return false;
  }
  return true;
}

Prepared make_device_copies(const KernelCall& call, std::vector<CopyJob> jobs) {
  if (cpu::keeps_first_bytes(call, jobs)) return same_bytes(call);
  std::vector<DeviceJob> all;
  if (!as_device_jobs(jobs, all)) return Prepared::no(too_many_dims());
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([all](const KernelBuffers& buffers) {
      for (const DeviceJob& job : all) {
        run_copy(stream_of(buffers), job.walk, buffers.in<T>(job.input) + job.from,
                 buffers.out<T>(job.output) + job.to);
      }
    });
  });
}

Prepared prepare_copy(const KernelCall& call) {
  return cpu::prepare_copies(call, make_device_copies);
}

/// Same bytes under another shape: the plan skips it where both may share a buffer.
class SameBytes final : public Kernel {
 public:
  SameBytes(size_t bytes, bool is_all) : bytes_(bytes), is_all_(is_all) {}
  void run(const KernelBuffers& buffers) const override {
    if (buffers.inputs[0] == buffers.outputs[0]) return;
    stream_of(buffers).copy(buffers.outputs[0], buffers.inputs[0], bytes_);
  }
  bool can_share(size_t input, size_t /*output*/) const override { return is_all_ && input == 0; }
  bool is_view() const override { return true; }

 private:
  size_t bytes_;
  bool is_all_;  // of input 0
};

Prepared prepare_view(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  if (from.dtype != to.dtype) return Prepared::no("operands of different types");
  if (size_of(from.dtype) == 0) return Prepared::no("elements of no fixed size");
  if (from.size() != to.size()) {
    throw cpu::shape_error(call, "reshape to another size", from.shape, to.shape);
  }
  return same_bytes(call);
}

}  // namespace

Prepared same_bytes(const KernelCall& call) {
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  const size_t bytes = static_cast<size_t>(to.size()) * size_of(to.dtype);
  return Prepared::yes(std::make_unique<SameBytes>(bytes, from.size() == to.size()));
}

std::vector<KernelRow> movement_kernels() {
  std::vector<KernelRow> rows = cpu::copy_rows("own.copy", prepare_copy);
  for (const std::string_view op : {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}) {
    rows.push_back({"", op, "own.view", prepare_view});
  }
  for (const auto part : {gather_rows, generate_rows, pad_rows, patches_rows, scatter_rows,
                          strided_sum_rows}) {
    const std::vector<KernelRow> more = part();
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
