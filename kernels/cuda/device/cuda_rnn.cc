// Recurrent layers by cuDNN's RNN API. Its standard algorithm is taken: the same kernels whatever
// the sizes, nothing that is compiled when it first runs, nothing that a captured step could not
// repeat. The persistent ones refuse many sizes, some of them only when they run.
#include <array>

#include "base/error.h"
#include "kernels/cuda/device/cuda_cudnn.h"
#include "kernels/cuda/device/cuda_device.h"

namespace halfnote::cuda {

namespace {

using libraries::Rnn;
using libraries::RnnCell;
using libraries::RnnOperands;
using libraries::RnnPart;
using libraries::RnnProblem;
using libraries::RnnSlopes;

/// A descriptor of the library, by the functions that make it and take it back.
template <class Handle>
class Made {
 public:
  using Make = cudnnStatus_t (*)(Handle*);
  using TakeBack = cudnnStatus_t (*)(Handle);
  Made(Make make, TakeBack back, const char* call) : back_(back) {
    check_dnn(make(&handle_), call);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() { back_(handle_); }
  Handle get() const { return handle_; }

 private:
  TakeBack back_;
  Handle handle_ = nullptr;
};

cudnnRNNMode_t mode_of(RnnCell cell) {
  return cell == RnnCell::kLstm ? CUDNN_LSTM : cell == RnnCell::kGru ? CUDNN_GRU : CUDNN_RNN_TANH;
}

int narrow(int64_t size) { return static_cast<int>(size); }  // illegal_rnn() has looked

/// All that a problem is to the library.
class RnnDescriptors {
 public:
  RnnDescriptors(cudnnHandle_t handle, const RnnProblem& p) : handle_(handle), p_(p) {
    const CudnnFunctions& f = cudnn();
    // No dropout: there is one layer.
    check_dnn(f.cudnnSetDropoutDescriptor(dropout_.get(), handle, 0, nullptr, 0, 0),
              "cudnnSetDropoutDescriptor");
    const auto hidden = static_cast<int32_t>(p.hidden);
    check_dnn(f.cudnnSetRNNDescriptor_v8(
                  rnn_.get(), CUDNN_RNN_ALGO_STANDARD, mode_of(p.cell), CUDNN_RNN_DOUBLE_BIAS,
                  p.directions == 2 ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL,
                  CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT,
                  p.tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH, static_cast<int32_t>(p.inputs),
                  hidden, hidden, 1, dropout_.get(), CUDNN_RNN_PADDED_IO_ENABLED),
              "cudnnSetRNNDescriptor_v8");
    set_rows(x_.get(), p.inputs);
    set_rows(y_.get(), p.outputs());
    const std::array<int, 3> dims = {narrow(p.directions), narrow(p.batch), hidden};
    const std::array<int, 3> strides = {narrow(p.batch * p.hidden), hidden, 1};
    check_dnn(f.cudnnSetTensorNdDescriptor(state_.get(), CUDNN_DATA_FLOAT, 3, dims.data(),
                                           strides.data()),
              "cudnnSetTensorNdDescriptor");
  }

  cudnnRNNDescriptor_t rnn() const { return rnn_.get(); }
  cudnnRNNDataDescriptor_t x() const { return x_.get(); }
  cudnnRNNDataDescriptor_t y() const { return y_.get(); }
  cudnnTensorDescriptor_t state() const { return state_.get(); }

  size_t weight_bytes() const {
    size_t bytes = 0;
    check_dnn(cudnn().cudnnGetRNNWeightSpaceSize(handle_, rnn_.get(), &bytes),
              "cudnnGetRNNWeightSpaceSize");
    return bytes;
  }

  /// Where the library looks for matrix `index` of a direction and its bias, in bytes.
  RnnPart part(int64_t direction, int64_t index, size_t bytes) const {
    // Any address: nothing is read.
    auto* const block = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);
    void *matrix = nullptr, *bias = nullptr;
    check_dnn(
        cudnn().cudnnGetRNNWeightParams(handle_, rnn_.get(), narrow(direction), bytes, block,
                                        narrow(index), matrix_.get(), &matrix, bias_.get(), &bias),
        "cudnnGetRNNWeightParams");
    return {static_cast<std::byte*>(matrix) - block, static_cast<std::byte*>(bias) - block};
  }

  /// Bytes of workspace and reserve.
  std::array<size_t, 2> rooms(cudnnStatus_t& status) const {
    std::array<size_t, 2> bytes{};
    status = cudnn().cudnnGetRNNTempSpaceSizes(handle_, rnn_.get(), mode(), x_.get(), bytes.data(),
                                               &bytes[1]);
    return bytes;
  }
  cudnnForwardMode_t mode() const {
    return p_.training ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
  }

 private:
  void set_rows(cudnnRNNDataDescriptor_t rows, int64_t size) const {
    const std::vector<int> lengths(static_cast<size_t>(p_.batch), narrow(p_.steps));
    float padding = 0;
    check_dnn(cudnn().cudnnSetRNNDataDescriptor(
                  rows, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                  narrow(p_.steps), narrow(p_.batch), narrow(size), lengths.data(), &padding),
              "cudnnSetRNNDataDescriptor");
  }

  cudnnHandle_t handle_;
  RnnProblem p_;
  using Tensor = Made<cudnnTensorDescriptor_t>;
  using Rows = Made<cudnnRNNDataDescriptor_t>;
  Made<cudnnDropoutDescriptor_t> dropout_{cudnn().cudnnCreateDropoutDescriptor,
                                          cudnn().cudnnDestroyDropoutDescriptor,
                                          "cudnnCreateDropoutDescriptor"};
  Made<cudnnRNNDescriptor_t> rnn_{cudnn().cudnnCreateRNNDescriptor,
                                  cudnn().cudnnDestroyRNNDescriptor, "cudnnCreateRNNDescriptor"};
  Rows x_{cudnn().cudnnCreateRNNDataDescriptor, cudnn().cudnnDestroyRNNDataDescriptor,
          "cudnnCreateRNNDataDescriptor"};
  Rows y_{cudnn().cudnnCreateRNNDataDescriptor, cudnn().cudnnDestroyRNNDataDescriptor,
          "cudnnCreateRNNDataDescriptor"};
  Tensor state_{cudnn().cudnnCreateTensorDescriptor, cudnn().cudnnDestroyTensorDescriptor,
                "cudnnCreateTensorDescriptor"};
  Tensor matrix_{cudnn().cudnnCreateTensorDescriptor, cudnn().cudnnDestroyTensorDescriptor,
                 "cudnnCreateTensorDescriptor"};
  Tensor bias_{cudnn().cudnnCreateTensorDescriptor, cudnn().cudnnDestroyTensorDescriptor,
               "cudnnCreateTensorDescriptor"};
};

class PlannedRnn final : public Rnn {
 public:
  PlannedRnn(cudnnHandle_t handle, const RnnProblem& problem)
      : handle_(handle), problem_(problem), d_(handle, problem) {}

  /// Why the library has nothing for it. To be called before anything else is.
  std::string settle() {
    const size_t bytes = d_.weight_bytes();
    if (bytes != weight_bytes()) return "a block of weights of another size";
    for (int64_t direction = 0; direction < problem_.directions; ++direction) {
      for (int64_t index = 0; index < 2 * problem_.gates(); ++index) {
        const RnnPart found = d_.part(direction, index, bytes);
        const RnnPart ours = libraries::rnn_part(problem_, direction, index);
        constexpr int64_t kBytes = sizeof(float);
        if (found.matrix != ours.matrix * kBytes || found.bias != ours.bias * kBytes)
          return "weights in other places";
      }
    }
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    rooms_ = d_.rooms(status);
    if (status == CUDNN_STATUS_SUCCESS) return {};
    return std::string("cuDNN: ") + cudnn().cudnnGetErrorString(status);
  }

  size_t workspace_bytes() const override { return rooms_[0]; }
  size_t reserve_bytes() const override { return rooms_[1]; }

  void forward(Stream& stream, const RnnOperands& o) const override {
    begin(stream, o, nullptr);
    check_dnn(
        cudnn().cudnnRNNForward(handle_, d_.rnn(), d_.mode(), o.lengths, d_.x(), o.x, d_.y(), o.y,
                                d_.state(), o.h0, o.h, d_.state(), o.c0, o.c, weight_bytes(),
                                o.weights, rooms_[0], o.workspace, rooms_[1], o.reserve),
        "cudnnRNNForward");
  }

  void gradient(Stream& stream, const RnnOperands& o, const RnnSlopes& s) const override {
    begin(stream, o, &s);
    check_dnn(cudnn().cudnnRNNBackwardData_v8(
                  handle_, d_.rnn(), o.lengths, d_.y(), o.y, s.dy, d_.x(), s.dx, d_.state(), o.h0,
                  s.dh, s.dh0, d_.state(), o.c0, s.dc, s.dc0, weight_bytes(), o.weights, rooms_[0],
                  o.workspace, rooms_[1], o.reserve),
              "cudnnRNNBackwardData_v8");
    if (s.dweights == nullptr) return;
    check_dnn(cudnn().cudnnRNNBackwardWeights_v8(handle_, d_.rnn(), CUDNN_WGRAD_MODE_ADD, o.lengths,
                                                 d_.x(), o.x, d_.state(), o.h0, d_.y(), o.y,
                                                 weight_bytes(), s.dweights, rooms_[0], o.workspace,
                                                 rooms_[1], o.reserve),
              "cudnnRNNBackwardWeights_v8");
  }

 private:
  size_t weight_bytes() const { return static_cast<size_t>(problem_.weights()) * sizeof(float); }
  void begin(Stream& stream, const RnnOperands& o, const RnnSlopes* s) const {
    if (std::string why = libraries::illegal_operands(problem_, o, s); !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal recurrent layer: " + why);
    check_dnn(cudnn().cudnnSetStream(handle_, native(stream)), "cudnnSetStream");
  }

  cudnnHandle_t handle_;
  RnnProblem problem_;
  RnnDescriptors d_;
  std::array<size_t, 2> rooms_{};  // workspace and reserve
};

}  // namespace

std::shared_ptr<const Rnn> plan_recurrent_layer(cudnnHandle_t handle, const RnnProblem& problem,
                                                std::string& refusal) {
  refusal = libraries::illegal_rnn(problem);
  if (!refusal.empty()) return nullptr;
  auto planned = std::make_shared<PlannedRnn>(handle, problem);
  refusal = planned->settle();
  return refusal.empty() ? planned : nullptr;
}

PaperRnn describe_on_paper(const RnnProblem& problem) {
  // What is asked here looks at a few numbers behind the handle: all 0 say that there is no GPU.
  std::vector<std::byte> no_gpu(size_t{1} << 16);
  const RnnDescriptors d(reinterpret_cast<cudnnHandle_t>(no_gpu.data()), problem);
  PaperRnn made;
  const size_t bytes = d.weight_bytes();
  made.weight_bytes = static_cast<int64_t>(bytes);
  for (int64_t direction = 0; direction < problem.directions; ++direction) {
    for (int64_t index = 0; index < 2 * problem.gates(); ++index)
      made.parts.push_back(d.part(direction, index, bytes));
  }
  // It knows the sizes before it looks for the GPU, and then says that there is none.
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  made.reserve_bytes = static_cast<int64_t>(d.rooms(status)[1]);
  return made;
}

}  // namespace halfnote::cuda
