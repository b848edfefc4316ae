// data.h - images and labels: which data set, and batches of it, ready when they are wanted.
// It takes sample ids and knows nothing of ranks.
#pragma once
#include "args.h"
#include "check.h"
#include "ops.h"

typedef struct DataConfig {
    const char *data;       // auto, cifar10, ..., synthetic, a directory or an archive
    int image_size;         // 0: 32 of synthetic images, 224 of pictures
    int resize;             // of pictures, for evaluation; 0: 8/7 of image_size
    double val_split;       // of pictures in a folder with a single level
    const char *bad_images; // stop, skip
    int train_count, test_count; // use only the first so many samples; 0: all (synthetic: its size)
    int workers;            // -j: threads that prepare batches
    bool augment;
} DataConfig;
DataConfig data_defaults(void);
void data_options(Args *args, DataConfig *config);

typedef struct Dataset {
    int count, channels, height, width, classes;
    uint8_t *images;        // (count, channels, height, width), host
    int32_t *labels;        // (count), host
    struct Pictures *pictures; // files from which images are made when they are wanted, or NULL
} Dataset;

typedef struct Data {
    char name[24];          // "cifar10"
    char source[256];       // where it was found, for people
    char fingerprint[80];   // equal where the data are; of a set as it is cut (see below)
    uint32_t checksum;      // in there: of all bytes of the files
    Dataset train, test;
    Augment augment;        // what training images get
    Augment plain;          // what test images get: only normalised
    const char *const *class_names; // (classes), or NULL
    char **own_names;       // those that were allocated
    struct Folder *folder;  // of pictures, or NULL
} Data;

// Finds, reads and checks the data set: every size, magic number and label, before any training.
// An error names the file and the offset.
bool data_open(Data *data, const DataConfig *config, int64_t seed, Error *err);
void data_close(Data *data);
// Leaves at most so many samples in each set, and changes the fingerprint.
void data_cut(Data *data, int most);
// What people call a class, without commas or quotes: "airplane". NULL where the set has no names
// (CIFAR-100, synthetic).
const char *data_class_name(const Data *data, int label);

// --- batches -------------------------------------------------------------------------------------

typedef struct Batch {
    int index;              // of the batch in the epoch, from 0
    int count;              // samples
    int rows;               // rows of images and labels; those after count are zeros, labelled -1
    void *images;           // (rows, channels, height, width) in the loader's shape; device
    int32_t *labels;        // (rows), device
    int slot;               // which of the loader's buffers this is: 0 .. LOADER_SLOTS - 1
} Batch;

enum { LOADER_SLOTS = 4 };

typedef struct LoaderConfig {
    Shape shape;            // of a full batch: n rows of canvas h x w, in this block and type
    Augment augment;
    int workers;
    bool pad_tail;          // evaluation: the last batch has as many rows as the others
} LoaderConfig;

// Worker threads fill up to LOADER_SLOTS batches ahead, on a stream of their own. A data set in
// memory is copied to the device once (on the CPU it is used in place). Pictures are read,
// decoded and resized by the workers: memory does not grow with their number.
typedef struct Loader Loader;
Loader *loader_new(Device *device, const Dataset *dataset, const LoaderConfig *config);
void loader_free(Loader *loader);

// An epoch over these ids (NULL: 0 to count - 1) begins at batch `first` (0, or later when a run
// resumes). Ends the one before, finished or not. The ids are copied.
void loader_start(Loader *loader, const int32_t *ids, int count, int64_t epoch, int first);
int loader_batches(const Loader *loader);           // of the whole epoch

// The next batch, or NULL at the end. The compute stream waits for it if it must. It stays valid
// until the next call, whose work comes after everything enqueued on the compute stream by then.
const Batch *loader_next(Loader *loader);

// Milliseconds that loader_next has made its caller wait since the last time this was asked.
double loader_wait_ms(Loader *loader);
