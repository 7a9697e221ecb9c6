// Joins the rows of the movement family; and its strided copies, planned by kernels/cpu/movement
// (Transpose, Slice, Concat, Split, Expand, Tile, …), and views.
#include "kernels/cpu/movement/copy.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/movement/parts.h"
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

constexpr int kTile = 32, kTileRows = 8;

/// A stack of matrices whose rows become columns: a tile goes through shared memory, so that both
/// sides are read and written along their rows.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_tiles(const T* from, T* to, int64_t rows, int64_t columns) {
  HN_SHARED(T[kTile][kTile + 1], tile);
  const int64_t matrix = int64_t{blockIdx.z} * rows * columns;
  const int64_t first_row = int64_t{blockIdx.y} * kTile, first_column = int64_t{blockIdx.x} * kTile;
  for (int r = static_cast<int>(threadIdx.y); r < kTile; r += kTileRows) {
    const int64_t row = first_row + r, column = first_column + threadIdx.x;
    if (row < rows && column < columns)
      tile[r][threadIdx.x] = from[matrix + row * columns + column];
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y); c < kTile; c += kTileRows) {
    const int64_t column = first_column + c, row = first_row + threadIdx.x;
    if (row < rows && column < columns) to[matrix + column * rows + row] = tile[threadIdx.x][c];
  }
}

/// Is the walk a stack of transposed matrices, few enough for a grid, and none so narrow that its
/// tiles would be mostly empty? Its result is contiguous.
bool is_transpose(const Strided<2>& walk) {
  constexpr int64_t kNarrow = 8;
  if (walk.rank < 2 || walk.rank > 3 || walk.count == 0) return false;
  const int last = walk.rank - 1;
  // Of the source.
  const int64_t columns = walk.dims[last - 1].value(), rows = walk.dims[last].value();
  const bool swapped = walk.strides[0][last - 1] == 1 && walk.strides[0][last] == columns &&
                       walk.strides[1][last] == 1 && walk.strides[1][last - 1] == rows;
  const bool stacked = walk.rank == 2 || (walk.strides[0][0] == rows * columns &&
                                          walk.strides[1][0] == rows * columns);
  const int64_t matrices = walk.rank == 2 ? 1 : walk.dims[0].value();
  return swapped && stacked && std::min(rows, columns) >= kNarrow && matrices <= 65535 &&
         rows <= int64_t{65535} * kTile;
}

template <class T>
void run_copy(Stream& stream, const Strided<2>& walk, const T* from, T* to) {
  if (!is_transpose(walk)) {
    for_each(stream, walk.count, CopyElement<T>{from, to, walk});
    return;
  }
  const int64_t columns = walk.dims[walk.rank - 2].value(), rows = walk.dims[walk.rank - 1].value();
  const auto matrices = static_cast<unsigned>(walk.rank == 2 ? 1 : walk.dims[0].value());
  launch(stream, transpose_tiles<T>,
         dim3(blocks_for(columns, kTile), blocks_for(rows, kTile), matrices),
         dim3(kTile, kTileRows), 0, from, to, rows, columns);
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
  explicit SameBytes(size_t bytes) : bytes_(bytes) {}
  void run(const KernelBuffers& buffers) const override {
    if (buffers.inputs[0] == buffers.outputs[0]) return;
    stream_of(buffers).copy(buffers.outputs[0], buffers.inputs[0], bytes_);
  }
  bool can_share(size_t input, size_t /*output*/) const override { return input == 0; }
  bool is_view() const override { return true; }

 private:
  size_t bytes_;
};

Prepared prepare_view(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  if (from.dtype != to.dtype) return Prepared::no("operands of different types");
  if (size_of(from.dtype) == 0) return Prepared::no("elements of no fixed size");
  if (from.size() != to.size()) {
    throw cpu::shape_error(call, "reshape to another size", from.shape, to.shape);
  }
  return same_bytes(static_cast<size_t>(from.size()) * size_of(from.dtype));
}

}  // namespace

Prepared same_bytes(size_t bytes) { return Prepared::yes(std::make_unique<SameBytes>(bytes)); }

std::vector<KernelRow> movement_kernels() {
  std::vector<KernelRow> rows = cpu::copy_rows("own.copy", prepare_copy);
  for (const std::string_view op : {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}) {
    rows.push_back({"", op, "own.view", prepare_view});
  }
  for (const auto part : {gather_rows, pad_rows, scatter_rows}) {
    const std::vector<KernelRow> more = part();
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
