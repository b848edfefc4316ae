// folder.h - pictures in folders, as torchvision's ImageFolder expects them:
//
//   DIR/train/CLASS/FILE, DIR/val/CLASS/FILE       or a single level: DIR/CLASS/FILE
//
// Classes are the sorted names of the folders; label 0 is the first. Within a class, the sorted
// files of the folder itself come first, then those of the folders inside it. Names are compared
// byte by byte. This order is ImageFolder's. As in ImageFolder, symbolic links are followed.
//
// Only names that end in .jpg, .jpeg or .png count, in upper or lower case, and files next to the
// class folders do not. Unlike ImageFolder, this skips hidden files and folders, and ImageFolder's
// other types (.bmp, .webp, ...). It is an error if a class has no pictures, there are fewer
// than two classes, val and train have different classes, or only one of val and train exists. In
// the folder of a class, pipes, devices, broken or circular links, and folders that cannot be read
// are errors.
//
// Each file's entry takes about 32 bytes of memory and the bytes of its path below DIR. The 1.28
// million files of ImageNet take about 90 MB.
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

typedef struct FolderFile {
    char *path;             // below DIR: "train/cat/1.jpg"
    int label;
} FolderFile;

typedef struct Folder {
    char *path;             // DIR
    bool sets;              // train/ and val/; else a single level, which the caller splits
    int classes;
    char **class_names;     // (classes)
    int count, train_count; // of files: first those of train, or all of a single level
    int room;               // for files
    FolderFile *files;      // (room)
} Folder;

// On an error it frees everything.
bool folder_open(Folder *folder, const char *path, Error *err);
// Fails if one of files first .. end - 1 is missing or empty.
bool folder_check(const Folder *folder, int first, int end, Error *err);
void folder_close(Folder *folder);

enum { FOLDER_FILE_BYTES = 256 << 20 }; // folder_read refuses a larger file

// Begin with { 0 }; folder_read grows the memory and reuses it.
typedef struct FileBytes {
    uint8_t *bytes;
    size_t size, capacity;
} FileBytes;

// Thread-safe, if each thread has its own `to`. The caller frees to->bytes. Fails if the file
// cannot be read, is too large, or shrinks meanwhile.
bool folder_read(const Folder *folder, int file, FileBytes *to, Error *err);
// Writes "DIR/train/cat/1.jpg" to name, shortened to size.
void folder_name(const Folder *folder, int file, char *name, size_t size);

// The first and the last 8 bytes of a file; zeros if it has fewer than 16.
typedef struct FileEnds {
    uint8_t first[8], last[8];
} FileEnds;
bool folder_read_ends(const Folder *folder, int file, FileEnds *ends, Error *err);
