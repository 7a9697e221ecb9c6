// Rows of scores of which every key is hidden, for attention by the library (library.cu): what they
// give and what is passed back through them.
#pragma once

#include "kernels/cuda/contraction/attention/parts.h"
#include "kernels/cuda/contraction/attention/tile.h"

namespace halfnote::HN_CUDA {

/// Where the bias of a row of the scores begins.
struct BiasOfRow {
  const float* data;
  Divisor queries, heads;
  int64_t batch_step, head_step, row_step;

  __device__ const float* operator()(int64_t row) const {
    const int64_t head = queries.quotient(row), i = row - head * queries.value();
    const int64_t batch = heads.quotient(head), h = head - batch * heads.value();
    return data + batch * batch_step + h * head_step + i * row_step;
  }
};

/// Rows of which every key is hidden: their probabilities follow from the terms alone.
struct HiddenRows {
  BiasOfRow bias;
  int64_t rows = 0, keys = 0;  // of a head
  bool causal = false, nan_is_zero = false;
  float from = 0;                         // from here down a term hides a key
  const float* taken = nullptr;           // away from each row of the bias
  float *most = nullptr, *sum = nullptr;  // of a row's terms; the sum is 0 where it is not hidden
  int32_t *begin = nullptr, *end = nullptr;  // of a head: between which rows they are

  __device__ int64_t seen(int64_t i) const { return causal && i + 1 < keys ? i + 1 : keys; }
  /// What is left of the exponentials of row `row` (query i of its head).
  __device__ void find(int64_t row, int64_t i) const {
    const float* first = bias(row);
    const int64_t count = seen(i);
    float largest = -INFINITY, all = 0;
    for (int64_t j = 0; j < count; ++j) {
      if (!(first[j] <= from)) {
        sum[row] = 0;
        return;
      }
      largest = first[j] > largest ? first[j] : largest;
    }
    for (int64_t j = 0; j < count; ++j) all += math::exp(first[j] - largest);
    most[row] = largest;  // of −∞ the sum is NaN
    sum[row] = all;
  }
  /// What was taken away from the terms of a row of the scores.
  __device__ float taken_from(int64_t row) const { return taken[(bias(row) - bias.data) / keys]; }
  __device__ bool is_hidden(int64_t row) const { return sum[row] != 0; }
  __device__ float probability(int64_t row, int64_t j) const {
    if (sum[row] != sum[row]) return nan_is_zero ? 0.0f : sum[row];
    return math::exp(bias(row)[j] - most[row]) / sum[row];
  }
};

/// What a dropout makes of the probabilities.
template <class T>
struct Kept {
  const T* data = nullptr;  // null: nothing is dropped
  float factor = 1;

  __device__ float of(int64_t row, int64_t keys, int64_t j) const {
    return data == nullptr ? 1.0f : load_number(data[row * keys + j]) * factor;
  }
};

/// Blocks that share the hidden rows of a head; mostly there are none.
inline constexpr unsigned kBlocksOfHead = 8;

/// Y of hidden rows, each for a block of its head.
template <class T>
__global__ void __launch_bounds__(kBlock)
    write_hidden_rows(const __grid_constant__ HiddenRows hidden, int64_t heads, Kept<T> kept,
                      RowLayout of_v, const T* v, RowLayout of_y, T* y) {
  for (int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
    const int64_t end = hidden.end[head];
    for (int64_t i = hidden.begin[head] + blockIdx.y; i < end; i += gridDim.y) {
      const int64_t row = head * hidden.rows + i;
      if (!hidden.is_hidden(row)) continue;
      for (int64_t e = threadIdx.x; e < of_y.size; e += kBlock) {
        float value = 0;
        for (int64_t j = 0; j < hidden.seen(i); ++j) {
          const float factor = kept.of(row, hidden.keys, j);
          if (factor == 0) continue;  // a dropped NaN is 0
          value += hidden.probability(row, j) * factor * load_number(v[of_v.at(head, j) + e]);
        }
        y[of_y.at(head, i) + e] = store_number<T>(value);
      }
    }
  }
}

/// What hidden rows add to dV, an element of a head for a thread of its blocks; `heads` of V, each
/// read by `group` heads of the scores.
template <class T>
__global__ void __launch_bounds__(kBlock)
    add_hidden_rows(const __grid_constant__ HiddenRows hidden, int64_t heads, int64_t group,
                    Kept<T> kept, RowLayout of_y, const T* dy, RowLayout of_v, T* dv) {
  const int64_t of_head = hidden.keys * of_v.size, step = int64_t{gridDim.y} * kBlock;
  for (int64_t own = blockIdx.x; own < heads; own += gridDim.x) {
    const int64_t first = own * group;
    bool any = false;
    for (int64_t head = first; head < first + group; ++head)
      any = any || hidden.begin[head] < hidden.end[head];
    if (!any) continue;
    for (int64_t at = int64_t{blockIdx.y} * kBlock + threadIdx.x; at < of_head; at += step) {
      const int64_t j = at / of_v.size, e = at % of_v.size;
      float value = 0;
      bool added = false;
      for (int64_t head = first; head < first + group; ++head) {
        for (int64_t i = hidden.begin[head]; i < hidden.end[head]; ++i) {
          const int64_t row = head * hidden.rows + i;
          if (!hidden.is_hidden(row) || j >= hidden.seen(i)) continue;
          const float factor = kept.of(row, hidden.keys, j);
          if (factor == 0) continue;
          value += hidden.probability(row, j) * factor * load_number(dy[of_y.at(head, i) + e]);
          added = true;
        }
      }
      if (!added) continue;
      T& to = dv[of_v.at(first, j) + e];
      to = store_number<T>(load_number(to) + value);
    }
  }
}

/// The gradients of the scores of hidden rows.
template <class T>
struct HiddenSlopes {
  DeviceAttention p;
  HiddenRows hidden;
  Kept<T> kept;
  const T *v, *y, *dy;
  float* means;  // Σ dY·Y of each hidden row

  __device__ bool is_hidden(int64_t batch, int64_t i) const {
    return i < hidden.end[batch] && hidden.is_hidden(batch * p.m + i);
  }
  __device__ float mean(int64_t batch, int64_t i) const {
    const int64_t of_y = p.y.at(batch, i);
    float sum = 0;
    for (int e = 0; e < p.e; ++e) sum += load_number(dy[of_y + e]) * load_number(y[of_y + e]);
    return sum;
  }
  /// P∘(dP − Σ dY·Y), where none of the terms from `first` on stands in the place of the score.
  __device__ float of(int first, int64_t batch, int64_t i, int64_t j) const {
    if (j >= hidden.seen(i) || ScoresOfBatch<float>(p, batch).is_hidden(first, i, j)) return 0;
    const int64_t row = batch * p.m + i, of_y = p.y.at(batch, i), of_v = p.v.at(batch, j);
    float weight = 0;
    for (int e = 0; e < p.e; ++e) weight += load_number(dy[of_y + e]) * load_number(v[of_v + e]);
    return hidden.probability(row, j) * (weight * kept.of(row, hidden.keys, j) - means[row]);
  }
};

/// Finds the means of hidden rows, a row a thread.
template <class T>
struct FindMeans {
  HiddenSlopes<T> slopes;
  __device__ void operator()(int64_t row) const {
    const int64_t batch = row / slopes.p.m, i = row - batch * slopes.p.m;
    if (i < slopes.hidden.begin[batch] || !slopes.is_hidden(batch, i)) return;
    slopes.means[row] = slopes.mean(batch, i);
  }
};

/// What hidden rows add to dQ, each for a block of its head, an element a thread.
template <class T>
__global__ void __launch_bounds__(kBlock)
    add_hidden_to_queries(const __grid_constant__ HiddenSlopes<T> slopes, int64_t heads,
                          RowLayout of_k, const T* k, RowLayout of_q, T* dq) {
  static_assert(kMostHead<float> <= kBlock);
  HN_SHARED(float[kBlock], of_keys);
  const int64_t e = threadIdx.x;
  for (int64_t head = blockIdx.x; head < heads; head += gridDim.x) {
    const int64_t end = slopes.hidden.end[head];
    for (int64_t i = slopes.hidden.begin[head] + blockIdx.y; i < end; i += gridDim.y) {
      if (!slopes.is_hidden(head, i)) continue;
      const int64_t seen = slopes.hidden.seen(i);
      float sum = 0;
      for (int64_t from = 0; from < seen; from += kBlock) {
        const int64_t count = seen - from < kBlock ? seen - from : kBlock;
        __syncthreads();
        if (e < count) of_keys[e] = slopes.of(0, head, i, from + e);
        __syncthreads();
        if (e >= of_q.size) continue;
        for (int64_t j = 0; j < count; ++j)
          sum += of_keys[j] * load_number(k[of_k.at(head, from + j) + e]);
      }
      if (e >= of_q.size) continue;
      T& to = dq[of_q.at(head, i) + e];
      to = store_number<T>(load_number(to) + sum * slopes.p.scale);
    }
  }
}

/// What hidden rows add to dK, a key a warp; `heads` of K, each read by `group` heads of the
/// scores.
template <class T>
__global__ void __launch_bounds__(kBlock)
    add_hidden_to_keys(const __grid_constant__ HiddenSlopes<T> slopes, int64_t heads, int64_t group,
                       RowLayout of_q, const T* q, RowLayout of_k, T* dk) {
  constexpr int64_t kWarps = kBlock / 32, kEach = kMostHead<float> / 32;  // elements of a lane
  const int64_t lane = threadIdx.x % 32, step = gridDim.y * kWarps;
  for (int64_t own = blockIdx.x; own < heads; own += gridDim.x) {
    const int64_t first = own * group;
    bool any = false;
    for (int64_t head = first; head < first + group; ++head)
      any = any || slopes.hidden.begin[head] < slopes.hidden.end[head];
    if (!any) continue;
    for (int64_t j = blockIdx.y * kWarps + threadIdx.x / 32; j < slopes.hidden.keys; j += step) {
      float sums[kEach] = {};
      bool added = false;
      for (int64_t head = first; head < first + group; ++head) {
        const int64_t end = slopes.hidden.end[head];
        for (int64_t from = slopes.hidden.begin[head]; from < end; from += 32) {
          const bool hidden = slopes.is_hidden(head, from + lane);
          const float of_lane = hidden ? slopes.of(0, head, from + lane, j) : 0.0f;
          for (int row = 0; row < 32 && from + row < end; ++row) {
            const float slope = __shfl_sync(0xffffffffu, of_lane, row);
            if (slope == 0) continue;
            added = true;
            const T* of_row = q + of_q.at(head, from + row);
            HN_UNROLL
            for (int64_t c = 0; c < kEach; ++c) {
              const int64_t e = lane + 32 * c;
              if (e < of_k.size) sums[c] += slope * load_number(of_row[e]);
            }
          }
        }
      }
      if (!added) continue;
      HN_UNROLL
      for (int64_t c = 0; c < kEach; ++c) {
        const int64_t e = lane + 32 * c;
        if (e >= of_k.size) continue;
        T& to = dk[of_k.at(first, j) + e];
        to = store_number<T>(load_number(to) + sums[c] * slopes.p.scale);
      }
    }
  }
}

/// The batches that read a term, in slices of `each` of them, so that there are enough threads.
struct TermSlices {
  int64_t count = 1, each = 0;
  Divisor elements;        // of the gradient
  float* parts = nullptr;  // a sum for each slice and element; none where there is one slice
};

/// The gradient of a term, an element of a slice a thread: over all batches of the slice, in order,
/// the sum of the gradients of their scores. Those of hidden rows are ours.
template <class T>
struct SumTermGradient {
  HiddenSlopes<T> ours;
  TermGradient wanted;
  const T* slopes;       // of all scores
  Divisor scores, keys;  // of a batch; of a row
  TermSlices slices;
  float* to;

  __device__ void operator()(int64_t at) const {
    const int64_t slice = slices.elements.quotient(at);
    const int64_t element = at - slice * slices.elements.value();
    const int64_t group_index = scores.quotient(element);
    const int64_t place = element - group_index * scores.value();
    const int64_t i = keys.quotient(place), j = place - i * keys.value();
    int64_t group[1], member[1];
    wanted.groups.offsets(group_index, group);
    const int64_t first = slice * slices.each, end = first + slices.each;
    float sum = 0;
    for (int64_t index = first; index < end && index < wanted.members.count; ++index) {
      wanted.members.offsets(index, member);
      const int64_t batch = group[0] + member[0];
      sum += ours.hidden.is_hidden(batch * ours.p.m + i)
                 ? ours.of(wanted.term, batch, i, j)
                 : load_number(slopes[batch * scores.value() + place]);
    }
    if (slices.parts != nullptr) {
      slices.parts[at] = sum;
    } else {
      write(group[0], i, j, sum);
    }
  }
  /// The sum over the slices.
  __device__ void fold(int64_t element) const {
    const int64_t group_index = scores.quotient(element);
    const int64_t place = element - group_index * scores.value(), i = keys.quotient(place);
    int64_t group[1];
    wanted.groups.offsets(group_index, group);
    float sum = 0;
    for (int64_t k = 0; k < slices.count; ++k)
      sum += slices.parts[k * slices.elements.value() + element];
    write(group[0], i, place - i * keys.value(), sum);
  }

 private:
  __device__ void write(int64_t batch, int64_t i, int64_t j, float sum) const {
    const DeviceTerm& term = ours.p.term[wanted.term];
    const ScoresOfBatch<float> of(ours.p, batch);
    to[of.start_of(wanted.term) + i * term.row + j * term.column] = sum;
  }
};

template <class T>
struct FoldTermGradient {
  SumTermGradient<T> slices;
  __device__ void operator()(int64_t element) const { slices.fold(element); }
};

}  // namespace halfnote::HN_CUDA
