// folder.c - lists pictures in folders, and reads them.
#include "data/folder.h"
#include "progress.h"
#include "data/files.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const char tree_hint[] = "put pictures in train/CLASS/ and val/CLASS/, or in CLASS/; CIFAR "
                                "must be its binary version, MNIST its four files, gzipped or not";

static bool has_ending(const char *name, const char *ending)
{
    size_t length = strlen(name), n = strlen(ending);
    return length > n && strcasecmp(name + length - n, ending) == 0;
}

static void file_add(Folder *folder, const char *path, int label)
{
    if (folder->count == folder->room) {
        folder->room = folder->room * 3 / 2 + 64;
        folder->files = reallocarray(folder->files, folder->room, sizeof *folder->files);
        CHECK(folder->files, "", "out of memory: no room for the names of %d files", folder->room);
    }
    folder->files[folder->count++] = (FolderFile){ xstrdup(path), label };
}

// An entry's type (DT_REG, ...), or that of a link's target. Most file systems list types with the
// names: then only links need stat. DT_LNK or DT_UNKNOWN: stat failed.
static int entry_type(const char *path, const struct dirent *entry)
{
    struct stat info;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return entry->d_type;
    return stat(path, &info) == 0 ? IFTODT(info.st_mode) : entry->d_type;
}

static bool tree_add(Folder *folder, const char *path, int label, Error *err);

static bool entry_add(Folder *folder, const char *path, const struct dirent *entry, int label,
                      Error *err)
{
    switch (entry_type(path, entry)) {
    case DT_DIR: return tree_add(folder, path, label, err);
    case DT_REG:
        if (has_ending(path, ".jpg") || has_ending(path, ".jpeg") || has_ending(path, ".png"))
            file_add(folder, path + strlen(folder->path) + 1, label);
        return true;
    case DT_LNK:                        // the kernel follows at most 40 links of one path
        return error_set(err, "remove the link", "a link %s: %s", errno == ELOOP
                         ? "that leads to itself" : "whose target cannot be reached", path);
    case DT_UNKNOWN: return error_set(err, "", "%s: %s", path, strerror(errno));
    default: return error_set(err, "remove it", "%s: neither a file nor a folder", path);
    }
}

static bool tree_add(Folder *folder, const char *path, int label, Error *err)
{
    char inside[PATH_MAX];
    PROGRESS_DOING("listing", path);
    DIR *dir = opendir(path);
    bool good = dir || error_set(err, "", "%s: %s", path, strerror(errno));
    for (struct dirent *entry; good && (errno = 0, entry = readdir(dir));) {
        progress_beat();
        if (entry->d_name[0] == '.')
            continue;
        good = snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name) < PATH_MAX
            ? entry_add(folder, inside, entry, label, err)
            : error_set(err, "", "%s/%s: %s", path, entry->d_name, strerror(ENAMETOOLONG));
    }
    good = good && (errno == 0 || error_set(err, "", "%s: %s", path, strerror(errno)));
    if (dir)
        closedir(dir);
    return good;
}

// As sorted(os.walk()): by folder, then by name. So the order is "sub/1.png", "sub-1/1.png",
// "sub/x/1.png".
static int compare_files(const void *file_a, const void *file_b)
{
    const char *a = ((const FolderFile *)file_a)->path, *b = ((const FolderFile *)file_b)->path;
    size_t n = strrchr(a, '/') - a, m = strrchr(b, '/') - b;
    int differ = memcmp(a, b, n < m ? n : m);
    if (differ == 0 && n != m)
        differ = n < m ? -1 : 1;
    return differ ? differ : strcmp(a, b);
}

static bool class_add(Folder *folder, const char *set, const char *class, int label, Error *err)
{
    char root[PATH_MAX];
    snprintf(root, sizeof root, "%s/%s%s", folder->path, set, class);
    const int first = folder->count;
    bool good = tree_add(folder, root, label, err);
    qsort(folder->files + first, folder->count - first, sizeof *folder->files, compare_files);
    return good && (folder->count > first || error_set(err, "each class needs pictures",
                                                       "%s has no .jpg, .jpeg or .png file", root));
}

static int is_visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

// Sets *names, which the caller frees, to the sorted names of the folders in `path`. Returns how
// many they are, or -1. Hidden folders do not count.
static int folders_in(const char *path, char ***names, Error *err)
{
    struct dirent **entries;
    char inside[PATH_MAX];
    PROGRESS_DOING("listing", path);
    int count = 0, found = scandir(path, &entries, is_visible, alphasort);
    if (found < 0) {
        error_set(err, tree_hint, "%s: %s", path, strerror(errno));
        return -1;
    }
    *names = xcalloc(found + 1, sizeof **names);
    for (int i = 0; i < found; i++) {
        snprintf(inside, sizeof inside, "%s/%s", path, entries[i]->d_name);
        if (entry_type(inside, entries[i]) == DT_DIR)
            (*names)[count++] = xstrdup(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return count;
}

static void names_free(char **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

static bool train_add(Folder *folder, const char *set, const char *path, Error *err)
{
    const int classes = folders_in(path, &folder->class_names, err);
    if (classes < 0)
        return false;
    folder->classes = classes;
    if (classes < 2)
        return error_set(err, tree_hint, "%s: %s%s", folder->path,
                         classes ? "there is only one class: " : "this is not a data set",
                         classes ? folder->class_names[0] : "");
    bool good = true;
    for (int i = 0; i < classes && good; i++)
        good = class_add(folder, set, folder->class_names[i], i, err);
    folder->train_count = folder->count;
    return good;
}

// Adds the pictures of val. Fails unless the classes of val are those of train. Both lists are
// sorted, so one loop compares them.
static bool val_add(Folder *folder, const char *path, Error *err)
{
    static const char hint[] = "val needs the same class folders as train";
    char **names = NULL;
    int count = folders_in(path, &names, err);
    bool good = count >= 0;
    for (int i = 0; good && (i < count || i < folder->classes); i++) {
        const char *class = i < folder->classes ? folder->class_names[i] : NULL;
        const char *found = i < count ? names[i] : NULL;
        if (!class || (found && strcmp(found, class) < 0))
            good = error_set(err, hint, "%s/%s: train has no class of this name", path, found);
        else if (!found || strcmp(found, class) > 0)
            good = error_set(err, hint, "%s/%s: no such folder", path, class);
        else
            good = class_add(folder, "val/", class, i, err);
    }
    names_free(names, count);
    return good;
}

static bool sets_add(Folder *folder, Error *err)
{
    char train[PATH_MAX], val[PATH_MAX];
    snprintf(train, sizeof train, "%s/train", folder->path);
    snprintf(val, sizeof val, "%s/val", folder->path);
    bool with_train = !data_file_missing(train), with_val = !data_file_missing(val);
    if (with_train != with_val)
        return error_set(err, tree_hint, "%s: there is %s", folder->path,
                         with_train ? "train but no val" : "val but no train");
    folder->sets = with_train;
    if (!folder->sets)
        return train_add(folder, "", folder->path, err);
    return train_add(folder, "train/", train, err) && val_add(folder, val, err);
}

bool folder_open(Folder *folder, const char *path, Error *err)
{
    *folder = (Folder){ .path = xstrdup(path) };
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        folder->path[n - 1] = '\0';
    if (sets_add(folder, err))
        return true;
    folder_close(folder);
    return false;
}

void folder_close(Folder *folder)
{
    for (int i = 0; i < folder->count; i++)
        free(folder->files[i].path);
    names_free(folder->class_names, folder->classes);
    free(folder->files);
    free(folder->path);
    *folder = (Folder){ 0 };
}

void folder_name(const Folder *folder, int file, char *name, size_t size)
{
    snprintf(name, size, "%s/%s", folder->path, folder->files[file].path);
}

bool folder_check(const Folder *folder, int first, int end, Error *err)
{
    char name[2 * PATH_MAX];
    struct stat info;
    for (int i = first; i < end; i++) {
        folder_name(folder, i, name, sizeof name);
        PROGRESS_DOING("looking for", name);
        if (stat(name, &info) != 0)
            return error_set(err, "", "%s: %s", name, strerror(errno));
        if (info.st_size == 0)
            return error_set(err, "replace or remove the file", "%s: the file is empty", name);
    }
    return true;
}

static bool read_all(int fd, const char *name, uint8_t *to, size_t bytes, Error *err)
{
    for (size_t done = 0; done < bytes;) {
        PROGRESS_DOING("reading", name);
        ssize_t got = read(fd, to + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        CHECK(got >= 0, "", "%s: reading failed: %s", name, strerror(errno));
        if (got == 0)
            return error_set(err, "", "%s: the file became shorter while it was read", name);
        done += got;
    }
    return true;
}

static int file_open(const Folder *folder, int file, char *name, int64_t *size, Error *err)
{
    folder_name(folder, file, name, 2 * PATH_MAX);
    return data_file_descriptor(name, "all pictures must stay readable during a run", size, err);
}

bool folder_read(const Folder *folder, int file, FileBytes *to, Error *err)
{
    char name[2 * PATH_MAX];
    int64_t size;
    int fd = file_open(folder, file, name, &size, err);
    if (fd < 0)
        return false;
    bool good = size <= FOLDER_FILE_BYTES ||
                error_set(err, "make the picture smaller, or remove it",
                          "%s: the file is larger than 256 MiB", name);
    if (good) {
        to->size = size;
        to->bytes = data_memory(to->bytes, &to->capacity, to->size);
        good = read_all(fd, name, to->bytes, to->size, err);
    }
    close(fd);
    return good;
}

bool folder_read_ends(const Folder *folder, int file, FileEnds *ends, Error *err)
{
    char name[2 * PATH_MAX];
    int64_t size;
    int fd = file_open(folder, file, name, &size, err);
    if (fd < 0)
        return false;
    *ends = (FileEnds){ 0 };
    bool good = size < (int64_t)sizeof *ends ||
                (read_all(fd, name, ends->first, sizeof ends->first, err) &&
                 lseek(fd, size - (off_t)sizeof ends->last, SEEK_SET) >= 0 &&
                 read_all(fd, name, ends->last, sizeof ends->last, err));
    close(fd);
    return good;
}
