#include "kernels/cpu/depthwise/lines.h"

#include "kernels/cpu/best_loops.h"

namespace halfnote::cpu::depthwise {

const Loops* loops() { return best_loops<kAvx512Loops, kAvx2Loops, Loops>(nullptr); }

LanePlanes::LanePlanes(int64_t block, int64_t lanes, int64_t factor, int64_t divisor,
                       int64_t offset) {
  count = std::min(kLanes, lanes - block * kLanes);
  for (int64_t l = 0; l < kLanes; ++l) {
    const int64_t lane = block * kLanes + std::min(l, count - 1);
    plane[static_cast<size_t>(l)] = lane * factor / divisor + offset;
  }
}

namespace {

/// The element of row `row` and column `column` of the first lane, in a blocked operand.
int64_t blocked_at(const Planes& planes, int64_t image, const LanePlanes& lanes, int64_t row,
                   int64_t column) {
  return ((image * planes.planes + lanes.plane[0]) * planes.height + row * kLanes) * planes.width +
         column * kLanes;
}

/// Do the lanes follow one another, and the box fill its planes?
bool one_piece(const Planes& planes, const LanePlanes& lanes, const Box& box) {
  const auto last = static_cast<size_t>(lanes.count - 1);
  return box.rows == planes.height && box.columns == planes.width &&
         lanes.plane[last] == lanes.plane[0] + lanes.count - 1;
}

/// Calls `body(element, at, count)` for each run of the box in memory: element `element` of the
/// operand is float `at` of a room of (lanes, rows, columns).
template <class Body>
void for_runs(const Planes& planes, int64_t image, const LanePlanes& lanes, const Box& box,
              Body&& body) {
  const int64_t size = box.rows * box.columns;
  const auto start = [&](int64_t lane, int64_t row) {
    const int64_t plane = image * planes.planes + lanes.plane[static_cast<size_t>(lane)];
    return (plane * planes.height + box.row + row) * planes.width + box.column;
  };
  if (one_piece(planes, lanes, box)) return body(start(0, 0), int64_t{0}, lanes.count * size);
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    if (box.columns == planes.width) {
      body(start(lane, 0), lane * size, size);
      continue;
    }
    for (int64_t row = 0; row < box.rows; ++row)
      body(start(lane, row), lane * size + row * box.columns, box.columns);
  }
}

/// The columns of `box` that the planes have.
Box inside(const Planes& planes, const Box& box) {
  const int64_t first = std::clamp<int64_t>(box.column, 0, planes.width);
  const int64_t last = std::clamp<int64_t>(box.column + box.columns, first, planes.width);
  return {box.row, box.rows, first, last - first};
}

void read_planes(const Planes& planes, const std::byte* from, int64_t image,
                 const LanePlanes& lanes, const Box& box, float* to, int64_t row_step,
                 float* room) {
  std::array<const float*, kLanes> plane;
  int64_t step = box.columns;
  if (planes.type == DType::kF32) {
    step = planes.width;
    const auto* x = reinterpret_cast<const float*>(from);
    for (size_t l = 0; l < kLanes; ++l) {
      plane[l] = x + (image * planes.planes + lanes.plane[l]) * planes.area() +
                 box.row * planes.width + box.column;
    }
  } else {
    for_runs(planes, image, lanes, box, [&](int64_t element, int64_t at, int64_t count) {
      load_reals(from, planes.type, element, count, room + at);
    });
    for (int64_t l = 0; l < kLanes; ++l) {
      const int64_t lane = std::min(l, lanes.count - 1);
      plane[static_cast<size_t>(l)] = room + lane * box.rows * box.columns;
    }
  }
  for (int64_t row = 0; row < box.rows; ++row)
    loops()->to_lines(plane.data(), row * step, box.columns, to + row * row_step);
}

}  // namespace

void read_lines(const Planes& planes, const std::byte* from, int64_t image, const LanePlanes& lanes,
                const Box& box, float* to, float* room) {
  const Box within = inside(planes, box);
  const int64_t row_step = box.columns * kLanes, left = (within.column - box.column) * kLanes;
  const int64_t right = left + within.columns * kLanes;
  for (int64_t row = 0; row < box.rows; ++row) {
    std::fill_n(to + row * row_step, std::min(left, row_step), 0.0f);
    if (right < row_step) std::fill_n(to + row * row_step + right, row_step - right, 0.0f);
  }
  if (within.columns == 0) return;
  if (!planes.blocked) {
    return read_planes(planes, from, image, lanes, within, to + left, row_step, room);
  }
  for (int64_t row = 0; row < box.rows; ++row) {
    load_reals(from, planes.type, blocked_at(planes, image, lanes, box.row + row, within.column),
               within.columns * kLanes, to + row * row_step + left);
  }
}

void write_lines(const Planes& planes, const float* from, int64_t image, const LanePlanes& lanes,
                 const Box& box, std::byte* to, float* room) {
  const int64_t row_step = box.columns * kLanes, size = box.rows * box.columns;
  if (planes.blocked) {
    const bool whole = box.columns == planes.width;
    for (int64_t row = 0; row < (whole ? 1 : box.rows); ++row) {
      store_reals(from + row * row_step, whole ? size * kLanes : row_step, planes.type, to,
                  blocked_at(planes, image, lanes, box.row + row, box.column));
    }
    return;
  }
  std::array<float*, kLanes> plane;
  const bool direct = planes.type == DType::kF32;
  for (size_t l = 0; l < kLanes; ++l) {
    const int64_t lane = std::min(static_cast<int64_t>(l), lanes.count - 1);
    plane[l] = direct ? reinterpret_cast<float*>(to) +
                            (image * planes.planes + lanes.plane[l]) * planes.area() +
                            box.row * planes.width + box.column
                      : room + lane * size;
  }
  for (int64_t row = 0; row < box.rows; ++row) {
    loops()->to_planes(from + row * row_step, box.columns, plane.data(),
                       row * (direct ? planes.width : box.columns), lanes.count);
  }
  if (direct) return;
  for_runs(planes, image, lanes, box, [&](int64_t element, int64_t at, int64_t count) {
    store_reals(room + at, count, planes.type, to, element);
  });
}

}  // namespace halfnote::cpu::depthwise
