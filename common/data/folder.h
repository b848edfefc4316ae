// folder.h - pictures in folders, as torchvision's ImageFolder expects them:
//
//   DIR/train/CLASS/FILE, DIR/val/CLASS/FILE       or a single level: DIR/CLASS/FILE
//   FILE.tar                                       one of these, not compressed
//
// Classes are the sorted names of the folders; label 0 is the first. Within a class, the sorted
// files of the folder itself come first, then those of the folders inside it. Names are compared
// byte by byte. Symbolic links are followed. This is ImageFolder's order.
//
// Hidden files and folders (.DS_Store, .ipynb_checkpoints) and files next to the class folders are
// skipped. Every other file must be a picture: one that is not called .jpg, .jpeg or .png is
// opened, and must begin like a JPEG or a PNG. (ImageFolder skips files without such an ending.)
// These are errors before training, by name: files that are no pictures, empty files, pipes and
// devices, broken and circular links, folders that cannot be read, a class without files, a
// single class, classes of val that differ from those of train, train without val.
//
// An archive may have one outermost folder (tar cf pets.tar pets). Its headers are read once; links
// in it are refused: write it with tar --dereference --hard-dereference. 2 TiB at most.
//
// Memory: each file takes its path in the tree and 17 bytes. ImageNet, 1.28 million files: 68 MB.
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

// The files of train/, of val/, or of a single level.
typedef struct FileList {
    const char *set;        // "train/", "val/" or ""
    int count;
    int32_t *labels;        // (count)
    const struct FilePlace *places; // (count)
    const char *paths;      // the text of the paths
} FileList;

typedef struct Folder {
    char *path;             // DIR or FILE.tar
    int tar;                // the archive's descriptor, or -1
    int classes;
    char **class_names;     // (classes)
    FileList train, val;    // a single level: val.count is 0, and the caller splits train

    char *text;             // all paths, each ends with a zero
    size_t text_size, text_capacity;
    size_t inside;          // archive: bytes of each path that name the outermost folder
    struct FilePlace *places;
    size_t count, capacity; // of places
    int32_t *labels;
} Folder;

// Is `path` a set of pictures? It is if it is called .tar, or is a folder with folders in it.
bool folder_recognised(const char *path);
// Lists all files. On an error it frees everything.
bool folder_open(Folder *folder, const char *path, Error *err);
void folder_close(Folder *folder);

enum { FOLDER_FILE_BYTES = 256 << 20 }; // a larger file is refused

// The bytes of a file. Begin with { 0 }; folder_read grows the memory and reuses it.
typedef struct FileBytes {
    uint8_t *bytes;
    size_t size, capacity;
} FileBytes;

// Thread-safe, if each thread has its own `to`. The caller frees to->bytes.
bool folder_read(const Folder *folder, const FileList *files, int index, FileBytes *to, Error *err);
// For messages: "DIR/train/cat/1.jpg", or "pets.tar: pets/train/cat/1.jpg"; shortened to size.
void folder_name(const Folder *folder, const FileList *files, int index, char *name, size_t size);
// What identifies a file wherever the folder is: "train/cat/1.jpg".
const char *folder_file(const FileList *files, int index);
