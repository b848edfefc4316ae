// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
// Texts: their tokens, windows and batches against a plain reference.
#include "data/formats.h"
#include "rng.h"
#include "test_device.h"

static bool open_text(Data *data, const char *path, int block, Error *err)
{
    char name[4200];
    DataConfig config = data_defaults();
    snprintf(name, sizeof name, "text:%s", path);
    config.data = name;
    config.block = block;
    return data_open(data, &config, 7, err);
}

TEST(tokens_are_the_bytes_that_occur)
{
    Data data;
    Error err;
    uint8_t bytes[1001];
    for (int i = 0; i < 1001; i++)          // 0 and 255 are bytes like any other
        bytes[i] = (uint8_t[]){ 255, 'b', 0, '\n', 'a' }[philox(1, 2, i).v[0] % 5];
    if (!EXPECT(open_text(&data, test_file("bytes", bytes, sizeof bytes), 8, &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(data.vocabulary, "000a6162ff");
    EXPECT_EQ_STR(data.name, "text");
    EXPECT_EQ_STR(data.samples, "windows of 8 bytes");
    EXPECT_EQ_INT(data.train.classes, 5);
    EXPECT_EQ_INT(data.train.count, 900 / 8 - 1);       // one less: an epoch's windows begin up to 7 bytes later
    EXPECT_EQ_INT(data.test.count, (101 - 1) / 8);      // the last byte is only a label
    EXPECT(strncmp(data.fingerprint, "text, 111 + 12 windows of 8 bytes, checksum ", 44) == 0,
           "%s", data.fingerprint);
    static const uint8_t in_order[] = { 0, '\n', 'a', 'b', 255 };
    int wrong = 0;
    for (int i = 0; i < 1001; i++)
        wrong += in_order[i < 900 ? data.train.inputs[i] : data.test.inputs[i - 900]] != bytes[i];
    EXPECT_EQ_INT(wrong, 0);
    data_close(&data);
}

TEST(the_order_depends_on_the_text)
{
    Data a, b;
    Error err;
    char text[2000];
    memset(text, 'x', sizeof text);
    EXPECT(open_text(&a, test_file("a", text, 2000), 18, &err), "%s", err.text);
    text[1999] = 'y';
    EXPECT(open_text(&b, test_file("b", text, 2000), 18, &err), "%s", err.text);
    EXPECT(a.checksum != b.checksum && data_order(&a, true) != data_order(&b, true), "the same for two texts");
    data_close(&a);
    data_close(&b);
}

enum { TEXT = 5000, BLOCK = 17, ROW = TEXT_KEY + BLOCK, MOST_ROWS = 40 };

// Counts the wrong numbers of a batch. Sample `id` begins at the set's token id * BLOCK + offset.
static int wrong_words(const Data *data, const Dataset *set, const Batch *batch, const int32_t *ids,
                       int64_t epoch, int offset)
{
    static uint32_t rows[MOST_ROWS * ROW];
    static int32_t labels[MOST_ROWS * BLOCK];
    int wrong = 0;
    copy_to_host(device_stream(device), rows, batch->inputs, batch->rows * ROW * sizeof *rows);
    copy_to_host(device_stream(device), labels, batch->labels,
                 batch->rows * BLOCK * sizeof *labels);
    stream_sync(device_stream(device));
    for (int i = 0; i < batch->rows; i++) {
        bool there = i < batch->count;
        const uint8_t *at = set->inputs + (there ? ids[i] * BLOCK + offset : 0);
        Philox key = philox(data->augment.seed, epoch, there ? ids[i] : 0);
        for (int k = 0; k < TEXT_KEY; k++)
            wrong += rows[i * ROW + k] != (there ? key.v[k] : 0);
        for (int k = 0; k < BLOCK; k++) {
            wrong += rows[i * ROW + TEXT_KEY + k] != (there ? at[k] : 0);
            wrong += labels[i * BLOCK + k] != (there ? at[k + 1] : -1);
        }
    }
    return wrong;
}

static void epoch_check(const Data *data, const Dataset *set, bool crop, int rows, int workers,
                        int64_t epoch, int first)
{
    static int32_t ids[TEXT];
    int batches = (set->count + rows - 1) / rows, seen = 0;
    int offset = crop ? text_offset(data->augment.seed, epoch, BLOCK) : 0;
    LoaderConfig config = { { rows, ROW, 1, 1, TYPE_F32 }, crop ? data->augment : data->plain,
                            workers, .fill_last = !crop };
    Loader *loader = loader_new(device, set, &config);
    torch_randperm(epoch, set->count, ids);
    loader_start(loader, ids, set->count, epoch, first);
    for (const Batch *batch; (batch = loader_next(loader)); seen++)
        EXPECT_EQ_INT(wrong_words(data, set, batch, ids + batch->index * rows, epoch, offset), 0);
    EXPECT_EQ_INT(seen, batches - first);
    loader_free(loader);
}

TEST(batches_for_any_number_of_workers)
{
    Data data;
    Error err;
    uint8_t bytes[TEXT];
    bool offsets[BLOCK] = { false };
    for (int i = 0; i < TEXT; i++)
        bytes[i] = (uint8_t)philox(3, 4, i).v[0];
    if (!EXPECT(open_text(&data, test_file("random", bytes, TEXT), BLOCK, &err), "%s", err.text))
        return;
    for (int workers = 0; workers <= 3; workers++) {
        epoch_check(&data, &data.train, true, 1 + 13 * workers, workers, 5 + workers, 0);
        epoch_check(&data, &data.train, true, 32, workers, 1, 3 + workers);
        epoch_check(&data, &data.test, false, 9, workers, 0, 0);
    }
    for (int epoch = 0; epoch < 400; epoch++)
        offsets[text_offset(7, epoch, BLOCK)] = true;
    for (int i = 0; i < BLOCK; i++)
        EXPECT(offsets[i], "no epoch has the offset %d", i);
    data_close(&data);
}

// Every second line of the list is a word of lower-case letters. The other lines must be left out.
TEST(words_are_letters_in_another_order)
{
    enum { WORDS = 500, BYTES = 6 * WORDS };
    Data data = { 0 };
    Error err;
    char list[20 * WORDS] = "", text[BYTES + 2] = "\n";
    static const char *const others[] = { "Aaron", "it's", "\xc3\xa9tude", "", "x1", "two words" };
    for (int i = 0; i < WORDS; i++)
        snprintf(list + strlen(list), 20, "%s\nw%c%c%cq\n", others[i % 6], 'a' + i / 100, 'a' + i / 10 % 10,
                 'a' + i % 10);
    const char *path = test_file("list", list, strlen(list));
    if (!EXPECT(words_read(&data, path, &(DataConfig){ .block = 5 }, &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(data.vocabulary, "0a6162636465666768696a7177");
    int moved = 0, train = BYTES * 9 / 10;
    for (int i = 0; i < BYTES; i++)
        text[1 + i] = "\nabcdefghijqw"[i < train ? data.train.inputs[i] : data.test.inputs[i - train]];
    for (int i = 0; i < WORDS; i++) {
        char word[8];
        snprintf(word, sizeof word, "\nw%c%c%cq", 'a' + i / 100, 'a' + i / 10 % 10, 'a' + i % 10);
        const char *at = strstr(text, word);
        EXPECT(at != NULL, "no word %s", word + 1);
        moved += at != text + 6 * i;
    }
    EXPECT(moved > WORDS * 9 / 10, "only %d words moved", moved);
    data_close(&data);
}

// A text is either refused, or long enough for a test window, and for a training window even after the largest shift.
TEST(the_shortest_texts)
{
    char text[200];
    Data data;
    Error err;
    int opened = 0;
    memset(text, 'x', sizeof text);
    for (int size = 0; size < 200; size++) {
        const char *path = test_file("short", text, size);
        for (int block = 2; block < 40; block++)
            if (open_text(&data, path, block, &err)) {
                int train = size * 9 / 10;
                EXPECT(data.train.count > 0 && data.train.count * block + block - 1 < train && data.test.count > 0
                           && data.test.count * block < size - train, "%d bytes, windows of %d", size, block);
                data_close(&data);
                opened++;
            }
    }
    EXPECT(opened > 1000, "only %d were opened", opened);
}

TEST_MAIN_ON_DEVICE(1, 0)
