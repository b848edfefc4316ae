// cifar.c - the binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky, 2009).
//
//   CIFAR-10    six files of 10,000 records:    [label] [1024 red] [1024 green] [1024 blue]
//   CIFAR-100   train.bin 50,000, test.bin 10,000:  [coarse label] [fine label] [the same 3072]
//
// The files have no header: their size is all that says whether they are what they seem.
#include "alive.h"
#include "data/formats.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum {
    IMAGE_BYTES = 3 * 32 * 32,
    PART_RECORDS = 10000,       // what one thread reads
    TRAIN_PARTS = 5,
    PARTS = TRAIN_PARTS + 1,    // and one of test images
    GROUP_RECORDS = 512,        // what one call reads: two pieces each, and IOV_MAX is 1024
};

// One call scatters the records of a group to where they belong, labels here, images there. It may
// stop anywhere: then it goes on in the middle of a piece.
static bool group_read(const DataFile *file, int64_t offset, struct iovec *pieces, int count,
                       Error *err)
{
    while (count > 0) {
        ssize_t got = preadv(file->fd, pieces, count, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, file->hint, "%s: read at byte %lld: %s", file->path,
                             (long long)offset,
                             got < 0 ? strerror(errno) : "the file became shorter");
        offset += got;
        alive_beat();
        for (; count > 0 && (size_t)got >= pieces->iov_len; pieces++, count--)
            got -= (ssize_t)pieces->iov_len;
        if (count > 0) {
            pieces->iov_base = (char *)pieces->iov_base + got;
            pieces->iov_len -= (size_t)got;
        }
    }
    return true;
}

static bool labels_check(const CifarPart *part, int first, int count, const uint8_t *labels,
                         Error *err)
{
    for (int i = 0; i < count; i++) {
        int label = labels[i * part->label_bytes + part->label_bytes - 1];
        int record = part->first + first + i;
        if (label >= part->classes) {
            int64_t offset =
                (int64_t)record * (part->label_bytes + IMAGE_BYTES) + part->label_bytes - 1;
            return error_set(err, part->hint,
                             "%s: label %d at byte %lld (record %d): there are %d classes",
                             part->path, label, (long long)offset, record, part->classes);
        }
        part->labels[first + i] = label;
    }
    return true;
}

bool cifar_part_open(CifarPart *part, Error *err)
{
    if (!data_file_open(&part->file, part->path, part->hint, err))
        return false;
    int64_t wanted = (int64_t)part->records * (part->label_bytes + IMAGE_BYTES);
    if (part->file.size == wanted)
        return true;
    error_set(err, part->hint, "%s: %lld bytes long, not %lld", part->path,
              (long long)part->file.size, (long long)wanted);
    data_file_close(&part->file);
    return false;
}

bool cifar_part_read(const CifarPart *part, Error *err)
{
    const int record_bytes = part->label_bytes + IMAGE_BYTES;
    uint8_t labels[GROUP_RECORDS * 2];
    struct iovec pieces[GROUP_RECORDS * 2];
    for (int first = 0; first < part->count; first += GROUP_RECORDS) {
        int count = part->count - first < GROUP_RECORDS ? part->count - first : GROUP_RECORDS;
        for (int i = 0; i < count; i++) {
            pieces[2 * i] =
                (struct iovec){ labels + i * part->label_bytes, (size_t)part->label_bytes };
            pieces[2 * i + 1] = (struct iovec){ part->images + (size_t)(first + i) * IMAGE_BYTES,
                                                IMAGE_BYTES };
        }
        int64_t offset = (int64_t)(part->first + first) * record_bytes;
        if (!group_read(&part->file, offset, pieces, 2 * count, err) ||
            !labels_check(part, first, count, labels, err))
            return false;
    }
    return true;
}

// --- a whole set ---------------------------------------------------------------------------------

// Where a part lies: in a file of so many records, from record `first` on.
typedef struct PartPlace {
    const char *file;
    int records, first;
} PartPlace;

static bool dataset_alloc(Dataset *set, int count, Error *err)
{
    set->count = count;
    set->channels = 3;
    set->height = set->width = 32;
    set->images = data_images_alloc((size_t)count * IMAGE_BYTES);
    set->labels = malloc((size_t)count * sizeof *set->labels);
    return (set->images && set->labels) ||
           error_set(err, "", "out of memory: %d images of 3x32x32", count);
}

static bool part_task(void *parts, int index, Error *err)
{
    return cifar_part_read((const CifarPart *)parts + index, err);
}

// The parts' files are open and of the right size: only now is memory worth its while.
static bool parts_read(Data *data, CifarPart *parts, Error *err)
{
    if (!dataset_alloc(&data->train, TRAIN_PARTS * PART_RECORDS, err) ||
        !dataset_alloc(&data->test, PART_RECORDS, err))
        return false;
    for (int i = 0; i < PARTS; i++) {
        const Dataset *set = i < TRAIN_PARTS ? &data->train : &data->test;
        size_t at = i < TRAIN_PARTS ? (size_t)i * PART_RECORDS : 0;
        parts[i].images = set->images + at * IMAGE_BYTES;
        parts[i].labels = set->labels + at;
        parts[i].classes = set->classes;
    }
    return data_parallel(part_task, parts, PARTS, err);
}

// The files hold no checksum, and to compute one of 180 MB would take longer than to read them.
static void checksum_add(Data *data, const CifarPart *parts)
{
    for (int i = 0; i < PARTS; i++) {
        data_checksum_samples(data, parts[i].images, (size_t)parts[i].count * IMAGE_BYTES);
        data_checksum_all(data, parts[i].labels, (size_t)parts[i].count * sizeof(int32_t));
    }
}

static bool cifar_read(Data *data, const char *dir, const PartPlace *places, int label_bytes,
                       const char *hint, Error *err)
{
    CifarPart parts[PARTS];
    char paths[PARTS][PATH_MAX];
    int opened = 0;
    for (; opened < PARTS; opened++) {
        const PartPlace *place = &places[opened];
        parts[opened] = (CifarPart){ .path = paths[opened], .hint = hint, .records = place->records,
                                     .first = place->first, .count = PART_RECORDS,
                                     .label_bytes = label_bytes };
        if (!data_path_join(paths[opened], PATH_MAX, dir, place->file, err) ||
            !cifar_part_open(&parts[opened], err))
            break;
    }
    bool good = opened == PARTS && parts_read(data, parts, err);
    if (good)
        checksum_add(data, parts);
    while (opened > 0)
        data_file_close(&parts[--opened].file);
    return good;
}

bool cifar10_read(Data *data, const char *dir, const char *hint, Error *err)
{
    static const PartPlace places[PARTS] = {
        { "data_batch_1.bin", 10000, 0 }, { "data_batch_2.bin", 10000, 0 },
        { "data_batch_3.bin", 10000, 0 }, { "data_batch_4.bin", 10000, 0 },
        { "data_batch_5.bin", 10000, 0 }, { "test_batch.bin", 10000, 0 },
    };
    return cifar_read(data, dir, places, 1, hint, err);
}

bool cifar100_read(Data *data, const char *dir, const char *hint, Error *err)
{
    static const PartPlace places[PARTS] = {
        { "train.bin", 50000, 0 },     { "train.bin", 50000, 10000 }, { "train.bin", 50000, 20000 },
        { "train.bin", 50000, 30000 }, { "train.bin", 50000, 40000 }, { "test.bin", 10000, 0 },
    };
    return cifar_read(data, dir, places, 2, hint, err);
}
