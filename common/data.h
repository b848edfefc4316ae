// data.h - data sets, and a loader that prepares batches ahead of the training step.
#pragma once
#include "args.h"
#include "check.h"
#include "ops.h"

typedef struct DataConfig {
    const char *data;       // a set: auto, NAME or NAME:PATH; or a folder of pictures
    int block;              // text: bytes in a window
    int image_size;         // pixels each way; 0: synthetic images 32, pictures 224
    int train_count, test_count; // use only N samples (synthetic: make N); 0: all
    int workers;
    bool augment;
} DataConfig;
DataConfig data_defaults(void);
// Sets the defaults and adds the options.
void data_options(Args *args, DataConfig *config);

// A crop moves an image by up to `padding` pixels each way, on black. Of a picture file, a crop
// takes a random part (view_random). Of a text, it moves all windows of an epoch by the same number
// of bytes, less than a window. A flip mirrors an image at random. Crop and flip depend only on
// seed, epoch and sample id.
typedef struct Augment {
    bool crop, flip;
    int padding;
    uint64_t seed;
    float mean[3], std[3];  // all images are normalised
} Augment;

typedef struct Dataset {
    int count, channels, height, width, classes;
    uint8_t *inputs;        // host: (count, channels, height, width), or tokens; pictures: NULL
    int32_t *labels;        // (count), host; text: NULL
    struct Pictures *pictures; // of picture files, or NULL
    int per_row;            // labels of a sample: 1 for an image; for a text, one for each token
                            // of a window
} Dataset;
static inline bool dataset_is_text(const Dataset *set) { return set->per_row > 1; }

typedef struct Data {
    char name[24];
    char source[256];       // where it was found, or how it was made
    char fingerprint[128];  // the same for the same data
    uint32_t checksum;      // part of the fingerprint
    char samples[40];       // what they are, for messages: "images", "windows of 16 bytes"
    const char *unit;       // what has a label: "images", "bytes"
    char vocabulary[2 * 256 + 1]; // of a text: the byte of each token, in hexadecimal; else ""
    Dataset train, test;
    Augment augment;        // of training images
    Augment plain;          // of test images: only normalised
    const char *const *class_names; // (classes), or NULL
} Data;

// Finds or makes the data set, checks it, and keeps as many samples as `config` asks for.
bool data_open(Data *data, const DataConfig *config, int64_t seed, Error *err);
void data_close(Data *data);
// A number > 0 made from the data's checksum, the number of training samples and `shuffle`. A run
// that resumes in mid-epoch compares it with the checkpoint's.
int64_t data_order(const Data *data, bool shuffle);
// The name of a class, without commas or double quotes: "airplane". NULL if the set has no names
// (CIFAR-100, synthetic, a text).
const char *data_class_name(const Data *data, int label);
// Of a folder of pictures: the path of sample `id`'s file below the folder. Commas, double quotes,
// backslashes and control characters become "_".
void picture_file(const Dataset *set, int id, char *out, size_t size);

// --- batches -------------------------------------------------------------------------------------

typedef struct Batch {
    int index;              // of the batch in the epoch, from 0
    int count;
    int rows;               // rows of inputs and labels; those after count are zeros, labelled -1
    int per_row;            // labels of a row
    bool full;              // as many rows as LoaderConfig's shape
    void *inputs;           // (rows, channels, height, width) in the loader's shape; device. Text:
                            // (rows, TEXT_KEY + per_row) words of 32 bits, the key and the tokens
    int32_t *labels;        // (rows, per_row), device
    int label_count;        // in all rows
    int slot;               // its buffer: the batch's number in the epoch, modulo LOADER_SLOTS
} Batch;

// Rows [begin, begin + rows) of a batch. shape: that of its inputs.
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
                            // per_row, 1, 1, 1, TYPE_F32 }
    Augment augment;
    int workers;
    bool fill_last;         // for evaluation: the last batch has as many rows as the others
} LoaderConfig;

// Worker threads make whole batches ahead, each in its own memory, and load them into LOADER_SLOTS
// buffers, on a stream of their own; without workers, loader_next makes its own batch. Picture
// files are decoded only when a batch needs them.
// A canvas may be larger than its image, which is then centred on black.
typedef struct Loader Loader;
Loader *loader_new(Device *device, const Dataset *dataset, const LoaderConfig *config);
void loader_free(Loader *loader);

// Starts an epoch over these ids (NULL: 0 to count - 1) at batch `first`, above 0 only if a run
// resumes in mid-epoch. Copies the ids. Ends the previous epoch, finished or not.
void loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first);

// The next batch, or NULL at the end of the epoch. The call waits until the batch's rows are made,
// and the compute stream waits until they are loaded. Enqueue all work that reads the batch on the
// compute stream before the next call. The batch's buffers are filled again only after that work.
const Batch *loader_next(Loader *loader);

// About how many milliseconds the device has waited for batches since the last call.
double loader_wait_ms(Loader *loader);
