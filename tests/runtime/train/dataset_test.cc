// The data set, label checks, and what `--data` names.
#include <gmock/gmock.h>

#include <cmath>

#include "runtime/train/data.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;
using test::TempFolder;
using test::write_bytes;

Tensor bytes(Shape shape) { return test::random_tensor(DType::kU8, std::move(shape), 1); }

std::string idx(const Tensor& tensor) {
  std::string file("\0\0\x08", 3);
  file += static_cast<char>(tensor.shape().size());
  for (const int64_t dim : tensor.shape()) {
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(dim >> shift);
  }
  return file.append(reinterpret_cast<const char*>(tensor.bytes()), tensor.byte_size());
}

std::string npy(const std::string& shape, size_t count) {
  std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': " + shape + "}\n";
  return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header +
         std::string(count, '\1');
}

TEST(Dataset, KnowsItsFields) {
  const Dataset data("x", {{"image", bytes({4, 2, 2})}, {"label", bytes({4})}});
  EXPECT_EQ(data.size(), 4);
  EXPECT_EQ(data.find("label")->sample_shape(), Shape());
  EXPECT_EQ(data.find("other"), nullptr);
  EXPECT_EQ(data.fields()[0].to_string(), "image u8[2,2]");
}

TEST(Dataset, RefusesFieldsThatDoNotGoTogether) {
  expect_error(ErrorCode::kData, {"x: no arrays"}, [] { Dataset("x", {}); });
  expect_error(ErrorCode::kData, {"\"a\" is a scalar"}, [] {
    Dataset("x", {{"a", bytes({})}}).split_samples({});
  });
  expect_error(ErrorCode::kData, {"two arrays are named \"a\""}, [] {
    Dataset("x", {{"a", bytes({2})}, {"a", bytes({2})}});
  });
  expect_error(ErrorCode::kData, {"expected 2 as in \"a\", got 3 in \"b\""}, [] {
    Dataset("x", {{"a", bytes({2})}, {"b", bytes({3})}}).split_samples({});
  });
}

TEST(Dataset, WholeFieldsAreNoSamples) {
  Dataset data("x", {{"edges", bytes({2, 7})}, {"a", bytes({5, 3})}, {"one", bytes({})}});
  const size_t whole[] = {0, 2};
  data.split_samples(whole);
  EXPECT_EQ(data.size(), 5);
  EXPECT_EQ(data.fields()[0].to_string(), "edges u8[2,7]");
  EXPECT_EQ(data.fields()[1].to_string(), "a u8[3]");
  EXPECT_EQ(data.fields()[2].to_string(), "one u8[]");
  data.take_first(4);
  EXPECT_EQ(data.size(), 4);
  EXPECT_EQ(data.fields()[0].data.shape(), Shape({1, 2, 7}));
  EXPECT_EQ(data.fields()[1].data.shape(), Shape({4, 3}));
  Dataset graph("x", {{"edges", bytes({2, 7})}, {"nodes", bytes({5})}});
  const size_t both[] = {0, 1};
  graph.split_samples(both);
  EXPECT_EQ(graph.size(), 1);
}

TEST(Labels, AreCheckedInEveryIntegerType) {
  for (const DType dtype : {DType::kU8, DType::kI8, DType::kU16, DType::kI16, DType::kU32,
                            DType::kI32, DType::kU64, DType::kI64}) {
    const Tensor labels = Tensor::of<int64_t>({3, 2}, {0, 1, 2, 9, 3, 10}).cast_to(dtype);
    const Dataset data("x", {{"y", labels}});
    EXPECT_NO_THROW(check_labels(data, data.fields()[0], 11));
    EXPECT_NO_THROW(check_labels(data, data.fields()[0], 10, 10));
    expect_error(ErrorCode::kData,
                 {"x: label out of range in \"y\", sample 2", "expected 0 to 9, got 10"},
                 [&] { check_labels(data, data.fields()[0], 10); });
    expect_error(ErrorCode::kData, {"sample 1", "expected 0 to 8, got 9"},
                 [&] { check_labels(data, data.fields()[0], 9, 0); });
    expect_error(ErrorCode::kData, {"sample 1", "expected 0 to 8 or 10, got 9"},
                 [&] { check_labels(data, data.fields()[0], 9, 10); });
  }
}

TEST(Labels, MayNotBeNegativeUnlessIgnored) {
  const Dataset data("x", {{"y", Tensor::of<int8_t>({2}, {1, -1})}});
  EXPECT_NO_THROW(check_labels(data, data.fields()[0], 2, -1));
  expect_error(ErrorCode::kData, {"sample 1", "got -1"},
               [&] { check_labels(data, data.fields()[0], 2); });
  expect_error(ErrorCode::kData, {"sample 1", "got -1"},
               [&] { check_labels(data, data.fields()[0], 2, 255); });
}

TEST(Labels, MustBeWholeNumbers) {
  const Dataset bools("x", {{"y", Tensor(DType::kBool, {2})}});
  expect_error(ErrorCode::kData, {"expected integers, or whole floats, got bool"},
               [&] { check_labels(bools, bools.fields()[0], 2); });
  const auto check = [](std::vector<float> labels) {
    const Dataset data("x", {{"y", Tensor::of<float>({3}, labels)}});
    check_labels(data, data.fields()[0], 2, -100);
  };
  check({1, 0, -100});
  for (const float label : {2.0f, -1.0f, 0.5f, NAN, INFINITY})
    expect_error(ErrorCode::kData, {"sample 2", "0 to 1 or -100"}, [&] { check({1, 0, label}); });
}

TEST(DataSpec, ReadsEveryForm) {
  EXPECT_EQ(parse_data_spec("mnist:/a:b").kind, DataSpec::Kind::kMnist);
  EXPECT_EQ(parse_data_spec("mnist:/a:b").path, "/a:b");
  EXPECT_EQ(parse_data_spec("cifar10:d").kind, DataSpec::Kind::kCifar10);
  EXPECT_EQ(parse_data_spec("cifar100:d").kind, DataSpec::Kind::kCifar100);
  EXPECT_EQ(parse_data_spec("x/y.npz").kind, DataSpec::Kind::kNpz);
  const DataSpec arrays = parse_data_spec("images=a.npy,labels=b:c.npy");
  EXPECT_EQ(arrays.kind, DataSpec::Kind::kNpy);
  EXPECT_THAT(arrays.arrays, testing::ElementsAre(testing::Pair("images", "a.npy"),
                                                  testing::Pair("labels", "b:c.npy")));
  EXPECT_THAT(parse_data_spec("d/tokens.npy").arrays,
              testing::ElementsAre(testing::Pair("tokens", "d/tokens.npy")));
  EXPECT_TRUE(parse_data_spec("mnist:d").has_test_split());
  EXPECT_FALSE(arrays.has_test_split());
}

TEST(DataSpec, RefusesTheRest) {
  struct Case {
    const char* text;
    ErrorCode code;
    const char* message;
  };
  const Case cases[] = {
      {"", ErrorCode::kUsage, "give mnist:DIR"},
      {"mnist:", ErrorCode::kUsage, "no folder after the colon"},
      {"x=x.npy,y=all.npz", ErrorCode::kUsage, "ends in .npy, got all.npz"},
      {"minst:/data", ErrorCode::kUsage, "did you mean mnist:?"},
      {"imagenet:/data", ErrorCode::kUsage, "unknown format \"imagenet\""},
      {"/data/folder", ErrorCode::kUsage, "expected a file that ends in .npy or .npz"},
      {"a=x.csv", ErrorCode::kUsage, "got x.csv"},
      {"=x.npy", ErrorCode::kUsage, "a name or a file is missing"},
      {"a=", ErrorCode::kUsage, "a name or a file is missing"},
      {"a=x.npy,", ErrorCode::kUsage, "a name or a file is missing"},
      {"a=x.npy,a=y.npy", ErrorCode::kUsage, "two arrays are named \"a\""},
      {"train.pt", ErrorCode::kUnsupported, "numpy.savez"},
      {"x=train.H5", ErrorCode::kUnsupported, "a Keras file"},
  };
  for (const Case& row : cases)
    expect_error(row.code, {row.message}, [&] { parse_data_spec(row.text); });
}

TEST(LoadDataset, FindsMnistPackedOrNotInEitherSpelling) {
  const TempFolder folder;
  const Tensor images = bytes({3, 28, 28}), labels = Tensor::of<uint8_t>({3}, {1, 2, 3});
  write_bytes(folder / "train-images-idx3-ubyte.gz", test::gzip(idx(images)));
  write_bytes(folder / "train-labels.idx1-ubyte", idx(labels));
  const Dataset data =
      load_dataset(parse_data_spec("mnist:" + folder.path().string()), Split::kTrain);
  EXPECT_TRUE(identical(data.find("image")->data, images));
  EXPECT_TRUE(identical(data.find("label")->data, labels));
}

TEST(LoadDataset, SaysWhatTheFolderHolds) {
  const TempFolder folder;
  const DataSpec spec = parse_data_spec("mnist:" + folder.path().string());
  expect_error(
      ErrorCode::kIo,
      {"a data file is missing", "expected train-images-idx3-ubyte or train-images-idx3-ubyte.gz",
       "the folder is empty"},
      [&] { load_dataset(spec, Split::kTrain); });
  for (const char c : std::string("hgfedcbaij")) write_bytes(folder / std::string(1, c), "");
  expect_error(ErrorCode::kIo,
               {"expected t10k-images", "the folder holds a, b, c, d, e, f, g, h and 2 more"},
               [&] { load_dataset(spec, Split::kTest); });
  expect_error(ErrorCode::kIo, {"no such data folder"},
               [&] { load_dataset(parse_data_spec("cifar10:/nowhere/at/all"), Split::kTrain); });
}

TEST(LoadDataset, RefusesIdxFilesOfAnotherKind) {
  const TempFolder folder;
  write_bytes(folder / "train-images-idx3-ubyte", idx(bytes({3})));
  write_bytes(folder / "train-labels-idx1-ubyte", idx(bytes({3})));
  expect_error(ErrorCode::kData, {"not the MNIST format", "expected u8 elements and 3 dims"}, [&] {
    load_dataset(parse_data_spec("mnist:" + folder.path().string()), Split::kTrain);
  });
}

TEST(LoadDataset, NamesBothFilesWhereLabelsAreMissing) {
  const TempFolder folder;
  write_bytes(folder / "train-images-idx3-ubyte", idx(bytes({3, 2, 2})));
  write_bytes(folder / "train-labels-idx1-ubyte", idx(bytes({2})));
  expect_error(
      ErrorCode::kData,
      {"train-labels-idx1-ubyte: images and labels are not as many",
       "expected 3 labels, one for each image of ", "train-images-idx3-ubyte, got 2"},
      [&] { load_dataset(parse_data_spec("mnist:" + folder.path().string()), Split::kTrain); });
}

TEST(LoadDataset, FindsCifarInTheUnpackedArchive) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "cifar-10-batches-bin");
  std::string record(3073, 'x');
  for (int i = 1; i <= 5; ++i) {
    record[0] = static_cast<char>(i);
    write_bytes(folder / ("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin"), record);
  }
  const DataSpec spec = parse_data_spec("cifar10:" + folder.path().string());
  const Dataset data = load_dataset(spec, Split::kTrain);
  EXPECT_TRUE(identical(data.find("label")->data, Tensor::of<uint8_t>({5}, {1, 2, 3, 4, 5})));
  expect_error(ErrorCode::kIo, {"expected test_batch.bin", "data_batch_1.bin"},
               [&] { load_dataset(spec, Split::kTest); });
}

TEST(LoadDataset, ReadsArraysByName) {
  const TempFolder folder;
  write_bytes(folder / "i.npy", npy("(2, 3)", 6));
  write_bytes(folder / "l.npy", npy("(2,)", 2));
  const DataSpec spec =
      parse_data_spec("images=" + (folder / "i.npy") + ",labels=" + (folder / "l.npy"));
  const Dataset data = load_dataset(spec, Split::kTrain);
  EXPECT_EQ(data.fields()[0].to_string(), "images u8[3]");
  EXPECT_EQ(data.fields()[1].to_string(), "labels u8[]");
  expect_error(ErrorCode::kUsage, {"no test split"}, [&] { load_dataset(spec, Split::kTest); });
}

TEST(Labels, AFractionIsNoClass) {
  const Dataset data("x", {{"y", Tensor::of<float>({3}, {0, 1.5f, 2})}});
  expect_error(ErrorCode::kData,
               {"in \"y\", sample 1", "expected a whole number from 0 to 2, got 1.5", "--loss mse"},
               [&] { check_labels(data, data.fields()[0], 3); });
}

TEST(LoadDataset, ReadsFashionMnist) {
  const DataSpec spec = parse_data_spec("mnist:/usr/share/datasets/fashion-mnist");
  const Dataset data = load_dataset(spec, Split::kTest);
  EXPECT_EQ(data.size(), 10000);
  EXPECT_EQ(data.fields()[0].to_string(), "image u8[28,28]");
  EXPECT_NO_THROW(check_labels(data, *data.find("label"), 10));
  expect_error(ErrorCode::kData, {"label out of range", "got 9"},
               [&] { check_labels(data, *data.find("label"), 9); });
}

}  // namespace
}  // namespace halfnote
