// data.h - data sets, and a loader that prepares batches ahead of the training step.
#pragma once
#include "args.h"
#include "check.h"
#include "ops.h"

typedef struct DataConfig {
    const char *data;       // a set: auto, NAME or NAME:PATH; or a folder of pictures
    int block;              // text: bytes in a window
    int image_size;         // width and height; 0: 32 for synthetic images, 224 for picture files
    int train_count, test_count; // use only N samples (synthetic: make N); 0: all
    int workers;
    bool augment;
} DataConfig;
DataConfig data_defaults(void);
// Sets the defaults and adds the options.
void data_options(Args *args, DataConfig *config);

// A crop moves an image by up to `padding` pixels each way, and fills the gap with black. A crop of
// a picture file is a random part (view_random). A crop of a text moves all windows of an epoch by
// the same number of bytes, less than a window. A flip mirrors an image at random. Crop and flip
// depend only on seed, epoch and sample id.
typedef struct Augment {
    bool crop, flip;
    int padding;
    uint64_t seed;
    float mean[3], std[3];  // statistics of each channel, to normalise images
} Augment;

typedef struct Dataset {
    int count, channels, height, width, classes;
    uint8_t *inputs;        // host: (count, channels, height, width), or a text's tokens; of
                            // picture files: NULL
    int32_t *labels;        // host: (count); NULL for a text
    struct Pictures *pictures; // a folder of picture files, or NULL
    int per_row;            // labels of a sample: 1 for an image, or one for each token of a window
} Dataset;
static inline bool dataset_is_text(const Dataset *set) { return set->per_row > 1; }

typedef struct Data {
    char name[24];
    char source[256];       // where the data were found, or how they were made
    char fingerprint[128];  // name, counts and checksum as text: equal for equal data
    uint32_t checksum;      // CRC-32 of the data; of picture files, only of their paths
    char samples[40];       // what the samples are, for messages: "images", "windows of 16 bytes"
    const char *unit;       // what a label belongs to, for messages: "images", "bytes"
    char vocabulary[2 * 256 + 1]; // for a text: the byte of each token, in hexadecimal; else ""
    Dataset train, test;
    Augment augment;        // for training batches
    Augment plain;          // for testing: no crop and no flip
    const char *const *class_names; // (classes), or NULL
} Data;

// Finds or makes the data set, checks it, and keeps as many samples as `config` asks for.
bool data_open(Data *data, const DataConfig *config, int64_t seed, Error *err);
void data_close(Data *data);
// Returns a hash > 0 of the data's checksum, number of training samples and `shuffle`. A run can
// resume in mid-epoch only if this hash equals the checkpoint's, or if the checkpoint has none.
int64_t data_order(const Data *data, bool shuffle);
// Returns the name of a class, without commas or double quotes: "airplane". NULL if the set has no
// names (CIFAR-100, synthetic, a text).
const char *data_class_name(const Data *data, int label);
// For a folder of pictures: the path, below the folder, of sample `id`'s file. Commas, double
// quotes, backslashes and control characters become "_".
void picture_file(const Dataset *set, int id, char *out, size_t size);

// --- batches -------------------------------------------------------------------------------------

typedef struct Batch {
    int index;              // the batch's index in the epoch, from 0
    int count;              // samples in the batch
    int rows;               // rows of inputs and labels; from row `count` on zeros, and labels -1
    int per_row;            // labels in a row
    bool full;              // the batch has as many rows as LoaderConfig's shape
    void *inputs;           // (rows, channels, height, width) in the loader's shape; device. Text:
                            // (rows, TEXT_KEY + per_row) words of 32 bits, the key and the tokens
    int32_t *labels;        // (rows, per_row), device
    int label_count;        // labels in all rows
    int slot;               // index of the batch's buffer: `index` modulo LOADER_SLOTS
} Batch;

// Returns rows [begin, begin + rows) of a batch. shape: the shape of the batch's inputs.
static inline Batch batch_part(const Batch *batch, Shape shape, int begin, int rows)
{
    Batch part = *batch;
    shape.n = begin;
    part.count = part.rows = rows;
    part.label_count = rows * batch->per_row;
    part.inputs = (char *)batch->inputs + shape_bytes(shape);
    part.labels = batch->labels + (size_t)begin * batch->per_row;
    return part;
}

enum { LOADER_SLOTS = 4 };
// Each row of text begins with a 64-bit key for dropout, low word first.
enum { TEXT_KEY = 2 };

typedef struct LoaderConfig {
    Shape shape;            // of a full batch: n rows of canvas h x w; text: { n, TEXT_KEY +
                            // per_row, 1, 1, TYPE_F32 }
    Augment augment;
    int workers;
    bool fill_last;         // for evaluation: rows that do not count make the last batch full
} LoaderConfig;

// Each worker thread makes whole batches ahead in its own memory, and loads each into one of
// LOADER_SLOTS buffers, on the loader's stream. Without workers, loader_next makes the batch.
// Picture files are decoded only when a batch needs them. If a canvas is larger than its image, the
// image is centred on black.
typedef struct Loader Loader;
Loader *loader_new(Device *device, const Dataset *dataset, const LoaderConfig *config);
void loader_free(Loader *loader);

// Starts an epoch over these ids (NULL: 0 to count - 1) at batch `first`, above 0 only if a run
// resumes in mid-epoch. Copies the ids. Ends the previous epoch, finished or not.
void loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first);

// Returns the next batch, or NULL at the end of the epoch. Waits until the batch's rows are made,
// and makes the compute stream wait until they are loaded. Enqueue all work that reads the batch on
// the compute stream before the next call. The batch's buffers are reused only after that work.
const Batch *loader_next(Loader *loader);

// Returns about how long (ms) the device has waited for batches since loader_wait_ms's last call.
double loader_wait_ms(Loader *loader);
