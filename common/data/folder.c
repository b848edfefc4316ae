// folder.c - lists pictures in folders or in an archive, and reads them.
//
// A tree and an archive both become one list of paths ("train/cat/1.jpg"; folders end in "/"),
// which is sorted and then divided into sets and classes.
#include "data/folder.h"
#include "alive.h"
#include "data/picture.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAR_BLOCK = 512 };

typedef struct FilePlace {
    uint32_t path;          // where it begins in the text
    uint32_t block, bytes;  // block: where the content begins in an archive; bytes: its size
} FilePlace;

static const char tree_hint[] =
    "expected: train/CLASS/FILE and val/CLASS/FILE, or CLASS/FILE with at least two classes";
static const char tar_hint[] =
    "make an uncompressed archive: tar --dereference --hard-dereference -cf FILE.tar DIR";
static const char file_hint[] = "JPEG and PNG files up to 256 MiB are read: convert or remove it";

static bool has_ending(const char *name, const char *ending)
{
    size_t length = strlen(name), n = strlen(ending);
    return length > n && strcasecmp(name + length - n, ending) == 0;
}

// --- the list ------------------------------------------------------------------------------------

static void *resized(void *memory, size_t count, size_t size)
{
    memory = reallocarray(memory, count ? count : 1, size);
    CHECK(memory, "", "out of memory: no room for the names of %zu files", count);
    return memory;
}

static bool list_add(Folder *folder, const char *path, int64_t block, int64_t size, Error *err)
{
    size_t bytes = strlen(path) + 1, text = folder->text_size + bytes;
    if (folder->count == INT32_MAX || text > UINT32_MAX || block > UINT32_MAX)
        return error_set(err, "", "%s: too many files, or too large an archive", folder->path);
    if (folder->count == folder->capacity) {
        folder->capacity = folder->count * 3 / 2 + 64;
        folder->places = resized(folder->places, folder->capacity, sizeof *folder->places);
    }
    if (text > folder->text_capacity) {
        folder->text_capacity = text * 3 / 2;
        folder->text = resized(folder->text, folder->text_capacity, 1);
    }
    memcpy(folder->text + folder->text_size, path, bytes);
    folder->places[folder->count++] =
        (FilePlace){ (uint32_t)folder->text_size, (uint32_t)block,
                     size < UINT32_MAX ? (uint32_t)size : UINT32_MAX };
    folder->text_size = text;
    return true;
}

// A path in the tree, without an archive's outermost folder.
static const char *path_of(const Folder *folder, const FilePlace *place)
{
    return folder->text + place->path + folder->inside;
}

// --- a tree of folders ---------------------------------------------------------------------------

static bool tree_add(Folder *folder, const FTSENT *entry, Error *err)
{
    char with_slash[PATH_MAX];
    const char *path = entry->fts_path;
    const size_t root = strlen(folder->path) + 1;
    const int64_t size = entry->fts_statp->st_size;
    alive_beat();
    switch (entry->fts_info) {
    case FTS_D: // to notice a class without files
        snprintf(with_slash, sizeof with_slash, "%s/", path);
        return strlen(path) < root || list_add(folder, with_slash + root, 0, 0, err);
    case FTS_DP: return true;
    case FTS_F: return entry->fts_level < 2 || list_add(folder, path + root, 0, size, err);
    case FTS_DC: return error_set(err, "remove the link", "%s: symbolic links in a circle", path);
    case FTS_SLNONE: return error_set(err, "remove it", "%s: a broken symbolic link", path);
    case FTS_DEFAULT: return error_set(err, "remove it", "%s: neither a file nor a folder", path);
    default: return error_set(err, "", "%s: %s", path, strerror(entry->fts_errno));
    }
}

// DIR/train and DIR/val if they exist, else all of DIR.
static bool tree_list(Folder *folder, Error *err)
{
    char sets[2][PATH_MAX], *roots[3] = { NULL };
    int count = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(sets[i], PATH_MAX, "%s/%s", folder->path, i ? "val" : "train");
        if (access(sets[i], F_OK) == 0)
            roots[count++] = sets[i];
    }
    if (count == 0)
        roots[0] = folder->path;
    FTS *tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    if (!tree)
        return error_set(err, "", "%s: fts_open: %s", folder->path, strerror(errno));
    bool good = true;
    for (FTSENT *entry; good && (entry = fts_read(tree));) {
        if (entry->fts_level > 0 && entry->fts_name[0] == '.')
            fts_set(tree, entry, FTS_SKIP);
        else
            good = tree_add(folder, entry, err);
    }
    fts_close(tree);
    return good;
}

// --- an archive ----------------------------------------------------------------------------------
// Blocks of 512 bytes: a header, the file's bytes, the next header. A name that is too long for the
// header comes before it, as a file of type L (GNU) or x (pax, "27 path=train/cat/1.jpg\n").

typedef struct TarEntry {
    char path[PATH_MAX];    // empty: not known
    int64_t size;           // -1: not known
    char type;
} TarEntry;

static const TarEntry tar_unknown = { .size = -1 };

static bool read_at(int fd, const char *name, int64_t offset, void *to, size_t bytes, Error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)to + done, bytes - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, "", "%s: read: %s", name,
                             got < 0 ? strerror(errno) : "the file became shorter");
        done += (size_t)got;
        alive_beat();
    }
    return true;
}

static int64_t tar_number(const uint8_t *field, int bytes)
{
    uint64_t value = 0;
    bool binary = field[0] & 0x80; // too large for octal digits
    for (int i = binary ? bytes - 8 : 0; i < bytes; i++)
        if (binary)
            value = value << 8 | field[i];
        else if (field[i] >= '0' && field[i] <= '7')
            value = value * 8 + field[i] - '0';
    return (int64_t)value;
}

static bool tar_sum_is_right(const uint8_t *header)
{
    int sum = 8 * ' ';
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += i < 148 || i >= 156 ? header[i] : 0;
    return sum == tar_number(header + 148, 8);
}

static void tar_read_header(TarEntry *entry, const uint8_t *header)
{
    const char *text = (const char *)header;
    bool prefixed = memcmp(text + 257, "ustar", 6) == 0 && text[345];
    entry->type = text[156] ? text[156] : '0';
    entry->size = tar_number(header + 124, 12);
    snprintf(entry->path, sizeof entry->path, "%.*s%s%.100s", prefixed ? 155 : 0, text + 345,
             prefixed ? "/" : "", text);
}

// Records "LENGTH KEY=VALUE\n".
static void pax_read(TarEntry *known, char *text, size_t size)
{
    for (char *end = text + size, *key; text < end;) {
        long length = strtol(text, &key, 10);
        if (key == text || *key != ' ' || length <= key - text || length > end - text)
            return;
        text += length;
        text[-1] = '\0';
        if (strncmp(key, " path=", 6) == 0)
            snprintf(known->path, sizeof known->path, "%s", key + 6);
        else if (strncmp(key, " size=", 6) == 0)
            known->size = atoll(key + 6);
    }
}

// Adds a file or a folder. Entries of other types describe the entry after them.
static bool tar_take(Folder *folder, const TarEntry *entry, int64_t at, TarEntry *known, Error *err)
{
    char text[PATH_MAX + 100] = "";
    const char *path = entry->path;
    if (strchr("KLgx", entry->type)) {
        if (entry->size >= (int64_t)sizeof text)
            return error_set(err, "", "%s: byte %lld: the name is too long", folder->path,
                             (long long)at);
        if (!read_at(folder->tar, folder->path, at, text, (size_t)entry->size, err))
            return false;
        if (entry->type == 'x')
            pax_read(known, text, (size_t)entry->size);
        else if (entry->type == 'L')
            memcpy(known->path, text, sizeof known->path - 1);
        return true;
    }
    *known = tar_unknown;
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    if (path[0] == '.' || strstr(path, "/.") || !path[0])
        return true; // hidden
    if (!strchr("057", entry->type))
        return error_set(err, tar_hint, "%s: %s: neither a file nor a folder", folder->path, path);
    return list_add(folder, path, at / TAR_BLOCK, entry->size, err);
}

static bool tar_list_entries(Folder *folder, int64_t size, Error *err)
{
    TarEntry entry, known = tar_unknown;
    uint8_t header[TAR_BLOCK];
    for (int64_t at = 0; at == 0 || at + TAR_BLOCK <= size;) {
        if (size >= TAR_BLOCK && !read_at(folder->tar, folder->path, at, header, TAR_BLOCK, err))
            return false;
        if (!header[0] && at > 0)
            return true; // blocks of zeros end it
        if (size < TAR_BLOCK || !tar_sum_is_right(header))
            return error_set(err, tar_hint, "%s: byte %lld: not a file header", folder->path,
                             (long long)at);
        at += TAR_BLOCK;
        tar_read_header(&entry, header);
        if (!strchr("KLgx", entry.type) && known.path[0])
            memcpy(entry.path, known.path, sizeof entry.path);
        if (!strchr("KLgx", entry.type) && known.size >= 0)
            entry.size = known.size;
        if (entry.size < 0 || entry.size > size - at)
            return error_set(err, tar_hint, "%s: truncated in %.200s", folder->path, entry.path);
        if (!tar_take(folder, &entry, at, &known, err))
            return false;
        at += (entry.size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    }
    return true;
}

// Are all files in one folder, such as "pets/"?
static void tar_find_inside(Folder *folder)
{
    const char *first = folder->count ? path_of(folder, &folder->places[0]) : "train/";
    size_t length = strcspn(first, "/") + 1;
    for (size_t i = 0; i < folder->count; i++)
        if (strncmp(path_of(folder, &folder->places[i]), first, length) != 0 || !first[length - 1])
            return;
    if (strncmp(first, "train/", 6) != 0 && strncmp(first, "val/", 4) != 0)
        folder->inside = length;
}

static int regular_open(const char *path, const char *hint, int64_t *size, Error *err)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *size = info.st_size;
        return fd;
    }
    error_set(err, hint, "%s: %s", path, fd < 0 ? strerror(errno) : "not a regular file");
    if (fd >= 0)
        close(fd);
    return -1;
}

static bool tar_list(Folder *folder, Error *err)
{
    int64_t size;
    folder->tar = regular_open(folder->path, tar_hint, &size, err);
    if (folder->tar < 0)
        return false;
    posix_fadvise(folder->tar, 0, 0, POSIX_FADV_RANDOM);
    if (!tar_list_entries(folder, size, err))
        return false;
    tar_find_inside(folder);
    return true;
}

// --- sorting -------------------------------------------------------------------------------------

typedef struct Order {
    const Folder *folder;
    int depth;              // 2: SET/CLASS/FILE, 1: CLASS/FILE
} Order;

static int compare_parts(const char *a, size_t n, const char *b, size_t m)
{
    int differ = memcmp(a, b, n < m ? n : m);
    return differ ? differ : (n > m) - (n < m);
}

// By set, class, then as os.walk sorts: by folder and by name.
static int compare_places(const void *place_a, const void *place_b, void *arg)
{
    const Order *order = arg;
    const char *a = path_of(order->folder, place_a), *b = path_of(order->folder, place_b);
    for (int i = 0; i < order->depth; i++) {
        size_t n = strcspn(a, "/") + 1, m = strcspn(b, "/") + 1;
        int differ = compare_parts(a, n - 1, b, m - 1);
        if (differ)
            return differ;
        a += n;
        b += m;
    }
    const char *end_a = strrchr(a, '/'), *end_b = strrchr(b, '/');
    end_a = end_a ? end_a : a;
    end_b = end_b ? end_b : b;
    int differ = compare_parts(a, (size_t)(end_a - a), b, (size_t)(end_b - b));
    return differ ? differ : strcmp(end_a, end_b);
}

// Sorts the paths that are deep enough and drops the others.
static void folder_sort(Folder *folder, int depth)
{
    size_t count = 0;
    for (size_t i = 0; i < folder->count; i++) {
        const char *path = path_of(folder, &folder->places[i]);
        int slashes = 0;
        for (; slashes < depth && (path = strchr(path, '/')); path++)
            slashes++;
        if (slashes == depth)
            folder->places[count++] = folder->places[i];
    }
    folder->count = count;
    qsort_r(folder->places, count, sizeof *folder->places, compare_places,
            &(Order){ folder, depth });
}

// --- sets and classes ----------------------------------------------------------------------------

// The label of the next class, given the previous label. Keeps the names of train's classes.
static bool class_begin(Folder *folder, const FileList *list, const char *name, size_t length,
                        int *label, Error *err)
{
    char class[PATH_MAX];
    snprintf(class, sizeof class, "%.*s", (int)length, name);
    ++*label;
    if (list == &folder->train) {
        folder->class_names =
            resized(folder->class_names, (size_t)*label + 1, sizeof *folder->class_names);
        folder->class_names[folder->classes++] = xstrdup(class);
        return true;
    }
    while (*label < folder->classes && strcmp(folder->class_names[*label], class) < 0)
        ++*label;
    return (*label < folder->classes && strcmp(folder->class_names[*label], class) == 0) ||
           error_set(err, "val needs train's class folders", "%s: val/%s: not a class of train",
                     folder->path, class);
}

static bool classes_check(const Folder *folder, const FileList *list, Error *err)
{
    int file = 0;
    for (int label = 0; label < folder->classes; label++) {
        if (file == list->count || list->labels[file] != label)
            return error_set(err, "each class needs pictures", "%s: %s%s: no files in this class",
                             folder->path, list->set, folder->class_names[label]);
        while (file < list->count && list->labels[file] == label)
            file++;
    }
    return true;
}

// Takes the files of a set from the sorted places. They move to the front, after the previous set.
static bool set_fill(Folder *folder, FileList *list, size_t *used, Error *err)
{
    int label = -1;
    list->places = folder->places + *used;
    list->labels = folder->labels + *used;
    list->paths = folder->text + folder->inside;
    for (size_t i = *used; i < folder->count; i++) {
        const FilePlace place = folder->places[i];
        const char *name = path_of(folder, &place);
        const char *class = label < 0 ? "" : folder->class_names[label];
        if (strncmp(name, list->set, strlen(list->set)) != 0)
            continue;
        name += strlen(list->set);
        size_t length = strcspn(name, "/");
        if ((strlen(class) != length || memcmp(class, name, length) != 0) &&
            !class_begin(folder, list, name, length, &label, err))
            return false;
        if (name[strlen(name) - 1] == '/')
            continue;
        folder->labels[*used] = label;
        folder->places[(*used)++] = place;
        list->count++;
    }
    return classes_check(folder, list, err);
}

// Opens every file with an unusual size or name and checks that it is a picture.
static bool files_check(const Folder *folder, const FileList *list, Error *err)
{
    char name[sizeof err->text / 2];
    for (int i = 0; i < list->count; i++) {
        const char *file = folder_file(list, i);
        uint32_t bytes = list->places[i].bytes;
        if (bytes > 0 && bytes <= FOLDER_FILE_BYTES &&
            (has_ending(file, ".jpg") || has_ending(file, ".jpeg") || has_ending(file, ".png")))
            continue;
        FileBytes content = { 0 };
        bool good = folder_read(folder, list, i, &content, err);
        bool picture = good && picture_recognised(content.bytes, content.size);
        free(content.bytes);
        folder_name(folder, list, i, name, sizeof name);
        if (good && !picture)
            error_set(err, file_hint, "%s: %s", name,
                      bytes ? "neither a JPEG nor a PNG file" : "an empty file");
        if (!picture)
            return false;
    }
    return true;
}

static bool folder_divide(Folder *folder, Error *err)
{
    bool train = false, val = false;
    for (size_t i = 0; i < folder->count; i++) {
        train |= strncmp(path_of(folder, &folder->places[i]), "train/", 6) == 0;
        val |= strncmp(path_of(folder, &folder->places[i]), "val/", 4) == 0;
    }
    if (train != val)
        return error_set(err, tree_hint, "%s: there is %s", folder->path,
                         train ? "train but no val" : "val but no train");
    folder->places = resized(folder->places, folder->count, sizeof *folder->places);
    folder->text = resized(folder->text, folder->text_size, 1);
    folder_sort(folder, train ? 2 : 1);
    folder->train.set = train ? "train/" : "";
    folder->val.set = "val/";
    folder->labels = resized(NULL, folder->count, sizeof *folder->labels);
    size_t used = 0;
    if (!set_fill(folder, &folder->train, &used, err))
        return false;
    if (folder->classes < 2)
        return error_set(err, tree_hint, "%s: %s%s", folder->path,
                         folder->classes ? "only one class: " : "no class folders",
                         folder->classes ? folder->class_names[0] : "");
    return (!val || set_fill(folder, &folder->val, &used, err)) &&
           files_check(folder, &folder->train, err) && files_check(folder, &folder->val, err);
}

// --- opening and reading -------------------------------------------------------------------------

bool folder_recognised(const char *path)
{
    char *roots[] = { (char *)path, NULL };
    FTS *tree = has_ending(path, ".tar") ? NULL : fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    bool found = !tree;
    if (tree && fts_read(tree))
        for (FTSENT *entry = fts_children(tree, 0); entry; entry = entry->fts_link)
            found |= entry->fts_info == FTS_D && entry->fts_name[0] != '.';
    if (tree)
        fts_close(tree);
    return found;
}

bool folder_open(Folder *folder, const char *path, Error *err)
{
    *folder = (Folder){ .path = xstrdup(path), .tar = -1 };
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        folder->path[n - 1] = '\0';
    bool listed = has_ending(path, ".tar") ? tar_list(folder, err) : tree_list(folder, err);
    if (listed && folder_divide(folder, err))
        return true;
    folder_close(folder);
    return false;
}

void folder_close(Folder *folder)
{
    if (folder->tar >= 0)
        close(folder->tar);
    for (int i = 0; i < folder->classes; i++)
        free(folder->class_names[i]);
    free(folder->class_names);
    free(folder->labels);
    free(folder->places);
    free(folder->text);
    free(folder->path);
    *folder = (Folder){ .tar = -1 };
}

const char *folder_file(const FileList *files, int index)
{
    return files->paths + files->places[index].path;
}

void folder_name(const Folder *folder, const FileList *files, int index, char *name, size_t size)
{
    snprintf(name, size, "%s%s%s", folder->path, folder->tar < 0 ? "/" : ": ",
             folder->text + files->places[index].path);
}

static bool bytes_fit(FileBytes *to, const char *name, int64_t size, Error *err)
{
    to->size = (size_t)size;
    if (size > FOLDER_FILE_BYTES)
        return error_set(err, file_hint, "%s: larger than 256 MiB", name);
    if (to->size < to->capacity)
        return true;
    free(to->bytes);
    to->bytes = malloc(to->size + 1);
    to->capacity = to->bytes ? to->size + 1 : 0;
    return to->bytes || error_set(err, "", "%s: out of memory: %zu bytes", name, to->size);
}

bool folder_read(const Folder *folder, const FileList *files, int index, FileBytes *to, Error *err)
{
    char name[2 * PATH_MAX];
    folder_name(folder, files, index, name, sizeof name);
    if (folder->tar >= 0) {
        const FilePlace *place = &files->places[index];
        int64_t offset = (int64_t)place->block * TAR_BLOCK;
        return bytes_fit(to, name, place->bytes, err) &&
               read_at(folder->tar, name, offset, to->bytes, to->size, err);
    }
    int64_t size;
    int fd = regular_open(name, "files must not change during a run", &size, err);
    if (fd < 0)
        return false;
    bool good = bytes_fit(to, name, size, err) && read_at(fd, name, 0, to->bytes, to->size, err);
    close(fd);
    return good;
}
