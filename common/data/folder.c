// folder.c - lists pictures in folders, and reads them.
//
// The tree becomes a list of paths ("train/cat/1.jpg"; folders end in "/"), which is sorted and
// then divided into sets and classes.
#include "data/folder.h"
#include "alive.h"
#include "data/files.h"

#include <errno.h>
#include <fts.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char tree_hint[] = "pictures are in train/CLASS/ and val/CLASS/ or in CLASS/, CIFAR "
                                "in its binary version, MNIST in four files, gzipped or not";

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

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

static bool list_add(Folder *folder, const char *path, Error *err)
{
    size_t bytes = strlen(path) + 1, text = folder->text_size + bytes;
    if (folder->count == INT32_MAX || text > UINT32_MAX)
        return error_set(err, "", "%s: too many files", folder->path);
    if ((size_t)folder->count == folder->capacity) {
        folder->capacity = folder->capacity * 3 / 2 + 64;
        folder->files = resized(folder->files, folder->capacity, sizeof *folder->files);
    }
    if (text > folder->text_capacity) {
        folder->text_capacity = text * 3 / 2;
        folder->text = resized(folder->text, folder->text_capacity, 1);
    }
    memcpy(folder->text + folder->text_size, path, bytes);
    folder->files[folder->count++] = (FolderFile){ .path = (uint32_t)folder->text_size };
    folder->text_size = text;
    return true;
}

// A path in the tree: "train/cat/1.jpg".
static const char *path_of(const Folder *folder, const FolderFile *file)
{
    return folder->text + file->path;
}

// --- a tree of folders ---------------------------------------------------------------------------

static bool is_picture(const char *name)
{
    return has_ending(name, ".jpg") || has_ending(name, ".jpeg") || has_ending(name, ".png");
}

static bool tree_add(Folder *folder, const FTSENT *entry, Error *err)
{
    char with_slash[PATH_MAX];
    const char *path = entry->fts_path;
    const size_t root = strlen(folder->path) + 1;
    alive_beat();
    switch (entry->fts_info) {
    case FTS_D: // to notice a class without files
        snprintf(with_slash, sizeof with_slash, "%s/", path);
        return entry->fts_level == 0 || list_add(folder, with_slash + root, err);
    case FTS_F:
        return entry->fts_level == 0 || !is_picture(path) || list_add(folder, path + root, err);
    case FTS_DP: return true;
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

// --- sets and classes ----------------------------------------------------------------------------

// The length of a path's set: "train/", "val/", or nothing if there is a single level. -1: no set.
static int set_length(const Folder *folder, const char *path)
{
    if (!folder->sets)
        return 0;
    return starts_with(path, "train/") ? 6 : starts_with(path, "val/") ? 4 : -1;
}

// The length of "train/cat" in a path (of "cat", if there is a single level). 0: it is in no class.
static size_t class_end(const Folder *folder, const char *path)
{
    const int set = set_length(folder, path);
    const char *end = set < 0 ? NULL : strchr(path + set, '/');
    return end ? (size_t)(end - path) : 0;
}

static int compare_starts(const char *a, size_t n, const char *b, size_t m)
{
    int differ = memcmp(a, b, n < m ? n : m);
    return differ ? differ : (n > m) - (n < m);
}

// By set and class, then as sorted(os.walk()): by folder, and by name.
static int compare_files(const void *file_a, const void *file_b, void *arg)
{
    const Folder *folder = arg;
    const char *a = path_of(folder, file_a), *b = path_of(folder, file_b);
    const size_t n[] = { class_end(folder, a), (size_t)(strrchr(a, '/') - a), strlen(a) };
    const size_t m[] = { class_end(folder, b), (size_t)(strrchr(b, '/') - b), strlen(b) };
    int differ = 0;
    for (int i = 0; i < 3 && differ == 0; i++)
        differ = compare_starts(a, n[i], b, m[i]);
    return differ;
}

static int compare_names(const void *name, const void *entry)
{
    return strcmp(name, *(char *const *)entry);
}

// The label of a class, or -1. The classes of train come sorted, so a new one gets the next label.
static int label_of(Folder *folder, const char *class, bool train)
{
    const size_t classes = (size_t)folder->classes;
    if (train && (!classes || strcmp(folder->class_names[classes - 1], class) != 0)) {
        folder->class_names =
            resized(folder->class_names, classes + 1, sizeof *folder->class_names);
        folder->class_names[folder->classes++] = xstrdup(class);
    }
    char **found = train ? folder->class_names + folder->classes - 1
                         : bsearch(class, folder->class_names, classes,
                                   sizeof *folder->class_names, compare_names);
    return found ? (int)(found - folder->class_names) : -1;
}

// Labels the sorted files, and removes folders from the list.
static bool files_label(Folder *folder, Error *err)
{
    int count = 0;
    for (int i = 0; i < folder->count; i++) {
        char class[PATH_MAX];
        FolderFile file = folder->files[i];
        const char *path = path_of(folder, &file);
        const int set = set_length(folder, path);
        const bool train = !folder->sets || path[0] == 't';
        snprintf(class, sizeof class, "%.*s", (int)class_end(folder, path) - set, path + set);
        file.label = label_of(folder, class, train);
        if (file.label < 0)
            return error_set(err, "val needs train's class folders",
                             "%s: val/%s: not a class of train", folder->path, class);
        if (path[strlen(path) - 1] == '/')
            continue;
        folder->files[count++] = file;
        folder->train_count += train;
    }
    folder->count = count;
    return true;
}

static bool classes_check(const Folder *folder, Error *err)
{
    bool good = true;
    const int classes = folder->classes;
    int *files = xcalloc(2 * (size_t)classes + 1, sizeof *files); // of each set and class
    if (classes < 2)
        good = error_set(err, tree_hint, "%s: %s%s", folder->path,
                         classes ? "only one class: " : "no data set in this directory",
                         classes ? folder->class_names[0] : "");
    for (int i = 0; i < folder->count; i++)
        files[folder->files[i].label + (i < folder->train_count ? 0 : classes)]++;
    for (int k = 0; k < classes * (folder->sets ? 2 : 1) && good; k++)
        if (files[k] == 0)
            good = error_set(err, "each class needs pictures", "%s: %s%s: no .jpg, .jpeg or .png file",
                             folder->path, !folder->sets ? "" : k < classes ? "train/" : "val/",
                             folder->class_names[k % classes]);
    free(files);
    return good;
}

static bool folder_divide(Folder *folder, Error *err)
{
    bool train = false, val = false;
    for (int i = 0; i < folder->count; i++) {
        train |= starts_with(path_of(folder, &folder->files[i]), "train/");
        val |= starts_with(path_of(folder, &folder->files[i]), "val/");
    }
    if (train != val)
        return error_set(err, tree_hint, "%s: there is %s", folder->path,
                         train ? "train but no val" : "val but no train");
    folder->sets = train;
    int count = 0;
    for (int i = 0; i < folder->count; i++) // those beside the class folders are skipped
        if (class_end(folder, path_of(folder, &folder->files[i])) > 0)
            folder->files[count++] = folder->files[i];
    folder->count = count;
    folder->files = resized(folder->files, (size_t)count, sizeof *folder->files);
    folder->text = resized(folder->text, folder->text_size, 1);
    qsort_r(folder->files, (size_t)count, sizeof *folder->files, compare_files, folder);
    return files_label(folder, err) && classes_check(folder, err);
}

// --- opening and reading -------------------------------------------------------------------------

bool folder_open(Folder *folder, const char *path, Error *err)
{
    *folder = (Folder){ .path = xstrdup(path) };
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        folder->path[n - 1] = '\0';
    if (tree_list(folder, err) && folder_divide(folder, err))
        return true;
    folder_close(folder);
    return false;
}

void folder_close(Folder *folder)
{
    for (int i = 0; i < folder->classes; i++)
        free(folder->class_names[i]);
    free(folder->class_names);
    free(folder->files);
    free(folder->text);
    free(folder->path);
    *folder = (Folder){ 0 };
}

const char *folder_file(const Folder *folder, int file)
{
    return path_of(folder, &folder->files[file]);
}

void folder_name(const Folder *folder, int file, char *name, size_t size)
{
    snprintf(name, size, "%s/%s", folder->path, folder_file(folder, file));
}

static bool read_all(int fd, const char *name, uint8_t *to, size_t bytes, Error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, to + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, "", "%s: read at byte %zu: %s", name, done,
                             got < 0 ? strerror(errno) : "the file is too short");
        done += (size_t)got;
        alive_beat();
    }
    return true;
}

bool folder_read(const Folder *folder, int file, FileBytes *to, Error *err)
{
    char name[2 * PATH_MAX];
    int64_t size;
    folder_name(folder, file, name, sizeof name);
    int fd = data_file_descriptor(name, "files must not change during a run", &size, err);
    if (fd < 0)
        return false;
    bool good = size <= FOLDER_FILE_BYTES ||
                error_set(err, "convert or remove it", "%s: larger than 256 MiB", name);
    if (good) {
        to->size = (size_t)size;
        to->bytes = data_memory(to->bytes, &to->capacity, to->size);
        good = read_all(fd, name, to->bytes, to->size, err);
    }
    close(fd);
    return good;
}
